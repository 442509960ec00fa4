"""Which channel is polled next, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from snapline.dataflow.elements import (
    AlignmentType,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfChannelState,
    EndOfData,
    EndOfPartition,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import QueueFigures
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.checkpointing.checkpointed_input_gate import CheckpointedInputGate
from snapline.taskmanager.checkpointing.handler_factory import checkpoint_barrier_aligner
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame, InputChannelInfo
from snapline.taskmanager.network.channels.input_channel import InputChannelCore
from snapline.taskmanager.network.channels.input_gate import InputGate, UnionInputGate
from snapline.taskmanager.network.channels.lead_limit import LOOK_MS
from tests.unit.taskmanager.checkpointing.recorded_handler import RecordedCalls

UNALIGNED = CheckpointOptions(alignment=AlignmentType.UNALIGNED)


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number], pa.int64())})


def shown(element: StreamElement) -> object:
    return element.column("n")[0].as_py() if isinstance(element, pa.RecordBatch) else element


class Channel:
    """A remote channel whose network is the test."""

    def __init__(self) -> None:
        self.core = InputChannelCore()
        self.resumed = 0
        self.gate: InputGate | None = None
        self.index = 0

    def arrive(self, *elements: StreamElement) -> None:
        for element in elements:
            priority = isinstance(element, CheckpointBarrier) and element.options.is_unaligned
            received = self.core.on_element(ElementFrame(0, element, self.core._next_sequence_number, 0, priority))
            if self.gate is not None and (received.notify or received.notify_priority):
                self.gate.notify_channel_non_empty(self.index, priority=received.notify_priority)

    def poll(self) -> BufferAndBacklog | None:
        return self.core.poll()

    def resume_consumption(self) -> None:
        self.resumed += 1
        self.core.resume_consumption()

    def inflight_batches(self) -> Sequence[pa.RecordBatch]:
        return self.core.inflight_batches()

    def gather_at_most(self, rows: int) -> None: ...

    def convert_to_priority(self, sequence_number: int) -> None:
        self.core.convert_to_priority(sequence_number)

    def request(self, count: int) -> None: ...

    @property
    def queued(self) -> QueueFigures:
        return QueueFigures(self.core.queued_batches, self.core.queued_bytes)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None: ...

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> None: ...

    def release(self) -> None:
        self.core.release()


def gate_of(count: int, index: int = 0, *, tolerated_lead_ms: int | None = None) -> tuple[InputGate, list[Channel]]:
    channels = [Channel() for _ in range(count)]
    gate = InputGate(index, channels, tolerated_lead_ms)
    for channel_index, channel in enumerate(channels):
        channel.gate, channel.index = gate, channel_index
    return gate, channels


def drain(gate: InputGate | UnionInputGate) -> list[object]:
    elements = []
    while (polled := gate.poll_next()) is not None:
        elements.append(shown(polled.element))
    return elements


def test_channels_take_turns() -> None:
    """One that has more goes to the end of the line."""
    gate, (first, second) = gate_of(2)
    first.arrive(batch(1), batch(2), batch(3))
    second.arrive(batch(11), batch(12))

    assert drain(gate) == [1, 11, 2, 12, 3]


def test_the_channel_with_the_lowest_watermark_catches_up() -> None:
    """What the other has further on would be kept in windows and joins until then: two sources of which one had begun
    earlier stayed as far apart as they were."""
    gate, (ahead, behind) = gate_of(2)
    ahead.arrive(Watermark(1_000))
    behind.arrive(Watermark(10))
    drain(gate)
    ahead.arrive(batch(100), batch(101))
    behind.arrive(*map(batch, range(1, 4)), Watermark(2_000), batch(4), batch(5))

    assert drain(gate) == [1, 2, 3, Watermark(2_000), 100, 101, 4, 5]


def test_no_channel_waits_for_ever_for_one_that_is_behind() -> None:
    """A channel whose backlog never ends leaves one turn in eight to each of the others."""
    gate, (ahead, other, behind) = gate_of(3)
    for channel, time_ms in ((ahead, 1_000), (other, 1_000), (behind, 10)):
        channel.arrive(Watermark(time_ms))
    drain(gate)
    for channel in (ahead, other, behind):
        channel.arrive(*map(batch, range(64)))

    taken = [gate.poll_next().channel.channel_index for _ in range(64)]  # type: ignore[union-attr]

    assert [taken.count(index) for index in range(3)] == [4, 4, 56]


def far_apart() -> tuple[InputGate, Channel, Channel]:
    """A gate that tolerates a lead of 20 s, and two channels of which the first is ahead by 90 s."""
    gate, (ahead, behind) = gate_of(2, tolerated_lead_ms=20_000)
    ahead.arrive(Watermark(100_000))
    behind.arrive(Watermark(10_000))
    drain(gate)
    return gate, ahead, behind


def test_a_channel_far_ahead_waits_for_one_that_has_nothing_yet() -> None:
    """Its rows would fill windows that cannot fire before the other has come there."""
    gate, ahead, behind = far_apart()
    ahead.arrive(batch(1))
    assert gate.poll_next(1_000) is None
    assert gate.waits_until_ms == 1_000 + LOOK_MS

    behind.arrive(batch(2), Watermark(90_000))
    assert drain(gate) == [2, Watermark(90_000), 1]
    assert gate.waits_until_ms is None


def test_a_channel_far_ahead_does_not_wait_for_one_that_stays_silent() -> None:
    """It goes on at the time that the gate has said, and from then on."""
    gate, ahead, _ = far_apart()
    ahead.arrive(batch(1), batch(2))
    assert gate.poll_next(1_000) is None

    assert shown(gate.poll_next(1_000 + LOOK_MS).element) == 1  # type: ignore[union-attr]
    assert shown(gate.poll_next(1_000 + LOOK_MS).element) == 2  # type: ignore[union-attr]
    assert gate.poll_next(1_000 + LOOK_MS) is None
    assert gate.waits_until_ms is None


def test_no_barrier_waits_for_a_channel_that_is_behind() -> None:
    """Neither one that overtakes, nor one that the others stand at already."""
    gate, ahead, _ = far_apart()
    ahead.arrive(batch(1), CheckpointBarrier(CheckpointID(1), 0, UNALIGNED))
    assert shown(gate.poll_next(1_000).element) == CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)  # type: ignore[union-attr]

    gate, ahead, behind = far_apart()
    aligned = CheckpointBarrier(CheckpointID(1), 0, CheckpointOptions())
    behind.arrive(aligned)
    ahead.arrive(batch(1), aligned)
    assert gate.poll_next(1_000).channel.channel_index == 1  # type: ignore[union-attr]
    gate.block_consumption(1)
    assert drain(gate) == [1, aligned]


def test_a_channel_that_went_idle_is_not_waited_for() -> None:
    """Until it has rows again."""
    gate, ahead, behind = far_apart()
    behind.arrive(WatermarkStatus.IDLE)
    drain(gate)
    ahead.arrive(batch(1))
    assert drain(gate) == [1]

    behind.arrive(WatermarkStatus.ACTIVE)
    drain(gate)
    ahead.arrive(batch(2))
    assert gate.poll_next(1_000) is None


def test_a_channel_without_watermarks_is_not_behind() -> None:
    """It takes turns with those that have some, because nothing is known of it."""
    gate, (timed, untimed) = gate_of(2)
    timed.arrive(Watermark(1_000))
    drain(gate)
    timed.arrive(batch(1), batch(2))
    untimed.arrive(batch(11), batch(12))

    assert drain(gate) == [1, 11, 2, 12]


def test_what_waits_before_a_gate_is_counted_wherever_it_waits() -> None:
    """What was restored, what is left of a batch that was cut, and what the channels hold."""
    gate, (first, second) = gate_of(2)
    size = batch(1).nbytes
    gate.restore(0, [batch(1)])
    second.arrive(pa.concat_batches([batch(11), batch(12)]), batch(13))
    assert gate.queued == QueueFigures(3, 4 * size)
    gate.limit_batches(1)
    first.arrive(batch(2))
    assert [shown(gate.poll_channel(index).element) for index in (0, 1)] == [1, 11]  # type: ignore[union-attr]
    assert UnionInputGate([gate]).queued == QueueFigures(3, 3 * size)


def test_channel_with_a_priority_element_goes_first() -> None:
    """Over data of all channels."""
    gate, (first, second) = gate_of(2)
    first.arrive(batch(1))
    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    second.arrive(batch(11), barrier)

    assert gate.has_priority_channel
    assert drain(gate) == [barrier, 1, 11]


def test_poll_from_a_blocked_channel_is_an_error() -> None:
    """It has not stopped behind its barrier: what follows would be part of a snapshot that it does not belong to."""
    gate, (first,) = gate_of(1)
    first.arrive(
        CheckpointBarrier(CheckpointID(1), 0, CheckpointOptions(alignment=AlignmentType.AT_LEAST_ONCE)), batch(1)
    )
    assert gate.poll_next() is not None
    gate.block_consumption(0)

    with pytest.raises(InvariantViolation, match=r"stream corrupt: .* is blocked"):
        gate.poll_next()


def test_a_held_channel_gives_nothing_and_keeps_what_its_barrier_overtook() -> None:
    """Not a barrier either; when it is released, it goes on where it was, and what was overtaken is in flight."""
    gate, (first, second) = gate_of(2)
    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    first.arrive(batch(1), barrier, batch(2))
    assert gate.poll_priority() is not None
    gate.hold_consumption(0)
    first.arrive(CheckpointBarrier(CheckpointID(2), 0, UNALIGNED))
    second.arrive(batch(11))

    assert gate.poll_priority() is None
    assert drain(gate) == [11]
    gate.checkpoint_started(barrier)
    gate.release_consumption(0)
    assert drain(gate)[1:] == [1, 2]
    assert [shown(part) for part in gate.checkpoint_stopped(CheckpointID(1))[InputChannelInfo(0, 0)]] == [1]


@pytest.mark.parametrize("has_room", [True, False])
def test_a_barrier_that_came_to_a_held_channel_does_not_wait_for_room(has_room: bool) -> None:
    """The channel had lost its place when it was released, so that a task without room for rows did not see the barrier
    of the next checkpoint."""
    gate, (first,) = gate_of(1)
    newer = CheckpointBarrier(CheckpointID(2), 0, UNALIGNED)
    first.arrive(batch(1), CheckpointBarrier(CheckpointID(1), 0, UNALIGNED))
    assert gate.poll_priority() is not None
    gate.hold_consumption(0)
    first.arrive(newer)
    assert (gate.poll_next() if has_room else gate.poll_priority()) is None

    gate.release_consumption(0)
    polled = gate.poll_priority()

    assert polled is not None
    assert polled.element is newer
    assert gate.poll_priority() is None
    assert drain(gate) == [1]


def test_gates_take_turns_and_priority_comes_first() -> None:
    """The union of two inputs."""
    left, (a,) = gate_of(1, 0)
    right, (b,) = gate_of(1, 1)
    union = UnionInputGate([left, right])
    a.arrive(batch(1), batch(2))
    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    b.arrive(batch(11), barrier)

    assert union.poll_priority() is not None
    assert union.poll_priority() is None
    assert drain(union) == [1, 11, 2]
    assert union.number_of_channels == 2
    assert union.channel_infos == (InputChannelInfo(0, 0), InputChannelInfo(1, 0))


def test_gates_stand_in_order() -> None:
    """A union with the wrong gate first is a defect."""
    with pytest.raises(InvariantViolation, match="order of their index"):
        UnionInputGate([gate_of(1, 1)[0]])


def test_data_in_flight_is_what_comes_before_the_barrier() -> None:
    """Polled after the start, or overtaken; per channel, in order."""
    gate, (first, second, third) = gate_of(3)
    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    first.arrive(batch(1), barrier, batch(2))
    polled = gate.poll_next()
    assert polled is not None
    assert polled.element is barrier
    gate.checkpoint_started(barrier)
    second.arrive(batch(11))
    drain(gate)
    second.arrive(batch(12), barrier, batch(13))
    third.arrive(barrier)
    drain(gate)

    assert {
        info.channel_index: [shown(part) for part in batches]
        for info, batches in gate.checkpoint_stopped(CheckpointID(1)).items()
    } == {0: [1], 1: [11, 12]}
    assert gate.checkpoint_stopped(CheckpointID(1)) == {}


def test_barrier_of_a_newer_checkpoint_keeps_what_it_overtook() -> None:
    """Although the older checkpoint is stopped between the barrier and its start."""
    gate, (first, second) = gate_of(2)
    old, new = (CheckpointBarrier(CheckpointID(n), 0, UNALIGNED) for n in (1, 2))
    second.arrive(old)
    drain(gate)
    gate.checkpoint_started(old)
    first.arrive(batch(1), new)
    assert gate.poll_next() is not None
    assert gate.checkpoint_stopped(CheckpointID(1)) == {}
    gate.checkpoint_started(new)
    second.arrive(new)
    drain(gate)

    remembered = gate.checkpoint_stopped(CheckpointID(2))

    assert [shown(part) for part in remembered[InputChannelInfo(0, 0)]] == [1]


class Checkpointed:
    """A gate with a handler on it, and what operators see and the listener hears, in order."""

    def __init__(self, gate: InputGate) -> None:
        self.union = UnionInputGate([gate])
        self.recorded = RecordedCalls(*gate.channel_infos)
        handler = checkpoint_barrier_aligner(self.union, self.recorded)
        self.gate = CheckpointedInputGate(self.union, handler, self.recorded)

    def poll_all(self) -> list[object]:
        """Whatever can be polled now."""
        seen: list[object] = []
        while (polled := self.union.poll_next()) is not None:
            shown_to_operators = self.gate.process(polled, 0)
            seen += self.recorded.take_calls()
            if shown_to_operators is not None:
                seen.append(shown(shown_to_operators.element))
        return seen


def test_restored_data_comes_first_and_only_then_anything_new() -> None:
    """Over all channels: rows of a key may have moved to another one."""
    gate, (first, second) = gate_of(2)
    gate.restore(0, [batch(1), batch(2)])
    checkpointed = Checkpointed(gate)
    first.arrive(batch(3), EndOfChannelState(), batch(4))
    assert checkpointed.poll_all() == [1, 2, 3]
    assert gate.is_recovered

    second.arrive(batch(11), EndOfChannelState(), batch(12))
    polled = checkpointed.poll_all()

    assert polled[:2] == [11, "recovered, the last"]
    assert sorted(map(str, polled[2:])) == ["12", "4"]
    assert (first.resumed, second.resumed) == (1, 1)


def test_what_was_further_on_comes_first() -> None:
    """Channel by channel and step by step; one that has nothing restored any more waits for the others."""
    gate, (first, second) = gate_of(2)
    checkpointed = Checkpointed(gate)
    part = EndOfChannelState(is_last=False)
    first.arrive(part, batch(2), part, batch(3), EndOfChannelState(), batch(4))
    second.arrive(batch(1), EndOfChannelState(), batch(5))
    polled = checkpointed.poll_all()

    assert polled[:6] == [1, "recovered", 2, "recovered", 3, "recovered, the last"]
    assert sorted(map(str, polled[6:])) == ["4", "5"]


def test_a_channel_that_ends_is_not_waited_for_after_a_restore() -> None:
    """Its producer had finished in the snapshot."""
    gate, (first, second) = gate_of(2)
    checkpointed = Checkpointed(gate)
    first.arrive(EndOfChannelState(), batch(1))
    assert checkpointed.poll_all() == []
    second.arrive(EndOfPartition())

    assert checkpointed.poll_all() == ["recovered, the last", EndOfPartition(), 1]


def test_ends_of_data_and_channels_are_counted() -> None:
    """Drained only if every channel said so; an ended channel is not polled again."""
    gate, (first, second) = gate_of(2)
    first.arrive(EndOfData(drain=True), EndOfPartition())
    drain(gate)
    received = [gate.has_received_end_of_data]
    second.arrive(EndOfData(drain=False))
    drain(gate)
    assert [*received, gate.has_received_end_of_data] == [False, True]
    assert not gate.should_drain
    assert gate.open_channels == (InputChannelInfo(0, 1),)
    gate.notify_channel_non_empty(0, priority=False)
    assert drain(gate) == []
    second.arrive(EndOfPartition())
    drain(gate)
    assert gate.is_finished


def test_looking_for_priority_never_takes_data() -> None:
    """Although a notification may come after its element was polled; what was taken keeps its place, and is in
    flight."""
    gate, (channel,) = gate_of(1)
    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    channel.arrive(batch(1), batch(2))
    gate.notify_channel_non_empty(0, priority=True)

    assert gate.poll_priority() is None
    channel.arrive(barrier)
    gate.notify_channel_non_empty(0, priority=True)
    polled = gate.poll_priority()
    assert polled is not None
    assert polled.element is barrier
    gate.checkpoint_started(barrier)
    assert [shown(part) for part in gate.checkpoint_stopped(CheckpointID(1))[InputChannelInfo(0, 0)]] == [1, 2]
    assert drain(gate) == [1, 2]


def test_two_priority_elements_come_one_after_the_other() -> None:
    """Before data of other channels."""
    gate, (first, second) = gate_of(2)
    first.arrive(batch(1))
    barriers = [CheckpointBarrier(CheckpointID(n), 0, UNALIGNED) for n in (1, 2)]
    second.arrive(*barriers)

    assert drain(gate) == [*barriers, 1]


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def values(element: StreamElement) -> object:
    return element.column("n").to_pylist() if isinstance(element, pa.RecordBatch) else element


def polled_values(gate: InputGate) -> list[object]:
    found = []
    while (polled := gate.poll_next()) is not None:
        found.append(values(polled.element))
    return found


def test_a_batch_that_is_too_large_comes_in_parts() -> None:
    """In order, before anything else of its channel; the other channel has its turns in between."""
    gate, (first, second) = gate_of(2)
    gate.max_batch_rows = 3
    first.arrive(rows(0, 8), EndOfData(drain=True))
    second.arrive(rows(100, 2))

    assert polled_values(gate) == [[0, 1, 2], [100, 101], [3, 4, 5], [6, 7], EndOfData(drain=True)]


def test_a_barrier_overtakes_what_is_left_of_a_batch() -> None:
    """What was not taken yet is in flight, with what has arrived behind it; nothing is remembered twice."""
    gate, (channel,) = gate_of(1)
    gate.max_batch_rows = 2
    channel.arrive(rows(0, 5), rows(5, 1))
    assert values(gate.poll_next().element) == [0, 1]  # type: ignore[union-attr]

    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    channel.arrive(barrier)
    polled = gate.poll_next()
    assert polled is not None
    assert polled.element is barrier
    gate.checkpoint_started(barrier)
    remembered = gate.checkpoint_stopped(CheckpointID(1))

    assert [values(b) for b in remembered[InputChannelInfo(0, 0)]] == [[2, 3, 4], [5]]
    assert polled_values(gate) == [[2, 3], [4], [5]]


def test_parts_taken_before_the_barrier_are_remembered_once() -> None:
    """The checkpoint was started by another channel, in the middle of a batch."""
    gate, (first, second) = gate_of(2)
    gate.max_batch_rows = 2
    first.arrive(rows(0, 6))
    assert values(gate.poll_next().element) == [0, 1]  # type: ignore[union-attr]

    barrier = CheckpointBarrier(CheckpointID(1), 0, UNALIGNED)
    second.arrive(barrier)
    assert gate.poll_next().element is barrier  # type: ignore[union-attr]
    gate.checkpoint_started(barrier)
    assert values(gate.poll_next().element) == [2, 3]  # type: ignore[union-attr]
    first.arrive(barrier)
    assert gate.poll_next().element is barrier  # type: ignore[union-attr]

    remembered = gate.checkpoint_stopped(CheckpointID(1))
    assert [values(b) for b in remembered[InputChannelInfo(0, 0)]] == [[2, 3], [4, 5]]
    assert polled_values(gate) == [[4, 5]]


def test_restored_batches_come_in_parts_too() -> None:
    """And still before anything new."""
    gate, (channel,) = gate_of(1)
    gate.max_batch_rows = 2
    gate.restore(0, [rows(0, 3)])
    channel.arrive(rows(10, 1))

    assert polled_values(gate) == [[0, 1], [2], [10]]
