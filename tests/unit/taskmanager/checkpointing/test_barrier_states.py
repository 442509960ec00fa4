"""The transition table of the barrier handlers: everything in it happens, and nothing else."""

from __future__ import annotations

import random

import pytest

from snapline.dataflow.elements import AlignmentType, CancelCheckpointMarker, CheckpointBarrier, CheckpointOptions
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.checkpointing.barrier_states import STATES, TRANSITIONS, BarrierEvent, BarrierState
from snapline.taskmanager.checkpointing.barrier_states.diagram import reachable, state_diagram
from snapline.taskmanager.checkpointing.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo
from tests.unit.taskmanager.checkpointing.recorded_handler import RecordedCalls

INITIAL = (
    BarrierState.WAITING_FOR_FIRST_BARRIER,
    BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER,
    BarrierState.WAITING_FOR_FIRST_BARRIER_UNALIGNED,
)
Observed = set[tuple[BarrierState, BarrierEvent, BarrierState]]


class Observing(SingleCheckpointBarrierHandler):
    """Writes down every transition."""

    def __init__(
        self,
        initial: BarrierState,
        channels: list[InputChannelInfo],
        never_overtaken: list[InputChannelInfo],
        observed: Observed,
    ) -> None:
        alternating = initial is BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER
        self.calls = RecordedCalls(*channels)
        super().__init__(self.calls, self.calls, initial, never_overtaken=never_overtaken if alternating else ())
        self.observed = observed

    def _go(self, event: BarrierEvent, state: BarrierState) -> None:
        before = self.state
        super()._go(event, state)
        self.observed.add((before, event, state))


def drive(initial: BarrierState, seed: int, observed: Observed) -> None:
    """Random events in an order that channels can produce."""
    draw = random.Random(seed)
    channels = [InputChannelInfo(0, index) for index in range(draw.randint(1, 4))]
    never_overtaken = draw.choice([[], channels[:1], channels[:2]])
    handler = Observing(initial, channels, never_overtaken, observed)
    position = dict.fromkeys(channels, 0)
    announced: dict[InputChannelInfo, CheckpointBarrier] = {}
    timers = handler.calls.timers
    open_channels, now_ms = list(channels), 1_000
    for _ in range(60):
        now_ms += draw.choice((0, 0, 1, 10))
        if draw.random() < 0.15 and timers:
            key = draw.choice(list(timers))
            now_ms = max(now_ms, timers.pop(key))
            handler.timer_fired(key, now_ms)
        if open_channels:
            channel = draw.choice(open_channels)
            blocked = channel in handler._blocked or channel in handler._held
            waiting = announced.get(channel)
            roll = draw.random()
            if waiting is not None and not blocked and roll < 0.5:
                handler.process_barrier(announced.pop(channel), channel, now_ms)
            elif waiting is None and not blocked and roll < 0.06 and len(open_channels) > 1:
                open_channels.remove(channel)
                handler.process_end_of_partition(channel, now_ms)
            elif waiting is None and not blocked and roll < 0.15:
                position[channel] += draw.randint(1, 2)
                marker = CancelCheckpointMarker(CheckpointID(position[channel]))
                handler.process_cancellation_barrier(marker, channel, now_ms)
            elif waiting is None and not blocked:
                position[channel] += 1
                drawn = options(initial, draw)
                if channel in never_overtaken:
                    drawn = drawn.with_unaligned_unsupported()
                barrier = CheckpointBarrier(CheckpointID(position[channel]), now_ms, drawn)
                if barrier.options.is_timeoutable:
                    announced[channel] = barrier
                    handler.process_barrier_announcement(barrier, 7, channel, now_ms)
                else:
                    handler.process_barrier(barrier, channel, now_ms)


def options(initial: BarrierState, draw: random.Random) -> CheckpointOptions:
    """Whatever the handler may meet."""
    if initial is not BarrierState.WAITING_FOR_FIRST_BARRIER and draw.random() < 0.4:
        return CheckpointOptions(alignment=AlignmentType.UNALIGNED)
    return CheckpointOptions(aligned_checkpoint_timeout_ms=draw.choice((-1, 0, 5, 20, 20, 1_000)))


def test_every_transition_of_the_table_happens_and_no_other() -> None:
    """Random events reach all of the table; the handler itself refuses what is not in it."""
    observed: Observed = set()
    for initial in INITIAL:
        for seed in range(1500):
            drive(initial, seed, observed)

    table = {(state, event, target) for (state, event), targets in TRANSITIONS.items() for target in targets}
    assert table == observed


def test_every_state_has_an_object_and_belongs_to_one_handler() -> None:
    """The three handlers share no state."""
    parts = [reachable(initial) for initial in INITIAL]

    assert sorted(state.name for part in parts for state in part) == sorted(state.name for state in STATES)


def test_a_transition_outside_the_table_is_a_broken_invariant() -> None:
    """Named by state, event and target."""
    calls = RecordedCalls(InputChannelInfo(0, 0))
    handler = SingleCheckpointBarrierHandler(calls, calls, BarrierState.WAITING_FOR_FIRST_BARRIER)

    with pytest.raises(InvariantViolation, match="WAITING_FOR_FIRST_BARRIER on TIMEOUT"):
        handler._go(BarrierEvent.TIMEOUT, BarrierState.COLLECTING_BARRIERS)


def test_diagram_is_drawn_from_the_table() -> None:
    """The aligner's, whole."""
    assert state_diagram(BarrierState.WAITING_FOR_FIRST_BARRIER).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> WAITING_FOR_FIRST_BARRIER",
        "    WAITING_FOR_FIRST_BARRIER: waiting for first barrier",
        "    COLLECTING_BARRIERS: collecting barriers",
        "    WAITING_FOR_FIRST_BARRIER --> WAITING_FOR_FIRST_BARRIER: announcement, barrier, end of partition, abort",
        "    WAITING_FOR_FIRST_BARRIER --> COLLECTING_BARRIERS: barrier",
        "    COLLECTING_BARRIERS --> WAITING_FOR_FIRST_BARRIER: barrier, end of partition, abort",
        "    COLLECTING_BARRIERS --> COLLECTING_BARRIERS: announcement, barrier, end of partition",
    ]
