"""Keyed streams: what can be done with rows whose key decides the subtask that has them.

Mirrors Flink's KeyedStream. `DataStream.key_by` makes one; every operator that is added here keeps state by key, and
its result is a DataStream again. Windows (`windowed`), joins (`joined`) and connected streams (`connected`) begin here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from snapline.aggregates import AggregateToDo, with_computed
from snapline.dataflow.api.aggregate_types import over_columns, result_type
from snapline.dataflow.api.batch_aggregates import AnyAggregate, HeldAggregate, OwnAggregate, columns_of
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import KeyedBatchProcessFunction, KeyedProcessFunction
from snapline.dataflow.api.windows import Aggregate, CountTrigger, GlobalWindows, WindowAssigner
from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.columnar.column_types import kept_schema
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import KeyedBatchProcessSpec, KeyedProcessSpec, RunningAggregateSpec
from snapline.expressions.expression import Expr
from snapline.row_hints import schema_by_hints
from snapline.running_reduce import RunningReduce
from snapline.stream import DataStream, with_computed_columns
from snapline.stream_results import check_called, refuse_state

if TYPE_CHECKING:
    from snapline.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from snapline.joined import JoinedStreams
    from snapline.windowed import WindowedStream


@dataclass(frozen=True)
class KeyedStream:
    """A stream partitioned by key (Flink: KeyedStream): rows with equal keys meet in one subtask, which keeps their
    state.

    >>> orders.key_by("shop", "customer").key_columns
    ('shop', 'customer')
    """

    stream: DataStream
    key_columns: tuple[str, ...]
    _replaced: tuple[str, ...] = ()
    """Columns of the stream that have become the key, which was computed of them and given no name."""

    def __post_init__(self) -> None:
        """JobDefinitionError for columns that cannot be a key, as far as the schema is known."""
        if self.stream.schema is not None:
            for column in self.key_columns:
                check_key_type(self.stream.schema.field(column), "key_by")

    if not TYPE_CHECKING:  # a checker says it itself

        def __getattr__(self, name: str) -> object:
            """What only streams without keys have is looked for here, too: in Flink a KeyedStream is a DataStream."""
            if not name.startswith("_") and hasattr(DataStream, name):
                raise AttributeError(
                    f"a KeyedStream has no {name!r}: say it before key_by(...), or behind an operator that works by key",
                    name=name,
                    obj=self,
                )
            raise AttributeError(f"'KeyedStream' object has no attribute {name!r}", name=name, obj=self)

    def via_external(self, task: str, schema: pa.Schema, *, uid: str = "", name: str = "") -> DataStream:
        """Send the rows through programs outside, as `DataStream.via_external` does; those with equal keys go to the
        same program, which can keep a state for each key that goes where its rows go (redistribution `by_key`). Raises
        JobDefinitionError for a task without a name.

        >>> totals = pa.schema([("shop", pa.string()), ("cents", pa.int64())])
        >>> orders.key_by("shop").via_external("totals", totals, uid="totals").schema.names
        ['shop', 'cents']
        """
        return self.stream.via_external(task, schema, uid=uid, name=name, key_columns=self.key_columns)

    def process(
        self, function: KeyedProcessFunction, *, uid: str = "", name: str = "process", schema: pa.Schema | None = None
    ) -> DataStream:
        """Call a KeyedProcessFunction row by row, over keyed state and timers. `schema` is that of the rows that it
        emits, or the return type of `process_element` says it (`Iterator[Order]`, a TypedDict); without it, it is taken
        from the first that are emitted, and columns downstream are not checked. Raises
        JobDefinitionError for a class instead of an object.

        >>> class Seen(sl.KeyedProcessFunction):
        ...     def open(self, context):
        ...         self.n = context.get_state(sl.ValueStateDescriptor("n", pa.int64()))
        ...     def process_element(self, row, context):
        ...         self.n.update((self.n.value() or 0) + 1)
        ...         yield {"shop": context.current_key, "n": self.n.value()}
        >>> counts = pa.schema([("shop", pa.string()), ("n", pa.int64())])
        >>> orders.key_by("shop").process(Seen(), uid="seen", schema=counts).schema.names
        ['shop', 'n']
        """
        schema = schema_by_hints(function) if schema is None else schema
        spec = KeyedProcessSpec(self.key_columns, function, schema, self.stream.event_time_column)
        return self.stream.add_operator(name, spec, uid, schema=schema, stateful=True, key_columns=self.key_columns)

    def running_aggregate(
        self,
        *,
        uid: str = "",
        name: str = "running_aggregate",
        passthrough: Sequence[str] = (),
        **aggregates: AggregateToDo,
    ) -> DataStream:
        """For every row its key's aggregates so far, that row included. The result has the key columns, those of
        `passthrough`, each once, and one for each keyword. Raises JobDefinitionError for a column that is not there or
        that cannot be aggregated so.

        >>> _ = orders.key_by("shop").running_aggregate(uid="sums", passthrough=["at"], n=sl.count(), cents=sl.sum("cents"))
        >>> orders.key_by("shop").running_aggregate(total=sl.sum("customer"))
        Traceback (most recent call last):
        snapline.dataflow.errors.JobDefinitionError: aggregate of 'running_aggregate': sum() as 'total': column 'customer' is string, which cannot be added up here; cast it to an integer or a float before
        """
        computed, plain = with_computed(aggregates)
        if computed:
            keyed = computing(self, computed, name)
            return keyed.running_aggregate(uid=uid, name=name, passthrough=passthrough, **plain)
        named = (passthrough,) if isinstance(passthrough, str) else passthrough
        passthrough = tuple(dict.fromkeys(column for column in named if column not in self.key_columns))
        chosen = self.named_aggregates(plain, name, passthrough)
        self.stream.check_columns(passthrough, f"passthrough of {name!r}")
        known = self.stream.schema
        spec = RunningAggregateSpec(self.key_columns, chosen, passthrough, known)
        schema = None
        if known is not None:
            passed = [known.field(column).remove_metadata() for column in passthrough]
            results = [pa.field(one.name, result_type(one, known)) for one in chosen]
            schema = pa.schema([*key_fields_of(self), *passed, *results])
        return self.stream.add_operator(name, spec, uid, schema=schema, stateful=True, key_columns=self.key_columns)

    def reduce(self, function: Callable[[Row, Row], Row], *, uid: str = "", name: str = "reduce") -> DataStream:
        """For every row its key's rows so far combined two by two, that row included: `function(reduced, row)` gives a
        row with the same columns (Flink: KeyedStream.reduce).

        `running_aggregate` does the same for sums, extremes and the like without a call for each row. Raises
        JobDefinitionError where the columns of the stream are not known.

        >>> def dearest(one, other):
        ...     return one if one["cents"] >= other["cents"] else other
        >>> orders.key_by("customer").reduce(dearest, uid="dearest").schema == orders.schema
        True
        """
        known = self.stream.schema
        if known is None:
            raise JobDefinitionError(
                f"{name!r}: the columns of the stream are not known, and reduced rows are kept in them: give the operator before it schema="
            )
        check_called(function, name)
        refuse_state(function, f"operator {name!r}", "keep it by key, in a function for process(...)")
        schema = kept_schema(known)
        spec = KeyedProcessSpec(
            self.key_columns, RunningReduce(function, schema, self.key_columns), schema, self.stream.event_time_column
        )
        return self.stream.add_operator(name, spec, uid, schema=schema, stateful=True, key_columns=self.key_columns)

    def process_batches(
        self,
        function: KeyedBatchProcessFunction,
        *,
        uid: str = "",
        name: str = "process_batches",
        schema: pa.Schema | None = None,
    ) -> DataStream:
        """Call a KeyedBatchProcessFunction batch by batch, over keyed state and timers in columns; the fast form of
        `process`.

        >>> class Count(sl.KeyedBatchProcessFunction):
        ...     rows = sl.ValueStateDescriptor("rows", pa.int64())
        ...     def process_batch(self, keys, batch, state):
        ...         before = state.get(self.rows).fill_null(0)
        ...         state.put(self.rows, pc.add(before, pa.array(np.bincount(keys.rows, minlength=len(keys)))))
        >>> _ = orders.key_by("shop").process_batches(Count(), uid="count")
        """
        spec = KeyedBatchProcessSpec(self.key_columns, function, schema, self.stream.event_time_column)
        return self.stream.add_operator(name, spec, uid, schema=schema, stateful=True, key_columns=self.key_columns)

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Group the rows of each key by window: tumbling, sliding, sessions, or all rows with a count trigger. Raises
        JobDefinitionError for windows of event time over a stream that has none.

        >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).aggregate(uid="minutes", n=sl.count())
        """
        from snapline.windowed import windowed

        return windowed(self, assigner)

    def count_window(self, size: int) -> WindowedStream:
        """A window of every `size` rows of a key, emptied when it fires (Flink: countWindow).

        >>> _ = orders.key_by("shop").count_window(100).aggregate(uid="hundreds", cents=sl.sum("cents"))
        """
        return self.window(GlobalWindows(CountTrigger(size, purge=True)))

    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, other: KeyedStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Two streams into one function: both keyed alike, or rules that are broadcast to all subtasks. Raises
        JobDefinitionError for keys of other types.

        >>> payments = env.from_collection([{"customer": "x", "paid": 120}], uid="payments")
        >>> _ = orders.key_by("customer").connect(payments.key_by("customer"))
        """
        from snapline.connected import connect_keyed

        return connect_keyed(self, other)

    def join(self, other: KeyedStream) -> JoinedStreams:
        """Rows of both streams that have the same key; say next within what (`window`, `between`, `as_of`,
        `unbounded`).

        >>> payments = env.from_collection([{"customer": "x", "paid": 120}], uid="payments")
        >>> orders.key_by("customer").join(payments.key_by("customer")).unbounded(uid="paid").schema.names
        ['shop', 'customer', 'cents', 'coupon', 'at', 'customer_right', 'paid']
        """
        from snapline.joined import JoinedStreams

        return JoinedStreams(self, other)

    def named_aggregates(
        self, aggregates: Mapping[str, object], where: str, beside: Sequence[str] = ()
    ) -> tuple[AnyAggregate, ...]:
        """Aggregates under the names of their keywords, their columns checked. `beside`: what the result has besides
        keys."""
        taken = {*self.key_columns, *beside}
        if not aggregates:
            raise JobDefinitionError(f"{where!r} needs at least one aggregate, such as flights=sl.count()")
        chosen: list[AnyAggregate] = []
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, (Aggregate, HeldAggregate, OwnAggregate)):
                raise JobDefinitionError(
                    f"{where!r}: {name}={aggregate!r} is no aggregate, such as {name}=sl.count() or {name}=sl.sum('amount')"
                )
            if name in taken:
                raise JobDefinitionError(
                    f"{where!r}: the result has a column {name!r} already, beside the aggregate: give the aggregate another name"
                )
            chosen.append(replace(aggregate, name=name))
        read = [column for one in chosen for column in columns_of(one)]
        self.stream.check_columns(read, f"aggregate of {where!r}")
        refuse_replaced(self, read, where)
        if self.stream.schema is not None:
            chosen = [over_columns(one, self.stream.schema) for one in chosen]
            for one in chosen:
                try:
                    result_type(one, self.stream.schema)
                except TypeError as error:
                    raise JobDefinitionError(f"aggregate of {where!r}: {error}") from None
        return tuple(chosen)


def computing(keyed: KeyedStream, columns: Mapping[str, Expr], where: str) -> KeyedStream:
    """The keyed stream with columns that aggregates read."""
    refuse_replaced(keyed, (column for expression in columns.values() for column in expression.columns()), where)
    return replace(keyed, stream=with_computed_columns(keyed.stream, columns))


def refuse_replaced(keyed: KeyedStream, columns: Iterable[str], where: str) -> None:
    """JobDefinitionError for a column in whose place the key has come: who asks for it may mean what it was."""
    for column in columns:
        if column in keyed._replaced:  # noqa: SLF001 - of this module
            raise JobDefinitionError(
                f"{where!r}: column {column!r} has become the key, which is computed of it: give the key another name by "
                f".alias(...), or say .alias({column!r}), if the key is what is meant"
            )


def check_key_type(field: pa.Field, where: str) -> None:
    """Raise JobDefinitionError for a column whose values are not compared as keys."""
    try:
        plain_type(field.type)
    except TypeError as refusal:
        raise JobDefinitionError(f"{where}: column {field.name!r}: {refusal}; take a field of it, or cast it") from None


def key_fields_of(keyed: KeyedStream) -> list[pa.Field]:
    """The key columns of a result; the columns of the stream have to be known."""
    schema = keyed.stream.schema
    return [] if schema is None else [schema.field(column).remove_metadata() for column in keyed.key_columns]
