"""The operators of one task, wired: what one emits goes straight into the next, or out of the task.

Decides wiring (main and side outputs, chained inputs, edges), the order of life-cycle calls (tail to head for opening,
head to tail for the end), which operator's pending work goes first, and whose an exception is. It does not know
channels or checkpoints: the task loop says when. Mirrors Flink's OperatorChain, ChainingOutput,
BroadcastingOutputCollector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from snapline.dataflow.api.accumulators import Accumulators, AccumulatorValue
from snapline.dataflow.api.user_metrics import Gauge, MetricGroup, MetricValue
from snapline.dataflow.elements import MIN_WATERMARK_MS, CheckpointBarrier, LatencyMarker, Watermark, WatermarkStatus
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.wire.messages import OperatorDescriptor, TapTask
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.failure import OperatorFailure, is_of_operator
from snapline.taskmanager.operators.base.operator_contract import (
    OperatorContext,
    OperatorSnapshot,
    RestoredState,
    SourceOperatorContract,
    StreamOperator,
)
from snapline.taskmanager.task.latencies import Latencies
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from snapline.taskmanager.task.record_writer import RecordWriter
from snapline.taskmanager.task.row_taps import RowTaps, TapAnswer

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ChainedOperator:
    """One operator in its place."""

    descriptor: OperatorDescriptor
    operator: StreamOperator
    records_in: int = 0
    taps: RowTaps = field(default_factory=RowTaps)
    """Who looks at what comes in."""
    held_status: WatermarkStatus | None = None
    """The last one that came while the operator still worked on what a watermark had made due."""
    has_finished: bool = False
    """Whether its timers fire no more: what they emit could come to operators that have finished, too."""

    def failure(self, activity: str, cause: BaseException) -> OperatorFailure:
        """The cause, attributed to this operator."""
        return OperatorFailure(self.descriptor.uid, self.descriptor.name, activity, cause)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        """Deliver a batch to the operator."""
        self.records_in += batch.num_rows
        if self.taps.wait:
            self.taps.show(batch)
        try:
            self.operator.process_batch(batch, input_index)
        except BaseException as error:
            if not is_of_operator(error):
                raise
            raise self.failure("process_batch", error) from error

    def process_watermark(self, watermark: Watermark) -> None:
        """Deliver a watermark to the operator."""
        try:
            self.operator.process_watermark(watermark)
        except BaseException as error:
            if not is_of_operator(error):
                raise
            raise self.failure("process_watermark", error) from error

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Deliver a watermark status to the operator, behind the watermark that it still works on: nobody listens to
        that of who is idle."""
        if self.operator.has_pending_work and not self.operator.orders_statuses:
            self.held_status = status
            return
        self.held_status = None
        self.run("process_watermark_status", lambda: self.operator.process_watermark_status(status))

    def continue_work(self) -> None:
        """Do one slice of the operator's work."""
        self.run("continue_work", self.operator.continue_work)
        if self.held_status is not None:
            self.process_watermark_status(self.held_status)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        """Let the operator emit what still belongs to the checkpoint."""
        self.run("prepare_snapshot_pre_barrier", lambda: self.operator.prepare_snapshot_pre_barrier(checkpoint_id))

    def snapshot_state(self, barrier: CheckpointBarrier, *, is_final: bool) -> tuple[OperatorID, OperatorSnapshot]:
        """Freeze the operator's state. `is_final`: the operators of the task have finished."""
        self.operator.announce_snapshot(barrier.options.snapshot_type)
        try:
            snapshot = self.operator.snapshot_state(barrier.checkpoint_id, barrier.timestamp_ms)
        except BaseException as error:
            if not is_of_operator(error):
                raise
            raise self.failure("snapshot_state", error) from error
        return self.descriptor.operator_id, replace(snapshot, is_final=True) if is_final else snapshot

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """Tell the operator that the checkpoint is durable."""
        self.run("notify_checkpoint_complete", lambda: self.operator.notify_checkpoint_complete(checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        """Tell the operator that the checkpoint will never complete."""
        self.run("notify_checkpoint_aborted", lambda: self.operator.notify_checkpoint_aborted(checkpoint_id))

    def run(self, activity: str, call: Callable[[], T]) -> T:
        """Return what any other call gives; what it raises names the operator and the activity."""
        try:
            return call()
        except BaseException as error:
            if not is_of_operator(error):
                raise
            raise self.failure(activity, error) from error


class ChainOutput:
    """Where one operator of the chain emits (Output)."""

    def __init__(self) -> None:
        self._chained: list[tuple[ChainedOperator, int]] = []
        self._writers: list[RecordWriter] = []
        self._side: dict[str, ChainOutput] = {}
        self.records_out = 0
        self.taps = RowTaps()
        """Who looks at what goes out."""
        self._watermark_ms = MIN_WATERMARK_MS

    def add_chained(self, consumer: ChainedOperator, input_index: int) -> None:
        """An operator of this chain reads here."""
        self._chained.append((consumer, input_index))

    def add_writer(self, writer: RecordWriter) -> None:
        """Add the writer of an outgoing edge that begins at this operator."""
        self._writers.append(writer)

    @property
    def is_read(self) -> bool:
        """Return whether anybody reads what is emitted."""
        return bool(self._chained or self._writers)

    def emit_latency_marker(
        self, marker: LatencyMarker, passed_on: Callable[[ChainedOperator, LatencyMarker], None]
    ) -> None:
        """Send a marker to all that read any output of the operator."""
        for consumer, _ in self._chained:
            passed_on(consumer, marker)
        for writer in self._writers:
            writer.emit_latency_marker(marker)
        for side in self._side.values():
            side.emit_latency_marker(marker, passed_on)

    def side(self, tag: str) -> ChainOutput:
        """The side output of this tag; created for those who read it."""
        return self._side.setdefault(tag, ChainOutput())

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        """To the main output. Empty batches are dropped."""
        rows = batch.num_rows
        if rows == 0:
            return
        self.records_out += rows
        if self.taps.wait:
            self.taps.show(batch)
        for consumer, input_index in self._chained:
            consumer.process_batch(batch, input_index)
        for writer in self._writers:
            writer.emit(batch)

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """To the side output `tag`; dropped when nobody reads it."""
        side = self._side.get(tag)
        if side is not None:
            side.emit_batch(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        """Send a watermark to all outputs of the operator, unless it says no more than the one before."""
        if watermark.timestamp_ms <= self._watermark_ms:
            return
        self._watermark_ms = watermark.timestamp_ms
        for consumer, _ in self._chained:
            consumer.process_watermark(watermark)
        for writer in self._writers:
            writer.emit_watermark(watermark)
        for side in self._side.values():
            side.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Send a watermark status to all outputs of the operator."""
        for consumer, _ in self._chained:
            consumer.process_watermark_status(status)
        for writer in self._writers:
            writer.emit_watermark_status(status)
        for side in self._side.values():
            side.emit_watermark_status(status)


class _OperatorProcessingTime:
    """The task's processing time, with failures of callbacks attributed to one operator (ProcessingTimeService)."""

    def __init__(self, service: TaskProcessingTime, owner: ChainedOperator) -> None:
        self._service = service
        self._owner = owner
        self.now_ms = service.now_ms
        self.activity_ms = service.activity_ms

    @property
    def empty_polls(self) -> int:
        return self._service.empty_polls

    def register_timer(self, at_ms: int, callback: Callable[[int], None]) -> object:
        owner = self._owner

        def fire(due_ms: int) -> None:
            if not owner.has_finished:
                owner.run("a processing-time timer", lambda: callback(due_ms))

        return self._service.register_timer(at_ms, fire)

    def cancel_timer(self, token: object) -> None:
        self._service.cancel_timer(token)


class OperatorChain:
    """The operators of one task. `operators[0]` is the head."""

    def __init__(
        self,
        operators: Sequence[tuple[OperatorDescriptor, StreamOperator]],
        writers: Sequence[RecordWriter],
        context_of: Callable[[OperatorDescriptor], OperatorContext],
        processing_time: TaskProcessingTime,
    ) -> None:
        check(len(operators) > 0, "a task has at least one operator")
        self.operators = tuple(ChainedOperator(descriptor, operator) for descriptor, operator in operators)
        self._outputs = tuple(ChainOutput() for _ in self.operators)
        position_of = {item.descriptor.operator_id: index for index, item in enumerate(self.operators)}
        for index, item in enumerate(self.operators):
            upstream = item.descriptor.chained_input
            check((upstream < 0) == (index == 0), "exactly the head of a chain has no chained input")
            check(upstream < index, "a chain lists operators after those that they read from")
            if upstream >= 0:
                output = self._output_of(upstream, item.descriptor.chained_side_output_tag)
                output.add_chained(item, item.descriptor.chained_input_index)
        for writer in writers:
            source = writer.descriptor.source_operator
            check(source in position_of, f"edge {writer.descriptor.edge_id} begins at an operator of another task")
            self._output_of(position_of[source], writer.descriptor.side_output_tag).add_writer(writer)
        self._registries: list[Accumulators] = []
        self._metric_groups: list[MetricGroup] = []
        for item, output in zip(self.operators, self._outputs, strict=True):
            context = replace(
                context_of(item.descriptor), processing_time=_OperatorProcessingTime(processing_time, item)
            )
            item.operator.setup(context, output)
            self._registries.append(context.accumulators)
            self._metric_groups.append(context.metrics)
        self.head = self.operators[0]
        """The operator that reads the gates, or the source."""
        operator = self.head.operator
        self.source = operator if isinstance(operator, SourceOperatorContract) else None
        """The head, if it is a source."""
        self._blocked_possible = tuple(
            item.operator
            for item in reversed(self.operators)
            if type(item.operator).is_blocked is not StreamOperator.is_blocked
        )
        self._pending_possible = tuple(
            (item.operator, item.operator in self._blocked_possible)
            for item in reversed(self.operators)
            if type(item.operator).has_pending_work is not StreamOperator.has_pending_work
        )
        """With whether it may be blocked, too."""
        self._latencies = Latencies()
        self._now_ms = processing_time.now_ms
        self._output_by_operator = dict(
            zip((item.descriptor.operator_id for item in self.operators), self._outputs, strict=True)
        )
        self._opened: list[ChainedOperator] = []
        self._finished = 0

    def _output_of(self, position: int, tag: str) -> ChainOutput:
        output = self._outputs[position]
        return output.side(tag) if tag else output

    # --- life -------------------------------------------------------------------------------------------------------

    def initialize_and_open(self, restored_of: Callable[[OperatorDescriptor], RestoredState]) -> None:
        """Restore and open every operator, tail to head."""
        for item in reversed(self.operators):
            self._opened.append(item)
            restored = restored_of(item.descriptor)
            item.run("initialize_state", lambda item=item, restored=restored: item.operator.initialize_state(restored))  # type: ignore[misc]
            item.run("open", item.operator.open)

    def end_input(self, input_index: int) -> None:
        """The head's input has ended."""
        self.head.run("end_input", lambda: self.head.operator.end_input(input_index))

    def finish_next(self) -> bool:
        """Finish the next operator, head to tail. False when all are finished. The caller lets pending work end between
        two calls, so that what an operator flushes is processed before the next one flushes."""
        if self._finished == len(self.operators):
            return False
        item = self.operators[self._finished]
        if self._finished > 0:
            item.run("end_input", lambda: item.operator.end_input(item.descriptor.chained_input_index))
        item.has_finished = True
        item.run("finish", item.operator.finish)
        self._finished += 1
        return True

    def close(self) -> list[BaseException]:
        """Close whatever was initialised, head to tail, whatever is raised. Returns what was raised."""
        raised: list[BaseException] = []
        while self._opened:
            item = self._opened.pop()
            try:
                item.operator.close()
            except BaseException as error:
                if not is_of_operator(error):
                    raise
                raised.append(item.failure("close", error))
        return raised

    # --- data -------------------------------------------------------------------------------------------------------

    @property
    def accumulators(self) -> tuple[AccumulatorValue, ...]:
        """What the functions of all operators have counted. From any thread."""
        return tuple(value for registry in self._registries for value in registry.travelling())

    @property
    def told_gauges(self) -> list[Gauge]:
        """Return the gauges that functions tell. From any thread."""
        return [gauge for group in self._metric_groups for gauge in group.told]

    @property
    def user_metrics(self) -> tuple[MetricValue, ...]:
        """What the metrics of all functions hold; gauges that functions tell, what these told last. From any thread."""
        groups = tuple(value for group in self._metric_groups for value in group.travelling())
        return (*groups, *self._latencies.travelling())

    def emit_latency_marker(self) -> None:
        """Let a marker leave the source."""
        marker = LatencyMarker(self._now_ms(), self.head.descriptor.uid or self.head.descriptor.name)
        self._outputs[0].emit_latency_marker(marker, self._measure)

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """A marker has come through a gate."""
        self._measure(self.head, marker)

    def _measure(self, item: ChainedOperator, marker: LatencyMarker) -> None:
        self._latencies.note(item.descriptor.uid or item.descriptor.name, marker, self._now_ms())
        self._output_by_operator[item.descriptor.operator_id].emit_latency_marker(marker, self._measure)

    def tap(self, tap: TapTask, answer: TapAnswer) -> None:
        """Show the next rows that an operator puts out; those that it takes in, where that is asked for or nothing goes
        out."""
        for item, output in zip(self.operators, self._outputs, strict=True):
            if item.descriptor.operator_id == tap.operator_id:
                (output.taps if output.is_read and not tap.of_input else item.taps).add(tap, answer)

    @property
    def source_records(self) -> int:
        """Rows that the head has emitted."""
        return self._outputs[0].records_out

    @property
    def is_ready(self) -> bool:
        """Whether all operators may begin."""
        return all(item.operator.is_ready for item in self.operators)

    @property
    def has_pending_work(self) -> bool:
        """Whether some operator has more to do before the next element. What is upstream of a blocked one waits."""
        for operator, may_be_blocked in self._pending_possible:
            if operator.has_pending_work:
                return True
            if may_be_blocked and operator.is_blocked:
                return False
        return False

    @property
    def is_blocked(self) -> bool:
        """Whether some operator takes nothing more for now."""
        for operator in self._blocked_possible:  # noqa: SIM110 - asked in each step: a generator is one call more
            if operator.is_blocked:
                return True
        return False

    @property
    def awaits(self) -> str:
        """What the task waits for outside of it; from any thread."""
        return next((words for operator in self._blocked_possible if (words := operator.awaits)), "")

    @property
    def wake_at_ms(self) -> int | None:
        """When an operator will have more to do by time alone. What is upstream of a blocked one waits for that one."""
        if not self._blocked_possible:
            return None
        times: list[int | None] = []
        for operator in self._blocked_possible:
            times.append(operator.wake_at_ms)
            if operator.is_blocked:
                break
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def continue_work(self) -> None:
        """One slice, of the operator furthest down: what one further up emits must find those below it ready."""
        for item in reversed(self.operators):
            if item.operator.has_pending_work:
                item.continue_work()
                return
            if item.operator.is_blocked:
                return
