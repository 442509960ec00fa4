"""Digests of state files: what signed metadata says of the bytes that it names.

A handle carries the SHA-256 of each chunk of its blob, one after another, so that a reader of a range reads and checks
only the chunks that hold it, and `_metadata`, which is signed and holds the handles, vouches for every byte. Checksums
of a state file itself find damage; these find a forger, who makes checksums right. Handles of older releases, and of
state inside of `_metadata`, have none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from snapline.dataflow.errors import StateError
from snapline.dataflow.snapshot.digest_sizes import CHUNK_BYTES, DIGEST_BYTES, digests_size


class ChangedState(StateError):
    """Bytes of a state file are not those that the snapshot's metadata names."""


def digests_of(data: bytes | bytearray | memoryview) -> bytes:
    """Return the digests of all chunks of a blob, DIGEST_BYTES each."""
    view = memoryview(data).cast("B")
    return b"".join(
        hashlib.sha256(view[start : start + CHUNK_BYTES]).digest() for start in range(0, view.nbytes, CHUNK_BYTES)
    )


def check_chunks(data: bytes, offset: int, digests: bytes, file: str, blob_offset: int) -> None:
    """Raise ChangedState unless `data`, whole chunks from `offset` of a blob on that begins at `blob_offset` of `file`,
    is what was written."""
    first = offset // CHUNK_BYTES
    expected = digests[first * DIGEST_BYTES : first * DIGEST_BYTES + digests_size(len(data))]
    if digests_of(data) != expected:
        begin = blob_offset + offset
        raise ChangedState(
            f"{file} was changed after the snapshot was taken: its bytes {begin} to {begin + len(data) - 1} are not "
            "those that the snapshot's _metadata names; restore another snapshot, or put the file back"
        )


@dataclass(slots=True)
class CheckedRanges:
    """Reads ranges of one blob by whole chunks, each checked before anything of it is handed out; keeps the last chunk,
    because the next range often begins in it."""

    fetch: Callable[[int, int], bytes]
    """(offset, size) -> the bytes of the blob, which this class asks for by whole chunks; it has to check them."""
    size: int
    """Length of the blob in bytes."""
    _kept_offset: int = -1
    _kept: bytes = b""

    def read_range(self, offset: int, size: int) -> bytes:
        """Return these bytes of the blob. Raises what `fetch` raises."""
        if not size:
            return b""
        begin = offset - offset % CHUNK_BYTES
        end = min(self.size, -(-(offset + size) // CHUNK_BYTES) * CHUNK_BYTES)
        data = self._kept if begin == self._kept_offset else b""
        if begin + len(data) < end:
            data += self.fetch(begin + len(data), end - begin - len(data))
        last = (end - 1) // CHUNK_BYTES * CHUNK_BYTES
        self._kept_offset, self._kept = last, data[last - begin :]
        return data[offset - begin : offset - begin + size]
