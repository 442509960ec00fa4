"""What an operator is to do, as data: built by the user API, pickled into the JobGraph, turned into a runtime operator
by `snapline.taskmanager.operators.factory`.

A spec holds user functions and names of columns; it has no behaviour. One spec class per kind of operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.async_retries import AsyncRetryStrategy
from snapline.dataflow.api.batch_aggregates import AnyAggregate, HeldAggregate, OwnAggregate
from snapline.dataflow.api.connector_api import Sink, Source, SourceSplit
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import (
    AsyncFunction,
    KeyedBatchProcessFunction,
    KeyedProcessFunction,
    SourceFunction,
)
from snapline.dataflow.api.process_function import ProcessFunction
from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.api.triggers import EarlyTrigger
from snapline.dataflow.api.two_phase_commit import SinkFunction
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.api.windows import PaneAssigner, RowsBy, WindowAssigner

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch | Iterable[pa.RecordBatch] | None]
SideSchemas = tuple[tuple[str, pa.Schema], ...]
"""Tags of side outputs, and the columns that whoever reads them has declared."""

COMMITTABLES = pa.schema(
    [("job_id", pa.string()), ("sink_uid", pa.string()), ("checkpoint_id", pa.int64()), ("data", pa.string())]
)
"""Columns of the stream between the writers of a sink and the committer of all of them; `data` is JSON."""


@dataclass(frozen=True)
class SourceSpec:
    """Read splits. `splits` were enumerated at submission, in order; subtask i starts with those at i mod
    parallelism."""

    source: Source
    splits: tuple[SourceSplit, ...]
    watermark_strategy: WatermarkStrategy | None = None
    is_fed: bool = False
    """Splits come from an enumerator, by the task's input; `splits` are for whoever counts rows."""


@dataclass(frozen=True)
class SplitEnumeratorSpec:
    """Discover the splits of a source, and hand them to its readers. `splits` were enumerated at submission."""

    source: Source
    splits: tuple[SourceSplit, ...]
    event_time_column: str = ""


@dataclass(frozen=True)
class SourceFunctionSpec:
    """Run a push-style source on a thread of its own (in the simulator: stepwise)."""

    function: SourceFunction
    watermark_strategy: WatermarkStrategy | None = None
    output_schema: pa.Schema | None = None


@dataclass(frozen=True)
class MapBatchesSpec:
    """Batch in, batch (or batches, or None) out."""

    function: BatchFunction
    output_schema: pa.Schema | None = None


@dataclass(frozen=True)
class FilterSpec:
    """Keep the rows for which the function's boolean array is true (null counts as false)."""

    predicate: Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True)
class MapRowsSpec:
    """A function that turns one row into one row (map). `on_error`: of it and its like, what becomes of a row that the
    function raises for."""

    function: Callable[[Row], Any]
    output_schema: pa.Schema | None = None
    on_error: str = "fail"


@dataclass(frozen=True)
class ProcessSpec:
    """A ProcessFunction, row by row, without keys."""

    function: ProcessFunction
    output_schema: pa.Schema | None = None
    event_time_column: str = ""
    """Empty: rows have no event time."""
    on_error: str = "fail"
    side_schemas: SideSchemas = ()


@dataclass(frozen=True)
class FlatMapRowsSpec:
    """Row in, any number of rows out; None is none."""

    function: Callable[[Row], Any]
    output_schema: pa.Schema | None = None
    on_error: str = "fail"


@dataclass(frozen=True)
class FilterRowsSpec:
    """Keep the rows for which the function is true."""

    predicate: Callable[[Row], bool]
    on_error: str = "fail"


@dataclass(frozen=True)
class WatermarkSpec:
    """Assign event time and generate watermarks in the middle of a stream."""

    strategy: WatermarkStrategy


@dataclass(frozen=True)
class KeyedProcessSpec:
    """Row-wise KeyedProcessFunction over keyed state."""

    key_columns: tuple[str, ...]
    function: KeyedProcessFunction
    output_schema: pa.Schema | None = None
    event_time_column: str = ""
    """Empty: rows have no event time."""
    side_schemas: SideSchemas = ()


@dataclass(frozen=True)
class RunningAggregateSpec:
    """For every row its key's aggregates so far, itself included, in order. Output: key columns, `passthrough` columns,
    one column per aggregate."""

    key_columns: tuple[str, ...]
    aggregates: tuple[AnyAggregate, ...]
    passthrough: tuple[str, ...] = ()
    input_schema: pa.Schema | None = None
    """None: not known before the first batch."""


@dataclass(frozen=True)
class WindowAggregateSpec:
    """Vectorised aggregation per key and event-time window. Output: key columns, `window_start`, `window_end`
    (timestamp[ms]), one column per aggregate; a row per key and window when the watermark passes the window's end."""

    key_columns: tuple[str, ...]
    event_time_column: str
    assigner: WindowAssigner
    aggregates: tuple[AnyAggregate, ...]
    allowed_lateness_ms: int = 0
    late_output_tag: str = ""
    input_schema: pa.Schema | None = None
    """None: not known before the first batch."""
    early_trigger: EarlyTrigger | None = None


@dataclass(frozen=True)
class WindowProcessSpec:
    """A user's function over the rows of a key's window. `form`: 'rows' (a ProcessWindowFunction), 'batches'
    (`function(key, window, batch)`), 'reduce' (`function(row, row) -> row`) or 'rows_by' (a RowsBy)."""

    key_columns: tuple[str, ...]
    event_time_column: str
    assigner: WindowAssigner
    function: Any
    form: str = "rows"
    output_schema: pa.Schema | None = None
    allowed_lateness_ms: int = 0
    late_output_tag: str = ""
    input_schema: pa.Schema | None = None
    early_trigger: EarlyTrigger | None = None
    side_schemas: SideSchemas = ()


@dataclass(frozen=True)
class CombinerSpec:
    """What sends rows to windows of event time that keep the greatest (or least) ones knows of them, so that it keeps
    back what they would drop."""

    key_columns: tuple[str, ...]
    event_time_column: str
    assigner: PaneAssigner
    by: RowsBy


@dataclass(frozen=True)
class KeyedBatchProcessSpec:
    """Batch-wise KeyedBatchProcessFunction over keyed state."""

    key_columns: tuple[str, ...]
    function: KeyedBatchProcessFunction
    output_schema: pa.Schema | None = None
    event_time_column: str = ""


@dataclass(frozen=True)
class CoProcessSpec:
    """A function of two inputs. Without key columns neither is keyed. `broadcast`: the second input goes to all
    subtasks, and the function keeps these broadcast states. `batches`: process_batch1 and 2 instead of process_element1
    and 2."""

    key_columns: tuple[tuple[str, ...], tuple[str, ...]]
    event_time_columns: tuple[str, str]
    function: Any
    output_schema: pa.Schema | None = None
    broadcast: tuple[MapStateDescriptor, ...] | None = None
    batches: bool = False
    side_schemas: SideSchemas = ()


@dataclass(frozen=True)
class JoinSide:
    """One input of a join."""

    key_columns: tuple[str, ...]
    event_time_column: str
    schema: pa.Schema


@dataclass(frozen=True)
class WindowJoinSpec:
    """Pairs of rows with the same key in the same window. `how`: inner, left, right or full."""

    left: JoinSide
    right: JoinSide
    assigner: WindowAssigner
    output_schema: pa.Schema
    how: str = "inner"
    allowed_lateness_ms: int = 0
    late_output_tag: str = ""


@dataclass(frozen=True)
class IntervalJoinSpec:
    """Pairs of rows with the same key, the right one's time minus the left one's between the bounds; None: no bound,
    and rows are kept for good."""

    left: JoinSide
    right: JoinSide
    output_schema: pa.Schema
    lower_ms: int | None
    upper_ms: int | None
    late_output_tag: str = ""


@dataclass(frozen=True)
class TemporalJoinSpec:
    """Each left row with the right row of its key that was the latest at the left row's time. `how`: inner or left."""

    left: JoinSide
    right: JoinSide
    output_schema: pa.Schema
    how: str = "inner"
    late_output_tag: str = ""


@dataclass(frozen=True)
class TableLookupSpec:
    """Columns of a table that every subtask loads when it opens. `how`: inner or left."""

    load: Callable[[], pa.Table]
    columns: tuple[str, ...]
    """Columns of the stream that are compared with those of the table."""
    table_columns: tuple[str, ...]
    how: str = "left"


@dataclass(frozen=True)
class AsyncSpec:
    """Requests to the outside, several at a time."""

    function: AsyncFunction
    capacity: int
    timeout_ms: int
    ordered: bool = True
    output_schema: pa.Schema | None = None
    retry: AsyncRetryStrategy | None = None


@dataclass(frozen=True)
class SinkSpec:
    """Write, pre-commit at the barrier, commit on notification."""

    sink: Sink


@dataclass(frozen=True)
class SinkWriterSpec:
    """Write, and emit what is pre-committed at the barrier, for a committer of all subtasks."""

    sink: Sink


@dataclass(frozen=True)
class GlobalCommitterSpec:
    """Commit on notification, in one transaction, what the writers of all subtasks emitted before the barrier."""

    sink: Sink


@dataclass(frozen=True)
class SinkFunctionSpec:
    """Hand every batch (or row) to a user's SinkFunction, which may be a TwoPhaseCommitSinkFunction."""

    function: SinkFunction
    row_wise: bool = False


@dataclass(frozen=True)
class ExternalSpec:
    """Rows go to programs outside, or come from them. `shape`: 'source', 'operator' or 'sink'."""

    task: str
    shape: str
    input_schema: pa.Schema | None = None
    """None: not known before the first batch."""
    output_schema: pa.Schema | None = None
    key_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class CustomOperatorSpec:
    """A runtime operator that the user brings, built by a callable in the task."""

    factory: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)


OperatorSpec = (
    SourceSpec
    | SplitEnumeratorSpec
    | SourceFunctionSpec
    | MapBatchesSpec
    | FilterSpec
    | MapRowsSpec
    | FlatMapRowsSpec
    | FilterRowsSpec
    | ProcessSpec
    | WatermarkSpec
    | KeyedProcessSpec
    | RunningAggregateSpec
    | WindowAggregateSpec
    | WindowProcessSpec
    | KeyedBatchProcessSpec
    | CoProcessSpec
    | WindowJoinSpec
    | IntervalJoinSpec
    | TemporalJoinSpec
    | TableLookupSpec
    | AsyncSpec
    | SinkSpec
    | SinkWriterSpec
    | GlobalCommitterSpec
    | SinkFunctionSpec
    | ExternalSpec
    | CustomOperatorSpec
)

_ROW_BY_ROW = (
    MapRowsSpec,
    FlatMapRowsSpec,
    FilterRowsSpec,
    ProcessSpec,
    KeyedProcessSpec,
    AsyncSpec,
)
_PASSES_BATCHES_ON = (MapBatchesSpec, FilterSpec, WatermarkSpec)


def works_row_by_row(chain: Iterable[object]) -> bool:
    """Whether operators that are chained, in this order, call a function for each row that comes in, so that what a row
    costs does not depend on how many rows come at once. What is behind an operator that takes batches and keeps them,
    an aggregate or a join, has other rows."""
    for spec in chain:
        if isinstance(spec, _ROW_BY_ROW):
            return True
        if isinstance(spec, CoProcessSpec):
            return not spec.batches
        if isinstance(spec, SinkFunctionSpec):
            return spec.row_wise
        if not isinstance(spec, _PASSES_BATCHES_ON):
            return False
    return False


def columns_read(spec: object) -> tuple[str, ...]:
    """The columns of its input that an aggregate reads. Empty: all, because the operator is none, or hands whole rows
    on that are late."""
    if isinstance(spec, RunningAggregateSpec):
        others = spec.passthrough
    elif isinstance(spec, WindowAggregateSpec) and not spec.late_output_tag:
        others = (spec.event_time_column,)
    else:
        return ()
    aggregated = [column for aggregate in spec.aggregates for column in _columns_of(aggregate)]
    return tuple(dict.fromkeys(column for column in (*spec.key_columns, *others, *aggregated) if column))


def _columns_of(aggregate: AnyAggregate) -> tuple[str, ...]:
    if isinstance(aggregate, OwnAggregate):
        return aggregate.columns
    return (aggregate.column, aggregate.by) if isinstance(aggregate, HeldAggregate) else (aggregate.column,)
