"""State that a program keeps in files of a checkpoint, instead of sending it: what it says of them.

Reads and writes files of a mounted file system; what lies in an object store the program moves with the store's own
client. It needs nothing but Python's own library.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from snapline.dataflow.urls import is_file_url, path_of_file_url
from snapline.external.checkpoint_declined import CheckpointDeclined

CHUNK_BYTES = 1 << 20
"""Each so many bytes of an element have a digest: a part of the protocol."""


@dataclass(frozen=True)
class Uploaded:
    """An element of a state that lies in a file: what `snapshot` returns in place of its bytes.

    >>> sl_external.Uploaded("model.bin", 0, 1_000_000_000)
    Uploaded(file='model.bin', offset=0, size=1000000000)
    >>> at = sl_external.upload(f"{tmp}/chk-6/external-1", "model.bin", b"weights")
    >>> sl_external.Uploaded(f"{tmp}/chk-6/external-1/{at.file}", at.offset, at.size, at.digests).read()
    b'weights'
    """

    file: str
    """In what `snapshot` returns, its name below `upload_location`; in a context, its whole path or URL."""
    offset: int
    size: int
    digests: bytes = b""
    """The SHA-256 of each MiB, one after the other; may be empty."""

    def __repr__(self) -> str:
        return f"Uploaded(file={self.file!r}, offset={self.offset}, size={self.size})"

    def read(self) -> bytes:
        """Return the bytes of an element that lies in a mounted file system. Raises OSError, and ValueError for a file
        that was changed, or lies in another store."""
        with _mounted(self.file).open("rb") as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) < self.size or (self.digests and digests_of(data) != self.digests):
            raise ValueError(f"{self.file} was changed, or cut short, after the checkpoint")
        return data


def upload(location: str, name: str, data: bytes) -> Uploaded:
    """Write an element into a file of its own below `upload_location`, durably, where that lies in a mounted file
    system. Raises OSError, ValueError for another store, and CheckpointDeclined when the place goes away meanwhile,
    because the checkpoint was given up.

    >>> sl_external.upload(f"{tmp}/chk-7/external-1", "model.bin", b"weights").size
    7
    """
    directory = _mounted(location)
    try:
        _write(directory, name, data)
    except FileNotFoundError as gone:
        if directory.exists():  # the name is wrong, not the checkpoint over
            raise
        raise CheckpointDeclined(f"{directory} is gone, as that of a checkpoint is that was given up") from gone
    return Uploaded(name, 0, len(data), digests_of(data))


def _write(directory: Path, name: str, data: bytes) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / name).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    for each in (directory, directory.parent, directory.parent.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def digests_of(data: bytes) -> bytes:
    """The SHA-256 of each MiB, one after the other."""
    return b"".join(
        hashlib.sha256(data[start : start + CHUNK_BYTES]).digest() for start in range(0, len(data), CHUNK_BYTES)
    )


def _mounted(place: str) -> Path:
    if is_file_url(place):
        return Path(path_of_file_url(place))
    if "://" in place or not place:
        raise ValueError(
            f"{place or 'an empty location'} is no path of a mounted file system: move the bytes with the store's own client, and "
            "say what lies where with Uploaded(file, offset, size)"
        )
    return Path(place)
