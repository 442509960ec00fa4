"""The machines on which TaskManagers run, with disks of their own: what one leaves there the next one finds, unless the
machine is lost.

Plays `snapline.taskmanager.snapshots.local_directories` on memory: one directory per TaskManager; those of the dead are
taken over by whoever starts. What the disk makes of copies that nobody synced is a fault (`damage`). Decides nothing
that is kept or read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from snapline.dataflow.ids import JobID
from snapline.runtime.storage.storage_port import Buffer, StorageNotFound
from snapline.taskmanager.snapshots.restore import InlineBlob, SegmentBlob
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import Process, Violation

Name = tuple[JobID, str]


@dataclass
class SimulatedMachine:
    """One machine with its disk. TaskManagers that nobody said anything about have one each."""

    name: str
    directories: dict[str, dict[Name, bytes]] = field(default_factory=dict)
    """The files that each TaskManager keeps there."""
    owners: dict[str, Process] = field(default_factory=dict)
    bytes_read: int = 0
    """How much tasks have read of copies."""

    def lose(self) -> None:
        """Another one comes in its place, with an empty disk."""
        self.directories.clear()
        self.owners.clear()

    def damage(self, rng: random.Random) -> int:
        """Some copies change, are cut short, or go. Returns how many."""
        count = 0
        for files in self.directories.values():
            for name, data in list(files.items()):
                kind = rng.choice(["none", "change", "cut", "empty", "gone"])
                at = rng.randrange(len(data)) if data else 0
                count += kind != "none"
                if kind == "change" and data:
                    files[name] = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
                elif kind == "cut":
                    files[name] = data[:at]
                elif kind == "empty":
                    files[name] = b""
                elif kind == "gone":
                    del files[name]
        return count

    def left(self) -> list[str]:
        """Copies that a living TaskManager keeps."""
        return [
            f"{owner}: {path} of {job_id}"
            for owner, files in self.directories.items()
            if self.owners[owner].alive
            for job_id, path in files
        ]


@dataclass(frozen=True)
class LocalFileOnMachine:
    """A copy of state on a machine (LocalFile)."""

    files: dict[Name, bytes]
    name: Name
    size: int

    def read(self, offset: int, size: int) -> bytes:
        data = self.files.get(self.name)
        if data is None:
            raise FileNotFoundError(self.name[1])
        return data[offset : offset + size]


class DiskOfMachine:
    """What one TaskManager has of it (LocalDisk)."""

    def __init__(self, machine: SimulatedMachine, process: Process) -> None:
        self._machine = machine
        self._own: dict[Name, bytes] = {}
        for other, owner in list(machine.owners.items()):
            if not owner.alive:
                self._own.update(machine.directories.pop(other))
                del machine.owners[other]
        machine.directories[process.name] = self._own
        machine.owners[process.name] = process

    def inherited(self) -> Sequence[Name]:
        return tuple(self._own)

    def write(self, job_id: JobID, path: str, parts: Sequence[Buffer]) -> None:
        self._own[job_id, path] = b"".join(parts)

    def find(self, job_id: JobID, path: str) -> LocalFileOnMachine | None:
        for files in (self._own, *self._machine.directories.values()):
            data = files.get((job_id, path))
            if data is not None:
                return LocalFileOnMachine(files, (job_id, path), len(data))
        return None

    def delete(self, job_id: JobID, path: str) -> None:
        self._own.pop((job_id, path), None)

    def delete_job(self, job_id: JobID) -> None:
        for name in [name for name in self._own if name[0] == job_id]:
            del self._own[name]

    def close(self, *, keep: bool) -> None:
        if not keep:
            self._own.clear()


@dataclass
class CheckedBlob:
    """State as a task reads it, wherever that comes from: what the storage has, byte by byte (StateBlob)."""

    blob: InlineBlob | SegmentBlob
    disk: Disk
    machine: SimulatedMachine

    @property
    def size(self) -> int:
        return self.blob.size

    def read_range(self, offset: int, size: int) -> bytes:
        if isinstance(self.blob, InlineBlob):
            return self.blob.read_range(offset, size)
        before = self.blob.read.local
        data = self.blob.read_range(offset, size)
        self.machine.bytes_read += self.blob.read.local - before
        path = f"{self.blob.storage.url}/{self.blob.path}".strip("/")
        try:
            original = self.disk.files.get_range(path, self.blob.offset + offset, size)
        except StorageNotFound:  # its checkpoint is gone, and the task will be told so
            return data
        if data != original:
            raise Violation(f"the state that a task restores from {path} is not what the storage has")
        return data
