"""Snapline as a user receives it: source archive, wheel, and a virtualenv of its own in which nothing of the repository
is."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Packages:
    """What was built: from the tree, and from the archive that was built from the tree."""

    archive: Path
    wheel: Path
    wheel_of_archive: Path


def build(directory: Path) -> Packages:
    """Build them without network. Raises CalledProcessError."""
    _hatchling(ROOT, directory, "sdist", "wheel")
    (archive,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    with tarfile.open(archive) as opened:
        opened.extractall(directory / "unpacked", filter="data")
    (source,) = (directory / "unpacked").iterdir()
    _hatchling(source, directory / "again", "wheel")
    (again,) = (directory / "again").glob("*.whl")
    return Packages(archive, wheel, again)


def _hatchling(source: Path, output: Path, *targets: str) -> None:
    wanted = [part for target in targets for part in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *wanted, "-d", output], cwd=source, check=True, capture_output=True
    )


def virtualenv(directory: Path) -> Path:
    """Make one that has the dependencies of this Python, and no Snapline; returns its Python. The dependencies'
    directory is on its path only, so that nothing that lies in it (an editable install) adds anything else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    """Install without network and without dependencies, which are there. Raises CalledProcessError."""
    options = (
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--no-compile",
    )
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, *what], check=True)
