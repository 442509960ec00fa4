"""One operator without a cluster: rows, watermarks and time are in the test's hands, output and state to be looked at.

Decides which subtask takes a row, as the edge of a job would, and what each new subtask gets of a snapshot, by the
rules of a restore. The operator is the one of a job, made from the same specification, pickled as for a TaskManager: a
function that cannot travel, or that keeps state outside of state, behaves here as there. Mirrors Flink's
OneInputStreamOperatorTestHarness, TwoInputStreamOperatorTestHarness and
AbstractStreamOperatorTestHarness.repackageState.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import cloudpickle
import numpy as np
import pyarrow as pa

from snapline.coordinator.checkpoint.restore.operator_state_redistribution import redistribute_operator_state
from snapline.dataflow.columnar.column_types import workable
from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.columnar.python_values import misspelled, table_of
from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, SnapshotType, Watermark, WatermarkStatus
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.operator_specs import SourceFunctionSpec, SourceSpec
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamNode
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    compute_key_group_range_for_operator_index,
)
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, OperatorStateEntry, OperatorStateHandle
from snapline.dataflow.snapshot.state_format import TIMERS_COLUMN, column_role, decode_keyed_state
from snapline.runtime.settings import text_of
from snapline.taskmanager.operators.base.operator_contract import (
    OperatorContext,
    OperatorSnapshot,
    RestoredState,
    StreamOperator,
    kept_modes,
)
from snapline.taskmanager.operators.factory import create_operator, load_spec
from snapline.taskmanager.operators.process.async_operator import AsyncOperator
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from snapline.taskmanager.task.task_failure import root_cause

if TYPE_CHECKING:
    from snapline.stream import DataStream

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table


class HarnessError(SnaplineError):
    """The harness cannot do what it was asked for; the message says what can be done.

    >>> harness = sl_testing.OperatorHarness(lambda s: s.filter(sl.col("n") > 1), pa.schema([("n", pa.int64())]))
    >>> _ = harness.snapshot()
    >>> harness.push([{"n": 2}])
    Traceback (most recent call last):
    snapline...HarnessError: this harness ended with its snapshot: go on with snapshot.restore(), a harness of its own
    """


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state of all subtasks of a harness, from which other harnesses start, as often as wanted.

    >>> schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    >>> sums = sl_testing.OperatorHarness(lambda s: s.key_by("k").running_aggregate(total=sl.sum("n")), schema)
    >>> snapshot = sums.push([{"k": "a", "n": 1}]).snapshot()
    >>> snapshot.restore(parallelism=3).push([{"k": "a", "n": 2}]).rows()
    [{'k': 'a', 'total': 3}]
    """

    node: StreamNode
    schemas: tuple[pa.Schema, ...]
    max_parallelism: int
    configuration: Mapping[str, str]
    subtasks: tuple[_WrittenSubtask, ...]
    now_ms: int

    def restore(self, *, parallelism: int | None = None) -> OperatorHarness:
        """A harness of the same operator that starts from here, with this parallelism, else the one before. The clock
        goes on where it stood; watermarks come anew, as after a restart. Raises HarnessError."""
        return OperatorHarness(
            self.node,
            *self.schemas,
            parallelism=len(self.subtasks) if parallelism is None else parallelism,
            max_parallelism=self.max_parallelism,
            configuration=self.configuration,
            restore_from=self,
        )


class OperatorHarness:
    """Drives one operator of a stream, with as many subtasks as wanted.

    >>> class Count(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.seen = context.get_state(sl.ValueStateDescriptor("seen", pa.int64()))
    ...     def process_element(self, row, context):
    ...         self.seen.update((self.seen.value() or 0) + 1)
    ...         context.timer_service.register_event_time_timer(row["at"] + 1_000)
    ...     def on_timer(self, timestamp_ms, context):
    ...         yield {"customer": context.current_key, "seen": self.seen.value()}
    >>> schema = pa.schema([("customer", pa.string()), ("at", pa.int64())])
    >>> harness = sl_testing.OperatorHarness(lambda s: s.key_by("customer").process(Count()), schema, event_time="at")
    >>> harness.push([{"customer": "x", "at": 0}, {"customer": "x", "at": 5}]).rows()
    []
    >>> harness.timers()
    [('x', 1000), ('x', 1005)]
    >>> harness.state().to_pylist()
    [{'customer': 'x', 'seen': 2}]
    >>> harness.watermark(1_000).rows(), harness.current_watermark
    ([{'customer': 'x', 'seen': 2}], 1000)
    >>> harness = harness.snapshot().restore(parallelism=2)
    >>> harness.processing_time(60_000).end_input().rows()
    [{'customer': 'x', 'seen': 2}]
    >>> harness.batches(), harness.side_rows("late")
    ([], [])
    >>> harness.close()
    """

    def __init__(
        self,
        build: Callable[..., DataStream] | StreamNode,
        *schemas: pa.Schema,
        event_time: str = "",
        parallelism: int = 1,
        max_parallelism: int = 128,
        configuration: Mapping[str, Any] | None = None,
        restore_from: HarnessSnapshot | None = None,
    ) -> None:
        """`build`: takes a stream for each of the schemas and returns what one operator makes of them. `event_time`:
        the column with the time of rows, in every input that has it. `configuration`: settings of the job.
        `restore_from`: a snapshot of another version of the operator, say. Raises HarnessError unless `build` adds
        exactly one operator, and ConfigurationError for a setting that there is not."""
        _whole("the maximum parallelism of a harness", max_parallelism, 1, UPPER_BOUND_MAX_PARALLELISM)
        _whole("the parallelism of a harness", parallelism, 1, max_parallelism)
        if not all(isinstance(schema, pa.Schema) for schema in schemas):
            raise HarnessError(
                "give the schema of each input as a pa.schema([...]): OperatorHarness(build, pa.schema([...]))"
            )
        if not (isinstance(build, StreamNode) or callable(build)):
            raise HarnessError(f"build is a function of a stream, not {build!r}")
        if restore_from is not None and not isinstance(restore_from, HarnessSnapshot):
            raise HarnessError(f"restore_from is what snapshot() of a harness returned, not {restore_from!r}")
        self._node = build if isinstance(build, StreamNode) else _only_operator(build, schemas, event_time)
        self._schemas = schemas
        self._max_parallelism = max_parallelism
        self._configuration = Configuration({key: text_of(value) for key, value in (configuration or {}).items()})
        self._batches: list[pa.RecordBatch] = []
        self._side: dict[str, list[pa.RecordBatch]] = {}
        self._watermarks = [MIN_WATERMARK_MS] * len(schemas)
        self._next_subtask = [0] * len(schemas)
        self._checkpoint_id = 0
        self._ended = ""
        self._is_open = True
        spec = cloudpickle.dumps(self._node.spec)
        shares = [RestoredState()] * parallelism
        now_ms = 0
        if restore_from is not None:
            shares, now_ms = _shares(restore_from.subtasks, parallelism), restore_from.now_ms
            self._checkpoint_id = 1
        self._subtasks = [self._subtask(spec, index, parallelism) for index in range(parallelism)]
        try:
            for subtask, restored in zip(self._subtasks, shares, strict=True):
                subtask.time.advance(now_ms)
                subtask.operator.initialize_state(restored)
                subtask.operator.open()
        except Exception as error:
            with suppress(Exception):  # perhaps of what could not be opened
                self.close()
            raise root_cause(error) from error

    # --- driving ------------------------------------------------------------------------------------------------------

    def push(self, rows: Rows, *, input: int = 0) -> OperatorHarness:  # noqa: A002 - what it is called everywhere
        """Rows come in on the input with this number (0 is the first); each goes to the subtask that owns its key.
        Raises HarnessError, and what the user's function raises."""
        self._check()
        batch = self._batch(rows, input)
        for subtask, part in zip(self._subtasks, self._parts(batch, input), strict=True):
            if part.num_rows:
                self._call(subtask, lambda s=subtask, p=part: s.operator.process_batch(p, input))  # type: ignore[misc]
        return self

    def watermark(self, timestamp_ms: int, *, input: int | None = None) -> OperatorHarness:  # noqa: A002
        """Event time is complete up to here, on one input or on all. The operator hears the least of its inputs; it
        never falls."""
        self._check()
        _whole("a watermark", timestamp_ms, MIN_WATERMARK_MS, MAX_WATERMARK_MS)
        before = min(self._watermarks)
        for number in range(len(self._schemas)) if input is None else [self._input(input)]:
            self._watermarks[number] = max(self._watermarks[number], timestamp_ms)
        if min(self._watermarks) > before:
            watermark = Watermark(min(self._watermarks))
            for subtask in self._subtasks:
                self._call(subtask, lambda s=subtask: s.operator.process_watermark(watermark))  # type: ignore[misc]
        return self

    def processing_time(self, now_ms: int) -> OperatorHarness:
        """The clock shows so many milliseconds: timers that are due fire, in the order of their times. It begins at
        0 and does not go back."""
        self._check()
        _whole("a processing time", now_ms, MIN_WATERMARK_MS, MAX_WATERMARK_MS)
        for subtask in self._subtasks:
            subtask.time.advance(now_ms)
            while (token := subtask.time.take_due()) is not None:
                self._call(subtask, lambda t=token: t.callback(t.at_ms))  # type: ignore[misc]
            self._call(subtask, subtask.time.found_nothing)
        return self

    def end_input(self) -> OperatorHarness:
        """All inputs end: the last watermark comes, and the operator finishes. Answers that an AsyncFunction still
        waits for are waited for. After it there is nothing to push any more."""
        self.watermark(MAX_WATERMARK_MS)
        for subtask in self._subtasks:
            for number in range(len(self._schemas)):
                self._call(subtask, lambda s=subtask, n=number: s.operator.end_input(n))  # type: ignore[misc]
            self._call(subtask, subtask.operator.finish)
        self._ended = "the input of this harness has ended: make another one"
        return self

    def snapshot(self) -> HarnessSnapshot:
        """The state of all subtasks, as a savepoint holds it. It ends the harness: whatever came after it would be lost
        in a job, too. What the operator emits before a barrier can still be taken."""
        self._check()
        for subtask in self._subtasks:
            self._call(subtask, lambda s=subtask: s.operator.prepare_snapshot_pre_barrier(CheckpointID(1)))  # type: ignore[misc]
        written = self._written()
        now_ms = self._subtasks[0].time.now_ms()
        self.close()
        self._ended = "this harness ended with its snapshot: go on with snapshot.restore(), a harness of its own"
        return HarnessSnapshot(
            self._node, self._schemas, self._max_parallelism, self._configuration, tuple(written), now_ms
        )

    def close(self) -> None:
        """Close the function in every subtask. Idempotent; done at the end of a `with` block, too."""
        if self._is_open:
            self._is_open = False
            self._ended = self._ended or "this harness is closed: make another one"
            with ExitStack() as closing:  # what one raises does not keep the others open
                for subtask in reversed(self._subtasks):
                    closing.callback(subtask.operator.close)

    def __enter__(self) -> OperatorHarness:
        """Return the harness itself, which is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the harness at the end of the block."""
        self.close()

    # --- looking ------------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """What was put out since the last call, in order, of all subtasks."""
        return [row for batch in self.batches() for row in batch.to_pylist()]

    def batches(self) -> list[pa.RecordBatch]:
        """The same as batches, whose types can be looked at."""
        taken, self._batches = self._batches, []
        return taken

    def side_rows(self, tag: str) -> list[dict[str, Any]]:
        """What was put out on this side output since the last call."""
        return [row for batch in self._side.pop(tag, []) for row in batch.to_pylist()]

    @property
    def current_watermark(self) -> int:
        """The watermark that the operator has put out: the least of its subtasks; -2**63 before the first."""
        return min(subtask.watermark for subtask in self._subtasks)

    def state(self) -> pa.Table:
        """The keyed state: a row for each key, with the key's columns and a column for each state. It is written for
        this as for a savepoint, and goes on unchanged."""
        self._check_open()
        tables = []
        for table in (table for part in self._written() for table in part.tables()):
            fields = [field for field in table.schema if column_role(field) != TIMERS_COLUMN]
            kept = table.select([field.name for field in fields])
            tables.append(kept.cast(pa.schema([field.remove_metadata() for field in fields])))
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def timers(self, *, processing_time: bool = False) -> list[tuple[Any, int]]:
        """Key and time of every timer of event time, or of processing time, by time; the key is a tuple if it has
        several columns."""
        self._check_open()
        kind = "processing" if processing_time else "event"
        keys = self._node.inputs[0].key_columns
        found: list[tuple[Any, int]] = []
        for table in (table for part in self._written() for table in part.tables()):
            queues = [field.name for field in table.schema if column_role(field) == TIMERS_COLUMN]
            for row in table.to_pylist():
                key = tuple(row[name] for name in keys)
                timers = [timer for queue in queues if queue.endswith(kind) for timer in row[queue] or ()]
                found += [(key if len(key) > 1 else key[0], timer["timestamp"]) for timer in timers]
        return sorted(found, key=lambda timer: (timer[1], str(timer[0])))

    # --- inner --------------------------------------------------------------------------------------------------------

    def _subtask(self, spec: bytes, index: int, parallelism: int) -> _Subtask:
        operator = create_operator(load_spec(spec, self._node.uid or self._node.name), _no_push_source)
        subtask = _Subtask(operator, self._batches_of, self._side)
        context = OperatorContext(
            job_id=JobID("harness"),
            operator_id=OperatorID("harness"),
            operator_uid=self._node.uid or self._node.name,
            operator_name=self._node.name,
            task_name=self._node.name,
            subtask_index=index,
            parallelism=parallelism,
            max_parallelism=self._max_parallelism,
            attempt_number=0,
            execution_attempt="harness",
            key_group_range=compute_key_group_range_for_operator_index(self._max_parallelism, parallelism, index),
            processing_time=subtask.time,
            configuration={"pipeline.auto-watermark-interval": "0 ms", **self._configuration},
            wake_up=subtask.bell.set,
            open_segment_space=lambda *_: MemorySegmentSpace(),
        )
        operator.setup(context, subtask)
        return subtask

    def _batches_of(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def _check(self) -> None:
        if self._ended:
            raise HarnessError(self._ended)

    def _check_open(self) -> None:
        if not self._is_open:
            raise HarnessError(self._ended)

    def _input(self, number: int) -> int:
        if number not in range(len(self._schemas)):
            raise HarnessError(f"there is no input {number!r}: the operator has {len(self._schemas)}, from 0 on")
        return number

    def _batch(self, rows: Rows, number: int) -> pa.RecordBatch:
        schema = self._schemas[self._input(number)]
        try:
            if not isinstance(rows, (pa.RecordBatch, pa.Table)):
                rows = [dict(row) for row in rows]
                if found := misspelled(rows, schema.names):
                    raise HarnessError(f"row {found[0]} for input {number} {found[1]}")
            if isinstance(rows, pa.RecordBatch):
                return workable(rows.select(schema.names).cast(schema))
            table = rows if isinstance(rows, pa.Table) else table_of(rows, schema)
            whole = table.select(schema.names).cast(schema).combine_chunks()
            return workable(next(iter(whole.to_batches()), pa.RecordBatch.from_pylist([], schema)))
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise HarnessError(f"the rows do not fit the schema of input {number} ({reason})") from None

    def _parts(self, batch: pa.RecordBatch, number: int) -> list[pa.RecordBatch]:
        """What each subtask gets of a batch."""
        edge = next(edge for edge in self._node.inputs if edge.target_input == number)
        count = len(self._subtasks)
        if edge.partitioning is Partitioning.HASH:
            return split_batch(batch, edge.key_columns, self._max_parallelism, count)
        if edge.partitioning is Partitioning.BROADCAST:
            return [batch] * count
        turn = self._next_subtask[number] % count
        self._next_subtask[number] += 1
        return [batch if index == turn else batch.slice(0, 0) for index in range(count)]

    def _call(self, subtask: _Subtask, action: Callable[[], None]) -> None:
        """Do it, and what follows from it. Raises what a user's function has raised, as it is."""
        try:
            action()
            subtask.work()
        except Exception as error:
            cause = root_cause(error)
            if cause is error:
                raise
            raise cause from error

    def _written(self) -> list[_WrittenSubtask]:
        self._checkpoint_id += 1
        written = []
        for subtask in self._subtasks:
            subtask.operator.announce_snapshot(SnapshotType.SAVEPOINT)
            frozen = subtask.operator.snapshot_state(CheckpointID(self._checkpoint_id), subtask.time.now_ms())
            written.append(_WrittenSubtask.of(frozen))
        return written


class _Subtask:
    """One subtask of the operator; its Output."""

    def __init__(
        self,
        operator: StreamOperator,
        emit: Callable[[pa.RecordBatch], None],
        side: dict[str, list[pa.RecordBatch]],
    ) -> None:
        self.operator: Any = operator
        self.time = TaskProcessingTime()
        self.bell = threading.Event()
        self.watermark = MIN_WATERMARK_MS
        self._emit = emit
        self._side = side

    def work(self) -> None:
        """Go on until the operator has done all that can be done, and takes rows again."""
        while self.operator.has_pending_work or self.operator.is_blocked:
            if not self.operator.has_pending_work:
                at_ms = self.operator.next_attempt_ms if isinstance(self.operator, AsyncOperator) else None
                if at_ms is None:
                    self.bell.wait()
                else:
                    self.time.advance(at_ms)
            self.bell.clear()
            self.operator.continue_work()

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        """Keep the rows for the test."""
        if batch.num_rows:
            self._emit(batch)

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Keep the rows of a side output for the test."""
        self._side.setdefault(tag, []).append(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        """Note how far the output of the subtask is."""
        self.watermark = max(self.watermark, watermark.timestamp_ms)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Take no note, because nothing here becomes idle."""


@dataclass(frozen=True)
class _KeyedFile:
    """One keyed part, encoded (KeyedStateInput)."""

    data: bytes
    key_group_range: KeyGroupRange

    @property
    def size(self) -> int:
        return len(self.data)

    def read_range(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


@dataclass(frozen=True)
class _WrittenSubtask:
    """The state of one subtask, encoded."""

    keyed: tuple[_KeyedFile, ...]
    lists: tuple[OperatorStateHandle, ...]

    @staticmethod
    def of(snapshot: OperatorSnapshot) -> _WrittenSubtask:
        keyed = []
        for part in snapshot.keyed:
            keyed.append(_KeyedFile(bytes(part.encode()), part.key_group_range))
            part.release()
        entries, blob = [], b""
        for state in snapshot.operator_lists:
            offsets = []
            for element in state.elements:
                offsets.append((len(blob), len(element)))
                blob += element
            entries.append(OperatorStateEntry(state.name, state.mode, tuple(offsets)))
        lists = (OperatorStateHandle(ByteStreamStateHandle(blob), tuple(entries)),) if entries else ()
        return _WrittenSubtask(tuple(keyed), lists)

    def tables(self) -> Iterable[pa.Table]:
        """The keyed state as tables, whose fields say what they are."""
        from snapline.state_reader import names_beside, newest_rows

        if self.keyed:
            files = [decode_keyed_state(file.read_range, file.key_group_range) for file in self.keyed]
            width = len(files[0][0].key_fields)
            for batch in newest_rows(files):
                key, others = batch.schema.names[:width], batch.schema.names[width:]
                yield pa.Table.from_batches([batch]).rename_columns([*key, *names_beside(key, others)])


def _shares(old: Sequence[_WrittenSubtask], parallelism: int) -> list[RestoredState]:
    """What each new subtask gets; of keyed files it takes its own key groups itself."""
    keyed = tuple(file for subtask in old for file in subtask.keyed)
    shares = []
    for index, handles in enumerate(redistribute_operator_state([subtask.lists for subtask in old], parallelism)):
        lists: dict[str, tuple[bytes, ...]] = {}
        for handle in handles:
            data = handle.handle.data  # type: ignore[union-attr]
            for entry in handle.entries:
                elements = (data[offset : offset + size] for offset, size in entry.offsets)
                lists[entry.name] = (*lists.get(entry.name, ()), *elements)
        shares.append(RestoredState(CheckpointID(1), keyed, lists, kept_modes(handles, index)))
    return shares


def _whole(what: str, value: object, least: int, most: int) -> None:
    """HarnessError unless it is a whole number between these."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise HarnessError(f"{what} is a whole number, {least} to {most}, not {value!r}")


def _only_operator(build: Callable[..., DataStream], schemas: Sequence[pa.Schema], event_time: str) -> StreamNode:
    """The node that `build` adds to streams of these schemas."""
    from snapline.connectors.builtin.collection import CollectionSource
    from snapline.dataflow.api.watermarks import WatermarkStrategy
    from snapline.environment import StreamExecutionEnvironment

    if not schemas:
        raise HarnessError("give the schema of each input: OperatorHarness(build, pa.schema([...]))")
    if event_time and not any(event_time in schema.names for schema in schemas):
        raise HarnessError(f"event_time={event_time!r}: no input has such a column")
    environment = StreamExecutionEnvironment.get_execution_environment()
    streams = []
    for number, schema in enumerate(schemas):
        strategy = WatermarkStrategy.for_monotonous_timestamps(event_time) if event_time in schema.names else None
        streams.append(environment.from_source(CollectionSource([], schema=schema), strategy, uid=f"input-{number}"))
    build(*streams)
    added = environment.graph.nodes[len(streams) :]
    if len(added) != 1:
        names = ", ".join(node.name for node in added) or "none"
        raise HarnessError(
            f"a harness has one operator, and there are {len(added)} ({names}): test several with MiniCluster"
        )
    (node,) = added
    if isinstance(node.spec, (SourceSpec, SourceFunctionSpec)):
        raise HarnessError(f"{node.name!r} is a source, which a harness has no input for: test it with MiniCluster")
    inputs: list[StreamEdge] = sorted(node.inputs, key=lambda edge: edge.target_input)
    if [edge.source for edge in inputs] != list(range(len(schemas))):
        raise HarnessError(f"{node.name!r} reads other inputs than the {len(schemas)} given, one after another")
    return node


def _no_push_source() -> Any:
    raise HarnessError("a source cannot be in a harness: test it with MiniCluster")
