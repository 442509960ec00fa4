"""Storages are opened as they are needed, kept for a while, and never in each other's way."""

from __future__ import annotations

import threading

from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.state_storages import STORAGES_MAX, StateStorages


def test_so_many_storages_are_kept() -> None:
    """The directories of jobs come and go: those that were used last stay open."""
    opened: list[str] = []

    def open_storage(url: str) -> MemoryStorage:
        opened.append(url)
        return MemoryStorage(url)

    storages = StateStorages(open_storage)
    for number in range(STORAGES_MAX + 1):
        storages.at(f"memory://{number}")
    storages.at("memory://0")
    storages.at(f"memory://{STORAGES_MAX}")

    assert [*(f"memory://{number}" for number in range(STORAGES_MAX + 1)), "memory://0"] == opened


def test_one_that_does_not_open_keeps_nobody_from_another() -> None:
    """A file system whose servers do not answer concerns the job that asked for it."""
    never, asked = threading.Event(), threading.Event()

    def open_storage(url: str) -> MemoryStorage:
        if "hangs" in url:
            asked.set()
            assert never.wait(20)
        return MemoryStorage(url.removeprefix("memory://"))

    storages = StateStorages(open_storage)
    waiting = threading.Thread(target=storages.at, args=("memory://hangs",))
    waiting.start()
    assert asked.wait(20)
    found = storages.at("memory://answers").url
    never.set()
    waiting.join()
    assert "memory://answers" == found
