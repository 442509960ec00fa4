"""Who keeps memory in this process, and what the process uses."""

from __future__ import annotations

import tracemalloc

from snapline.runtime.process_figures import ProcessWatch
from snapline.taskmanager.threads.heap_reading import HeapReading

KEPT: list[bytes] = []


def remember() -> None:
    """Keep two megabytes."""
    KEPT.extend(bytes(20_000) for _ in range(100))


def test_what_is_allocated_and_kept_is_named_with_its_line() -> None:
    """With the source line; what was freed again is not there, and allocations are not followed any more."""
    reading = HeapReading()
    reading.begin()
    remember()
    bytes(30_000_000)
    types, sites = reading.end()
    try:
        assert sites[0].frames[-1].startswith("KEPT.extend(bytes(20_000) for _ in range(100)) (")
        assert 2_000_000 <= sites[0].bytes < 3_000_000
        assert {"bytes", "dict"} <= {each.name for each in types}
        assert not tracemalloc.is_tracing()
    finally:
        KEPT.clear()


def test_a_second_reading_meanwhile_sees_nothing() -> None:
    """It does not end the first one's."""
    first, second = HeapReading(), HeapReading()
    first.begin()
    second.begin()
    assert second.end() == ((), ())
    assert tracemalloc.is_tracing()
    first.end()
    assert not tracemalloc.is_tracing()


def test_a_process_knows_what_it_uses() -> None:
    """Memory, threads, files; a clock that nobody moves has not leapt."""
    used = ProcessWatch().read()
    assert used.resident_bytes > 10 << 20 and used.threads >= 1 and used.open_files >= 3
    assert abs(used.clock_leap_ms) < 1_000 and used.clock_ms > 1_600_000_000_000
