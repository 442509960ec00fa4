"""One suite for the twin in memory and for RocksDB."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapline.dataflow.api.state import StateError
from snapline.taskmanager.state.rocksdb.key_value_store import InMemoryKeyValueStore, KeyValueStore
from snapline.taskmanager.state.rocksdb.rocksdb_store import PREFIX, RocksDBStore


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    """Each of them, empty."""
    made: KeyValueStore
    made = InMemoryKeyValueStore() if request.param == "memory" else RocksDBStore(str(tmp_path), "op", 1 << 20)
    yield made
    made.close()
    assert not list(tmp_path.iterdir())


def number(value: int) -> bytes:
    """A key that sorts by its value."""
    return value.to_bytes(4, "big")


def test_what_was_written_is_read(store: KeyValueStore) -> None:
    """The last word counts, deletes come before puts of the same write, what is not there is None."""
    store.write([(b"a", b"1"), (b"b", b""), (b"a", b"2")])
    store.write([(b"c", b"3")], [b"c", b"b", b"nothing"])

    assert [b"2", None, b"3", b"2"] == store.get_many([b"a", b"b", b"c", b"a"])
    assert [] == store.get_many([])
    assert [(b"a", b"2"), (b"c", b"3")] == list(store.scan(b"", b"\xff"))


def test_ranges_are_in_order_and_half_open(store: KeyValueStore) -> None:
    """By the bytes of the key."""
    store.write([(number(n), b"x") for n in (300, 2, 1, 256, 255)])

    assert [number(2), number(255), number(256)] == [key for key, _ in store.scan(number(2), number(300))]
    store.delete_range(number(2), number(256))
    assert [number(1), number(256), number(300)] == [key for key, _ in store.scan(b"", b"\xff")]


def test_views_do_not_move(store: KeyValueStore) -> None:
    """They show what was there when they were asked for, in another thread, and after the store was closed."""
    store.write([(number(n), b"old") for n in range(1000)])
    first, second, find, later = (
        store.scan(b"", b"\xff"),
        store.scan(number(5), b"\xff"),
        store.lookup(),
        store.lookup(),
    )
    store.write([(number(n), b"new") for n in range(0, 1000, 2)], [number(7)])
    store.delete_range(number(100), number(200))
    store.write([(number(5000), b"new")])
    seen: list[object] = []

    def read() -> None:
        seen.append(list(first))
        seen.append([find(number(n)) for n in (6, 7, 150, 5000)])

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    store.close()

    assert [[(number(n), b"old") for n in range(1000)], [b"old", b"old", b"old", None]] == seen
    assert 995 == len(list(second))
    assert b"old" == later(number(150))


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """With the setting to change."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file/below.* state\.backend\.rocksdb\.localdir"):
        RocksDBStore(str(tmp_path / "file" / "below"), "op", 1 << 20)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Its directory goes when the next store is opened in the same place; one that is in use stays, however old."""
    program = (
        "import os, sys\nfrom snapline.taskmanager.state.rocksdb.rocksdb_store import RocksDBStore\n"
        "store = RocksDBStore(sys.argv[1], 'killed', 1 << 20)\nstore.write([(b'k', b'v')])\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    used = RocksDBStore(str(tmp_path), "used", 1 << 20)
    used.write([(b"k", b"v")])
    (left,) = (found for found in tmp_path.iterdir() if found.name.startswith(f"{PREFIX}killed"))
    for directory in tmp_path.iterdir():
        os.utime(directory, (0, 0))

    RocksDBStore(str(tmp_path), "next", 1 << 20).close()

    assert not left.exists()
    assert [b"v"] == used.get_many([b"k"])
    used.close()
    assert not list(tmp_path.iterdir())
