"""The implementations that the high availability contract is tested against.

Each opens the stores of one coordinator over a place that outlives it; an adapter for another service (ZooKeeper) joins by adding
itself to `PLACES`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from coordinator.ha.embedded import EmbeddedHighAvailability
from coordinator.high_availability import HighAvailability
from dataflow.ids import LeaderSessionID
from runtime.local_storage import LocalStorage
from runtime.memory_storage import MemoryStorage


class Place(Protocol):
    """Where the stores lie."""

    def lead(self, session: str) -> HighAvailability:
        """A coordinator takes over here; those before it have lost their leadership."""
        ...


class StoragePlace:
    """One storage, coordinators one after another."""

    def __init__(self, storage: LocalStorage | MemoryStorage) -> None:
        self._storage = storage

    def lead(self, session: str) -> HighAvailability:
        return EmbeddedHighAvailability(self._storage, LeaderSessionID(session), durable=True)


PLACES: dict[str, Callable[[Path], Place]] = {
    "memory": lambda _: StoragePlace(MemoryStorage()),
    "local disk": lambda path: StoragePlace(LocalStorage(str(path))),
}
