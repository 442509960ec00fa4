"""Two streams into one function: connected streams, and rules that are broadcast to the subtasks of another.

Mirrors Flink's ConnectedStreams, BroadcastStream and BroadcastConnectedStream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from snapline.dataflow.api.functions import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoBatchProcessFunction,
    KeyedCoProcessFunction,
)
from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.api.watermarks import event_time_in
from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import CoProcessSpec, OperatorSpec
from snapline.dataflow.graph.stream_graph import StreamEdge
from snapline.dataflow.partitioning import Partitioning
from snapline.expressions.expression import Expr
from snapline.keyed import KeyedStream
from snapline.stream import DataStream


def add_two_input(
    first: KeyedStream | DataStream,
    second: KeyedStream | DataStream,
    name: str,
    spec: OperatorSpec,
    uid: str,
    schema: pa.Schema | None,
) -> DataStream:
    """Append an operator that reads both; keyed streams by hash."""
    streams = [one.stream if isinstance(one, KeyedStream) else one for one in (first, second)]
    check_one_environment(streams[0], streams[1], name)
    edges: list[StreamEdge] = []
    for index, (one, stream) in enumerate(zip((first, second), streams, strict=True)):
        for edge in stream.edges:
            read = replace(edge, target_input=index)
            if isinstance(one, KeyedStream):
                read = replace(read, partitioning=Partitioning.HASH, key_columns=one.key_columns)
            edges.append(read)
    environment = streams[0].environment
    node = environment.graph.add(name, spec, tuple(edges), stateful=True)
    node.uid = uid
    if isinstance(first, KeyedStream) and first.stream.schema is not None:
        node.key_fields = tuple(first.stream.schema.field(column) for column in first.key_columns)
    return DataStream(environment, (StreamEdge(node.node_id),), schema)


def check_one_environment(first: DataStream, second: DataStream, name: str) -> None:
    """JobDefinitionError for streams of two, and for a second one that is none."""
    if not hasattr(second, "environment"):
        raise JobDefinitionError(f"{name!r} takes a stream, not a {type(second).__name__}; key_by comes after it")
    if first.environment is not second.environment:
        raise JobDefinitionError(f"{name!r} of streams of different environments")


def check_same_keys(first: KeyedStream, second: KeyedStream, name: str) -> None:
    """JobDefinitionError unless both keys have as many columns, of the same types where these are known; categories are
    of the type of their values."""
    if len(first.key_columns) != len(second.key_columns):
        raise JobDefinitionError(
            f"{name!r}: the keys ({', '.join(first.key_columns)}) and ({', '.join(second.key_columns)}) have different numbers "
            "of columns"
        )
    if first.stream.schema is None or second.stream.schema is None:
        return
    for left, right in zip(first.key_columns, second.key_columns, strict=True):
        left_type, right_type = first.stream.schema.field(left).type, second.stream.schema.field(right).type
        if plain_type(left_type) != plain_type(right_type):
            raise JobDefinitionError(
                f"{name!r}: key column {left!r} is {left_type} and {right!r} is {right_type}: equal keys would not meet; cast "
                "one of them before key_by"
            )


@dataclass(frozen=True)
class ConnectedStreams:
    """Two streams, keyed alike or not at all (Flink: ConnectedStreams).

    >>> payments = env.from_collection([{"payer": "x", "paid": 120}], uid="payments")
    >>> class Owed(sl.KeyedCoProcessFunction):
    ...     def open(self, context):
    ...         self.owed = context.get_state(sl.ValueStateDescriptor("owed", pa.int64()))
    ...     def process_element1(self, row, context):
    ...         self.owed.update((self.owed.value() or 0) + row["cents"])
    ...     def process_element2(self, row, context):
    ...         self.owed.update((self.owed.value() or 0) - row["paid"])
    ...         yield {"customer": context.current_key, "owed": self.owed.value()}
    >>> _ = orders.connect(payments).key_by("customer", "payer").process(Owed(), uid="owed")
    """

    first: KeyedStream | DataStream
    second: KeyedStream | DataStream

    def key_by(
        self, first: str | Expr | Sequence[str | Expr], second: str | Expr | Sequence[str | Expr]
    ) -> ConnectedStreams:
        """Partition both by the values of these columns, one or several for each stream, or of expressions.
        Raises JobDefinitionError for keys of other types.

        >>> payments = env.from_collection([{"payer": "x", "paid": 120}], uid="payments")
        >>> orders.connect(payments).key_by("customer", "payer").first.key_columns
        ('customer',)
        """
        streams = [one.stream if isinstance(one, KeyedStream) else one for one in (self.first, self.second)]
        columns = [list(one) if isinstance(one, (list, tuple)) else [one] for one in (first, second)]
        keyed = [stream.key_by(*names) for stream, names in zip(streams, columns, strict=True)]
        check_same_keys(keyed[0], keyed[1], "connect")
        return ConnectedStreams(keyed[0], keyed[1])

    def process(
        self,
        function: KeyedCoProcessFunction | CoProcessFunction,
        *,
        uid: str = "",
        name: str = "co_process",
        schema: pa.Schema | None = None,
    ) -> DataStream:
        """Keyed streams: a KeyedCoProcessFunction, row by row; others: a CoProcessFunction, batch by batch."""
        wanted = KeyedCoProcessFunction if isinstance(self.first, KeyedStream) else CoProcessFunction
        return self._add(function, wanted, uid, name, schema, batches=False)

    def process_batches(
        self,
        function: KeyedCoBatchProcessFunction,
        *,
        uid: str = "",
        name: str = "co_process_batches",
        schema: pa.Schema | None = None,
    ) -> DataStream:
        """Keyed streams, batch by batch over state in columns, for a KeyedCoBatchProcessFunction.

        >>> payments = env.from_collection([{"payer": "x", "paid": 120}], uid="payments")
        >>> class Both(sl.KeyedCoBatchProcessFunction):
        ...     def process_batch1(self, keys, batch, state):
        ...         return keys.columns
        ...     def process_batch2(self, keys, batch, state):
        ...         return None
        >>> _ = orders.connect(payments).key_by("customer", "payer").process_batches(Both(), uid="both")
        """
        return self._add(function, KeyedCoBatchProcessFunction, uid, name, schema, batches=True)

    def _add(
        self, function: object, wanted: type, uid: str, name: str, schema: pa.Schema | None, *, batches: bool
    ) -> DataStream:
        if not isinstance(function, wanted):
            hint = "" if isinstance(self.first, KeyedStream) else "; key_by(...) makes the streams keyed"
            raise JobDefinitionError(f"{name!r} needs a {wanted.__name__}, got a {type(function).__name__}{hint}")
        keys: list[tuple[str, ...]] = []
        times: list[str] = []
        for one in (self.first, self.second):
            keys.append(one.key_columns if isinstance(one, KeyedStream) else ())
            times.append((one.stream if isinstance(one, KeyedStream) else one).event_time_column)
        spec = CoProcessSpec((keys[0], keys[1]), (times[0], times[1]), function, schema, batches=batches)
        added = add_two_input(self.first, self.second, name, spec, uid, schema)
        return _with_time(added, times[0]) if times[0] == times[1] else added


def _with_time(stream: DataStream, column: str) -> DataStream:
    """The result of a function of two inputs, whose rows have the event time of their inputs where it is known to have
    the column: the watermark that goes on is that of both."""
    return stream if stream.schema is None else replace(stream, event_time_column=event_time_in(stream.schema, column))


def connect_streams(
    first: DataStream, second: DataStream | BroadcastStream
) -> ConnectedStreams | BroadcastConnectedStream:
    """Connect two streams, as DataStream.connect does."""
    if isinstance(second, BroadcastStream):
        return BroadcastConnectedStream(first, second)
    check_one_environment(first, second, "connect")
    return ConnectedStreams(first, second)


@dataclass(frozen=True)
class BroadcastStream:
    """Rows that reach all subtasks, with the descriptors of the states that keep them (Flink: BroadcastStream).

    >>> rules = env.from_collection([{"shop": "a", "factor": 2}], uid="rules")
    >>> rules.broadcast_state(sl.MapStateDescriptor("factors", pa.string(), pa.int64())).descriptors[0].name
    'factors'
    """

    stream: DataStream
    descriptors: tuple[MapStateDescriptor, ...]


def broadcast_stream(stream: DataStream, descriptors: Sequence[MapStateDescriptor]) -> BroadcastStream:
    """Make a broadcast stream, as DataStream.broadcast_state does."""
    if not descriptors or not all(isinstance(one, MapStateDescriptor) for one in descriptors):
        raise JobDefinitionError("broadcast_state needs the MapStateDescriptors of the states that keep the rules")
    names = [one.name for one in descriptors]
    for one in descriptors:
        if names.count(one.name) > 1:
            raise JobDefinitionError(f"broadcast_state: two states have the name {one.name!r}: give each its own")
        if one.ttl is not None:
            raise JobDefinitionError(
                f"broadcast_state: state {one.name!r} has a time-to-live, and rules stay until they are removed: leave ttl= out"
            )
    return BroadcastStream(stream.broadcast(), tuple(descriptors))


@dataclass(frozen=True)
class BroadcastConnectedStream:
    """A stream, keyed or not, and rules that reach all its subtasks (Flink: BroadcastConnectedStream).

    >>> FACTORS = sl.MapStateDescriptor("factors", pa.string(), pa.int64())
    >>> class Multiplied(sl.KeyedBroadcastProcessFunction):
    ...     def process_element(self, row, context):
    ...         yield {"cents": row["cents"] * context.get_broadcast_state(FACTORS).get(row["shop"], 1)}
    ...     def process_broadcast_element(self, row, context):
    ...         context.get_broadcast_state(FACTORS)[row["shop"]] = row["factor"]
    >>> rules = env.from_collection([{"shop": "a", "factor": 2}], uid="rules").broadcast_state(FACTORS)
    >>> _ = orders.key_by("shop").connect(rules).process(Multiplied(), uid="multiplied")
    """

    first: KeyedStream | DataStream
    rules: BroadcastStream

    def process(
        self,
        function: KeyedBroadcastProcessFunction | BroadcastProcessFunction,
        *,
        uid: str = "",
        name: str = "broadcast_process",
        schema: pa.Schema | None = None,
    ) -> DataStream:
        """Row by row over the broadcast states; behind key_by over keyed state and timers, too. `schema`: of the rows
        that the function gives, where operators behind it have to know their columns. Raises JobDefinitionError for a
        function of the other kind."""
        first = self.first
        stream, keys = (first.stream, first.key_columns) if isinstance(first, KeyedStream) else (first, ())
        wanted = KeyedBroadcastProcessFunction if keys else BroadcastProcessFunction
        if not isinstance(function, wanted):
            where = "behind key_by(...)" if keys else "on a stream without keys"
            raise JobDefinitionError(f"{name!r} {where} needs a {wanted.__name__}, got a {type(function).__name__}")
        times = stream.event_time_column, self.rules.stream.event_time_column
        spec = CoProcessSpec((keys, ()), times, function, schema, self.rules.descriptors)
        return _with_time(add_two_input(first, self.rules.stream, name, spec, uid, schema), times[0])


def connect_keyed(
    keyed: KeyedStream, other: KeyedStream | BroadcastStream
) -> ConnectedStreams | BroadcastConnectedStream:
    """Connect a keyed stream, as KeyedStream.connect does."""
    if isinstance(other, BroadcastStream):
        return BroadcastConnectedStream(keyed, other)
    if not isinstance(other, KeyedStream):
        raise JobDefinitionError(
            "connect: key the second stream, too: connect(other.key_by(...)), or broadcast_state(...) it"
        )
    check_same_keys(keyed, other, "connect")
    return ConnectedStreams(keyed, other)
