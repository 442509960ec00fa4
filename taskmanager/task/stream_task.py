"""The loop of one subtask: mail first, then data, one bounded piece of work per step.

Decides what is done next. Order: mail (triggers, notifications, cancel, answers of uploads, wake-ups of channels),
timers of the checkpointing cores, processing-time timers, unfinished work of the last watermark, one element of the
input or one batch of the source. Data is touched only while all outputs have room, priority elements always. Life:

    CREATED -> INITIALIZING -> RUNNING -> FINISHED
    any but a terminal state -> CANCELED (cancel) | FAILED (an exception, a lost channel, failExternally)

It has no thread and no clock: production calls `step` in a thread that waits while nothing is to do (`taskmanager.
task_thread`), the simulator calls it directly. What a checkpoint, the end of data or a failure means is decided in the
files beside this one. Mirrors Flink's StreamTask, MailboxProcessor and StreamOneInputProcessor; the mailbox replaces
the checkpoint lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import pyarrow as pa

from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.user_metrics import Gauge
from snapline.dataflow.config import LATENCY_INTERVAL, Configuration
from snapline.dataflow.elements import (
    MAX_WATERMARK_MS,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    SnapshotType,
    Watermark,
    WatermarkStatus,
)
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import (
    AlignWatermarks,
    EndOfDataReached,
    ExecutionState,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TapTask,
    TaskDeploymentDescriptor,
    TaskMessage,
    TaskMetrics,
    TaskStateChanged,
    TaskTapped,
    TriggerCheckpoint,
)
from snapline.runtime.cores.machine import InvariantViolation, check
from snapline.taskmanager.network.channels.exchange_contract import InputChannel
from snapline.taskmanager.network.channels.input_gate import BufferOrEvent
from snapline.taskmanager.operators.sinks.sink_operator import waits_for_final_checkpoint
from snapline.taskmanager.task.batch_size import BatchSizeLimit
from snapline.taskmanager.task.environment_contract import Environment
from snapline.taskmanager.task.mailbox import (
    AsyncSnapshotMail,
    CancelMail,
    ChannelFailedMail,
    ChannelNonEmptyMail,
    FailMail,
    Mail,
    Mailbox,
)
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from snapline.taskmanager.task.task_completion import DataPhase, TaskCompletion
from snapline.taskmanager.task.task_failure import ChannelFailure, InputPosition, SavepointFailure, serialize_failure
from snapline.taskmanager.task.task_metrics import TaskMeter
from snapline.taskmanager.task.task_restore import TaskRestore
from snapline.taskmanager.task.task_wiring import TaskInput, TaskParts, wire


class ProgressKind(Enum):
    """What a step of the task has done. The label, which the meter counts by, is an attribute: a member's `value` takes
    two calls, after each step."""

    def __init__(self, label: str) -> None:
        self.label = label

    WORKED = "worked"
    """Something was done: call the next step at once."""
    IDLE = "idle"
    """Nothing to do before `wake_at_ms`, or `Environment.wake_up`."""
    BACKPRESSURED = "backpressured"
    """As IDLE: an output has no room."""
    HELD = "held"
    """As IDLE: what has come waits for a channel that is behind in event time."""
    BLOCKED = "blocked"
    """As IDLE: an operator waits for answers from outside, and takes nothing more. The task counts as busy, as in
    Flink."""
    FINISHED = "finished"
    """The task is over, whatever its state; never call again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step answers: what it has done, and when to call the next one."""

    kind: ProgressKind
    wake_at_ms: int | None = None


WORKED = Progress(ProgressKind.WORKED)
OVER = Progress(ProgressKind.FINISHED)
HINDERED = (ProgressKind.BACKPRESSURED, ProgressKind.BLOCKED, ProgressKind.HELD)


class _Stopped(Exception):
    """Cancel, or a failure that comes from outside, found in the mailbox."""

    def __init__(self, state: ExecutionState, failure: SerializedFailure | None) -> None:
        super().__init__(state.value)
        self.state = state
        self.failure = failure


class StreamTask:
    """One attempt of one subtask. Everything but the mail methods on one thread."""

    def __init__(self, descriptor: TaskDeploymentDescriptor, environment: Environment) -> None:
        self.descriptor = descriptor
        self._environment = environment
        self._configuration = Configuration(descriptor.configuration)
        self._state = ExecutionState.CREATED
        self._mailbox = Mailbox(environment.wake_up)
        self._time = TaskProcessingTime()
        self._is_over = False
        """Whether the state is a terminal one."""
        self._is_to_end = False
        """Whether the mail that asks for the end of the task is there; set by any thread."""
        self._hindered = False
        """The last step could take no row."""
        self._position = InputPosition()
        self._meter = TaskMeter(descriptor.attempt_id)
        self._batch_sizes: dict[int, BatchSizeLimit] = {}
        """The limits of the sizes of batches, by the index of the gate that they come through."""
        self._step_began_ms = 0
        self._taken_from: int | None = None
        """The gate that the last step took a batch from."""
        self._completion = TaskCompletion(
            waits_for_final_checkpoint=waits_for_final_checkpoint(descriptor.configuration),
            had_finished=descriptor.restore_state.is_task_finished,
        )
        self._channels: list[InputChannel] = []
        self._parts: TaskParts | None = None
        self._ended_inputs: set[int] = set()
        self._triggers: list[TriggerCheckpoint] = []
        """Triggers that wait: for the end of data (stop with savepoint), or for the end of all inputs."""
        self._last_completed_id = descriptor.restore_checkpoint_id
        """No operator is told of it, or of an older one, again."""

    # --- mail: from any thread ----------------------------------------------------------------------------------------

    def deliver(self, message: TaskMessage) -> None:
        """The JobMaster said this to the attempt."""
        self._mailbox.put(message)

    def cancel(self) -> None:
        """End as CANCELED. May be repeated."""
        self._mailbox.put(CancelMail())
        self._is_to_end = True
        self._interrupt_operators()

    def fail_externally(self, failure: SerializedFailure) -> None:
        """End as FAILED with this failure."""
        self._mailbox.put(FailMail(failure))
        self._is_to_end = True
        self._interrupt_operators()

    def _interrupt_operators(self) -> None:
        """A function on a thread of its own is told at once, and who waits for a program; the task may wait for it."""
        parts = self._parts
        for item in parts.chain.operators if parts is not None and parts.chain is not None else ():
            item.operator.cancel()

    # --- seen from outside --------------------------------------------------------------------------------------------

    @property
    def state(self) -> ExecutionState:
        """Where the attempt is in its life."""
        return self._state

    def metrics(self, now_ms: int | None = None) -> TaskMetrics:
        """Counters, cumulative since the start, from any thread; with `now_ms`, which one thread only may give, also
        what happened lately."""
        return self._meter.metrics(self._parts, now_ms)

    @property
    def told_gauges(self) -> list[Gauge]:
        """Return the gauges of its functions that are asked for before counters are read. From any thread."""
        parts = self._parts
        return parts.chain.told_gauges if parts is not None and parts.chain is not None else []

    # --- the loop -----------------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> Progress:
        """Do one piece of work. Raises InvariantViolation only: a defect of ours, after which the shell fails the task
        by `abandon`."""
        if self._is_over:
            return OVER
        self._time.advance(now_ms, hindered=self._hindered)
        self._meter.step_begins(now_ms)
        self._step_began_ms = now_ms
        if self._taken_from is not None:
            self._limit_batches(self._taken_from, now_ms)
        try:
            progress = self._initialize() if self._state is ExecutionState.CREATED else self._step(self._time.now_ms())
        except InvariantViolation:
            raise
        except _Stopped as stopped:
            self._end(stopped.state, stopped.failure)
            progress = OVER
        except Exception as error:
            self._end(*self._end_by(error))
            progress = OVER
        self._meter.step_ends(progress.kind.label)
        self._hindered = progress.kind in HINDERED
        return progress

    def abandon(self, error: BaseException) -> None:
        """A broken invariant, or whatever else the shell could not bear: FAILED, with everything released."""
        if not self._is_over:
            self._end(ExecutionState.FAILED, serialize_failure(error, self._position))

    def _step(self, now_ms: int) -> Progress:
        parts = self._parts or self._wired()
        worked = self._handle_mail(now_ms)
        if self._state is ExecutionState.INITIALIZING:
            return self._run_when_ready(parts)
        while (key := parts.timers.take_due(now_ms)) is not None:
            if parts.input is not None:
                parts.input.gate.handler.timer_fired(key, now_ms)
            parts.checkpoints.timer_fired(key)
        parts.checkpoints.check_output_barriers()
        if self._triggers:
            self._perform_waiting_triggers(now_ms)
        has_room = True
        for writer in parts.writers:
            writer.debloat(now_ms)
            has_room = has_room and writer.is_available
        kind, wake_at_ms = self._advance(parts, now_ms, has_room=has_room)
        if kind is ProgressKind.IDLE:
            self._time.found_nothing()
        if self._is_over:
            return OVER
        if kind is ProgressKind.WORKED or worked:
            for writer in parts.writers:
                writer.flush_due(now_ms, idle=False)
            return WORKED
        times = [wake_at_ms, parts.timers.next_at_ms]
        if has_room and parts.chain is not None and not self._completion.stands_still:
            times.append(parts.chain.wake_at_ms)
        if has_room and kind is not ProgressKind.BLOCKED:
            times.append(self._time.next_at_ms)
        times += [writer.flush_due(now_ms, idle=True) for writer in parts.writers]
        return Progress(kind, min([at_ms for at_ms in times if at_ms is not None], default=None))

    def _advance(self, parts: TaskParts, now_ms: int, *, has_room: bool) -> tuple[ProgressKind, int | None]:
        """The next piece of work, by phase."""
        chain = None if self._completion.stands_still else parts.chain
        if chain is not None and chain.has_pending_work:
            if parts.input is not None and self._poll(parts, now_ms, priority_only=True):
                return ProgressKind.WORKED, None
            if not has_room:
                return ProgressKind.BACKPRESSURED, None
            chain.continue_work()
            return ProgressKind.WORKED, None
        if chain is not None and chain.is_blocked:
            if parts.input is not None and self._poll(parts, now_ms, priority_only=True):
                return ProgressKind.WORKED, None
            return (ProgressKind.BLOCKED if has_room else ProgressKind.BACKPRESSURED), None
        phase = self._completion.phase
        take_timer = self._time.take_of_turn if phase is DataPhase.PROCESSING else self._time.take_due
        if has_room and (timer := take_timer()) is not None:
            timer.callback(timer.at_ms)
            return ProgressKind.WORKED, None
        match phase:
            case DataPhase.PROCESSING:
                return self._process(parts, now_ms, has_room=has_room)
            case DataPhase.FINISHING:
                if not has_room:
                    return ProgressKind.BACKPRESSURED, None
                if chain is None or not chain.finish_next():
                    self._send_end_of_data(parts, drain=True)
                return ProgressKind.WORKED, None
            case DataPhase.ENDED:
                kind = self._wait_for_end(parts, now_ms)
                return kind, parts.input.union.waits_until_ms if parts.input is not None else None
            case unreachable:
                assert_never(unreachable)

    def _process(self, parts: TaskParts, now_ms: int, *, has_room: bool) -> tuple[ProgressKind, int | None]:
        task_input = parts.input
        source = parts.chain.source if parts.chain is not None else None
        # A reader takes splits and barriers in also where it has no room for rows.
        polls_all = has_room or source is not None
        if task_input is not None and self._poll(parts, now_ms, priority_only=not polls_all):
            return ProgressKind.WORKED, None
        if not has_room:
            return ProgressKind.BACKPRESSURED, None
        if task_input is not None and source is None:
            held_until_ms = task_input.union.waits_until_ms
            return (ProgressKind.IDLE if held_until_ms is None else ProgressKind.HELD), held_until_ms
        if parts.chain is None:
            self._end_source_data(parts, drain=True)
            return ProgressKind.WORKED, None
        source = check(source, "a task without inputs has a source")
        position, chain = self._position, parts.chain
        position.input_name, position.rows, position.rows_before = "source", 0, chain.source_records
        try:
            status = chain.head.run("emit_next", source.emit_next)
        except BaseException:
            position.rows = chain.source_records - position.rows_before
            position.batch_number += 1
            raise
        position.batch_number += chain.source_records > position.rows_before
        position.input_name = ""
        match status:
            case InputStatus.MORE_AVAILABLE:
                return ProgressKind.WORKED, None
            case InputStatus.END_OF_INPUT:
                self._end_source_data(parts, drain=True)
                return ProgressKind.WORKED, None
            case _:
                return ProgressKind.IDLE, source.wake_at_ms

    # --- input --------------------------------------------------------------------------------------------------------

    def _poll(self, parts: TaskParts, now_ms: int, *, priority_only: bool = False) -> bool:
        """Take one element from the gates. Returns whether there was one."""
        task_input = parts.input or check(parts.input, "there is no task input, although the task has gates")
        polled = task_input.union.poll_priority() if priority_only else task_input.union.poll_next(now_ms)
        if polled is None:
            return False
        seen_by_operators = task_input.gate.process(polled, now_ms)
        if seen_by_operators is not None:
            self._process_element(parts, task_input, seen_by_operators)
        return True

    def _process_element(self, parts: TaskParts, task_input: TaskInput, polled: BufferOrEvent) -> None:
        element = polled.element
        gate_index, channel_index = polled.channel
        descriptor = task_input.descriptors[gate_index]
        if isinstance(element, pa.RecordBatch):
            self._meter.batch_in(element.num_rows, task_input.gate.batch_bytes)
            self._taken_from = gate_index
            self._batch_sizes.setdefault(gate_index, BatchSizeLimit()).batch_taken(
                element.num_rows, self._step_began_ms
            )
            position = self._position
            position.input_name = f"input {gate_index}, channel {channel_index}"
            position.batch_number += 1
            position.rows_before += position.rows
            position.rows = element.num_rows
            if parts.chain is not None:
                parts.chain.head.process_batch(element, descriptor.input_index)
            position.input_name = ""
            return
        number = task_input.channel_number(gate_index, channel_index)
        match element:
            case Watermark():
                self._process_watermarks(parts, task_input.valve.input_watermark(number, element))
            case WatermarkStatus():
                self._process_watermarks(parts, task_input.valve.input_status(number, element))
            case LatencyMarker():
                if parts.chain is not None:
                    parts.chain.process_latency_marker(element)
            case EndOfData():
                self._check_end_of_data(parts, task_input)
            case EndOfPartition():
                self._process_watermarks(parts, task_input.valve.channel_ended(number))
            case _:
                check(condition=False, why=f"{type(element).__name__} is no business of the operators")

    def _limit_batches(self, gate_index: int, now_ms: int) -> None:
        """The step that took a batch from this gate has ended: what follows may be cut."""
        limit, self._taken_from = self._batch_sizes[gate_index], None
        task_input = self._wired().input
        if limit.step_ends(now_ms) and task_input is not None:
            task_input.union.gates[gate_index].limit_batches(limit.rows)

    def _process_watermarks(self, parts: TaskParts, outputs: list[Watermark | WatermarkStatus]) -> None:
        if parts.chain is None or self._completion.stands_still:
            return
        for output in outputs:
            if isinstance(output, Watermark):
                if parts.chain.source is None or output.timestamp_ms == MAX_WATERMARK_MS:
                    self._meter.watermark_ms = output.timestamp_ms
                parts.chain.head.process_watermark(output)
            elif self._completion.phase is DataPhase.PROCESSING:
                parts.chain.head.process_watermark_status(output)

    def _check_end_of_data(self, parts: TaskParts, task_input: TaskInput) -> None:
        gates = task_input.union.gates
        drain = task_input.union.should_drain
        for input_index in sorted({descriptor.input_index for descriptor in task_input.descriptors}):
            of_input = [
                gate
                for gate, descriptor in zip(gates, task_input.descriptors, strict=True)
                if descriptor.input_index == input_index
            ]
            if input_index not in self._ended_inputs and all(gate.has_received_end_of_data for gate in of_input):
                self._ended_inputs.add(input_index)
                if parts.chain is not None and all(gate.should_drain for gate in of_input):
                    parts.chain.end_input(input_index)
        if task_input.union.has_received_end_of_data:
            if parts.chain is None:
                for writer in parts.writers:
                    writer.emit_watermark(Watermark(MAX_WATERMARK_MS))
            self._end_of_input(parts, drain=drain)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_source_data(self, parts: TaskParts, *, drain: bool) -> None:
        """The source has no more, or is not to emit any more."""
        if drain:
            self._meter.watermark_ms = MAX_WATERMARK_MS
            if parts.chain is None:
                for writer in parts.writers:
                    writer.emit_watermark(Watermark(MAX_WATERMARK_MS))
            else:
                head = parts.chain.head
                head.run("end of input", lambda: head.operator.output.emit_watermark(Watermark(MAX_WATERMARK_MS)))
        self._end_of_input(parts, drain=drain)

    def _end_of_input(self, parts: TaskParts, *, drain: bool) -> None:
        self._time.end()
        self._completion.end_of_input(drain=drain)
        if not drain:
            self._send_end_of_data(parts, drain=False)

    def _send_end_of_data(self, parts: TaskParts, *, drain: bool) -> None:
        self._time.stop()  # what is emitted behind the end comes to operators that have finished, or comes again
        for writer in parts.writers:
            writer.broadcast(EndOfData(drain))
        self._completion.end_of_data_sent()
        if self._completion.reports_end_of_data:
            self._environment.end_of_data_reached(EndOfDataReached(self.descriptor.job_id, self.descriptor.attempt_id))

    def _wait_for_end(self, parts: TaskParts, now_ms: int) -> ProgressKind:
        if parts.input is not None and self._poll(parts, now_ms):
            return ProgressKind.WORKED
        inputs_ended = parts.input is None or parts.input.union.is_finished
        # what is frozen is still acknowledged: without this task its checkpoint would be lost for all
        is_asked = self._triggers or parts.checkpoints.pending_checkpoint_ids
        if self._completion.may_end and inputs_ended and not is_asked:
            for writer in parts.writers:
                writer.broadcast(EndOfPartition())
            self._end(ExecutionState.FINISHED, None)
            return ProgressKind.WORKED
        return ProgressKind.IDLE

    def _end(self, state: ExecutionState, failure: SerializedFailure | None) -> None:
        """Release what the task holds, then report its end. Whatever fails meanwhile does not hold the rest up.

        Its results go last: consumers fail when they are gone, and the JobMaster has to hear of the cause before.
        """
        parts = self._parts
        if parts is not None:
            if parts.chain is not None:
                raised = parts.chain.close()
                if raised and state is ExecutionState.FINISHED:
                    state, failure = ExecutionState.FAILED, serialize_failure(raised[0], InputPosition())
            parts.checkpoints.close()
        for channel in self._channels:
            channel.release()
        self._mailbox.close()
        self._become(state, failure)
        if state is not ExecutionState.FINISHED:
            for partition in self.descriptor.result_partitions:
                self._environment.exchange.release_result_partition(str(self.descriptor.attempt_id), partition.edge_id)

    def _become(self, state: ExecutionState, failure: SerializedFailure | None = None) -> None:
        self._state, self._is_over = state, state.is_terminal
        self._environment.task_state_changed(
            TaskStateChanged(self.descriptor.job_id, self.descriptor.attempt_id, state, failure)
        )

    # --- the beginning ------------------------------------------------------------------------------------------------

    def _initialize(self) -> Progress:
        self._become(ExecutionState.INITIALIZING)
        self._check_for_stop()
        restore = TaskRestore(self.descriptor, self._environment, lambda: self._is_to_end)
        self._parts = wire(
            self.descriptor,
            self._environment,
            self._configuration,
            self._time,
            self._mailbox.put,
            self._channels,
            self._checkpoint_taken,
            restore,
        )
        if self._parts.chain is not None:
            self._parts.chain.initialize_and_open(lambda operator: restore.state_of(operator.operator_id))
        return self._run_when_ready(self._parts)

    def _run_when_ready(self, parts: TaskParts) -> Progress:
        """RUNNING, unless an operator waits for a program outside: then there is no checkpoint of the job yet."""
        if parts.chain is not None and not parts.chain.is_ready:
            return Progress(ProgressKind.BLOCKED)
        self._become(ExecutionState.RUNNING)
        if self._reads_rows:
            self._mark_later()
        return WORKED

    @property
    def _reads_rows(self) -> bool:
        """Whether the task is a source of rows; what hands splits to sources is none."""
        parts = self._wired()
        gives_splits = any(writer.descriptor.partitioning is Partitioning.DEMAND for writer in parts.writers)
        return parts.chain is not None and parts.chain.source is not None and not gives_splits

    def _mark_later(self) -> None:
        """Let a marker leave the source once the interval is over, as long as it reads."""
        interval_ms = self._configuration.get_option(LATENCY_INTERVAL)
        if interval_ms > 0:
            self._time.register_timer(self._time.now_ms() + interval_ms, self._mark)

    def _mark(self, _at_ms: int) -> None:
        chain = self._wired().chain
        if chain is not None and self._completion.phase is DataPhase.PROCESSING:
            chain.emit_latency_marker()
            self._mark_later()

    def _rows_tapped(self, tap: TapTask, rows: bytes, rows_taken: int, rows_seen: int) -> None:
        message = TaskTapped(tap.job_id, tap.attempt_id, tap.tap_id, rows, rows_taken, rows_seen)
        self._environment.rows_tapped(message)

    def _wired(self) -> TaskParts:
        return check(self._parts, "a task is wired before it runs")

    # --- mail ---------------------------------------------------------------------------------------------------------

    def _check_for_stop(self) -> None:
        """Raise _Stopped when somebody has asked for the end of the task."""
        kept: list[Mail] = []
        while (mail := self._mailbox.take()) is not None:
            if isinstance(mail, CancelMail):
                raise _Stopped(ExecutionState.CANCELED, None)
            if isinstance(mail, FailMail):
                raise _Stopped(ExecutionState.FAILED, mail.failure)
            kept.append(mail)
        for mail in kept:
            self._mailbox.put(mail)

    def _end_by(self, error: Exception) -> tuple[ExecutionState, SerializedFailure | None]:
        """How the task ends after this was raised: as it was told to, if it was, because that ends waits."""
        try:
            self._check_for_stop()
        except _Stopped as stopped:
            return stopped.state, stopped.failure
        return ExecutionState.FAILED, serialize_failure(error, self._position)

    def _handle_mail(self, now_ms: int) -> bool:
        """All of it. Returns whether anything but wake-ups was there."""
        handled = False
        while (mail := self._mailbox.take()) is not None:
            if isinstance(mail, ChannelNonEmptyMail):
                parts = self._wired()
                task_input = parts.input or check(parts.input, "there is an input, because channels belong to gates")
                gate = task_input.union.gates[mail.gate_index]
                gate.notify_channel_non_empty(mail.channel_index, priority=mail.priority)
            else:
                handled = True
                self._handle(mail, now_ms)
        return handled

    def _handle(self, mail: Mail, now_ms: int) -> None:
        checkpoints = self._wired().checkpoints
        match mail:
            case TriggerCheckpoint():
                self._triggered(mail, now_ms)
            case NotifyCheckpointComplete(checkpoint_id=checkpoint_id):
                self._completed(checkpoint_id)
            case NotifyCheckpointAborted(checkpoint_id=checkpoint_id, latest_completed_id=latest_completed_id):
                self._completed(latest_completed_id)  # its notification may have been lost
                if self._completion.is_failed_savepoint(checkpoint_id) or any(
                    trigger.checkpoint_id == checkpoint_id and trigger.options.snapshot_type.is_synchronous
                    for trigger in self._triggers
                ):
                    raise SavepointFailure(
                        f"the job was to stop with savepoint {checkpoint_id}, which failed after its sources had stopped; it "
                        "restarts from its latest checkpoint"
                    )
                self._triggers = [trigger for trigger in self._triggers if trigger.checkpoint_id != checkpoint_id]
                checkpoints.notify_checkpoint_aborted(checkpoint_id)
                task_input = self._wired().input
                if task_input is not None:
                    task_input.gate.handler.process_abort_notification(checkpoint_id, now_ms)
            case AsyncSnapshotMail(checkpoint_id, result):
                checkpoints.async_part_done(checkpoint_id, result)
            case AlignWatermarks(max_watermark_ms=max_watermark_ms):
                chain = self._wired().chain
                if chain is not None and chain.source is not None:
                    chain.source.align_watermarks(max_watermark_ms)
            case TapTask():
                chain = self._wired().chain
                if chain is not None:
                    chain.tap(mail, self._rows_tapped)
            case CancelMail():
                raise _Stopped(ExecutionState.CANCELED, None)
            case FailMail(failure):
                raise _Stopped(ExecutionState.FAILED, failure)
            case ChannelFailedMail(gate_index, channel_index, cause):
                gate = self.descriptor.input_gates[gate_index]
                producer = gate.channels[channel_index]
                raise ChannelFailure(
                    f"the input from {gate.producer_name or gate.edge_id!r}, subtask {producer.producer.subtask_index + 1}, on "
                    f"TaskManager {producer.resource_id} broke: {cause}"
                )
            case ChannelNonEmptyMail():
                check(condition=False, why="wake-ups are handled before")

    def _completed(self, checkpoint_id: CheckpointID) -> None:
        if checkpoint_id > self._last_completed_id:
            self._last_completed_id = checkpoint_id
            self._wired().checkpoints.notify_checkpoint_complete(checkpoint_id)
        self._completion.checkpoint_completed(checkpoint_id)

    def _triggered(self, trigger: TriggerCheckpoint, now_ms: int) -> None:
        """A source takes a checkpoint at once, unless it is to stop first; another task once its inputs have ended."""
        parts = self._wired()
        stops = trigger.options.snapshot_type.is_synchronous
        if parts.input is None and stops and self._completion.phase is DataPhase.PROCESSING:
            source = parts.chain.source if parts.chain is not None else None
            drain = trigger.options.snapshot_type is SnapshotType.SAVEPOINT_TERMINATE
            if source is not None and parts.chain is not None:
                parts.chain.head.run("stop_emitting", lambda: source.stop_emitting(trigger.checkpoint_id, drain=drain))
            self._end_source_data(parts, drain=drain)
        self._triggers.append(trigger)
        self._perform_waiting_triggers(now_ms)

    def _perform_waiting_triggers(self, now_ms: int) -> None:
        parts = self._wired()
        waiting, self._triggers = self._triggers, []
        for trigger in waiting:
            if parts.input is None:
                ready = not trigger.options.snapshot_type.is_synchronous or self._completion.phase is DataPhase.ENDED
            else:
                ready = parts.input.union.is_finished
            if ready:
                barrier = CheckpointBarrier(trigger.checkpoint_id, trigger.timestamp_ms, trigger.options)
                parts.checkpoints.trigger_checkpoint(barrier, now_ms)
            else:
                self._triggers.append(trigger)

    def _checkpoint_taken(self, barrier: CheckpointBarrier) -> bool:
        finished = self._completion.operators_finished
        self._completion.checkpoint_taken(barrier)
        return finished
