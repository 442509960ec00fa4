"""The file in which a process says where it listens, for launchers that let it choose a port."""

from __future__ import annotations

import os
from pathlib import Path

from snapline.dataflow.errors import SnaplineError


def write_address(target: Path, address: str) -> None:
    """`host:port` and a line end; the file is there at once with all of it. Raises SnaplineError."""
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        partial.write_text(f"{address}\n")
        partial.replace(target)
    except OSError as error:
        raise SnaplineError(
            f"--address-file: cannot write {target}: {(error.strerror or str(error)).lower()}"
        ) from error
