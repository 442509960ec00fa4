"""The storage port: the few operations that checkpoints need of a file system or object store.

Paths are relative, with forward slashes, below the base that the adapter was made for. Adapters:
`snapline.runtime.storage.local_storage`, `snapline.runtime.storage.object_storage` (S3, GCS, Azure through obstore; and
`open_storage`, which picks the adapter), `snapline.runtime.storage.hadoop_storage` (HDFS),
`snapline.runtime.storage.memory_storage` (tests, simulator); one contract suite runs against all. Every method may
raise StorageError; nothing is half visible after one. Adapters may be used from several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from snapline.dataflow.errors import SnaplineError

Buffer = bytes | bytearray | memoryview
"""What adapters that take several parts accept for each; anything else with the buffer protocol works, too."""


class StorageError(SnaplineError):
    """Storage failed, names the path and what to check. May be worth a retry."""


class StorageNotFound(StorageError):
    """There is nothing at the path."""


class StorageAlreadyExists(StorageError):
    """`create` found something at the path."""


class Storage(Protocol):
    """Where checkpoints live: files below one base, by their relative paths."""

    @property
    def url(self) -> str:
        """The base, as a URL that `snapline.runtime.storage.object_storage.open_storage` takes."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write atomically and durably; raises StorageAlreadyExists when the path is taken (conditional create)."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write atomically and durably, replacing what is there."""
        ...

    def get(self, path: str) -> bytes:
        """The whole content. Raises StorageNotFound."""
        ...

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`. Raises StorageNotFound, or StorageError when the file is shorter."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file at the path."""
        ...

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """(path, size in bytes) of all files below the directory `prefix`, sorted; empty when there is none."""
        ...

    def delete(self, path: str) -> None:
        """Delete one file; no error when it is gone already."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Delete all files below the directory `prefix`, and the directory where there are such."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file, atomically where the store can; replaces the target. Raises StorageNotFound."""
        ...


@runtime_checkable
class ScatterStorage(Storage, Protocol):
    """A store that can write a file from several buffers without joining them first. Optional: `put_parts` below falls
    back to `put`."""

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        """As `put`, of the concatenation of `parts`."""
        ...


def put_parts(storage: Storage, path: str, parts: Sequence[Buffer]) -> None:
    """Write the concatenation of `parts` atomically and durably, with as few copies as the store allows."""
    if isinstance(storage, ScatterStorage):
        storage.put_parts(path, parts)
    elif len(parts) == 1 and isinstance(parts[0], bytes):
        storage.put(path, parts[0])
    else:
        storage.put(path, b"".join(parts))


def checked_path(path: str, *, empty: bool = False) -> str:
    """The path without slashes around it. Raises StorageError for one that is absolute, empty or climbs out of the
    base."""
    stripped = path.rstrip("/")
    if not stripped and empty:
        return ""
    if not stripped or path.startswith("/") or any(part in ("", ".", "..") for part in stripped.split("/")):
        raise StorageError(f"not a path below the storage's base: {path!r}; give a relative one without '.' and '..'")
    return stripped
