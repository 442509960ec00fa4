"""From an aggregate that holds more than numbers to its column, when the columns of the input are known.

Decides which class serves which function, and, for a snapshot, what it was made for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from snapline.dataflow.api.batch_aggregates import AnyAggregate, HeldAggregate, OwnAggregate, columns_of
from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.columnar.arrow_columns import with_null_parts
from snapline.dataflow.errors import StateError
from snapline.taskmanager.operators.aggregation.decimal_totals import DecimalTotal
from snapline.taskmanager.operators.aggregation.held_columns import (
    HELD_FUNCTION_METADATA,
    HELD_PREFIX,
    HELD_TYPES_METADATA,
    AccumulatedColumn,
    HeldColumn,
)
from snapline.taskmanager.operators.aggregation.held_values import (
    BestValues,
    DistinctValues,
    HeldValues,
    QuantileValues,
)

_VALUES: dict[str, type[HeldValues]] = {
    "collect_list": HeldValues,
    "count_distinct": DistinctValues,
    "quantile": QuantileValues,
    "first": BestValues,
    "last": BestValues,
    "top_n": BestValues,
    "min": BestValues,
    "max": BestValues,
}

_TOTALS = frozenset({"sum", "mean"})
"""Aggregates of decimals that hold the same."""


def plain_aggregates(aggregates: Sequence[AnyAggregate]) -> tuple[Aggregate, ...]:
    """Those that are counts and numbers."""
    return tuple(one for one in aggregates if isinstance(one, Aggregate))


def open_functions(aggregates: Sequence[AnyAggregate], context: RuntimeContext) -> None:
    """Open the functions of the user's own aggregates."""
    for one in aggregates:
        if isinstance(one, OwnAggregate):
            one.function.open(context)


def held_columns(aggregates: Sequence[AnyAggregate], schema: pa.Schema) -> tuple[HeldColumn, ...]:
    """The columns of the others, over rows of a schema. Raises KeyError or TypeError that names the column."""
    return tuple(_held_column(one, schema) for one in aggregates if not isinstance(one, Aggregate))


def _held_column(aggregate: HeldAggregate | OwnAggregate, schema: pa.Schema) -> HeldColumn:
    for column in columns_of(aggregate):
        if schema.get_field_index(column) < 0:
            raise KeyError(
                f"no column {column!r} for {aggregate.name!r}: the columns are {', '.join(map(repr, schema.names))}"
            )
    if isinstance(aggregate, OwnAggregate):
        return AccumulatedColumn(aggregate, aggregate.function, schema)
    kind = _VALUES.get(aggregate.function)
    if kind is not None:
        return kind(aggregate, schema)
    if aggregate.function in {"sum", "mean"}:
        return AccumulatedColumn(
            aggregate, DecimalTotal(aggregate.function, schema.field(aggregate.column).type), schema
        )
    from snapline.taskmanager.operators.aggregation.sketches import sketch_of

    return AccumulatedColumn(aggregate, sketch_of(aggregate), schema)


def is_held(field: pa.Field) -> bool:
    """Whether a column of a snapshot is that of such an aggregate."""
    return bool(field.name.startswith(HELD_PREFIX))


def restored_held_columns(
    aggregates: Sequence[AnyAggregate], fields: Sequence[pa.Field], known: pa.Schema | None
) -> tuple[HeldColumn, ...]:
    """For a snapshot with these columns; `known`: the columns of the input, if the job says them. StateError for one
    that is new and whose types nobody knows, and for one that was another under its name."""
    found: list[HeldColumn] = []
    written = {field.name.removeprefix(HELD_PREFIX): field for field in fields if is_held(field)}
    for one in aggregates:
        if isinstance(one, Aggregate):
            continue
        field = written.get(one.name)
        if field is not None and isinstance(one, HeldAggregate):
            _check_same(one, (field.metadata or {}).get(HELD_FUNCTION_METADATA, b""))
        if known is not None:
            found.append(_held_column(one, known))
        elif field is not None:
            types = pa.ipc.read_schema(pa.py_buffer((field.metadata or {})[HELD_TYPES_METADATA]))
            types = pa.schema([each.with_type(with_null_parts(each.type)) for each in types])
            found.append(_held_column(one, types))
        else:
            raise StateError(
                f"aggregate {one.name!r} is new, and the types of its columns are not known before the first row: declare the schema of "
                "the operator that comes before (schema=)"
            )
    return tuple(found)


def _check_same(one: HeldAggregate, written: bytes) -> None:
    """StateError where what is held is that of another aggregate. `written`: empty in older snapshots."""
    if not written:
        return
    try:
        function, column, by, said = json.loads(written)
        parameter = float(said)
        alike = {function, one.function} <= _TOTALS or function == one.function
        enough = one.function != "top_n" or one.parameter <= parameter
    except (ValueError, TypeError, RecursionError) as error:
        raise StateError(
            f"aggregate {one.name!r}: what its column of the snapshot says of it is damaged; restore an older one"
        ) from error
    if not (alike and enough and (column, by) == (one.column, one.by)):
        was, now = _spelled(function, column, by, parameter), _spelled(one.function, one.column, one.by, one.parameter)
        raise StateError(
            f"aggregate {one.name!r} is {was} in the snapshot and {now} in the job, and what was held for the one does not "
            "tell the other: give the new one another name, under which it starts empty"
        )


def _spelled(function: str, column: str, by: str, parameter: float) -> str:
    n = f", {parameter:g}" if function == "top_n" else ""
    return f"{function}({column!r}{n}{f', by={by!r}' if by else ''})"
