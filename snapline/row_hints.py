"""Type hints of functions over rows: `-> Order` or `-> Iterator[Order]`, where Order is a TypedDict, says the schema of
what they return, so that columns behind them are checked before the job starts.

Only types that say one Arrow type count: int, float, bool, str, bytes, date, lists of these, TypedDicts (structs) and
`Annotated[datetime, pa.timestamp("us", "UTC")]`. A row with any other type says nothing, and is found out when it
comes, as without hints: a datetime has a zone or none, a Decimal has digits that no hint tells.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.functions import KeyedProcessFunction
from snapline.dataflow.api.process_function import ProcessFunction

_TYPES: dict[object, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
}


def schema_by_hints(function: object) -> pa.Schema | None:
    """The schema of the rows that a function returns or yields, by its return type; None where it says none."""
    called: Any = function
    if isinstance(function, (ProcessFunction, KeyedProcessFunction)):
        called = function.process_element
    elif not isinstance(function, (types.FunctionType, types.MethodType)):
        called = getattr(type(function), "__call__", None)  # noqa: B004 - its hints are wanted
    row = _row_type(_hints_of(called).get("return"))
    struct = None if row is None else _arrow_type(row)
    return None if struct is None else pa.schema(list(struct))


def _row_type(hint: Any) -> Any:
    """The TypedDict of the rows in a return type; None where there are several or none."""
    if typing.is_typeddict(hint):
        return hint
    origin = typing.get_origin(hint)
    inner = [one for one in typing.get_args(hint) if one is not type(None)]
    if not inner or origin in (dict, typing.Annotated):
        return None
    rows = [_row_type(one) for one in (inner if origin in (typing.Union, types.UnionType) else inner[:1])]
    return rows[0] if all(row is rows[0] for row in rows) else None


def _hints_of(called: Callable[..., Any] | type | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(called, include_extras=True) if called is not None else {}
    except Exception:  # names that only a type checker knows, or no function at all
        return {}


def _arrow_type(hint: Any) -> pa.DataType | None:
    """The one Arrow type of a hint; None where there are several or none."""
    if isinstance(hint, type) and hint in _TYPES:
        return _TYPES[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        said = [each for each in arguments[1:] if isinstance(each, pa.DataType)]
        return said[0] if said else _arrow_type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in arguments if each is not type(None)]
        return _arrow_type(kinds[0]) if len(kinds) == 1 else None
    if origin in (typing.Required, typing.NotRequired):
        return _arrow_type(arguments[0])
    if origin is list and arguments:
        item = _arrow_type(arguments[0])
        return None if item is None else pa.list_(item)
    if typing.is_typeddict(hint):
        fields = {name: _arrow_type(each) for name, each in _hints_of(hint).items()}
        return None if not fields or None in fields.values() else pa.struct(list(fields.items()))
    return None
