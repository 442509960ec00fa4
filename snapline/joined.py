"""Joins: rows of two keyed streams that have the same key, within a window, an interval of time, or as of a time; and a
stream with a static table.

All columns of both sides are in the result, left ones first; a name that both have is the right one's with `suffix`.
The columns of both sides must be known (`schema=` of the operators before). Mirrors Flink's JoinedStreams,
KeyedStream.intervalJoin and the temporal and lookup joins of its SQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import pyarrow as pa

from snapline.connected import add_two_input, check_same_keys
from snapline.dataflow.api.windows import BY_CLOCK, PaneAssigner, WindowAssigner
from snapline.dataflow.arguments import check_milliseconds
from snapline.dataflow.columnar.arrow_columns import narrow_type, plain_type
from snapline.dataflow.columnar.column_types import kept_schema, workable_schema
from snapline.dataflow.columnar.python_values import table_in_arrow
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import (
    IntervalJoinSpec,
    JoinSide,
    OperatorSpec,
    TableLookupSpec,
    TemporalJoinSpec,
    WindowJoinSpec,
)
from snapline.keyed import KeyedStream, check_key_type
from snapline.runtime.absolute_paths import path_of_user
from snapline.stream import DataStream

SUFFIX = "_right"


def _check_how(how: str, allowed: Sequence[str], name: str) -> None:
    if how not in allowed:
        raise JobDefinitionError(f"{name!r}: unknown how={how!r}, one of {', '.join(allowed)}")


@dataclass(frozen=True)
class JoinedStreams:
    """Two keyed streams, before it is said what belongs together (Flink: JoinedStreams, IntervalJoin). The columns of
    both must be known; those of the right stream that the left has, too, get `_right` behind their names.

    >>> strategy = sl.WatermarkStrategy.for_monotonous_timestamps("paid_at")
    >>> payments = env.from_collection([{"payer": "x", "paid": 120, "paid_at": 7}], uid="payments")
    >>> payments = payments.assign_timestamps_and_watermarks(strategy, uid="paid-at")
    >>> both = orders.key_by("customer").join(payments.key_by("payer"))
    >>> both.between(0, 60_000, uid="paid-within-a-minute").schema.names
    ['shop', 'customer', 'cents', 'coupon', 'at', 'payer', 'paid', 'paid_at']
    >>> _ = both.window(sl.TumblingEventTimeWindows(60_000), how="full", uid="same-minute")
    >>> _ = both.as_of(how="left", uid="latest-payment")
    >>> _ = both.unbounded(uid="all")
    """

    left: KeyedStream
    right: KeyedStream
    suffix: str = SUFFIX

    def __post_init__(self) -> None:
        """JobDefinitionError for keys that do not fit, or columns that are not known."""
        if not isinstance(self.right, KeyedStream):
            raise JobDefinitionError("join: key the second stream, too: join(other.key_by(...))")
        check_same_keys(self.left, self.right, "join")

    def window(
        self,
        assigner: WindowAssigner,
        *,
        how: str = "inner",
        allowed_lateness_ms: int = 0,
        late_tag: str = "",
        uid: str = "",
        name: str = "window_join",
    ) -> DataStream:
        """Pairs within the same tumbling or sliding window. `how`: inner, left, right, full. In windows of the task's
        clock pairs have no event time."""
        _check_how(how, ("inner", "left", "right", "full"), name)
        if not isinstance(assigner, get_args(PaneAssigner)):
            raise JobDefinitionError(f"{name!r}: joins take tumbling or sliding windows, not {assigner!r}")
        check_milliseconds(f"{name!r}: allowed lateness", allowed_lateness_ms, least=0)
        timed = not isinstance(assigner, BY_CLOCK)
        left, right, schema = self._sides(name, timed=timed)
        spec = WindowJoinSpec(left, right, assigner, schema, how, allowed_lateness_ms, late_tag)
        return self._add(spec, schema, uid, name, timed=timed)

    def between(
        self, lower_ms: int, upper_ms: int, *, late_tag: str = "", uid: str = "", name: str = "interval_join"
    ) -> DataStream:
        """Pairs with lower_ms <= right time - left time <= upper_ms (Flink: intervalJoin(...).between)."""
        for which, bound_ms in (("lower", lower_ms), ("upper", upper_ms)):
            check_milliseconds(f"{name!r}: the {which} bound", bound_ms, least=None)
        if lower_ms > upper_ms:
            raise JobDefinitionError(f"{name!r}: the lower bound {lower_ms} ms lies above the upper one {upper_ms} ms")
        left, right, schema = self._sides(name, timed=True)
        return self._add(IntervalJoinSpec(left, right, schema, lower_ms, upper_ms, late_tag), schema, uid, name)

    def unbounded(self, *, uid: str = "", name: str = "join") -> DataStream:
        """All pairs, whenever they come, so that they have no event time: both streams are kept for good (a regular
        join of SQL)."""
        left, right, schema = self._sides(name, timed=False)
        left, right = replace(left, event_time_column=""), replace(right, event_time_column="")
        return self._add(IntervalJoinSpec(left, right, schema, None, None), schema, uid, name, timed=False)

    def as_of(
        self, *, how: str = "inner", late_tag: str = "", uid: str = "", name: str = "temporal_join"
    ) -> DataStream:
        """Each left row with the latest right row of its key at its time (a versioned table). `how`: inner, left."""
        _check_how(how, ("inner", "left"), name)
        left, right, schema = self._sides(name, timed=True)
        return self._add(TemporalJoinSpec(left, right, schema, how, late_tag), schema, uid, name)

    def _sides(self, name: str, *, timed: bool) -> tuple[JoinSide, JoinSide, pa.Schema]:
        sides = []
        for which, keyed in (("left", self.left), ("right", self.right)):
            stream = keyed.stream
            if stream.schema is None:
                raise JobDefinitionError(
                    f"{name!r}: the columns of the {which} stream are not known: give the operator before it schema="
                )
            if timed and not stream.event_time_column:
                raise JobDefinitionError(
                    f"{name!r}: the {which} stream has no event time: call assign_timestamps_and_watermarks(...) on it"
                )
            sides.append(JoinSide(keyed.key_columns, stream.event_time_column, kept_schema(stream.schema)))
        left, right = sides
        fields = list(left.schema)
        for field in right.schema:
            taken = {known.name for known in fields}
            label = field.name + self.suffix if field.name in taken else field.name
            if label in taken:
                raise JobDefinitionError(f"{name!r}: two columns would be called {label!r}: rename one before")
            fields.append(field.with_name(label))
        return left, right, pa.schema(fields)

    def _add(self, spec: OperatorSpec, schema: pa.Schema, uid: str, name: str, *, timed: bool = True) -> DataStream:
        """`timed`: a pair comes before the watermark passes the time of its left row."""
        added = add_two_input(self.left, self.right, name, spec, uid, schema)
        return replace(added, event_time_column=self.left.stream.event_time_column if timed else "")


@dataclass(frozen=True)
class ParquetTable:
    """Loads a Parquet file or directory in the task."""

    path: str

    def __call__(self) -> pa.Table:
        """Read the table from its Parquet files."""
        import pyarrow.parquet as pq

        return pq.read_table(self.path)


@dataclass(frozen=True)
class GivenTable:
    """A table that travels with the job."""

    table: pa.Table

    def __call__(self) -> pa.Table:
        """Return the table as it was given."""
        return self.table


def _compared(on: object, name: str) -> dict[str, str]:
    """The key columns of the stream, each with the table's. Raises JobDefinitionError for what names none."""
    if isinstance(on, Mapping):
        pairs = list(on.items())
    else:
        pairs = [
            (column, column) for column in ([on] if isinstance(on, str) else on if isinstance(on, Iterable) else [])
        ]
    if not pairs or not all(isinstance(column, str) for pair in pairs for column in pair):
        raise JobDefinitionError(
            f"{name!r} needs at least one key column: on= is a name, a list of names or {{stream column: table column}}, "
            f"got {on!r}"
        )
    compared = dict(pairs)
    others = list(compared.values())
    if twice := next((other for other in others if others.count(other) > 1), None):
        raise JobDefinitionError(
            f"{name!r}: on= compares the table's column {twice!r} with several of the stream: take one"
        )
    return compared


def _in_keys(field: pa.Field) -> pa.DataType:
    """The type without what makes no difference to keys: texts of Polars are views."""
    return narrow_type(plain_type(field.type))


def table_path(path: str | os.PathLike[str]) -> str:
    """One that means the same in every task; a URL stays as it is."""
    text = os.fspath(path)
    return text if "://" in text else str(path_of_user(text))


def enriched(
    stream: DataStream,
    table: pa.Table | str | os.PathLike[str] | Callable[[], pa.Table],
    on: str | dict[str, str] | Sequence[str],
    how: str,
    uid: str,
    name: str,
) -> DataStream:
    """Look rows up in a table, as DataStream.enrich does."""
    _check_how(how, ("left", "inner"), name)
    pairs = _compared(on, name)
    stream.check_columns(pairs, f"key of {name!r}")
    if hasattr(table, "__arrow_c_stream__"):
        table = table_in_arrow(table)
    schema = None
    if isinstance(table, pa.Table):
        for own, other in pairs.items():
            if other not in table.column_names:
                raise JobDefinitionError(
                    f"{name!r}: the table has no column {other!r}: it has {', '.join(table.column_names)}"
                )
            check_key_type(table.schema.field(other), f"{name!r}")
            if stream.schema is None:
                continue
            check_key_type(stream.schema.field(own), f"{name!r}")
            if _in_keys(stream.schema.field(own)) != _in_keys(table.schema.field(other)):
                raise JobDefinitionError(
                    f"{name!r}: column {own!r} is {stream.schema.field(own).type} and the table's {other!r} is "
                    f"{table.schema.field(other).type}: cast one of them"
                )
        if stream.schema is not None:
            there = workable_schema(table.schema)
            added = [field.remove_metadata().with_nullable(True) for field in there if field.name not in pairs.values()]
            for field in added:
                if field.name in stream.schema.names:
                    raise JobDefinitionError(
                        f"{name!r}: both the stream and the table have a column {field.name!r}: rename one"
                    )
            schema = pa.schema([*stream.schema, *added])
    load: Callable[[], pa.Table]
    if isinstance(table, pa.Table):
        load = GivenTable(table)
    elif isinstance(table, (str, os.PathLike)):
        load = ParquetTable(table_path(table))
    elif callable(table) and not isinstance(table, type):
        load = table
    else:
        raise JobDefinitionError(
            f"{name!r}: a {type(table).__name__} is no table: give one of pyarrow, Polars or pandas, the path of a Parquet file or "
            "directory, or a function that loads one"
        )
    spec = TableLookupSpec(load, tuple(pairs), tuple(pairs.values()), how)
    result = stream.add_operator(name, spec, uid, schema=schema)
    return replace(result, event_time_column=stream.event_time_column)
