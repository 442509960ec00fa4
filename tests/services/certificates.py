"""A certificate authority of a test, and certificates that it signs, as files; made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from snapline.dataflow.config import Configuration


class Authority:
    """One authority with the certificates of one cluster, in one directory."""

    def __init__(self, directory: Path, names: str = "IP:127.0.0.1") -> None:
        """`names`: who the certificate is for, as openssl spells it."""
        self.directory = directory
        new_key = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=snapline"]
        (directory / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
        for command in (
            [*new_key, "-x509", "-addext", "keyUsage=critical,keyCertSign", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"],
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


class LiveFiles:
    """Where a process finds its certificates and its token, which are changed under it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authorities = [Authority(_made(directory / name)) for name in ("first", "second")]
        self.live = _made(directory / "live")
        self.show(self.authorities[0], self.authorities[:1])
        self.say("old")

    def show(self, authority: Authority, trusted: list[Authority]) -> None:
        """The certificate of one authority, and trust in these."""
        together = "".join((each.directory / "ca.pem").read_text() for each in trusted)
        (self.live / "ca.pem").write_text(together)
        for name in ("node.pem", "node.key"):
            shutil.copy(authority.directory / name, self.live / f".{name}")
            (self.live / f".{name}").replace(self.live / name)

    def say(self, *tokens: str) -> None:
        """These tokens, the one that is shown first."""
        (self.live / "token").write_text("\n".join(tokens))

    @property
    def settings(self) -> dict[str, str]:
        """Of every process here."""
        return {
            "security.auth.file": str(self.live / "token"),
            "security.ssl.ca-file": str(self.live / "ca.pem"),
            "security.ssl.certificate-file": str(self.live / "node.pem"),
            "security.ssl.key-file": str(self.live / "node.key"),
        }

    @property
    def configuration(self) -> Configuration:
        """The same, read."""
        return Configuration(self.settings)

    def change(self, step: int) -> None:
        """The three steps of docs/security.md: trust and accept the new, show the new, forget the old."""
        first, second = self.authorities
        shown, trusted, tokens = (
            (first, [first, second], ["old", "new"]),
            (second, [first, second], ["new", "old"]),
            (second, [second], ["new"]),
        )[step]
        self.show(shown, trusted)
        self.say(*tokens)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def why_not() -> str:
    """Why there can be no certificates here; empty: there can."""
    return "" if shutil.which("openssl") else "openssl is not installed: certificates cannot be made"
