"""When the memory of a process counts as growing, and how far its clock is from ours."""

from __future__ import annotations

from snapline.coordinator.resource.process_history import MemoryGrowth, ProcessHistory
from snapline.dataflow.wire.messages import ProcessFigures

MIB = 1 << 20


def growth(*resident_mib: int, every_ms: int = 5_000) -> MemoryGrowth:
    """What is said after looks that are so far apart."""
    history = ProcessHistory()
    for number, resident in enumerate(resident_mib):
        history.add(ProcessFigures(resident_bytes=resident * MIB), number * every_ms)
    return history.growth


def test_memory_that_rises_all_the_time_grows() -> None:
    """By how much, and for how long."""
    assert growth(200, 220, 240, 260, 280, 300) == MemoryGrowth(100 * MIB, 25_000)
    assert growth(*range(200, 1_400, 20), every_ms=2_000) == MemoryGrowth(600 * MIB, 60_000)


def test_memory_that_is_freed_again_does_not_grow() -> None:
    """A garbage collector's teeth, however high they are."""
    assert growth(*([200, 400, 600, 800] * 4)) == MemoryGrowth()


def test_a_process_that_warms_up_does_not_grow() -> None:
    """It loads libraries and compiles functions, less and less of them."""
    assert growth(200, 240, 270, 285, 290, 292, 293) == MemoryGrowth()


def test_a_little_more_or_a_short_time_is_no_growth() -> None:
    """Libraries are loaded, caches fill; a large process moves by more."""
    assert growth(200, 300, 400) == MemoryGrowth()
    assert growth(200, 210, 220, 230, 240) == MemoryGrowth()
    assert growth(5_000, 5_100, 5_200, 5_300, 5_400) == MemoryGrowth()
    assert growth() == MemoryGrowth()


def test_looks_are_bounded_and_those_that_are_close_replace_each_other() -> None:
    """A thousand heartbeats a second cost as much as one."""
    history = ProcessHistory()
    for at_ms in range(200_000):
        history.add(ProcessFigures(resident_bytes=at_ms * 1024, clock_ms=at_ms + 5_000), at_ms)
    assert len(history._looks) <= 121
    assert history.growth.over_ms <= 60_000
    assert history.clock_offset_ms == 5_000
