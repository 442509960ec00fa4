"""Adapter: the barrier handlers on the production gate and channels.

The gate model of the README belongs to this harness: one list of what has arrived, in order, priority elements first.
It decides which channel is polled next; what is polled, what waits behind a barrier and what is in flight is decided by
`InputGate` with `InputChannelCore`s, and what it means by the handler behind `CheckpointedInputGate`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from snapline.dataflow.elements import (
    NO_ALIGNED_TIMEOUT_MS,
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfPartition,
    EventAnnouncement,
    SnapshotType,
    StreamElement,
)
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics, QueueFigures
from snapline.runtime.cores.machine import check
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpoint_barrier_tracker import CheckpointBarrierTracker
from snapline.taskmanager.checkpointing.checkpointed_input_gate import CheckpointedInputGate
from snapline.taskmanager.checkpointing.checkpointing_contract import InputState
from snapline.taskmanager.checkpointing.handler_factory import (
    alternating_checkpoint_barrier_handler,
    checkpoint_barrier_aligner,
    checkpoint_barrier_unaligner,
)
from snapline.taskmanager.checkpointing.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame, InputChannelInfo
from snapline.taskmanager.network.channels.input_channel import InputChannelCore
from snapline.taskmanager.network.channels.input_gate import BufferOrEvent, InputGate, UnionInputGate
from tests.conformance.replay import Scenario, difference

HANDLERS = {
    "tracker": CheckpointBarrierTracker,
    "aligner": checkpoint_barrier_aligner,
    "unaligner": checkpoint_barrier_unaligner,
    "alternating": alternating_checkpoint_barrier_handler,
    "alternating_timeout": alternating_checkpoint_barrier_handler,
}
AFTER_END_OF_PARTITION = {"abort_pending": False, "count_as_aligned": True}
SNAPSHOTS = {"checkpoint": SnapshotType.CHECKPOINT, "savepoint": SnapshotType.SAVEPOINT}
SEEN_AT_ARRIVAL = ("unaligner", "alternating")
"""Handlers of the 1.11 kind, which are told of an unaligned barrier when it arrives."""


@dataclass(eq=False)
class Arrived:
    """One element of the harness's list."""

    channel: int
    sequence_number: int
    is_announcement: bool = False


@dataclass
class Channel:
    """An InputChannel around the production core; tells the harness what changes its order."""

    index: int
    harness: Harness
    core: InputChannelCore = field(default_factory=InputChannelCore)

    def poll(self) -> BufferAndBacklog | None:
        return self.core.poll()

    def inflight_batches(self) -> Sequence[pa.RecordBatch]:
        return self.core.inflight_batches()

    def resume_consumption(self) -> None:
        self.core.resume_consumption()

    def gather_at_most(self, rows: int) -> None: ...

    def convert_to_priority(self, sequence_number: int) -> None:
        if self.core.convert_to_priority(sequence_number):
            self.harness.converted(self.index, sequence_number)

    def request(self, count: int) -> None: ...

    @property
    def queued(self) -> QueueFigures:
        return QueueFigures(self.core.queued_batches, self.core.queued_bytes)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """The gate remembers."""

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> None:
        """The gate remembers."""

    def release(self) -> None:
        self.core.release()


@dataclass
class Seen:
    """What one step (or the whole run) showed."""

    triggered: list[CheckpointBarrier] = field(default_factory=list)
    aborted: list[dict[str, Any]] = field(default_factory=list)
    emitted: list[str] = field(default_factory=list)
    subsumed_too_late: list[int] = field(default_factory=list)
    """Checkpoints that were given up after their successor was triggered."""
    alignment_ms: int | None = None
    start_delay_ms: int | None = None


class Harness:
    """One task's input side over a virtual clock."""

    def __init__(self, config: dict[str, Any]) -> None:
        check(config.get("mailbox") in (None, "manual"), f"mailbox {config.get('mailbox')!r}")
        self.kind = config["handler"]
        self.now_ms = config.get("start_ms", 10_000)
        self.manual_mailbox = config.get("mailbox") == "manual"
        self.mailbox: list[tuple[CheckpointBarrier, InputChannelInfo]] = []
        self.channels = [Channel(index, self) for index in range(config["channels"])]
        self.gate = InputGate(0, self.channels)
        while self.gate.poll_next() is not None:
            raise AssertionError("a new gate is empty")
        self.union = UnionInputGate([self.gate])
        self.handler: CheckpointBarrierHandler = HANDLERS[self.kind](
            self.union,
            self,
            checkpoints_after_tasks_finish=AFTER_END_OF_PARTITION[config.get("end_of_partition", "count_as_aligned")],
        )
        self.checkpointed = CheckpointedInputGate(self.union, self.handler, self)
        self.next_number = [0] * len(self.channels)
        self.priority: list[Arrived] = []
        self.ordinary: list[Arrived] = []
        self.timers: dict[Hashable, tuple[int, int]] = {}
        self.timers_started = 0
        self.completed_inflight: dict[int, dict[int, list[str]]] = {}
        self.seen = Seen()

    # --- steps --------------------------------------------------------------------------------------------------------

    def play(self, step: dict[str, Any]) -> Seen:
        """One step."""
        # metrics belong to the last trigger, whichever step it was in
        self.seen = Seen(alignment_ms=self.seen.alignment_ms, start_delay_ms=self.seen.start_delay_ms)
        if "advance" in step:
            self._advance(step["advance"])
        elif step.get("poll") == "announcements":
            self._drain(announcements_only=True)
        elif step.get("run_mailbox"):
            mail, self.mailbox = self.mailbox, []
            for barrier, info in mail:
                self._hand_over(barrier, info)
        elif step.get("drain"):
            self._drain()
        else:
            self._arrive(step)
        return self.seen

    def _arrive(self, step: dict[str, Any]) -> None:
        channel = step["ch"]
        element = self._element(step)
        overtakes = isinstance(element, CheckpointBarrier) and element.options.is_unaligned
        if isinstance(element, CheckpointBarrier) and (step.get("receive_only") or step.get("direct")):
            self._notify(element, channel, direct=bool(step.get("direct")))
            return
        number = self.next_number[channel]
        self.next_number[channel] += 1
        self.channels[channel].core.on_element(ElementFrame(channel, element, number, 0, overtakes))
        announced = isinstance(element, CheckpointBarrier) and element.options.is_timeoutable
        if announced:
            self.priority.append(Arrived(channel, number, is_announcement=True))
            if step.get("local"):
                self._forget_announcement(channel, number)
        (self.priority if overtakes else self.ordinary).append(Arrived(channel, number))
        if overtakes and self.kind in SEEN_AT_ARRIVAL and isinstance(element, CheckpointBarrier):
            if self.manual_mailbox:
                self.mailbox.append((element, self.gate.channel_infos[channel]))
            else:
                self._take(self.priority[-1])
        if not step.get("hold"):
            self._drain()

    def _notify(self, barrier: CheckpointBarrier, channel: int, *, direct: bool) -> None:
        """The handler is told of a barrier that is not in the channel's queue."""
        info = self.gate.channel_infos[channel]
        if not direct and not barrier.options.is_unaligned:
            return
        if not direct and self.manual_mailbox:
            self.mailbox.append((barrier, info))
            return
        self._hand_over(barrier, info)

    def _hand_over(self, barrier: CheckpointBarrier, info: InputChannelInfo) -> None:
        waiting = [
            arrived.element
            for arrived in self.channels[info.channel_index].core._queue
            if isinstance(arrived.element, pa.RecordBatch)
        ]
        self.gate._persisters[info.channel_index].barrier_polled(barrier.checkpoint_id, waiting)
        self._process(BufferOrEvent(barrier, info, -1, is_priority=True))

    def _element(self, step: dict[str, Any]) -> StreamElement:
        if "data" in step:
            return pa.record_batch({"name": [step["data"]]})
        if "cancel" in step:
            return CancelCheckpointMarker(CheckpointID(step["cancel"]))
        if "eop" in step:
            return EndOfPartition()
        snapshot_type = SNAPSHOTS[step.get("type", "checkpoint")]
        savepoint = snapshot_type.is_savepoint
        timeout_ms = step.get("timeout_ms", NO_ALIGNED_TIMEOUT_MS)
        alignment = {
            "tracker": AlignmentType.AT_LEAST_ONCE,
            "aligner": AlignmentType.ALIGNED,
            "unaligner": AlignmentType.UNALIGNED,
            "alternating": AlignmentType.ALIGNED if savepoint else AlignmentType.UNALIGNED,
            "alternating_timeout": AlignmentType.UNALIGNED if step.get("unaligned") else AlignmentType.ALIGNED,
        }[self.kind]
        if alignment is not AlignmentType.ALIGNED:
            timeout_ms = NO_ALIGNED_TIMEOUT_MS
        options = CheckpointOptions(snapshot_type, alignment, timeout_ms)
        return CheckpointBarrier(CheckpointID(step["barrier"]), step.get("ts", self.now_ms), options)

    def _advance(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while due := [(at_ms, order, key) for key, (at_ms, order) in self.timers.items() if at_ms <= end_ms]:
            at_ms, _, key = min(due, key=lambda timer: timer[:2])
            del self.timers[key]
            self.now_ms = max(self.now_ms, at_ms)
            self.handler.timer_fired(key, self.now_ms)
        self.now_ms = end_ms

    # --- the gate model -----------------------------------------------------------------------------------------------

    def _drain(self, *, announcements_only: bool = False) -> None:
        while (arrived := self._choose(announcements_only=announcements_only)) is not None:
            self._take(arrived)

    def _choose(self, *, announcements_only: bool) -> Arrived | None:
        if announcements_only:
            return next((arrived for arrived in self.priority if arrived.is_announcement), None)
        if self.priority:
            return self.priority[0]
        return next(
            (arrived for arrived in self.ordinary if self.channels[arrived.channel].core.has_available_element), None
        )

    def _take(self, arrived: Arrived) -> None:
        (self.priority if arrived in self.priority else self.ordinary).remove(arrived)
        polled = self.gate.poll_channel(arrived.channel)
        assert polled is not None and polled.sequence_number == arrived.sequence_number, "harness and channel disagree"
        assert isinstance(polled.element, EventAnnouncement) is arrived.is_announcement, "harness and channel disagree"
        self._process(polled)

    def _process(self, polled: BufferOrEvent) -> None:
        seen = self.checkpointed.process(polled, self.now_ms)
        if seen is not None and isinstance(seen.element, EndOfPartition):
            self.seen.emitted.append(f"EOP@{seen.channel.channel_index}")
        elif seen is not None and isinstance(seen.element, pa.RecordBatch):
            self.seen.emitted.append(seen.element.column("name")[0].as_py())

    def converted(self, channel: int, sequence_number: int) -> None:
        """An announced barrier has been moved to the front of its channel."""
        found = next(
            arrived
            for arrived in self.ordinary
            if arrived.channel == channel and arrived.sequence_number == sequence_number
        )
        self.ordinary.remove(found)
        self.priority.append(found)

    def _forget_announcement(self, channel: int, number: int) -> None:
        """A local channel announces nothing."""
        core = self.channels[channel].core
        core._queue.get_and_remove(
            lambda queued: queued.sequence_number == number and isinstance(queued.element, EventAnnouncement)
        )
        self.priority = [
            arrived
            for arrived in self.priority
            if not (arrived.channel == channel and arrived.sequence_number == number and arrived.is_announcement)
        ]

    # --- what the handler says (BarrierListener), and observations ----------------------------------------------------

    def trigger_checkpoint_on_barrier(
        self, barrier: CheckpointBarrier, metrics: CheckpointMetrics, now_ms: int
    ) -> None:
        """The task would take its snapshot."""
        self.seen.triggered.append(barrier)
        self.seen.alignment_ms = metrics.alignment_duration_ms
        self.seen.start_delay_ms = metrics.checkpoint_start_delay_ms

    def all_barriers_received(
        self, checkpoint_id: CheckpointID, alignment_duration_ms: int, bytes_processed_during_alignment: int
    ) -> None:
        """The alignment was this long."""
        self.seen.alignment_ms = alignment_duration_ms

    def finish_input(self, checkpoint_id: CheckpointID, batches: InputState) -> None:
        """The data in flight is known."""
        self.completed_inflight[checkpoint_id] = {
            info.channel_index: _names(captured) for info, captured in batches.items()
        }

    def abort_checkpoint_on_barrier(
        self,
        checkpoint_id: CheckpointID,
        reason: CheckpointFailureReason | None,
        detail: str = "",
        timestamp_ms: int = 0,
    ) -> None:
        """The handler has given the checkpoint up."""
        assert reason is not None, "there is no JobMaster here"
        self.seen.aborted.append({"id": checkpoint_id, "reason": reason.name})
        if any(begun.checkpoint_id > checkpoint_id for begun in self.seen.triggered):
            self.seen.subsumed_too_late.append(checkpoint_id)

    def decline_overtaken_checkpoint(self, checkpoint_id: CheckpointID, detail: str, timestamp_ms: int) -> None:
        """Scenarios do not look at declines."""

    def inputs_recovered(self, *, is_last: bool) -> None:
        """Nothing is restored here."""

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """Timers are fired by steps that let time pass."""
        self.timers_started += 1
        self.timers[key] = (at_ms, self.timers_started)

    def cancel_timer(self, key: Hashable) -> None:
        """It is not due any more."""
        self.timers.pop(key, None)

    def inflight(self, checkpoint_id: int) -> dict[int, list[str]]:
        """Captured so far."""
        if checkpoint_id in self.completed_inflight:
            return self.completed_inflight[checkpoint_id]
        return {
            index: _names(persister._batches)
            for index, persister in enumerate(self.gate._persisters)
            if persister._checkpoint_id == checkpoint_id and persister._batches
        }

    def observe(self, key: str) -> Any:
        """What can be seen of the handler after a step."""
        handler = self.handler
        match key:
            case "latest_id":
                return handler.latest_checkpoint_id
            case "pending":
                return handler.is_checkpoint_pending
            case "pending_ids":
                if isinstance(handler, CheckpointBarrierTracker):
                    return list(handler.pending_checkpoint_ids)
                return [handler.latest_checkpoint_id] if handler.is_checkpoint_pending else []
            case "all_barriers_received":
                return isinstance(handler, SingleCheckpointBarrierHandler) and handler.has_completed_latest
            case "blocked":
                return sorted(self.gate.blocked_channels)
        raise ValueError(f"unknown expectation {key!r}")


def _names(batches: Iterable[pa.RecordBatch]) -> list[str]:
    return [batch.column("name")[0].as_py() for batch in batches]


def replay(scenario: Scenario) -> list[str]:
    """Play the steps on one input side."""
    harness = Harness(scenario["config"])
    failures: list[str] = []
    triggered: list[int] = []
    aborted: list[dict[str, Any]] = []
    emitted: list[str] = []
    blocked: list[int] | str = []
    for number, step in enumerate(scenario["steps"]):
        expect = step.get("expect", {})
        seen = harness.play(step)
        optional = expect.get("may_abort", [])
        expected_aborts = expect.get("aborted", [])
        step_aborted = [
            abort
            for abort in seen.aborted
            if expected_aborts == "*" or abort in expected_aborts or abort not in optional
        ]
        natural = []
        if not step.get("hold"):
            natural = [step["data"]] if "data" in step else [f"EOP@{step['ch']}"] if "eop" in step else []
        got: dict[str, Any] = {
            "triggered": [trigger.checkpoint_id for trigger in seen.triggered],
            "aborted": step_aborted,
            "emitted": seen.emitted,
        }
        for key, default in (("triggered", []), ("aborted", []), ("emitted", natural)):
            expected = expect.get(key, default)
            if expected not in ("*", got[key]):
                failures.append(difference(number, key, expected, got[key]))
        if seen.subsumed_too_late:
            failures.append(difference(number, "aborted after its successor was triggered", [], seen.subsumed_too_late))
        blocked = expect.get("blocked", blocked)
        if blocked != "*" and sorted(blocked) != harness.observe("blocked"):
            failures.append(difference(number, "blocked", sorted(blocked), harness.observe("blocked")))
        for key in sorted(set(expect) - set(got) - {"may_abort", "blocked"}):
            actual = _observed(harness, seen, key, expect[key])
            if expect[key] not in ("*", actual):
                failures.append(difference(number, key, expect[key], actual))
        triggered += got["triggered"]
        aborted += step_aborted
        emitted += seen.emitted
    final = scenario.get("final", {})
    whole = {"triggered": triggered, "aborted": aborted, "emitted": emitted}
    for key, expected in final.items():
        if key == "inflight":
            actual = {checkpoint_id: harness.inflight(checkpoint_id) for checkpoint_id in expected}
        else:
            actual = whole[key] if key in whole else harness.observe(key)
        if expected not in ("*", actual):
            failures.append(difference("final", key, expected, actual))
    return failures


def _observed(harness: Harness, seen: Seen, key: str, expected: Any) -> Any:
    if key == "alignment":
        return ["unaligned" if trigger.options.is_unaligned else "aligned" for trigger in seen.triggered]
    if key == "inflight":
        return {checkpoint_id: harness.inflight(checkpoint_id) for checkpoint_id in expected}
    if key in ("alignment_ms", "start_delay_ms"):
        return getattr(seen, key)
    return harness.observe(key)
