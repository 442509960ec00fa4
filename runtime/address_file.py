"""The file in which a process says where it listens, for launchers that let it choose a port."""

from __future__ import annotations

import secrets
from pathlib import Path

from snapline.dataflow.errors import SnaplineError


def write_address(target: Path, address: str) -> None:
    """`host:port` and a line end; the file is there at once with all of it. Raises SnaplineError."""
    partial = target.with_name(f"{target.name}.{secrets.token_hex(8)}")  # nobody can have put a link there
    try:
        with partial.open("x") as file:
            file.write(f"{address}\n")
        partial.replace(target)
    except OSError as error:
        raise SnaplineError(
            f"--address-file: cannot write {target}: {(error.strerror or str(error)).lower()}"
        ) from error
