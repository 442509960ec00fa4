"""The in-memory twin of the storage port, for unit tests and the simulator.

Keeps the contract and nothing else: no disk, no clock, no randomness, so that a simulated run can be replayed; faults
are put in front of it by whoever simulates them. `memory://name` opens the same store as long as somebody in this
process holds it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

from snapline.runtime.storage.storage_port import (
    Buffer,
    StorageAlreadyExists,
    StorageError,
    StorageNotFound,
    checked_path,
)


class MemoryStorage:
    """Files in a dictionary of this process, for tests and the simulator."""

    def __init__(self, name: str = "anonymous") -> None:
        self._name = name
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def create(self, path: str, data: bytes) -> None:
        path = checked_path(path)
        with self._lock:
            if path in self._files:
                raise StorageAlreadyExists(f"there is a file at {self.url}/{path} already")
            self._files[path] = bytes(data)

    def put(self, path: str, data: bytes) -> None:
        self.put_parts(path, (data,))

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        path = checked_path(path)
        with self._lock:
            self._files[path] = b"".join(parts)

    def get(self, path: str) -> bytes:
        path = checked_path(path)
        with self._lock:
            return self._content(path)

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        path = checked_path(path)
        with self._lock:
            data = self._content(path)[offset : offset + size]
        if len(data) < size:
            raise StorageError(f"{self.url}/{path} is shorter than expected: {offset + size} bytes wanted")
        return data

    def exists(self, path: str) -> bool:
        path = checked_path(path)
        with self._lock:
            return path in self._files

    def list(self, prefix: str) -> list[tuple[str, int]]:
        with self._lock:
            return [(path, len(self._files[path])) for path in self._below(prefix)]

    def delete(self, path: str) -> None:
        path = checked_path(path)
        with self._lock:
            self._files.pop(path, None)

    def delete_prefix(self, prefix: str) -> None:
        with self._lock:
            for path in self._below(prefix):
                del self._files[path]

    def rename(self, source: str, target: str) -> None:
        source, target = checked_path(source), checked_path(target)
        with self._lock:
            self._files[target] = self._content(source)
            if source != target:
                del self._files[source]

    def _content(self, path: str) -> bytes:
        if path not in self._files:
            raise StorageNotFound(f"there is no file at {self.url}/{path}")
        return self._files[path]

    def _below(self, prefix: str) -> Sequence[str]:
        directory = checked_path(prefix, empty=True)
        return sorted(path for path in self._files if not directory or path.startswith(f"{directory}/"))


_named: weakref.WeakValueDictionary[str, MemoryStorage] = weakref.WeakValueDictionary()
_named_lock = threading.Lock()


def named_memory_storage(name: str) -> MemoryStorage:
    """The store of this name in this process."""
    with _named_lock:
        return _named.setdefault(name, MemoryStorage(name))
