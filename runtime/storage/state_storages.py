"""Where the path of a state handle leads: a storage and a path below it.

Paths in handles are relative to the job's checkpoint directory, or absolute (savepoints, checkpoints of other jobs):
URLs and absolute paths. One open storage per directory is kept, up to a bound, because opening one may mean connecting.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from snapline.dataflow.urls import is_absolute
from snapline.runtime.storage.storage_port import Storage

STORAGES_MAX = 64


class StateStorages:
    """Opens storages as they are needed. May be used from any thread."""

    def __init__(self, open_storage: Callable[[str], Storage]) -> None:
        self._open_storage = open_storage
        self._lock = threading.Lock()
        self._storages: OrderedDict[str, Storage] = OrderedDict()

    def at(self, directory: str) -> Storage:
        """The storage of a directory. Raises StorageError when it cannot be opened."""
        with self._lock:
            storage = self._storages.get(directory)
        if storage is None:
            storage = self._open_storage(directory)  # without the lock: one that does not answer concerns its own users
        with self._lock:
            storage = self._storages.setdefault(directory, storage)
            self._storages.move_to_end(directory)
            while len(self._storages) > STORAGES_MAX:
                self._storages.popitem(last=False)
            return storage

    def locate(self, base: str, path: str) -> tuple[Storage, str]:
        """The storage and relative path of a handle's path."""
        if not is_absolute(path):
            return self.at(base), path
        directory, _, name = path.rpartition("/")
        return self.at(directory or "/"), name
