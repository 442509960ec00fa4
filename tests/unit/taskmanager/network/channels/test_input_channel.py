"""The receive queue of one channel."""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.elements import (
    AlignmentType,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfChannelState,
    EventAnnouncement,
    StreamElement,
)
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.network.channels.exchange_contract import ElementFrame
from snapline.taskmanager.network.channels.input_channel import InputChannelCore, Received

ONE, TWO, THREE = (pa.record_batch({"n": pa.array([n], pa.int64())}) for n in (1, 2, 3))
UNALIGNED = CheckpointBarrier(CheckpointID(5), 0, CheckpointOptions(alignment=AlignmentType.UNALIGNED))
ALIGNED = CheckpointBarrier(CheckpointID(5), 0)
TIMEOUTABLE = CheckpointBarrier(CheckpointID(5), 0, CheckpointOptions(aligned_checkpoint_timeout_ms=10))


def drain(core: InputChannelCore) -> list[StreamElement]:
    elements = []
    while (polled := core.poll()) is not None:
        elements.append(polled.element)
    return elements


def receive(core: InputChannelCore, *elements: StreamElement) -> list[Received]:
    """In the order in which they were sent; an unaligned barrier has priority."""
    return [
        core.on_element(ElementFrame(0, element, core._next_sequence_number, 0, element is UNALIGNED))
        for element in elements
    ]


def test_a_gap_in_the_sequence_fails_the_channel() -> None:
    """And the element is not taken."""
    core = InputChannelCore()

    received = core.on_element(ElementFrame(0, ONE, 1, 0))

    assert received.failure == "element 1 arrived where 0 was due: the connection lost or reordered data"
    assert drain(core) == []


def test_task_is_told_of_the_first_element_and_of_the_first_with_priority() -> None:
    """An announcement has priority."""
    core = InputChannelCore()

    assert receive(core, ONE, TWO, TIMEOUTABLE) == [
        Received(notify=True),
        Received(),
        Received(notify_priority=True),
    ]
    assert drain(core)[0] == EventAnnouncement(TIMEOUTABLE, 2)


def test_overtaken_data_is_in_flight_and_stays_in_place() -> None:
    """What arrived behind the barrier is not."""
    core = InputChannelCore()
    receive(core, ONE, TWO, UNALIGNED, THREE)

    first = core.poll()

    assert first is not None
    assert first.element is UNALIGNED
    assert core.inflight_batches() == (ONE, TWO)
    assert drain(core) == [ONE, TWO, THREE]
    assert core.inflight_batches() == ()


def test_announced_barrier_that_times_out_overtakes_but_stays_aligned() -> None:
    """The sender has stopped behind it, so the channel does, too, once the data in front of it is polled."""
    core = InputChannelCore()
    receive(core, ONE, TIMEOUTABLE)
    assert drain(core) == [EventAnnouncement(TIMEOUTABLE, 1), ONE, TIMEOUTABLE]

    core = InputChannelCore()
    receive(core, ONE, TIMEOUTABLE)
    core.poll()
    assert core.convert_to_priority(1)
    assert drain(core)[0] is TIMEOUTABLE
    assert not core.convert_to_priority(1)

    core = InputChannelCore()
    receive(core, ONE, TIMEOUTABLE, TWO)
    core.poll()
    core.convert_to_priority(1)
    assert drain(core) == [TIMEOUTABLE, ONE]
    assert core.is_blocked
    core.resume_consumption()
    assert drain(core) == [TWO]


def test_channel_stops_behind_an_aligned_barrier_and_behind_restored_data() -> None:
    """Until it is resumed."""
    for stop in (ALIGNED, EndOfChannelState()):
        core = InputChannelCore()
        receive(core, ONE, stop, TWO)
        assert drain(core) == [ONE, stop]
        assert not core.has_available_element
        core.resume_consumption()
        assert drain(core) == [TWO]


def test_released_channel_drops_what_still_arrives() -> None:
    """The task is gone."""
    core = InputChannelCore()
    receive(core, ONE)
    core.release()

    assert core.on_element(ElementFrame(0, TWO, 1, 0)) == Received()
    assert (drain(core), core.queued_batches) == ([], 0)


def test_received_batches_are_gathered_as_far_as_they_may_be_polled() -> None:
    """What stands behind an aligned barrier that is not resumed stays, also where the barrier has come to the front."""
    core = InputChannelCore(gathered_rows=100)
    receive(core, ONE, TWO, TIMEOUTABLE, THREE)
    core.convert_to_priority(2)

    assert [EventAnnouncement(TIMEOUTABLE, 2), TIMEOUTABLE] == [
        polled.element for polled in (core.poll(), core.poll()) if polled is not None
    ]
    assert [[1, 2]] == [batch.column("n").to_pylist() for batch in drain(core)]
    assert 1 == core.queued_batches
    core.resume_consumption()
    assert [THREE] == drain(core)
