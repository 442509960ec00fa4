"""Which aggregates can be taken over which columns, and the types of their results: asked on the driver when the schema
is known, and again in the task."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapline.dataflow.api.batch_aggregates import AnyAggregate, HeldAggregate, OwnAggregate, columns_of
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.columnar.arrow_columns import can_be_key
from snapline.dataflow.columnar.column_types import kept_type

WINDOW_TIME = pa.timestamp("ms")
"""The type of window times where no event-time column gives another."""


def check_aggregate_type(aggregate: Aggregate, data_type: pa.DataType) -> None:
    """Raises TypeError when the aggregate cannot be taken over a column of this type."""
    by_order = aggregate.function in {"min", "max"}
    is_held = isinstance(_over(aggregate, data_type), HeldAggregate)
    if aggregate.function == "count" or (not is_held and (is_number(data_type) or (by_order and has_order(data_type)))):
        return
    where = f"{aggregate.function}() as {aggregate.name!r}: column {aggregate.column!r} is {data_type}, which"
    if is_held:
        raise TypeError(
            f"{where} has to be known before the first row: declare the columns of the operator before (schema=)"
        )
    raise TypeError(
        f"{where} cannot be {'ordered' if by_order else 'added up'} here; cast it to an integer or a float before"
    )


def over_columns(aggregate: AnyAggregate, schema: pa.Schema) -> AnyAggregate:
    """The aggregate as it is taken over columns of these types: counts and numbers have accumulators of numbers; the
    least and greatest text, bytes, decimal or uint64 (accumulators are int64), the mean of these numbers and the sum of
    decimals are held."""
    if not isinstance(aggregate, Aggregate) or not aggregate.column:
        return aggregate
    return _over(aggregate, schema.field(aggregate.column).type)


def _over(aggregate: Aggregate, data_type: pa.DataType) -> Aggregate | HeldAggregate:
    by_order = aggregate.function in {"min", "max"} and is_compared(data_type)
    added_up = aggregate.function in {"sum", "mean"} and pa.types.is_decimal(data_type) and data_type.scale >= 0
    too_large = aggregate.function in {"min", "max", "mean"} and pa.types.is_uint64(data_type)
    if by_order or added_up or too_large:
        return HeldAggregate(aggregate.name, aggregate.function, aggregate.column)
    return aggregate


def _check_held_types(aggregate: HeldAggregate, data_type: pa.DataType, by: pa.DataType | None) -> None:
    """Raises TypeError where values have no order, or are none that can be kept."""
    column, kind = (aggregate.by, by) if by is not None else (aggregate.column, data_type)
    if aggregate.function.endswith("quantile"):
        if not is_number(data_type):
            raise TypeError(
                f"{aggregate.function}() as {aggregate.name!r}: column {aggregate.column!r} is {data_type}, which is no number; cast "
                "it to an integer or a float before"
            )
    elif (by is not None or aggregate.function == "top_n") and not (has_order(kind) or is_compared(kind)):
        raise TypeError(
            f"{aggregate.function}() as {aggregate.name!r}: column {column!r} is {kind}, which cannot be ordered here; cast it to an "
            "integer or a float before, or order by another column with by="
        )
    elif aggregate.function.endswith("count_distinct") and (
        pa.types.is_nested(data_type) or (aggregate.function == "count_distinct" and not can_be_key(data_type))
    ):
        raise TypeError(
            f"{aggregate.function}() as {aggregate.name!r}: column {aggregate.column!r} is {data_type}, whose values are not compared "
            "here; count a field of it, or cast it"
        )


def result_type(aggregate: AnyAggregate, schema: pa.Schema) -> pa.DataType:
    """The type of an aggregate's result over rows of a schema. Raises TypeError that names the column for types that
    it does not take; the columns have to be there."""
    types = [schema.field(column).type for column in columns_of(aggregate)]
    if isinstance(aggregate, OwnAggregate):
        return _own_type(aggregate, types)
    if isinstance(aggregate, HeldAggregate):
        _check_held_types(aggregate, types[0], types[1] if aggregate.by else None)
        match aggregate.function:
            case "count_distinct" | "approx_count_distinct":
                return pa.int64()
            case "quantile" | "approx_quantile":
                return pa.float64()
            case "collect_list" | "top_n":
                return pa.list_(kept_type(types[0]))
            case "mean":
                return pa.float64()
            case "sum":
                wide = types[0].bit_width == 256
                return pa.decimal256(76, types[0].scale) if wide else pa.decimal128(38, types[0].scale)
        return kept_type(types[0])
    if not aggregate.column:
        return pa.int64()
    check_aggregate_type(aggregate, types[0])
    match aggregate.function:
        case "count":
            return pa.int64()
        case "mean":
            return pa.float64()
        case "sum":
            return pa.float64() if pa.types.is_floating(types[0]) else pa.int64()
    return types[0]


def _own_type(aggregate: OwnAggregate, types: Sequence[pa.DataType]) -> pa.DataType:
    name = type(aggregate.function).__name__
    try:
        found = aggregate.function.result_type(*types)
    except Exception as error:
        shown = ", ".join(f"{column!r} is {kind}" for column, kind in zip(aggregate.columns, types, strict=True))
        raise TypeError(
            f"{name}() as {aggregate.name!r} does not take its columns ({shown}): {type(error).__name__}: {error}"
        ) from None
    if not isinstance(found, pa.DataType):
        raise TypeError(f"{name}.result_type() returns an Arrow type such as pyarrow.int64(), not {found!r}")
    return found


def is_number(data_type: pa.DataType) -> bool:
    """Whether values of this type are integers or floats."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type))


def has_order(data_type: pa.DataType) -> bool:
    """Whether the least and the greatest of values of this type can be kept: numbers, booleans, and times but
    intervals."""
    temporal = pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type)
    return bool(is_number(data_type) or temporal or pa.types.is_boolean(data_type))


def is_compared(data_type: pa.DataType) -> bool:
    """Whether values of this type have an order that is no number's: texts and bytes (by their bytes), and decimals."""
    kept = kept_type(data_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(kept) for is_kind in (*kinds, pa.types.is_fixed_size_binary, pa.types.is_decimal))


def window_time_of(event_time: pa.DataType) -> pa.DataType:
    """The type of a window's times, by that of the event-time column: the same unit and zone. Seconds become
    milliseconds, for windows are told in those; so do integers, which are milliseconds."""
    if not pa.types.is_timestamp(event_time):
        return WINDOW_TIME
    return pa.timestamp("ms" if event_time.unit == "s" else event_time.unit, event_time.tz)
