"""The queue between a producer and its consumer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.dataflow.elements import (
    AlignmentType,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfChannelState,
    EndOfPartition,
    StreamElement,
    Watermark,
)
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.pipelined_subpartition import PipelinedSubpartition

ONE, TWO, THREE = (pa.record_batch({"n": pa.array([n], pa.int64())}) for n in (1, 2, 3))
UNALIGNED = CheckpointBarrier(CheckpointID(5), 0, CheckpointOptions(alignment=AlignmentType.UNALIGNED))
TIMEOUTABLE = CheckpointBarrier(CheckpointID(5), 0, CheckpointOptions(aligned_checkpoint_timeout_ms=10))


def drain(subpartition: PipelinedSubpartition) -> list[StreamElement]:
    elements = []
    while (polled := subpartition.poll()) is not None:
        elements.append(polled.element)
    return elements


def test_overtaking_barrier_takes_the_data_along_as_state_and_leaves_it_in_place() -> None:
    """Events are not part of it; sequence numbers are given when elements leave."""
    subpartition = PipelinedSubpartition()
    for element in (ONE, Watermark(1), TWO):
        subpartition.add(element)

    outcome = subpartition.add(UNALIGNED, priority=True)
    first = subpartition.poll()

    assert outcome.overtaken == (ONE, TWO)
    assert first is not None
    assert (first.element, first.sequence_number, first.backlog, first.is_priority) == (UNALIGNED, 0, 2, True)
    assert drain(subpartition) == [ONE, Watermark(1), TWO]


def test_availability_is_bounded_in_batches_and_bytes() -> None:
    """Events do not count; nothing is refused for being full."""
    by_count = PipelinedSubpartition(max_queued_batches=2)
    by_size = PipelinedSubpartition(max_queued_bytes=ONE.nbytes + 1)
    for subpartition in (by_count, by_size):
        available = []
        for element in (Watermark(1), ONE, TWO):
            assert subpartition.add(element).accepted
            available.append(subpartition.is_available)
        subpartition.poll()
        subpartition.poll()
        assert [*available, subpartition.is_available] == [True, True, False, True]

    assert by_size.queued_bytes == TWO.nbytes


def test_consumer_is_notified_of_the_first_element_and_of_the_first_with_priority() -> None:
    """And of none while it waits behind an aligned barrier."""
    subpartition = PipelinedSubpartition()

    assert subpartition.add(ONE).notify_consumer
    assert not subpartition.add(TWO).notify_consumer
    assert subpartition.add(UNALIGNED, priority=True).notify_consumer
    drain(subpartition)
    subpartition.add(CheckpointBarrier(CheckpointID(6), 0))
    drain(subpartition)
    assert not subpartition.add(THREE).notify_consumer
    assert not subpartition.add(UNALIGNED, priority=True).notify_consumer
    subpartition.resume_consumption()
    assert subpartition.has_priority_element


def test_timed_out_barrier_leaves_what_is_behind_it_alone() -> None:
    """It does not block any more, and times out once."""
    subpartition = PipelinedSubpartition()
    for element in (ONE, TIMEOUTABLE, TWO):
        subpartition.add(element)
    assert subpartition.is_barrier_waiting(CheckpointID(5))

    assert subpartition.time_out(TIMEOUTABLE) == (ONE,)
    assert subpartition.time_out(TIMEOUTABLE) is None
    assert not subpartition.is_barrier_waiting(CheckpointID(5))
    assert drain(subpartition) == [TIMEOUTABLE.as_unaligned(), ONE, TWO]


def test_barrier_that_left_cannot_time_out() -> None:
    """Nor one that must not overtake."""
    subpartition = PipelinedSubpartition()
    subpartition.add(TIMEOUTABLE)
    subpartition.poll()
    assert subpartition.time_out(TIMEOUTABLE) is None

    held_back = TIMEOUTABLE.with_options(TIMEOUTABLE.options.with_unaligned_unsupported())
    forced = PipelinedSubpartition()
    forced.add(held_back)
    assert not forced.is_barrier_waiting(CheckpointID(5))
    assert forced.time_out(TIMEOUTABLE) is None


@pytest.mark.parametrize("alignment", [AlignmentType.AT_LEAST_ONCE, AlignmentType.UNALIGNED])
def test_only_aligned_barriers_block(alignment: AlignmentType) -> None:
    """A counted barrier lets everything behind it through."""
    subpartition = PipelinedSubpartition()
    barrier = CheckpointBarrier(CheckpointID(1), 0, CheckpointOptions(alignment=alignment))
    subpartition.add(barrier)
    subpartition.add(ONE)

    assert drain(subpartition) == [barrier, ONE]


def test_nothing_overtakes_restored_data_or_passes_its_end() -> None:
    """The consumer resumes when all its channels have delivered theirs."""
    subpartition = PipelinedSubpartition()
    subpartition.add(ONE)
    subpartition.add(EndOfChannelState())
    subpartition.add(TWO)

    outcome = subpartition.add(UNALIGNED, priority=True)

    assert outcome.overtaken == (TWO,)
    assert not outcome.notify_consumer
    assert drain(subpartition) == [ONE, EndOfChannelState()]
    assert subpartition.is_blocked
    subpartition.resume_consumption()
    assert drain(subpartition) == [UNALIGNED, TWO]


def test_what_is_made_of_restored_data_is_not_overtaken_either() -> None:
    """It stands between one end of channel state and the next; each is stopped at."""
    subpartition = PipelinedSubpartition()
    first, last = EndOfChannelState(is_last=False), EndOfChannelState()
    for element in (ONE, first, TWO, last):
        subpartition.add(element)
    subpartition.add(UNALIGNED, priority=True)

    assert drain(subpartition) == [ONE, first]
    subpartition.resume_consumption()
    assert drain(subpartition) == [TWO, last]
    subpartition.resume_consumption()
    assert drain(subpartition) == [UNALIGNED]


def test_nothing_restored_comes_after_the_last_end_of_channel_state() -> None:
    """The consumer would wait for more from its other channels."""
    subpartition = PipelinedSubpartition()
    subpartition.add(EndOfChannelState())

    with pytest.raises(InvariantViolation, match="after the last one"):
        subpartition.add(EndOfChannelState())


def test_end_of_channel_state_comes_before_any_barrier() -> None:
    """One behind a barrier that overtook is a defect."""
    subpartition = PipelinedSubpartition()
    subpartition.add(UNALIGNED, priority=True)

    with pytest.raises(InvariantViolation, match="before any barrier"):
        subpartition.add(EndOfChannelState())


def test_finished_subpartition_takes_nothing_and_ends() -> None:
    """A released one drops everything at once."""
    subpartition = PipelinedSubpartition()
    subpartition.add(ONE)
    assert subpartition.finish()
    assert not subpartition.finish()
    assert not subpartition.add(TWO).accepted
    assert drain(subpartition) == [ONE, EndOfPartition()]

    subpartition = PipelinedSubpartition()
    subpartition.add(ONE)
    subpartition.release()
    assert not subpartition.add(TWO).accepted
    assert (subpartition.queued_elements, subpartition.queued_bytes, subpartition.backlog) == (0, 0, 0)
    subpartition.resume_consumption()


def test_data_never_has_priority() -> None:
    """It would break the order of the channel."""
    with pytest.raises(InvariantViolation, match="never has priority"):
        PipelinedSubpartition().add(ONE, priority=True)


def test_small_batches_that_wait_behind_each_other_leave_as_one() -> None:
    """Up to so many rows, never across an event, with one number; what was queued of them is taken."""
    subpartition = PipelinedSubpartition(gathered_rows=3)
    for element in (ONE, TWO, Watermark(1), THREE, ONE, TWO, THREE):
        subpartition.add(element)

    first = subpartition.poll()

    assert first is not None
    assert ([1, 2], 0, 4) == (first.element.column("n").to_pylist(), first.sequence_number, first.backlog)
    rest = drain(subpartition)
    assert Watermark(1) == rest[0]
    assert [[3, 1, 2], [3]] == [batch.column("n").to_pylist() for batch in rest[1:]]
    assert (0, 0) == (subpartition.backlog, subpartition.queued_bytes)


def test_batches_of_another_schema_and_restored_ones_are_not_gathered() -> None:
    """What was restored ends before what is new begins."""
    other = pa.record_batch({"m": pa.array([1], pa.int64())})
    subpartition = PipelinedSubpartition(gathered_rows=100)
    for element in (ONE, TWO, EndOfChannelState(), ONE, other, TWO):
        subpartition.add(element)

    restored = drain(subpartition)
    subpartition.resume_consumption()

    assert [ONE, TWO, EndOfChannelState()] == restored
    assert [ONE, other, TWO] == drain(subpartition)


def test_batches_whose_categories_do_not_go_together_are_not_gathered() -> None:
    """Eight bits number those of any two of them at most; nested ones count as well."""
    subpartition = PipelinedSubpartition(gathered_rows=1_000)
    for first in (0, 50, 100):
        names = pa.array([str(first + number) for number in range(50)]).dictionary_encode()
        categories = names.cast(pa.dictionary(pa.int8(), pa.string()))
        subpartition.add(pa.record_batch({"n": pa.StructArray.from_arrays([categories], names=["name"])}))

    found = drain(subpartition)

    assert [100, 50] == [batch.num_rows for batch in found]
    names = [row["name"] for batch in found for row in batch.column("n").to_pylist()]
    assert [str(number) for number in range(150)] == names
    assert (0, 0) == (subpartition.backlog, subpartition.queued_bytes)


def test_no_more_is_gathered_than_a_slow_consumer_takes_at_once() -> None:
    """Neither more rows than its gate lets through, nor more bytes than the pieces that batches are cut into."""
    subpartition = PipelinedSubpartition(gathered_rows=1 << 20, max_queued_batches=100)
    subpartition.gather_at_most(2)
    for _ in range(3):
        subpartition.add(ONE)
    assert [2, 1] == [batch.num_rows for batch in drain(subpartition)]

    subpartition.gather_at_most(1 << 20)
    subpartition.limit_bytes(1)
    large = pa.record_batch({"n": pa.array([0] * 1000, pa.int64())})
    for _ in range(3):
        subpartition.add(large)
    assert [2000, 1000] == [batch.num_rows for batch in drain(subpartition)]
