"""Reads state back through its handles: whole blobs where they are small, ranges where they are large.

Small blobs are fetched once and kept, because their many elements are read one by one; of large ones only the ranges that are
asked for are read, so that a rescale does not read what other subtasks own. Implements `StateBlob`, which the task reads from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dataflow.handles import ByteStreamStateHandle, StreamStateHandle
from runtime.state_storages import StateStorages
from runtime.storage import Storage, StorageError

FETCH_WHOLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InlineBlob:
    """State that travelled inside the acknowledgement."""

    data: bytes

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return len(self.data)

    def read_range(self, offset: int, size: int) -> bytes:
        """Some of its bytes."""
        _check_range(offset, size, len(self.data), "state in the checkpoint's metadata")
        return self.data[offset : offset + size]


@dataclass(slots=True)
class SegmentBlob:
    """A part of a segment file."""

    storage: Storage
    path: str
    offset: int
    size: int
    """Its length in bytes."""
    _content: bytes | None = field(default=None, repr=False)

    def read_range(self, offset: int, size: int) -> bytes:
        """Some of its bytes. Raises StorageError when the file is gone or shorter."""
        _check_range(offset, size, self.size, f"{self.storage.url}/{self.path}")
        if self.size > FETCH_WHOLE_BYTES:
            return self.storage.get_range(self.path, self.offset + offset, size)
        if self._content is None:
            self._content = self.storage.get_range(self.path, self.offset, self.size)
        return self._content[offset : offset + size]


class StateReader:
    """Opens the blobs of one job's snapshots."""

    def __init__(self, checkpoint_directory: str, storages: StateStorages) -> None:
        self._base = checkpoint_directory
        self._storages = storages

    def open_state(self, handle: StreamStateHandle) -> InlineBlob | SegmentBlob:
        """The blob of a handle; nothing is read yet. Raises StorageError when its storage cannot be opened."""
        if isinstance(handle, ByteStreamStateHandle):
            return InlineBlob(handle.data)
        storage, path = self._storages.locate(self._base, handle.path)
        return SegmentBlob(storage, path, handle.offset, handle.size)


def _check_range(offset: int, size: int, length: int, what: str) -> None:
    if offset < 0 or size < 0 or offset + size > length:
        raise StorageError(
            f"{what}: bytes {offset} to {offset + size} asked for, there are {length}; the snapshot is damaged"
        )
