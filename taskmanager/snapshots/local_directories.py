"""The directories in which the TaskManagers of one machine keep copies of snapshot files.

Below each root there is one directory per TaskManager, `tm-<resource id>/<job>/<path of the file>`, with a lock file
that its owner holds as long as it lives: the operating system lets go of it however the process ends. Whose lock can be
taken is dead; who starts takes over everything that the dead have left, so nothing stays behind on a machine that is in
use. All TaskManagers of the machine may read all copies, because names of files are never used twice and copies prove
themselves; only the owner writes and deletes. Directories of other users are not looked at. Mirrors Flink's
LocalRecoveryDirectoryProviderImpl and the working directory of FLIP-201.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapline.dataflow.ids import JobID, ResourceID
from snapline.runtime.storage.storage_port import Buffer

LOCK = "lock"
"""In each directory; and in each root, held while directories change hands."""
OURS = "tm-"
TEMPORARY = ".tmp"
ROOT_LOCK_SECONDS = 2.0
"""How long to wait for the lock of a root; then there is no local recovery here."""
ROOT_LOCK_POLL_SECONDS = 0.01


LOOKS = 2
"""So often a copy is looked for: who takes over the directory of a dead TaskManager moves one file after the other, and
the one that is wanted may have gone from where was not yet looked to where it already was."""


@dataclass(slots=True)
class DiskFile:
    """A file that may go, or change hands, at any time (LocalFile)."""

    path: Path
    size: int
    find_again: Callable[[], DiskFile | None]

    def read(self, offset: int, size: int) -> bytes:
        """Fewer bytes where the file ends. Raises OSError."""
        try:
            return self._read(offset, size)
        except FileNotFoundError:
            moved = self.find_again()
            if moved is None:
                raise
        self.path = moved.path
        return self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        data = bytearray()
        with self.path.open("rb", buffering=0) as file:
            file.seek(offset)
            while len(data) < size and (part := file.read(size - len(data))):
                if not data and len(part) == size:
                    return part
                data += part
        return bytes(data)


class LocalDirectories:
    """What one TaskManager has of its machine's disks (LocalCopies)."""

    def __init__(self, roots: Sequence[str], resource_id: ResourceID) -> None:
        """Takes a directory below each root, and over what the dead have left there. Raises OSError."""
        name = OURS + re.sub(r"[^A-Za-z0-9_.-]", "-", resource_id)
        self._roots = [Path(root).expanduser().absolute() for root in roots]
        self._own: list[Path] = []
        self._locks: list[int] = []
        try:
            for root in self._roots:
                self._take(root, name)
        except OSError:
            self._let_go()
            raise

    def inherited(self) -> tuple[tuple[JobID, str], ...]:
        """(job, path) of all copies that were here at the beginning."""
        return tuple(
            (JobID(job.name), file.relative_to(job).as_posix())
            for own in self._own
            for job in sorted(own.iterdir())
            if job.is_dir()
            for file in sorted(job.rglob("*"))
            if file.is_file()
        )

    def write(self, job_id: JobID, path: str, parts: Sequence[Buffer]) -> None:
        """Keep a copy; it is there whole or not at all. Raises OSError."""
        own = self._own[zlib.crc32(path.encode()) % len(self._own)]
        target = own / job_id / path
        temporary = target.with_name(target.name + TEMPORARY)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb", buffering=0) as file:
                for part in parts:
                    view = memoryview(part).cast("B")
                    while view.nbytes:
                        view = view[file.write(view) :]
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def find(self, job_id: JobID, path: str) -> DiskFile | None:
        """The copy, whoever on this machine has it."""
        for _ in range(LOOKS):
            for directory in (*self._own, *self._others()):
                with contextlib.suppress(OSError):
                    found = directory / job_id / path
                    return DiskFile(found, found.stat().st_size, lambda: self.find(job_id, path))
        return None

    def delete(self, job_id: JobID, path: str) -> None:
        """Delete the local copy at this path, if it is one of this TaskManager's."""
        for own in self._own:
            with contextlib.suppress(OSError):
                (own / job_id / path).unlink(missing_ok=True)

    def delete_job(self, job_id: JobID) -> None:
        """All copies of the job that are ours."""
        for own in self._own:
            shutil.rmtree(own / job_id, ignore_errors=True)

    def close(self, *, keep: bool) -> None:
        """`keep`: for who comes after. Nobody writes any more."""
        if not keep:
            for own in self._own:
                shutil.rmtree(own, ignore_errors=True)
        self._let_go()

    def _take(self, root: Path, name: str) -> None:
        for directory in (root.parent, root):  # who may exchange directories, or a link, there could make up state
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not {directory.stat().st_uid, directory.lstat().st_uid} <= {os.getuid(), 0}:
                raise PermissionError(f"{directory} belongs to another user; set taskmanager.state.local.root-dirs")
        with _locked(root / LOCK):
            own = root / name
            own.mkdir(mode=0o700, exist_ok=True)
            lock = _try_lock(own / LOCK)
            if lock is None:
                raise BlockingIOError(f"another TaskManager uses {own}")
            self._own.append(own)
            self._locks.append(lock)
            for other in _directories(root):
                if other != own and (dead := _try_lock(other / LOCK)) is not None:
                    _move(other, own)
                    shutil.rmtree(other, ignore_errors=True)
                    os.close(dead)
            for unfinished in own.rglob(f"*{TEMPORARY}"):
                unfinished.unlink(missing_ok=True)

    def _others(self) -> Iterator[Path]:
        for root in self._roots:
            with contextlib.suppress(OSError):
                yield from (directory for directory in _directories(root) if directory not in self._own)

    def _let_go(self) -> None:
        for lock in self._locks:
            os.close(lock)
        self._own, self._locks = [], []


def default_root() -> str:
    """On the disk for temporary files, apart from other users'."""
    return str(Path(tempfile.gettempdir()) / f"snapline-{os.getuid()}" / "localState")


def _directories(root: Path) -> list[Path]:
    """The directories of all TaskManagers of this user."""
    found = []
    for directory in sorted(root.iterdir()):
        with contextlib.suppress(OSError):
            if directory.name.startswith(OURS) and directory.stat().st_uid == os.getuid():
                found.append(directory)
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Whoever has it has it for as long as it takes to rename some directories. Raises OSError when that one hangs."""
    deadline = time.monotonic() + ROOT_LOCK_SECONDS
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} is held by another TaskManager, or may not be written")
        time.sleep(ROOT_LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _move(source: Path, target: Path) -> None:
    """All copies; one that cannot be moved, or goes meanwhile, is none."""
    for folder, _, names in sorted(os.walk(source)):
        for name in sorted(names):
            file = Path(folder) / name
            if file != source / LOCK:
                moved = target / file.relative_to(source)
                with contextlib.suppress(OSError):
                    moved.parent.mkdir(parents=True, exist_ok=True)
                    file.replace(moved)
