"""Which aggregates can be taken over which columns: asked on the driver when the schema is known, and again in the
task."""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.api.windows import Aggregate


def check_aggregate_type(aggregate: Aggregate, data_type: pa.DataType) -> None:
    """Raises TypeError when the aggregate cannot be taken over a column of this type."""
    by_order = aggregate.function in {"min", "max"}
    if aggregate.function == "count" or is_number(data_type) or (by_order and has_order(data_type)):
        return
    raise TypeError(
        f"{aggregate.function}() as {aggregate.name!r}: column {aggregate.column!r} is {data_type}, which cannot be "
        f"{'ordered' if by_order else 'added up'} here; cast it to an integer or a float before"
    )


def is_number(data_type: pa.DataType) -> bool:
    """Whether values of this type are integers or floats."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type))


def has_order(data_type: pa.DataType) -> bool:
    """Whether the least and the greatest of values of this type can be kept: numbers, booleans, and times but
    intervals."""
    temporal = pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type)
    return bool(is_number(data_type) or temporal or pa.types.is_boolean(data_type))
