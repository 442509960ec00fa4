"""The port behind which rows lie that memory has no room for: an ordered map of bytes, and its twin in memory.

A store belongs to one operator of one attempt, is written by the task's thread alone and thrown away at the end: what
has to last is in snapshots. Reading for a snapshot happens in upload threads, from views that do not move while the
task writes on. `snapline.taskmanager.state.rocksdb.rocksdb_store` is the real one. Takes the place of the RocksDB
handle in Flink's RocksDBKeyedStateBackend.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

Lookup = Callable[[bytes], bytes | None]


class KeyValueStore(Protocol):
    """Bytes to bytes, in the order of the keys."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        ...

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """All of it; deletes first. Deleting what is not there is no error."""
        ...

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Forget keys from `begin` up to, but without, `end`."""
        ...

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `begin` up to, but without, `end`, as they are now; read in any thread, however late."""
        ...

    def lookup(self) -> Lookup:
        """Values as they are now, one by one; for use in one thread. Fast when keys come in order."""
        ...

    def close(self) -> None:
        """Throw everything away. Views that are still being read stay readable."""
        ...


class InMemoryKeyValueStore:
    """The twin: for tests and the simulator."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        return [self._values.get(key) for key in keys]

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """All of it; deletes first."""
        for key in deletes:
            self._values.pop(key, None)
        self._values.update(puts)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Forget keys from `begin` up to, but without, `end`."""
        self._values = {key: value for key, value in self._values.items() if not begin <= key < end}

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `begin` up to, but without, `end`, as they are now."""
        keys = sorted(self._values)
        chosen = keys[bisect_left(keys, begin) : bisect_left(keys, end)]
        return iter([(key, self._values[key]) for key in chosen])

    def lookup(self) -> Lookup:
        """Values as they are now."""
        return dict(self._values).get

    def close(self) -> None:
        """Forget everything that was stored."""
        self._values = {}
