"""Columns in another type, where all of their values have one there.

Decides what is refused beyond what Arrow refuses by itself: a time of day that would be left out, a number that would
be a truth value, and one that would be infinite. A number is rounded to the digits that a type of fractions has, since
that is what was asked for. It knows neither files nor schemas.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def cast_unchanged(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in another type. Raises ArrowInvalid for values that are not the same there.

    >>> from snapline.connectors.formats.casts import cast_unchanged
    >>> cast_unchanged(pa.array([0, 1]), pa.bool_()).to_pylist()
    [False, True]
    """
    found, given, types = column.cast(kind), column.type, pa.types
    if types.is_float32(kind) and types.is_float64(given):
        is_changed = not pc.is_inf(found).equals(pc.is_inf(column))
    elif (types.is_date(kind) and types.is_timestamp(given)) or (
        types.is_boolean(kind) and (types.is_integer(given) or types.is_floating(given))
    ):
        is_changed = not found.cast(given).equals(column)
    else:
        return found
    if is_changed:
        raise pa.ArrowInvalid(f"some values of {given} are not the same as {kind}")
    return found
