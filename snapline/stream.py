"""Streams: what a user chains together. Every call adds a node to the environment's StreamGraph and returns a stream on
it.

Mirrors Flink's DataStream and SingleOutputStreamOperator; keyed streams are in `keyed`. The unit is the Arrow batch
(`map_batches`, `filter`); row-wise forms (`map`, `flat_map`, `process`) loop inside one operator. Where the schema of a
stream is known, names of columns are checked while the graph is built.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from snapline.aggregates import WithoutComputed
from snapline.dataflow.api.async_retries import AsyncRetryStrategy
from snapline.dataflow.api.bad_rows import BAD_ROWS_SCHEMA, BAD_ROWS_TAG, OnError, why_wrong
from snapline.dataflow.api.connector_api import Sink
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import AsyncFunction
from snapline.dataflow.api.process_function import ProcessFunction
from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.api.two_phase_commit import SinkFunction
from snapline.dataflow.api.watermarks import WatermarkStrategy, check_event_time_type, check_strategy, event_time_in
from snapline.dataflow.api.window_names import describe_windows
from snapline.dataflow.arguments import check_milliseconds, check_whole
from snapline.dataflow.columnar.arrow_columns import differ_in_offsets_only
from snapline.dataflow.columnar.column_types import workable_schema
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.external_tasks import external_spec
from snapline.dataflow.graph.operator_specs import (
    AsyncSpec,
    BatchFunction,
    CoProcessSpec,
    CustomOperatorSpec,
    FilterRowsSpec,
    FilterSpec,
    FlatMapRowsSpec,
    KeyedBatchProcessSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    MapRowsSpec,
    OperatorSpec,
    ProcessSpec,
    SinkFunctionSpec,
    WatermarkSpec,
)
from snapline.dataflow.graph.side_outputs import why_no_side_output, with_side_schema
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamNode
from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM
from snapline.dataflow.partitioning import Partitioning
from snapline.expressions.expression import Expr, col
from snapline.expressions.projection import Predicate, Projection, as_columns
from snapline.key_functions import KeyFunction, WithKeys, check_key_function
from snapline.row_hints import schema_by_hints
from snapline.stream_results import StreamResults, check_called
from snapline.stream_sink import DataStreamSink, end_in_sink

if TYPE_CHECKING:
    from snapline.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from snapline.environment import StreamExecutionEnvironment
    from snapline.keyed import KeyedStream


CALLING_SPECS = (MapBatchesSpec, FilterSpec, MapRowsSpec, FlatMapRowsSpec, FilterRowsSpec)
"""Operators whose function is called as it is."""
PROCESS_METHODS: dict[type, str] = {
    KeyedProcessSpec: "process_element", KeyedBatchProcessSpec: "process_batch", AsyncSpec: "async_invoke",
    SinkFunctionSpec: "invoke",
}  # fmt: skip
"""What the functions of others have to have."""


@dataclass(frozen=True)
class DataStream(StreamResults):
    """Batches of rows (Flink: DataStream). Every method that adds an operator returns the stream that the operator puts
    out.

    `schema` is None where it is not known before the job runs; `event_time_column` is empty until watermarks are
    assigned.

    >>> orders.schema.names
    ['shop', 'customer', 'cents', 'coupon', 'at']
    >>> orders.event_time_column
    'at'
    >>> orders.node.name
    'orders'
    """

    environment: StreamExecutionEnvironment
    edges: tuple[StreamEdge, ...]
    """What a consumer reads: one edge, several for a union."""
    schema: pa.Schema | None = None
    event_time_column: str = ""

    if not TYPE_CHECKING:  # a checker says it itself

        def __getattr__(self, name: str) -> object:
            """What only streams with keys have is looked for here, too."""
            from snapline.keyed import KeyedStream

            if hasattr(KeyedStream, name):
                raise AttributeError(
                    f"a DataStream has no {name!r} before it has keys: say stream.key_by(...).{name}(...)",
                    name=name,
                    obj=self,
                )
            raise AttributeError(f"'DataStream' object has no attribute {name!r}", name=name, obj=self)

    def __post_init__(self) -> None:
        """The columns are known as they are inside."""
        if self.schema is not None:
            object.__setattr__(self, "schema", workable_schema(self.schema))

    # --- setting properties of the operator just added ----------------------------------------------------------------

    @property
    def node(self) -> StreamNode:
        """The operator that produces this stream. Raises JobDefinitionError for a union, which has none."""
        if len(self.edges) != 1:
            raise JobDefinitionError("a union is not an operator: set uid, name or parallelism on the streams it joins")
        return self.environment.graph.nodes[self.edges[0].source]

    def uid(self, uid: str) -> DataStream:
        """Name under which the operator's state is found again after the program has changed; unique in the job. Needed
        by every operator with state once checkpoints are on.

        >>> orders.filter(lambda batch: pc.greater(batch["cents"], 100)).uid("dear").node.uid
        'dear'
        """
        node = self.node
        if self.edges[0].side_output_tag and node.uid not in ("", uid):  # whose state would not be found again
            raise JobDefinitionError(f"uid {uid!r}: that is a side output of {node.name!r}, whose uid is {node.uid!r}")
        node.uid = uid
        return self

    def name(self, name: str) -> DataStream:
        """Name for people: in logs, the graph and metrics. Nothing is found by it.

        >>> orders.map_batches(lambda batch: batch).name("as it is").node.name
        'as it is'
        """
        self.node.name = name
        return self

    def set_parallelism(self, parallelism: int) -> DataStream:
        """Number of subtasks of the operator, at least 1; else that of the environment. Raises JobDefinitionError for
        less.

        >>> orders.map_batches(lambda batch: batch).set_parallelism(4).node.parallelism
        4
        """
        check_whole(f"operator {self.node.name!r}: parallelism", parallelism, 1)
        self.node.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> DataStream:
        """Number of key groups, 1 to 32,768: the parallelism can never be higher while the state is kept. Raises
        JobDefinitionError for others.

        >>> totals = orders.key_by("shop").running_aggregate(n=sl.count())
        >>> totals.set_max_parallelism(256).node.max_parallelism
        256
        """
        check_whole(f"operator {self.node.name!r}: max parallelism", max_parallelism, 1, UPPER_BOUND_MAX_PARALLELISM)
        self.node.max_parallelism = max_parallelism
        return self

    def slot_sharing_group(self, group: str) -> DataStream:
        """Put the operator's subtasks into slots of this group, and those of operators behind it that are given none:
        subtasks of different groups never share a slot. Operators whose inputs are in several, and sources, are in the
        group `default`.

        >>> orders.map_batches(lambda batch: batch).slot_sharing_group("heavy").node.slot_sharing_group
        'heavy'
        """
        self.node.slot_sharing_group = group
        return self

    def start_new_chain(self) -> DataStream:
        """Do not chain the operator to its input: it gets a task, and a thread, of its own.

        >>> orders.map_batches(lambda batch: batch).start_new_chain().node.starts_new_chain
        True
        """
        self.node.starts_new_chain = True
        return self

    def disable_chaining(self) -> DataStream:
        """Do not chain the operator to anything, neither before nor behind it.

        >>> orders.map_batches(lambda batch: batch).disable_chaining().node.chainable
        False
        """
        self.node.chainable = False
        return self

    # --- transformations ----------------------------------------------------------------------------------------------

    def map_batches(
        self, function: BatchFunction, *, uid: str = "", name: str = "map_batches", schema: pa.Schema | None = None
    ) -> DataStream:
        """Apply `function(RecordBatch) -> RecordBatch | iterable of them | None` to each batch. `schema` is that of the
        result: with it, columns downstream are checked before the job starts, and event time goes on if its column is
        there. Raises JobDefinitionError for what cannot be called.

        >>> cents = orders.map_batches(lambda batch: batch.select(["cents"]), schema=pa.schema([("cents", pa.int64())]))
        >>> cents.schema.names
        ['cents']
        """
        return self.add_operator(name, MapBatchesSpec(function, schema), uid, schema=schema)

    def filter(
        self, predicate: Expr | Callable[[pa.RecordBatch], pa.Array], *, uid: str = "", name: str = "filter"
    ) -> DataStream:
        """Keep the rows for which an expression is true, or `predicate(batch)`, a function that gives a boolean array
        with a value per row; null counts as false. Raises JobDefinitionError for an expression over columns that are
        not there, or that is no condition.

        >>> orders.filter(sl.col("cents") > 100).schema == orders.schema
        True
        >>> orders.filter(lambda batch: pc.greater(batch["cents"], 100)).schema == orders.schema
        True
        """
        if isinstance(predicate, Expr):
            self.check_columns(predicate.columns(), f"{name} {predicate!r}")
            predicate = Predicate(predicate)
            if self.schema is not None:
                predicate.check_over(self.schema)
        return self.add_operator(name, FilterSpec(predicate), uid, schema=self.schema)

    def select(self, *columns: str | Expr | Sequence[str | Expr], **named: object) -> DataStream:
        """Only these columns: names, expressions, and `name=expression` (a literal is the same value for every row).

        Raises JobDefinitionError for a column that is not there, types that do not fit, and two columns of one name.

        >>> orders.select("shop", euros=sl.col("cents") / 100).schema.names
        ['shop', 'euros']
        """
        return self._projected(Projection(as_columns(columns, named, "select"), keep=False), "select")

    def with_columns(self, *columns: Expr | Sequence[Expr], **named: object) -> DataStream:
        """All columns, and these beside them or in the place of those of the same name; see `select`.

        >>> orders.with_columns(euros=sl.col("cents") / 100).schema.field("euros").type
        DataType(double)
        """
        return self._projected(Projection(as_columns(columns, named, "with_columns"), keep=True), "with_columns")

    def _projected(self, projection: Projection, name: str, *, in_order: bool = False) -> DataStream:
        if not projection.expressions:
            raise JobDefinitionError(f"{name} needs at least one column")
        for expression in projection.expressions:
            self.check_columns(expression.columns(), f"{name} {expression!r}")
        schema = None if self.schema is None else projection.schema_over(self.schema)
        if in_order:
            return self._in_order(name, projection, schema)
        return self.add_operator(name, MapBatchesSpec(projection, schema), "", schema=schema)

    def _in_order(self, name: str, function: BatchFunction, schema: pa.Schema | None) -> DataStream:
        """Call a function behind each stream of a union on its own, at its parallelism, so that rows keep their
        order, and come once: how they were to be spread is the business of the keys behind it."""
        edges: list[StreamEdge] = []
        for edge in self.edges:
            source = self.environment.graph.nodes[edge.source]
            alone = replace(self, edges=(replace(edge, partitioning=None),))
            added = alone.add_operator(name, MapBatchesSpec(function, schema), "", schema=schema)
            added.node.parallelism, added.node.max_parallelism = source.parallelism, source.max_parallelism
            edges += added.edges
        return replace(self, edges=tuple(edges), schema=schema)

    def map(
        self,
        function: Callable[[Row], Mapping[str, object]],
        *,
        uid: str = "",
        name: str = "map",
        schema: pa.Schema | None = None,
        on_error: OnError = "fail",
    ) -> DataStream:
        """Apply a function to every row, a dictionary; it returns the new row. `schema` as in `map_batches`; a function
        whose return type is a TypedDict of int, float, str, ... says it by that (operators.md). It costs a Python call
        per row, so take `map_batches` where you can. `on_error`: a row for which the function raises, or
        returns what does not fit the schema, fails the job, is dropped and counted in the metric `bad_rows`, or goes to
        `bad_rows()` (`side_output`) as it was before. An OSError and what Snapline raises fail the job all the same.

        >>> euros = pa.schema([("euros", pa.float64())])
        >>> orders.map(lambda row: {"euros": row["cents"] / 100}, schema=euros).schema.names
        ['euros']
        """
        schema = schema_by_hints(function) if schema is None else schema
        spec = MapRowsSpec(function, schema, _checked_on_error(on_error, name))
        return self.add_operator(name, spec, uid, schema=schema)

    def flat_map(
        self,
        function: Callable[[Row], Iterable[Mapping[str, object]] | None],
        *,
        uid: str = "",
        name: str = "flat_map",
        schema: pa.Schema | None = None,
        on_error: OnError = "fail",
    ) -> DataStream:
        """Apply a function to every row; it returns (or yields) any number of rows, None for none. `schema` and
        `on_error` as in `map`.

        >>> _ = orders.flat_map(lambda row: [row] * (row["cents"] // 100), schema=orders.schema)
        """
        schema = schema_by_hints(function) if schema is None else schema
        spec = FlatMapRowsSpec(function, schema, _checked_on_error(on_error, name))
        return self.add_operator(name, spec, uid, schema=schema)

    def filter_rows(
        self,
        predicate: Callable[[Row], bool],
        *,
        uid: str = "",
        name: str = "filter_rows",
        on_error: OnError = "fail",
    ) -> DataStream:
        """Keep the rows, dictionaries, for which the function is true. `filter` does the same for whole batches.
        `on_error` as in `map`.

        >>> _ = orders.filter_rows(lambda row: row["coupon"] is not None)
        """
        spec = FilterRowsSpec(predicate, _checked_on_error(on_error, name))
        return self.add_operator(name, spec, uid, schema=self.schema)

    def process(
        self,
        function: ProcessFunction,
        *,
        uid: str = "",
        name: str = "process",
        schema: pa.Schema | None = None,
        on_error: OnError = "fail",
    ) -> DataStream:
        """Call a ProcessFunction row by row, without keys: rows, side outputs and the times of the task. `schema` and
        `on_error` as in `map`: what was emitted for a bad row before it was known is left out, too.
        Raises JobDefinitionError for a class instead of an object, and for functions of keyed streams.

        >>> class Split(sl.ProcessFunction):
        ...     def process_element(self, row, context):
        ...         context.output("shops", {"shop": row["shop"]})
        ...         yield row
        >>> orders.process(Split(), schema=orders.schema).get_side_output("shops").node.name
        'process'
        """
        given: object = function
        if not isinstance(given, (ProcessFunction, type)):
            raise JobDefinitionError(
                f"operator {name!r}: {type(function).__name__} is no ProcessFunction; functions with keyed state and timers need "
                "key_by(...).process(...)"
            )
        schema = schema_by_hints(function) if schema is None else schema
        spec = ProcessSpec(function, schema, self.event_time_column, _checked_on_error(on_error, name))
        return self.add_operator(name, spec, uid, schema=schema)

    def assign_timestamps_and_watermarks(
        self, strategy: WatermarkStrategy, *, uid: str = "", name: str = "watermarks"
    ) -> DataStream:
        """Say which column is event time and how far the watermark runs behind it, for a stream whose source does not.
        Raises JobDefinitionError for a column that is no time, or a strategy with alignment, which is for sources.

        >>> rows = env.from_collection([{"at": 0}, {"at": 5}])
        >>> rows.assign_timestamps_and_watermarks(sl.WatermarkStrategy.for_monotonous_timestamps("at")).event_time_column
        'at'
        """
        check_strategy(strategy, name)
        self.check_event_time(strategy.column, f"watermark strategy of {name!r}")
        if strategy.alignment is not None:
            raise JobDefinitionError(
                f"watermark strategy of {name!r}: only sources can wait for others, so give the strategy with watermark alignment to "
                "from_source or add_source"
            )
        stream = self.add_operator(name, WatermarkSpec(strategy), uid, schema=self.schema, stateful=True)
        return replace(stream, event_time_column=strategy.column)

    def transform(
        self, factory: Callable[[], object], *, uid: str = "", name: str = "transform", stateful: bool = False
    ) -> DataStream:
        """Add a runtime operator of your own, built by `factory()` in the task: the way to what the other methods do
        not offer, over the engine's own classes, which may change.

        >>> _ = orders.transform(lambda: None, uid="own", stateful=True)
        """
        return self.add_operator(name, CustomOperatorSpec(factory), uid, stateful=stateful, schema=None)

    def union(self, *others: DataStream) -> DataStream:
        """All rows of all streams, in no order between them; texts of all get the type that this stream has
        (large_string or string). Raises JobDefinitionError for streams of different environments.

        >>> more = env.from_collection([{"shop": "c", "customer": "y", "cents": 5, "coupon": None, "at": 9}], uid="more")
        >>> len(orders.union(more).edges)
        2
        """
        for other in others:
            if not isinstance(other, DataStream):
                raise JobDefinitionError(
                    f"union takes streams, one after the other, not a {type(other).__name__}; key_by comes after it"
                )
            if other.environment is not self.environment:
                raise JobDefinitionError("union of streams of different environments")
        others = tuple(_in_types_of(self.schema, other) for other in others)
        times = {stream.event_time_column for stream in (self, *others)}
        schema = self.schema if all(o.schema == self.schema for o in others) else None
        return DataStream(
            self.environment,
            (*self.edges, *(edge for other in others for edge in other.edges)),
            schema,
            self.event_time_column if len(times) == 1 else "",
        )

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams: ...

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, other: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Two streams into one function, without keys, or rules that reach all subtasks; `key_by` on two streams keys
        both.

        >>> payments = env.from_collection([{"customer": "x", "paid": 120}], uid="payments")
        >>> keyed = orders.connect(payments).key_by("customer", "customer")
        >>> keyed.second.key_columns
        ('customer',)
        """
        from snapline.connected import connect_streams

        return connect_streams(self, other)

    def enrich(
        self,
        table: pa.Table | str | PathLike[str] | Callable[[], pa.Table],
        on: str | dict[str, str] | Sequence[str],
        *,
        how: str = "left",
        uid: str = "",
        name: str = "enrich",
    ) -> DataStream:
        """Add the columns of a static table, which every subtask loads when it opens: a table in memory (of pyarrow,
        Polars or pandas), a Parquet file or directory that every executor can read, or a function that loads one. `on`:
        the key columns, {stream column: table column} where the names differ. `how`: left (rows without a match get
        nulls) or inner. Raises JobDefinitionError for what is no table, and for names that are not there.

        >>> towns = pa.table({"shop": ["a", "b"], "town": ["Aachen", "Bremen"]})
        >>> orders.enrich(towns, "shop", how="inner").schema.names
        ['shop', 'customer', 'cents', 'coupon', 'at', 'town']
        """
        from snapline.joined import enriched

        return enriched(self, table, on, how, uid, name)

    def async_wait(
        self,
        function: AsyncFunction,
        *,
        capacity: int = 100,
        timeout_ms: int = 60_000,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        uid: str = "",
        name: str = "async_wait",
        schema: pa.Schema | None = None,
    ) -> DataStream:
        """Ask something outside for each row, up to `capacity` requests at a time (Flink: AsyncDataStream.orderedWait,
        unorderedWait).

        A request that takes longer than `timeout_ms` milliseconds is given up: `function.timeout(row)` says what leaves
        instead. `ordered`: results leave in the order of their rows; otherwise as they come, but never across a
        watermark. `retry`: when a request that failed, or was answered badly, is made again; the timeout counts all of
        its attempts. `schema`: of the results; without it the function is asked (`result_schema`). Raises
        JobDefinitionError for a capacity or timeout below 1.

        >>> class Price(sl.AsyncFunction):
        ...     async def async_invoke(self, row):
        ...         return [{"cents": row["cents"]}]
        >>> orders.async_wait(Price(), capacity=10, uid="price", schema=pa.schema([("cents", pa.int64())])).schema.names
        ['cents']
        """
        check_whole(f"operator {name!r}: capacity", capacity, 1)
        check_milliseconds(f"operator {name!r}: timeout_ms", timeout_ms)
        if retry is not None and not isinstance(retry, AsyncRetryStrategy):
            raise JobDefinitionError(
                f"operator {name!r}: retry={retry!r} is no AsyncRetryStrategy, such as AsyncRetryStrategy.fixed_delay(3, 500)"
            )
        if schema is None and isinstance(function, AsyncFunction):
            schema = function.result_schema(self.schema)
        spec = AsyncSpec(function, capacity, timeout_ms, ordered, schema, retry)
        return self.add_operator(name, spec, uid, schema=schema, stateful=True)

    def via_external(
        self, task: str, schema: pa.Schema, *, uid: str = "", name: str = "", key_columns: tuple[str, ...] = ()
    ) -> DataStream:
        """Send the rows through programs outside, in any language, which register at the coordinator as this external
        task; as many as the parallelism of the operator. Barriers and watermarks keep their place among the rows, and
        the programs' state is part of every checkpoint. `schema` is that of the rows that they answer with; others fail
        the program's attempt. Raises JobDefinitionError for a task without a name.

        >>> scores = orders.via_external("scorer", pa.schema([("score", pa.float64())]), uid="scorer")
        >>> scores.schema.names
        ['score']
        """
        spec = external_spec(
            task, "operator", input_schema=self.schema, output_schema=schema, key_columns=tuple(key_columns)
        )
        label = name or f"external {task}"
        stream = self.add_operator(
            label, spec, uid or task, schema=schema, stateful=True, commits=True, key_columns=tuple(key_columns)
        )
        self.environment.graph.nodes[-1].chainable = False
        return stream

    def to_external(self, task: str, *, uid: str = "", name: str = "") -> DataStreamSink:
        """End in programs outside, in any language, which register at the coordinator as this external task; as many as
        the parallelism of the sink. They hear of each complete checkpoint, and make visible what it covers. Raises
        JobDefinitionError for a task without a name.

        >>> orders.to_external("ledger", uid="ledger").stream.node.uid
        'ledger'
        """
        spec = external_spec(task, "sink", input_schema=self.schema)
        label = name or f"external {task}"
        stream = self.add_operator(label, spec, uid or task, schema=None, stateful=True, commits=True)
        self.environment.graph.nodes[-1].chainable = False
        return DataStreamSink(stream)

    def get_side_output(self, tag: str, schema: pa.Schema | None = None) -> DataStream:
        """The rows that the operator emitted to the side output `tag`. Raises JobDefinitionError where it can be known
        that there is none of this name; a function of yours can emit to any. `schema`: of these rows; what a function
        over rows emits is made so, and without it has the types of the first rows.

        >>> def split(batch):
        ...     yield batch
        ...     yield sl.SideOutput("copy", batch)
        >>> orders.map_batches(split).get_side_output("copy", orders.schema).schema == orders.schema
        True
        """
        nodes = self.environment.graph.nodes
        for node in (nodes[edge.source] for edge in self.edges):
            if why := why_no_side_output(node.spec, tag):
                call = "bad_rows" if tag == BAD_ROWS_TAG else "get_side_output"
                raise JobDefinitionError(f"{call} of {node.uid or node.name!r}: {why}")
        time, unseen = self.event_time_column, WithoutComputed(())
        if len(self.edges) == 1 and getattr(self.node.spec, "late_output_tag", "") == tag:
            unseen = WithoutComputed.of(getattr(self.node.spec, "aggregates", ()))
            schema = getattr(self.node.spec, "input_schema", None) if schema is None else schema
            time = getattr(self.node.spec, "event_time_column", time)
        if schema is None and any(isinstance(nodes[edge.source].spec, CoProcessSpec) for edge in self.edges):
            time = ""  # what is put aside of two streams may be anything
        edges = tuple(replace(edge, side_output_tag=tag) for edge in self.edges)
        stream = DataStream(self.environment, edges, schema, time)
        if stream.schema is not None:
            stream = replace(stream, event_time_column=event_time_in(stream.schema, time))
            for node in (nodes[edge.source] for edge in edges):
                node.spec = with_side_schema(node.spec, tag, stream.schema, node.uid or node.name)
        if not unseen.columns:
            return stream
        rest = stream.schema and pa.schema([stream.schema.field(name) for name in unseen.left_of(stream.schema.names)])
        return stream.map_batches(unseen, name="late", schema=rest)

    def bad_rows(self) -> DataStream:
        """The rows that this source could not read, or for which this function raised, where it was given
        `on_error="side_output"`: `operator` (its uid), `split` and `position` (a file and the number of the line, a
        topic with its partition and the offset; null of functions), `value` (the bytes as they came; of functions the
        row as a JSON object) and `error`. Each bad row is there once, in checkpoints as other rows are. Raises
        JobDefinitionError for an operator that does not set rows aside.

        >>> euros = orders.map(lambda row: {"euros": 100 / len(row["coupon"])}, on_error="side_output", uid="euros")
        >>> euros.bad_rows().schema.names
        ['operator', 'split', 'position', 'value', 'error']
        """
        return replace(self.get_side_output(BAD_ROWS_TAG, BAD_ROWS_SCHEMA), event_time_column="")

    # --- partitioning -------------------------------------------------------------------------------------------------

    def key_by(self, *columns: str | Expr | KeyFunction, schema: pa.Schema | None = None) -> KeyedStream:
        """Partition by the values of columns, or by a function of a batch: rows with equal keys meet in one subtask.

        `function(batch)` gives an Arrow array with a key per row, or an array of structs for a key of several columns.
        The keys become columns of the rows: one called `key`, or those of `schema`, which also says their types (and is
        needed for structs). It must give equal keys for equal rows, on every machine. Raises JobDefinitionError for a
        column that is not there.

        >>> import pyarrow as pa, pyarrow.compute as pc, snapline as sl
        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> rows = env.from_collection([{"name": "Ada", "n": 1}, {"name": "ada", "n": 2}])
        >>> rows.key_by("name").key_columns
        ('name',)
        >>> rows.key_by(lambda batch: pc.utf8_lower(batch["name"]), schema=pa.schema([("lower", pa.string())])).key_columns
        ('lower',)
        """
        from snapline.keyed import KeyedStream

        if not columns:
            raise JobDefinitionError("key_by needs at least one column, or a function of a batch")
        if any(isinstance(column, Expr) for column in columns):
            expressions = as_columns(columns, {}, "key_by")
            computed = {one.name: one for one in expressions if one.operation != "col"}
            rows = self if not computed else with_computed_columns(self, computed)
            if self.event_time_column in computed:
                rows = replace(rows, event_time_column="")
            replaced = tuple(
                name for name, one in computed.items() if one.operation != "alias" and name in one.columns()
            )
            return replace(rows.key_by(*(one.name for one in expressions), schema=schema), _replaced=replaced)
        names = tuple(column for column in columns if isinstance(column, str))
        if len(names) == len(columns):
            if schema is not None:
                raise JobDefinitionError("key_by: schema= is for keys that a function computes; columns have a type")
            self.check_columns(names, "key_by")
            if twice := [name for name in names if names.count(name) > 1]:
                raise JobDefinitionError(f"key_by: column {twice[0]!r} is named twice: name it once")
            return KeyedStream(self, names)
        if len(columns) > 1 or not callable(columns[0]):
            raise JobDefinitionError(f"key_by takes names of columns or one function of a batch, got {columns!r}")
        return self._key_by_function(check_key_function(columns[0], schema, self.schema))

    def _key_by_function(self, keys: WithKeys) -> KeyedStream:
        from snapline.keyed import KeyedStream

        known = self.schema
        result = None if known is None or keys.schema is None else pa.schema([*known, *keys.schema])
        return KeyedStream(self._in_order("key_by", keys, result), keys.names)

    def broadcast_state(self, *descriptors: MapStateDescriptor) -> BroadcastStream:
        """Send every row to every subtask of the function of another stream, keyed or not, which keeps the broadcast
        states of these descriptors.

        >>> rules = env.from_collection([{"shop": "a", "factor": 2}], uid="rules")
        >>> factors = sl.MapStateDescriptor("factors", pa.string(), pa.int64())
        >>> orders.key_by("shop").connect(rules.broadcast_state(factors)).first.key_columns
        ('shop',)
        """
        from snapline.connected import broadcast_stream

        return broadcast_stream(self, descriptors)

    def rebalance(self) -> DataStream:
        """Spread batches evenly over all subtasks of the next operator, in turn.

        >>> orders.rebalance().edges[0].partitioning.name
        'REBALANCE'
        """
        return self._partitioned(Partitioning.REBALANCE)

    def rescale(self) -> DataStream:
        """Spread batches over the nearest subtasks of the next operator, so that fewer of them cross machines than with
        `rebalance`.

        >>> orders.rescale().edges[0].partitioning.name
        'RESCALE'
        """
        return self._partitioned(Partitioning.RESCALE)

    def broadcast(self) -> DataStream:
        """Send every batch to every subtask of the next operator.

        >>> orders.broadcast().edges[0].partitioning.name
        'BROADCAST'
        """
        return self._partitioned(Partitioning.BROADCAST)

    def forward(self) -> DataStream:
        """Send the batches of subtask i to subtask i of the next operator; both need equal parallelism, or the job is
        refused.

        >>> orders.forward().edges[0].partitioning.name
        'FORWARD'
        """
        return self._partitioned(Partitioning.FORWARD)

    # --- sinks --------------------------------------------------------------------------------------------------------

    def sink_to(self, sink: Sink, *, uid: str = "", name: str = "") -> DataStreamSink:
        """Write to a sink. Its `validate()` runs now, so a target that cannot work is an error here. Raises
        JobDefinitionError for what is no Sink.

        >>> orders.sink_to(sl_connectors.DiscardingSink(), uid="nowhere").stream.node.uid
        'nowhere'
        """
        if not isinstance(sink, Sink):
            raise JobDefinitionError(f"sink_to({sink!r}): that is no Sink, such as ParquetSink('directory')")
        self.environment.validate_sink(sink)
        return end_in_sink(self, sink, uid, name or type(sink).__name__)

    def add_sink(
        self, function: SinkFunction, *, row_wise: bool = False, uid: str = "", name: str = ""
    ) -> DataStreamSink:
        """Hand every batch (with `row_wise` every row) to a function of your own; a TwoPhaseCommitSinkFunction makes it
        exactly-once (Flink: DataStream.addSink).

        >>> class Printed(sl.SinkFunction):
        ...     def invoke(self, value):
        ...         print(value.num_rows)
        >>> _ = orders.add_sink(Printed(), uid="printed")
        """
        stream = self.add_operator(
            name or type(function).__name__,
            SinkFunctionSpec(function, row_wise),
            uid,
            commits=hasattr(function, "notify_checkpoint_complete"),
            schema=None,
        )
        return DataStreamSink(stream)

    def _repr_html_(self) -> str:
        """Draw the stream for a notebook: the operators that it comes from, and its columns."""
        from snapline.notebook import picture_of

        return picture_of(self)

    # --- inner --------------------------------------------------------------------------------------------------------

    def _partitioned(self, partitioning: Partitioning) -> DataStream:
        edges = tuple(replace(edge, partitioning=partitioning, key_columns=()) for edge in self.edges)
        return replace(self, edges=edges)

    def check_columns(self, columns: Iterable[str], where: str) -> None:
        """Raise JobDefinitionError for a column that a known schema lacks; names the nearest."""
        if self.schema is None:
            return
        for column in columns:
            if column not in self.schema.names:
                near = difflib.get_close_matches(column, self.schema.names, n=1, cutoff=0.5)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise JobDefinitionError(
                    f"{where}: there is no column {column!r}{hint or '.'} Columns: {', '.join(self.schema.names)}"
                )

    def check_event_time(self, column: str, where: str) -> None:
        """Raise JobDefinitionError unless the column can tell event time, as far as the schema is known."""
        self.check_columns([column], where)
        if self.schema is None:
            return
        check_event_time_type(self.schema.field(column).type, column, where)

    def add_operator(
        self,
        name: str,
        spec: OperatorSpec,
        uid: str,
        *,
        schema: pa.Schema | None,
        stateful: bool = False,
        commits: bool = False,
        key_columns: tuple[str, ...] = (),
    ) -> DataStream:
        """Append an operator that reads this stream. Event time is kept as long as its column is, and is a time."""
        if name == "window" and (assigner := getattr(spec, "assigner", None)) is not None:
            name = describe_windows(assigner)
        function = getattr(spec, "function", getattr(spec, "predicate", None))
        if isinstance(spec, CALLING_SPECS):
            check_called(function, name)
        elif isinstance(function, type):
            raise JobDefinitionError(
                f"operator {name!r}: {function.__name__} is a class: hand over {function.__name__}(...)"
            )
        elif (method := PROCESS_METHODS.get(type(spec))) and not hasattr(function, method):
            raise JobDefinitionError(f"operator {name!r}: {type(function).__name__} has no method {method!r}")
        edges = self.edges
        if key_columns:
            edges = tuple(replace(e, partitioning=Partitioning.HASH, key_columns=key_columns) for e in edges)
        stateful = stateful or hasattr(function, "snapshot_state")
        node = self.environment.graph.add(name, spec, edges, stateful=stateful, commits=commits)
        node.uid = uid
        if self.schema is not None:
            node.key_fields = tuple(self.schema.field(column) for column in key_columns)
        time = event_time_in(schema, self.event_time_column)
        return DataStream(self.environment, (StreamEdge(node.node_id),), schema, time)


def with_computed_columns(stream: DataStream, columns: Mapping[str, object]) -> DataStream:
    """Add columns that keys or aggregates read, without a change of the order in which rows come."""
    projection = Projection(as_columns((), columns, "with_columns"), keep=True)
    return stream._projected(projection, "with_columns", in_order=True)  # noqa: SLF001 - of this module


def _checked_on_error(on_error: OnError, name: str) -> OnError:
    if why := why_wrong(on_error):
        raise JobDefinitionError(f"operator {name!r}: {why}")
    return on_error


def _in_types_of(schema: pa.Schema | None, stream: DataStream) -> DataStream:
    """The stream with texts that have the types of this schema, where both are known and nothing else differs."""
    if schema is None or stream.schema is None or not differ_in_offsets_only(stream.schema, schema):
        return stream
    wrong = [field for field in schema if stream.schema.field(field.name).type != field.type]
    return stream.with_columns([col(field.name).cast(field.type) for field in wrong]) if wrong else stream
