"""Sources, operators and sinks that are programs outside: what lies between such a program and its task.

Decides how the program's answers become rows, watermarks and snapshots of this operator. A barrier waits for the
program: it leaves when the program has put out everything that follows from the rows before it, and has said its state,
which is then the state of this operator, written, redistributed and restored like any other. A program that declines,
or whose state is too much, declines the checkpoint when it is to be written, so that the task goes on. A program that
is not there keeps its task from beginning, no more. It does not know streams or threads. It has no counterpart in
Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.columnar.column_types import workable
from snapline.dataflow.columnar.validated import DAMAGE, read_batches
from snapline.dataflow.config import CHECKPOINTING_TIMEOUT
from snapline.dataflow.elements import SnapshotType, Watermark, WatermarkStatus
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.dataflow.graph.operator_specs import ExternalSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.dataflow.snapshot.program_state import RESERVED_PREFIX, operator_lists, states_of_lists
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import (
    OperatorContext,
    OperatorListSnapshot,
    OperatorSnapshot,
    Output,
    RestoredState,
    SourceOperatorContract,
    StreamOperator,
)
from snapline.taskmanager.programs.program_place import (
    EndCame,
    ForTask,
    NotificationTaken,
    PlaceForProgram,
    ProgramFailed,
    RowsCame,
    SnapshotCame,
    SnapshotDeclined,
    WatermarkCame,
)

KNOWN_STATE = f"{RESERVED_PREFIX}external-task"
"""The list that says that the snapshot is one of this task's, also to a subtask that gets none of its state: its
program does not begin anew."""
DRAINED_STATE = f"{RESERVED_PREFIX}drained"
"""The list with the job that was drained."""
MAX_BEFORE_ANSWER_BYTES = 1 << 30
"""What a program may put out after it was asked for an answer that its task waits for: nobody takes it meanwhile."""
MESSAGE_BYTES = 4096
"""What a message takes at least."""
SHAPES = {"source": pb.TASK_SHAPE_SOURCE, "operator": pb.TASK_SHAPE_OPERATOR, "sink": pb.TASK_SHAPE_SINK}


class ExternalTaskFailed(SnaplineError):
    """The program of an external task has failed, is gone, or puts out what it must not."""


class ExternalTaskUnfit(JobDefinitionError):
    """The program of an external task says that another attempt would end the same way."""


class CheckpointDeclinedByProgram(SnaplineError):
    """The program cannot take part in the checkpoint, which is aborted for all."""


class _DeclinedPart:
    """Stands in a snapshot where the state of a program would, and cannot be written (KeyedSnapshotPart)."""

    def __init__(self, key_group_range: KeyGroupRange, reason: str) -> None:
        self.key_group_range = key_group_range
        self._reason = reason

    def encode(self) -> bytes:
        """Raises CheckpointDeclinedByProgram, which declines the checkpoint."""
        raise CheckpointDeclinedByProgram(self._reason)

    def release(self) -> None:
        """Do nothing, because nothing is held."""


def _arrow_of(schema: pa.Schema | None, batch: pa.RecordBatch | None = None) -> bytes:
    """An Arrow IPC stream with the batch, or without any."""
    if schema is None:
        return b""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return out.getvalue().to_pybytes()


class ProgramBridge:
    """The program of one subtask, as its operator sees it."""

    def __init__(self, spec: ExternalSpec, context: OperatorContext, output: Output, restored: RestoredState) -> None:
        self._spec = spec
        self._context = context
        self._output = output
        self._name = f"external task {spec.task!r} ({context.subtask_index + 1}/{context.parallelism})"
        self._taken = OperatorSnapshot()
        self._is_idle = False
        """What was emitted last was that nothing is to be waited for."""
        self._handled_up_to = 0
        """The last complete checkpoint that the program has heard of."""
        self.has_ended = False
        """The program has put out its last row."""
        self.has_stopped = False
        """The program has taken the snapshot that the job stops with, which knows nothing of what is put out now, or
        has begun from it only to end again."""
        lists = dict(restored.operator_lists or {})
        was_there = lists.pop(KNOWN_STATE, None) is not None
        groups = context.key_group_range
        key_groups = range(groups.start, groups.end + 1) if spec.key_columns else range(0)
        run = pb.RunTask(
            attempt_id=context.execution_attempt,
            subtask_index=context.subtask_index,
            parallelism=context.parallelism,
            attempt_number=context.attempt_number,
            job_id=context.job_id,
            task=spec.task,
            restored_checkpoint_id=restored.checkpoint_id if was_there else 0,
            state=states_of_lists(lists, key_groups),
            configuration=dict(context.configuration),
            shape=SHAPES[spec.shape],
            input_schema=_arrow_of(spec.input_schema),
            output_schema=_arrow_of(spec.output_schema),
        )
        self.place: PlaceForProgram = context.offer_place(run, key_groups, context.wake_up)

    def give_rows(self, batch: pa.RecordBatch) -> None:
        """Send rows to the program, with their key groups."""
        groups: Sequence[int] = ()
        if self._spec.key_columns:
            from snapline.dataflow.columnar.key_partition import assign_to_key_groups  # its kernels load numba

            columns = [batch.column(name) for name in self._spec.key_columns]
            groups = assign_to_key_groups(columns, self._context.max_parallelism).tolist()
        self.place.give_rows(_arrow_of(batch.schema, batch), groups)

    def take_one(self) -> bool:
        """Do what the program said next; False: it has said nothing."""
        said = self.place.take()
        if said is None:
            return False
        check(not self._take(said), "a snapshot came that nobody waits for")
        return True

    def await_snapshot(self, checkpoint_id: CheckpointID, *, stops: bool) -> None:
        """Have the program take a snapshot, and do all that it says before. Raises ExternalTaskFailed."""
        self.place.ask_for_snapshot(checkpoint_id, self._context.processing_time.now_ms(), stops=stops)
        self._take_until(lambda was_answer: was_answer, f"answered checkpoint {checkpoint_id}")
        self.has_stopped |= stops

    def await_notification(self, checkpoint_id: CheckpointID) -> None:
        """Tell the program that the checkpoint is complete, and wait until it has done what that lets happen: nobody
        would do it after the end of the task. Raises ExternalTaskFailed."""
        self.place.settle(checkpoint_id, is_complete=True)
        self._handled_up_to = 0
        heard = f"said that it has heard of checkpoint {checkpoint_id}"
        self._take_until(lambda _: self._handled_up_to >= checkpoint_id, heard)

    def _take_until(self, is_there: Callable[[bool], bool], what: str) -> None:
        """Take what the program says, until `is_there` says so of whether the last was the answer to a checkpoint."""
        size = 0
        while not is_there(self._take(said := self._wait(what))):
            size += max(MESSAGE_BYTES, len(said.arrow) if isinstance(said, RowsCame) else 0)
            if size > MAX_BEFORE_ANSWER_BYTES:
                raise ExternalTaskFailed(
                    f"{self._name} has not {what}, and has put out more than {MAX_BEFORE_ANSWER_BYTES} bytes instead"
                )

    def _wait(self, what: str) -> ForTask:
        timeout = CHECKPOINTING_TIMEOUT
        timeout_ms = timeout.read(self._context.configuration.get(timeout.key, timeout.default))
        said = self.place.wait(timeout_ms)
        if said is None:
            raise ExternalTaskFailed(f"{self._name} has not {what} within {timeout_ms} ms ({timeout.key})")
        return said

    def take_snapshot(self) -> OperatorSnapshot:
        """What the program said last."""
        taken, self._taken = self._taken, OperatorSnapshot()
        return taken

    def _take(self, said: ForTask) -> bool:
        """Whether it was the answer to a checkpoint."""
        match said:
            case RowsCame() | WatermarkCame() | EndCame() if self.has_stopped:
                pass
            case RowsCame(arrow):
                self._emit(arrow)
            case WatermarkCame(_, True):
                self._is_idle = True
                self._output.emit_watermark_status(WatermarkStatus.IDLE)
            case WatermarkCame(timestamp_ms, _):
                self._be_active()
                self._output.emit_watermark(Watermark(timestamp_ms))
            case EndCame():
                self.has_ended = True
            case NotificationTaken(checkpoint_id):
                self._handled_up_to = checkpoint_id
            case SnapshotCame(_, states):
                lists = {**operator_lists(states), KNOWN_STATE: (OperatorStateMode.BROADCAST, (b"",))}
                frozen = (OperatorListSnapshot(name, mode, elements) for name, (mode, elements) in lists.items())
                self._taken = OperatorSnapshot(operator_lists=tuple(frozen))
                return True
            case SnapshotDeclined(_, reason):
                part = _DeclinedPart(self._context.key_group_range, f"{self._name}: {reason}")
                self._taken = OperatorSnapshot(keyed=(part,))
                return True
            case ProgramFailed(reason, details, is_final):
                kind = ExternalTaskUnfit if is_final else ExternalTaskFailed
                raise kind(f"{self._name}: {reason}" + (f"\n{details}" if details else ""))
        return False

    def _be_active(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._output.emit_watermark_status(WatermarkStatus.ACTIVE)

    def _emit(self, arrow: bytes) -> None:
        self._be_active()
        try:
            batches = list(read_batches(arrow))
        except DAMAGE as error:
            raise ExternalTaskFailed(f"{self._name} put out rows that are no Arrow IPC stream: {error}") from error
        for batch in map(workable, batches):
            schema = self._spec.output_schema
            if schema is not None:
                if (batch.schema.names, batch.schema.types) != (schema.names, schema.types):
                    raise ExternalTaskFailed(
                        f"{self._name} put out rows with columns {_shown(batch.schema)}, and the job says {_shown(schema)}"
                    )
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)  # noqa: PLW2901 - its own metadata are gone
            self._output.emit_batch(batch)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:500]


class ExternalOperator(StreamOperator):
    """Rows go to a program, and those that it answers with go on; of a sink none do."""

    orders_statuses = True

    def __init__(self, spec: ExternalSpec) -> None:
        self._spec = spec
        self._bridge: ProgramBridge | None = None
        self._is_finishing = False
        self._is_last = False
        """The snapshot that is taken now is one that the task may end with."""
        self._last_checkpoint: CheckpointID | None = None
        """The first checkpoint that the task may end with."""

    @property
    def _program(self) -> ProgramBridge:
        return check(self._bridge, "there is no program's place, although initialize_state was called")

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        self._bridge = ProgramBridge(self._spec, self.context, self.output, restored)

    @property
    def is_ready(self) -> bool:
        """A program is there and has begun, or has said why it cannot."""
        place = self._program.place
        return place.is_running or place.has_output

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self._program.give_rows(batch)

    def process_watermark(self, watermark: Watermark) -> None:
        self._program.place.give_watermark(watermark.timestamp_ms, is_idle=False)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """That it is active again goes on with what the program says next."""
        if status is WatermarkStatus.IDLE:
            self._program.place.give_watermark(0, is_idle=True)

    @property
    def has_pending_work(self) -> bool:
        """The program has said something."""
        return self._bridge is not None and self._bridge.place.has_output

    def continue_work(self) -> None:
        """Take one thing that it said."""
        self._program.take_one()

    @property
    def is_blocked(self) -> bool:
        """The program has enough to do, or all is to end and waits for it."""
        bridge = self._bridge
        if bridge is None:
            return False
        return not bridge.has_ended if self._is_finishing else not bridge.place.has_room

    @property
    def awaits(self) -> str:
        return f"the program of {self.context.operator_uid}" if self.is_blocked else ""

    def finish(self) -> None:
        """Tell the program that the input has ended; what it still puts out is waited for."""
        self._is_finishing = True
        self._program.place.end_input()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        self._program.await_snapshot(checkpoint_id, stops=False)

    def announce_snapshot(self, snapshot_type: SnapshotType) -> None:
        """One that the job stops with is the last, and so is every one after the end of the rows."""
        self._is_last = snapshot_type.is_synchronous or self._program.has_ended
        self._program.has_stopped |= snapshot_type.is_synchronous

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        if self._is_last and self._last_checkpoint is None:
            self._last_checkpoint = checkpoint_id
        return self._program.take_snapshot()

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        if self._last_checkpoint is not None and checkpoint_id >= self._last_checkpoint:
            self._program.await_notification(checkpoint_id)
        else:
            self._program.place.settle(checkpoint_id, is_complete=True)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        self._program.place.settle(checkpoint_id, is_complete=False)

    def cancel(self) -> None:
        if self._bridge is not None:
            self._bridge.place.cancel()

    def close(self) -> None:
        if self._bridge is not None:
            self._bridge.place.close("the attempt is over")


class ExternalSourceOperator(ExternalOperator, SourceOperatorContract):
    """Rows come from a program."""

    _stopped_with: CheckpointID | None = None
    _is_drained = False

    def initialize_state(self, restored: RestoredState) -> None:
        """What a job was drained with is over for that job; another one goes on behind it."""
        lists = dict(restored.operator_lists or {})
        self._is_drained = self.context.job_id.encode() in lists.pop(DRAINED_STATE, ())
        super().initialize_state(replace(restored, operator_lists=lists))
        self._program.has_ended = self._program.has_stopped = self._is_drained

    def emit_next(self) -> InputStatus:
        program = self._program
        if self._stopped_with is None and not self._is_drained:
            program.take_one()
        if program.has_ended or self._is_drained:
            return InputStatus.END_OF_INPUT
        return InputStatus.MORE_AVAILABLE if program.place.has_output else InputStatus.NOTHING_AVAILABLE

    def stop_emitting(self, checkpoint_id: CheckpointID, *, drain: bool) -> None:
        self._stopped_with, self._is_drained = checkpoint_id, drain
        self._program.await_snapshot(checkpoint_id, stops=True)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        if self._stopped_with != checkpoint_id:
            super().prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        taken = super().snapshot_state(checkpoint_id, timestamp_ms)
        if not self._is_drained:
            return taken
        drained = OperatorListSnapshot(DRAINED_STATE, OperatorStateMode.BROADCAST, (self.context.job_id.encode(),))
        return replace(taken, operator_lists=(*taken.operator_lists, drained))

    def finish(self) -> None:
        """Do nothing, because nothing was given to the program that it could end."""

    @property
    def has_pending_work(self) -> bool:
        """Never, because a source is asked for rows."""
        return False

    @property
    def is_blocked(self) -> bool:
        """Never, because nothing comes into a source."""
        return False
