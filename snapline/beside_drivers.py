"""Coordinators that run beside the drivers of this user on this machine, so that `snapline list` finds their jobs.

A driver announces its coordinator's address and token in a file that belongs to its user alone, and takes it back at
the end. What a driver that was killed has left is removed by whoever looks next. A directory or file of somebody else
is not believed.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_VARIABLE = "SNAPLINE_RUNTIME_DIR"
"""Where announcements lie; else `XDG_RUNTIME_DIR`, else the directory for temporary files."""


@dataclass(frozen=True, slots=True)
class CoordinatorBeside:
    """One coordinator beside a driver."""

    address: str
    token: str
    pid: int
    """The process of the driver."""


def announcements() -> Path:
    """The directory of this user's announcements, which may not be there."""
    given = os.environ.get(DIRECTORY_VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"snapline-{os.getuid()}"


def announce(address: str, token: str) -> Callable[[], None]:
    """Let commands of this user find the coordinator. Returns what takes it back. Where nothing can be written, nothing
    is announced."""
    directory = announcements()
    file = directory / f"{os.getpid()}-{address.rpartition(':')[2]}.json"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(directory):
            return lambda: None
        descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as written:
            json.dump({"address": address, "token": token, "pid": os.getpid()}, written)
    except OSError:
        return lambda: None
    return lambda: file.unlink(missing_ok=True)


def running() -> list[CoordinatorBeside]:
    """Those whose drivers live. What was left behind is removed."""
    directory = announcements()
    found: list[CoordinatorBeside] = []
    with suppress(OSError):
        if not _is_ours(directory):
            return []
        for file in sorted(directory.glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if not _is_ours(file):
                    continue
                said = json.loads(file.read_text())
                one = CoordinatorBeside(str(said["address"]), str(said["token"]), int(said["pid"]))
                if _lives(one.pid):
                    found.append(one)
                else:
                    file.unlink(missing_ok=True)
    return found


def _is_ours(path: Path) -> bool:
    """Whether it belongs to this user, and nobody else may write or read it."""
    found = path.lstat()
    return found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o077


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
