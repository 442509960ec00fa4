"""Reads state back through its handles: whole blobs where they are small, ranges where they are large.

Small blobs are fetched once and kept, because their many elements are read one by one; of large ones only the ranges
that are asked for are read, so that a rescale does not read what other subtasks own. With local recovery the copy on
this machine's disk is read, as far as there is one that can be believed, and the storage from then on. Implements
`StateBlob`, which the task reads from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from snapline.dataflow.snapshot.digests import ChangedState, CheckedRanges, check_chunks
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, StreamStateHandle
from snapline.dataflow.urls import is_absolute
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import Storage, StorageError
from snapline.taskmanager.snapshots.local_copy import CopiedPart, DamagedCopy
from snapline.taskmanager.snapshots.local_recovery import JobLocalRecovery

FETCH_WHOLE_BYTES = 1 << 20
CHECKED_WHOLE_BYTES = 64 << 20
"""A blob with a checksum is fetched whole up to this size, because only a whole one can be checked."""


@dataclass(frozen=True, slots=True)
class InlineBlob:
    """State that travelled inside the acknowledgement."""

    data: bytes

    @property
    def size(self) -> int:
        """Return the length of the blob in bytes."""
        return len(self.data)

    def read_range(self, offset: int, size: int) -> bytes:
        """Return these bytes of the blob."""
        _check_range(offset, size, len(self.data), "state in the checkpoint's metadata")
        return self.data[offset : offset + size]


@dataclass(slots=True)
class BytesRead:
    """How much state a reader has read, and from where."""

    local: int = 0
    remote: int = 0


@dataclass(slots=True)
class SegmentBlob:
    """A part of a segment file."""

    storage: Storage
    path: str
    offset: int
    size: int
    """Length of the blob in bytes."""
    read: BytesRead = field(default_factory=BytesRead, repr=False)
    copy: CopiedPart | None = None
    """The same bytes on the local disk, if they are there."""
    local: JobLocalRecovery | None = field(default=None, repr=False)
    checksum: int = 0
    """The checksum of the whole blob; 0: there is none."""
    digests: bytes = field(default=b"", repr=False)
    """What the snapshot's metadata says of the bytes; empty: nothing."""
    _content: bytes | None = field(default=None, repr=False)
    _ranges: CheckedRanges | None = field(default=None, repr=False)

    def read_range(self, offset: int, size: int) -> bytes:
        """Some of its bytes. Raises StorageError when the file is gone, shorter or damaged, ChangedState when it is not
        what the metadata names."""
        _check_range(offset, size, self.size, f"{self.storage.url}/{self.path}")
        if self.size > (CHECKED_WHOLE_BYTES if self.checksum else FETCH_WHOLE_BYTES):
            if self.digests:
                self._ranges = self._ranges or CheckedRanges(self._fetch, self.size)
                return self._ranges.read_range(offset, size)
            data = self._fetch(offset, size)
            return self._checked(data) if size == self.size else data
        if self._content is None:
            self._content = self._checked(self._fetch(0, self.size))
        return self._content[offset : offset + size]

    def _checked(self, data: bytes) -> bytes:
        if self.checksum and not self.digests and xxhash.xxh64_intdigest(data) != self.checksum:
            raise StorageError(
                f"{self.storage.url}/{self.path} is damaged: the checksum of its bytes {self.offset} to "
                f"{self.offset + self.size - 1} differs; restore an older checkpoint, or copy the snapshot again"
            )
        return data

    def _fetch(self, offset: int, size: int) -> bytes:
        copy, local = self.copy, self.local
        if copy is not None and local is not None:
            try:
                data = copy.read_range(offset, size)
                self._check_digests(data, offset)
            except (OSError, DamagedCopy, ChangedState) as error:
                self.copy = None
                local.give_up(self.path, error)
            else:
                self.read.local += size
                return data
        data = self.storage.get_range(self.path, self.offset + offset, size)
        self.read.remote += size
        self._check_digests(data, offset)
        return data

    def _check_digests(self, data: bytes, offset: int) -> None:
        if self.digests:
            check_chunks(data, offset, self.digests, f"{self.storage.url}/{self.path}", self.offset)


class SnapshotReader:
    """Opens the blobs of one job's snapshots."""

    def __init__(
        self, checkpoint_directory: str, storages: StateStorages, local: JobLocalRecovery | None = None
    ) -> None:
        self._base = checkpoint_directory
        self._storages = storages
        self._local = local
        self.bytes_read = BytesRead()

    def open_state(self, handle: StreamStateHandle) -> InlineBlob | SegmentBlob:
        """The blob of a handle; nothing is read yet. Raises StorageError when its storage cannot be opened."""
        if isinstance(handle, ByteStreamStateHandle):
            return InlineBlob(handle.data)
        storage, path = self._storages.locate(self._base, handle.path)
        local = None if is_absolute(handle.path) else self._local
        copy = None if local is None else local.open_part(handle)
        read, checksum, digests = self.bytes_read, handle.checksum, handle.digests
        return SegmentBlob(storage, path, handle.offset, handle.size, read, copy, local, checksum, digests)


def _check_range(offset: int, size: int, length: int, what: str) -> None:
    if offset < 0 or size < 0 or offset + size > length:
        raise StorageError(
            f"{what}: bytes {offset} to {offset + size} asked for, there are {length}; the snapshot is damaged"
        )
