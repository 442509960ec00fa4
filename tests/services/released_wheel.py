"""The wheel of an earlier commit of this repository, unpacked, for processes of the version before.

    released = build_wheel("d416987", tmp_path)
    environment = {"PYTHONPATH": released.python_path}

It is built by the build backend that is installed, from what git has of that commit, without a network. `why_not` says
what is missing: a source archive has no history, and a shallow clone not all of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "d416987"
"""The commit whose processes those of now have to work with: until there is a release, one of the day before."""


@dataclass(frozen=True)
class ReleasedWheel:
    """Where an earlier version lies."""

    directory: Path

    @property
    def python_path(self) -> str:
        """`PYTHONPATH` of a process of that version: the wheel comes first, then the tests' own modules."""
        return os.pathsep.join((str(self.directory), str(ROOT)))


def why_not(commit: str = BEFORE) -> str:
    """Why the wheel cannot be built here; empty: it can."""
    if shutil.which("git") is None:
        return "no git here"
    done = subprocess.run(["git", "-C", str(ROOT), "cat-file", "-e", commit], capture_output=True, check=False)
    return f"the history has no {commit}: fetch all of it" if done.returncode else ""


def build_wheel(commit: str, directory: Path) -> ReleasedWheel:
    """Build the wheel of a commit, and unpack it below the directory."""
    source, archive, wheels, unpacked = (directory / name for name in ("source", "source.tar", "wheels", "unpacked"))
    subprocess.run(["git", "-C", str(ROOT), "archive", "-o", str(archive), commit], check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(source, filter="tar")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(unpacked)
    return ReleasedWheel(unpacked)
