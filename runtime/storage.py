"""The storage port: the few operations that checkpoints need of a file system or object store.

Paths are relative, with forward slashes, below the base that the adapter was made for. Adapters: `runtime.object_storage`
(local file system and S3, GCS, Azure through obstore), `runtime.memory_storage` (tests, simulator); one contract suite runs
against all. Every method may raise StorageError; nothing is half visible after one.
"""

from __future__ import annotations

from typing import Protocol


class StorageError(Exception):
    """Storage failed, names the path and what to check. May be worth a retry."""


class StorageNotFound(StorageError):
    """There is nothing at the path."""


class StorageAlreadyExists(StorageError):
    """`create` found something at the path."""


class Storage(Protocol):
    """Where checkpoints live."""

    @property
    def url(self) -> str:
        """The base, as a URL that `runtime.object_storage.open_storage` takes."""
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
