"""A certificate authority of a test, and certificates that it signs, as files; made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Authority:
    """One authority with the certificates of one cluster, in one directory."""

    def __init__(self, directory: Path, names: str = "IP:127.0.0.1") -> None:
        """`names`: who the certificate is for, as openssl spells it."""
        self.directory = directory
        new_key = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=snapline"]
        (directory / "names").write_text(f"subjectAltName={names}\n")
        for command in (
            [*new_key, "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"],
            [*new_key, "-keyout", "node.key", "-out", "node.csr"],
            ["openssl", "x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days",
             "2", "-extfile", "names", "-out", "node.pem"],
        ):  # fmt: skip
            subprocess.run(command, cwd=directory, check=True, capture_output=True)

    @property
    def settings(self) -> dict[str, str]:
        """TLS with them."""
        return {
            "security.ssl.ca-file": str(self.directory / "ca.pem"),
            "security.ssl.certificate-file": str(self.directory / "node.pem"),
            "security.ssl.key-file": str(self.directory / "node.key"),
        }


def why_not() -> str:
    """Why there can be no certificates here; empty: there can."""
    return "" if shutil.which("openssl") else "openssl is not installed: certificates cannot be made"
