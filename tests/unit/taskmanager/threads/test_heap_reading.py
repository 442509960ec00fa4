"""Who keeps memory in this process, and what the process uses."""

from __future__ import annotations

from snapline.runtime.process_figures import ProcessWatch
from snapline.taskmanager.threads.heap_reading import HeapReading

KEPT: list[bytes] = []


class Remembering:
    """An object that keeps what it sees."""

    def __init__(self) -> None:
        self.seen: dict[int, bytes] = {}


def test_containers_that_grow_are_named_by_who_holds_them() -> None:
    """A module, an object, a function; what does not grow is not named, and types are those that take most."""
    steady, remembering = list(range(5_000)), Remembering()
    inner: list[bytes] = []

    def remember() -> None:
        inner.extend(bytes(1_000) for _ in range(2_000))

    reading = HeapReading()
    reading.begin()
    KEPT.extend(bytes(20_000) for _ in range(1_500))
    remembering.seen.update({number: bytes(5_000) for number in range(1_200)})
    remember()
    types, sites = reading.end()
    try:
        assert [site.frames[-1].partition(" (")[0] for site in sites[:3]] == [
            "test_heap_reading.KEPT",
            "Remembering.seen",
            "test_containers_that_grow_are_named_by_who_holds_them.<locals>.remember",
        ]
        assert sites[0].frames[-1].endswith("test_heap_reading.py:8)") and sites[0].count == 1_500
        assert 29_000_000 < sites[0].bytes < 32_000_000
        # A process that has run thousands of tests may hold more of other types, and is looked at in part.
        assert "bytes" in [kind.name for kind in types] and len(steady) == 5_000
        assert [kind.bytes for kind in types] == sorted((kind.bytes for kind in types), reverse=True)
    finally:
        KEPT.clear()


def test_a_process_knows_what_it_uses() -> None:
    """Memory, threads, files; a clock that nobody moves has not leapt."""
    used = ProcessWatch().read()
    assert used.resident_bytes > 10 << 20 and used.threads >= 1 and used.open_files >= 3
    assert abs(used.clock_leap_ms) < 1_000 and used.clock_ms > 1_600_000_000_000
