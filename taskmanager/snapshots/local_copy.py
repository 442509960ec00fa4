"""The format of a copy of a snapshot file on a TaskManager's own disk: the file's bytes, and checksums to believe them
by.

A copy is written without waiting for the disk, so after a crash of the machine it may be anything. Each part of the
original (one blob of one subtask) is summed in chunks, so that a range is checked when it is read, and nothing else has
to be. After the parts come the sums and a fixed end that says how to find them. Whatever does not fit is DamagedCopy;
the reader goes to the original then. Format of this version of the program alone: copies of another version are
damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from snapline.runtime.storage.storage_port import Buffer

MAGIC = b"SNAPCPY1"
CHUNK_BYTES = 256 << 10
_END = struct.Struct("<QQ8s")
"""Length of the table of sums, its own sum, MAGIC."""
_WORD = struct.Struct("<Q")


class DamagedCopy(Exception):
    """The copy cannot be believed."""


class LocalFile(Protocol):
    """A file of this machine's disk."""

    @property
    def size(self) -> int:
        """Return the length of the file in bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Fewer bytes where the file ends. Raises OSError."""
        ...


def checksums(parts: Sequence[Buffer]) -> bytes:
    """What follows the parts in the file."""
    table = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        table += _WORD.pack(view.nbytes)
        for start in range(0, view.nbytes, CHUNK_BYTES):
            table += _WORD.pack(xxhash.xxh64_intdigest(view[start : start + CHUNK_BYTES]))
    return bytes(table) + _END.pack(len(table), xxhash.xxh64_intdigest(bytes(table)), MAGIC)


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """One part of a copy."""

    file: LocalFile
    start: int
    size: int
    """Length of the part in bytes."""
    sums: tuple[int, ...]

    def read_range(self, offset: int, size: int) -> bytes:
        """Some of its bytes, checked. Raises DamagedCopy or OSError."""
        first, last = offset // CHUNK_BYTES, -(-(offset + size) // CHUNK_BYTES)
        begin, end = first * CHUNK_BYTES, min(last * CHUNK_BYTES, self.size)
        data = memoryview(self.file.read(self.start + begin, end - begin))
        for chunk in range(first, last):
            at = chunk * CHUNK_BYTES - begin
            if xxhash.xxh64_intdigest(data[at : at + CHUNK_BYTES]) != self.sums[chunk]:
                raise DamagedCopy(
                    f"its bytes from {self.start + chunk * CHUNK_BYTES} on are not those that were written"
                )
        return bytes(data[offset - begin : offset - begin + size])


def open_part(file: LocalFile, offset: int, size: int) -> CopiedPart:
    """The part that lies there in the original; nothing of it is read yet. Raises DamagedCopy or OSError."""
    table_end = file.size - _END.size
    end = file.read(max(0, table_end), _END.size)
    if table_end < 0 or len(end) != _END.size or not end.endswith(MAGIC):
        raise DamagedCopy("its end is missing")
    table_bytes, checksum, _ = _END.unpack(end)
    if table_bytes > table_end:
        raise DamagedCopy("its checksums are missing")
    table = file.read(table_end - table_bytes, table_bytes)
    if xxhash.xxh64_intdigest(table) != checksum:
        raise DamagedCopy("its checksums are damaged")
    position = start = 0
    while position < len(table):
        (part_bytes,) = _WORD.unpack_from(table, position)
        chunks = -(-part_bytes // CHUNK_BYTES)
        if (start, part_bytes) == (offset, size):
            return CopiedPart(file, start, size, struct.unpack_from(f"<{chunks}Q", table, position + _WORD.size))
        position += _WORD.size * (1 + chunks)
        start += part_bytes
    raise DamagedCopy(f"it has no part of {size} bytes at {offset}")
