"""The storage that outlives every process, and how each process sees it.

`Disk` holds the files of a run. `ProcessStorage` is the storage port for one process: it keeps the port's contract (a
write is there whole or not at all) and has the faults that the contract allows: an operation fails before it did
anything; it fails although it was done; the process dies before, after, or while the write is still on its way, to land
later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.storage_port import Buffer, StorageAlreadyExists, StorageError
from snapline.testing.simulated.world import Process


@dataclass(slots=True)
class DiskFaults:
    """Probabilities, per operation; all 0: a healthy disk."""

    fail_before: float = 0.0
    fail_after: float = 0.0
    kill: float = 0.0
    """The probability that the process that calls is killed at the call."""
    land_late: float = 0.0
    """Given that a process is killed at a write: the write lands a while later."""


@dataclass
class Disk:
    """All files, by absolute path without the leading slash."""

    rng: random.Random
    files: MemoryStorage = field(default_factory=MemoryStorage)
    faults: DiskFaults = field(default_factory=DiskFaults)
    on_written: Callable[[str, bool], None] = lambda *_: None
    """`late`: the writer was gone when the write landed."""
    on_deleted: Callable[[str], None] = lambda _: None
    on_written_by: Callable[[str, str], None] = lambda *_: None
    """A living process has written."""

    def copy_from(self, files: dict[str, bytes]) -> None:
        for path, data in files.items():
            self.files.put(path, data)

    def snapshot(self) -> dict[str, bytes]:
        return {path: self.files.get(path) for path, _ in self.files.list("")}


class ProcessStorage:
    """One directory of the disk, as one process uses it (Storage)."""

    def __init__(self, disk: Disk, process: Process, directory: str) -> None:
        self._disk = disk
        self._process = process
        self._directory = directory.strip("/")

    @property
    def url(self) -> str:
        return f"/{self._directory}"

    # --- writes -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> None:
        where = self._at(path)
        self._write(where, lambda: self._disk.files.create(where, data))

    def put(self, path: str, data: bytes) -> None:
        self.put_parts(path, (data,))

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        where = self._at(path)
        self._write(where, lambda: self._disk.files.put_parts(where, parts))

    def rename(self, source: str, target: str) -> None:
        old, new = self._at(source), self._at(target)
        self._write(new, lambda: self._disk.files.rename(old, new))

    def delete(self, path: str) -> None:
        where = self._at(path)
        self._delete(where, lambda: self._disk.files.delete(where))

    def delete_prefix(self, prefix: str) -> None:
        where = self._at(prefix)
        self._delete(where, lambda: self._disk.files.delete_prefix(where))

    # --- reads ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        self._before(path)
        return self._disk.files.get(self._at(path))

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        self._before(path)
        return self._disk.files.get_range(self._at(path), offset, size)

    def exists(self, path: str) -> bool:
        self._before(path)
        return self._disk.files.exists(self._at(path))

    def list(self, prefix: str) -> list[tuple[str, int]]:
        self._before(prefix)
        skip = len(self._directory) + 1 if self._directory else 0
        return [(path[skip:], size) for path, size in self._disk.files.list(self._at(prefix))]

    # --- faults -----------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> str:
        return "/".join(part for part in (self._directory, path.strip("/")) if part)

    def _before(self, path: str) -> None:
        if not self._process.alive:
            self._process.kill_here()
        if self._drawn(self._disk.faults.fail_before):
            raise StorageError(f"/{path}: the storage does not answer (simulated)")

    def _write(self, where: str, write: Callable[[], None]) -> None:
        self._before(where)
        disk, process = self._disk, self._process

        def land(*, late: bool = False) -> None:
            write()
            disk.on_written(where, late)

        if self._drawn(disk.faults.kill):
            process.world.story.say(process.name, f"killed while it writes {where}")
            if self._drawn(disk.faults.land_late):
                process.world.clock.after(disk.rng.randint(1, 3000), lambda: _if_possible(lambda: land(late=True)))
            elif self._drawn(0.5):
                _if_possible(land)
            process.kill_here()
        land()
        disk.on_written_by(process.name, where)
        self._after(where)

    def _delete(self, where: str, delete: Callable[[], None]) -> None:
        self._before(where)
        if self._drawn(self._disk.faults.kill):
            self._process.world.story.say(self._process.name, f"killed while it deletes {where}")
            if self._drawn(0.5):
                delete()
                self._disk.on_deleted(where)
            self._process.kill_here()
        delete()
        self._disk.on_deleted(where)
        self._after(where)

    def _after(self, where: str) -> None:
        if self._drawn(self._disk.faults.fail_after):
            raise StorageError(f"{where}: done, but the answer was lost (simulated)")

    def _drawn(self, probability: float) -> bool:
        return probability > 0 and self._disk.rng.random() < probability


def _if_possible(land: Callable[[], None]) -> None:
    try:
        land()
    except StorageAlreadyExists:
        return
