"""Columns in another type, where all of their values have one there.

Decides what is refused beyond what Arrow refuses by itself: a time of day that would be left out, or a day, a number
that would be a truth value, and one that would be infinite, also inside of lists and records. A number is rounded to
the digits that a type of fractions has, since that is what was asked for. It knows neither files nor schemas.
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
    found = column.cast(kind)
    require_unchanged(column, found)
    return found


def require_unchanged(column: pa.Array, found: pa.Array) -> None:
    """Raise ArrowInvalid where a value is another one than before the cast, also inside of lists and records."""
    given, kind, types = column.type, found.type, pa.types
    if given == kind:
        return
    is_changed = False
    if types.is_struct(given) and types.is_struct(kind):
        for name in set(given.names) & set(kind.names):
            require_unchanged(pc.struct_field(column, name), pc.struct_field(found, name))
    elif types.is_map(given) and types.is_map(kind):
        require_unchanged(_pairs(column), _pairs(found))
    elif _is_list(given) and _is_list(kind):
        require_unchanged(pc.list_flatten(column), pc.list_flatten(found))
    elif types.is_floating(kind) and types.is_floating(given):
        is_changed = not pc.is_inf(found).equals(pc.is_inf(column))
    elif types.is_time(kind) and types.is_timestamp(given):
        is_changed = found.null_count < len(found)
    elif (types.is_date(kind) and types.is_timestamp(given)) or (
        types.is_boolean(kind) and (types.is_integer(given) or types.is_floating(given))
    ):
        is_changed = not found.cast(given).equals(column)
    if is_changed:
        raise pa.ArrowInvalid(f"some values of {given} are not the same as {kind}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _pairs(maps: pa.Array) -> pa.Array:
    kind = maps.type
    return pc.list_flatten(maps.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
