"""Values, types and expressions of a declared job as those of Python.

Decides how a type is spelled, what an expression may call, and what is said about a declaration that means nothing.
Makes no object of a user's: those are made by `named_parts`.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from snapline.dataflow.errors import JobDefinitionError
from snapline.expressions import Expr, coalesce, col, concat_str, lit, when
from snapline.protos import declared_pb2 as pb

INFIX: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": operator.and_,
    "|": operator.or_,
}
PREFIX: Mapping[str, Callable[[Any], Any]] = {"not": operator.invert, "negate": operator.neg}
METHODS = frozenset(
    """alias cast is_null is_not_null is_nan fill_null is_between abs round floor ceil sqrt exp log field len_list
    str.to_uppercase str.to_lowercase str.len_chars str.starts_with str.ends_with str.contains str.replace
    str.replace_all str.slice str.strip_chars str.to_datetime dt.year dt.month dt.day dt.ordinal_day dt.weekday dt.hour
    dt.minute dt.second dt.date dt.truncate dt.epoch dt.strftime""".split()
)
"""Methods of an expression that a declaration may call, with what else it takes in order."""
OF_VALUES = frozenset({"is_in", "when", "coalesce", "concat_str"})
LONGEST_TYPE = 8192
"""How many characters the text of a type has at most."""
DEEPEST_TYPE = 50
"""How many types stand within one another at most."""
LONGEST_SHOWN = 80
"""How many characters of such a text an error repeats."""
_TOKEN = re.compile(r"(timestamp\[[^\]]*\]|\w+(?:\[\w+\])?|[(),:<>])")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,\s*(?:tz=)?([^\]]+))?\]")


# --- values -----------------------------------------------------------------------------------------------------------


def decode_value(value: pb.DeclaredValue, make: Callable[[pb.DeclaredConnector], object]) -> Any:
    """A value of Python; `make` makes the objects in it. A value that says nothing is None. Raises JobDefinitionError
    for a time that Python has not."""
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "timestamp_us":
            try:
                return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value.timestamp_us)
            except OverflowError as error:
                line = f"{value.timestamp_us} microseconds since 1970 are no time of the years 1 to 9999"
                raise JobDefinitionError(line) from error
        case "list":
            return [decode_value(each, make) for each in value.list.values]
        case "object":
            return make(value.object)
        case "columns":
            return decode_schema(value.columns.fields)
        case "options":
            return decode_options(value.options.options, make)
    return getattr(value, kind)


def decode_options(
    options: Mapping[str, pb.DeclaredValue], make: Callable[[pb.DeclaredConnector], object]
) -> dict[str, Any]:
    """Arguments by their names, in the order of the names: protobuf keeps none."""
    return {name: decode_value(options[name], make) for name in sorted(options)}


# --- types ------------------------------------------------------------------------------------------------------------


def decode_schema(fields: Sequence[pb.DeclaredField]) -> pa.Schema:
    """The columns. Raises JobDefinitionError for a type that is none, or a name that comes twice."""
    names = [field.name for field in fields]
    if len(set(names)) != len(names) or "" in names:
        shown = _cut(", ".join(map(repr, names)))
        raise JobDefinitionError(f"columns have names, and no two of them the same one: {shown}")
    return pa.schema([(field.name, decode_type(field.type)) for field in fields])


def decode_type(text: str) -> pa.DataType:
    """The Arrow type that is spelled so: as pyarrow prints it, the name of a list's elements left out or not.

    >>> from snapline.declared.declared_values import decode_type
    >>> decode_type("struct<at: timestamp[us, UTC], tags: list<string>, price: decimal128(10, 2)>").field("at").type
    TimestampType(timestamp[us, tz=UTC])
    """
    if len(text) > LONGEST_TYPE:
        raise JobDefinitionError(
            f"{_cut(text)!r} is no type: it has {len(text)} characters, and at most {LONGEST_TYPE} can be"
        )
    tokens = deque(_TOKEN.findall(text))
    if "".join(tokens).replace(" ", "") != text.replace(" ", ""):
        raise _no_type(text)
    try:
        found = _take_type(tokens, DEEPEST_TYPE)
    except _TooDeep:
        raise JobDefinitionError(
            f"{_cut(text)!r} is no type: it is nested more than {DEEPEST_TYPE} deep, and no deeper can be"
        ) from None
    except (AttributeError, IndexError, ValueError, pa.ArrowException) as error:
        raise _no_type(text) from error
    if tokens:
        raise _no_type(text)
    return found


class _TooDeep(Exception):
    """A type has more levels than can be."""


def _take_type(tokens: deque[str], levels: int) -> pa.DataType:
    """The type that the tokens begin with, which are taken away; it may have so many levels."""
    if not levels:
        raise _TooDeep
    name = tokens.popleft()
    match name:
        case "list" | "large_list":
            _take("<", tokens)
            if tokens[1] == ":":
                tokens.popleft()
                tokens.popleft()
            inner = _take_type(tokens, levels - 1)
            _take(">", tokens)
            return pa.list_(inner) if name == "list" else pa.large_list(inner)
        case "struct":
            fields: list[tuple[str, pa.DataType]] = []
            before = "<"
            while not fields or tokens[0] != ">":
                _take(before, tokens)
                field = tokens.popleft()
                _take(":", tokens)
                fields.append((field, _take_type(tokens, levels - 1)))
                before = ","
            _take(">", tokens)
            return pa.struct(fields)
        case "map":
            _take("<", tokens)
            key = _take_type(tokens, levels - 1)
            _take(",", tokens)
            value = _take_type(tokens, levels - 1)
            _take(">", tokens)
            return pa.map_(key, value)
        case "decimal128" | "decimal256":
            _take("(", tokens)
            precision = int(tokens.popleft())
            _take(",", tokens)
            scale = int(tokens.popleft())
            _take(")", tokens)
            return pa.decimal128(precision, scale) if name == "decimal128" else pa.decimal256(precision, scale)
    if name.startswith("timestamp["):
        unit, zone = _TIMESTAMP.fullmatch(name).groups()  # type: ignore[union-attr]  # no match is an AttributeError
        return pa.timestamp(unit, zone)
    return pa.type_for_alias(name)


def _take(expected: str, tokens: deque[str]) -> None:
    if tokens.popleft() != expected:
        raise ValueError(expected)


def _no_type(text: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"{_cut(text)!r} is no type; types are spelled int64, double, string, bool, timestamp[us], timestamp[us, UTC], decimal128(10, 2), "
        "list<int64>, struct<a: int64, b: string>"
    )


def _cut(text: str) -> str:
    """What an error repeats of a text, of which whoever wrote it decides how long it is."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# --- expressions ------------------------------------------------------------------------------------------------------


def decode_expression(expression: pb.DeclaredExpression) -> Expr:
    """The expression that is declared. Raises JobDefinitionError for a function that there is not, or operands that do
    not fit it."""
    found = _operand(expression)
    return found if isinstance(found, Expr) else lit(found)


def _operand(expression: pb.DeclaredExpression) -> Any:
    """An expression, or the value of a literal."""
    match expression.WhichOneof("expression"):
        case "column":
            return col(expression.column)
        case "literal":
            return decode_value(expression.literal, _no_object)
        case "call":
            return _call(expression.call.function, [_operand(each) for each in expression.call.operands])
    raise JobDefinitionError("an expression is a column, a literal or a call, and one of them says none of these")


def _no_object(connector: pb.DeclaredConnector) -> object:
    raise JobDefinitionError(f"{connector.name!r} is an object, and an expression has numbers, texts and times only")


def _call(function: str, operands: list[Any]) -> Expr:
    try:
        if function in INFIX:
            left, right = operands
            return INFIX[function](_as_expression(left), right)
        if not operands:
            raise ValueError("it is called on nothing")
        if function in PREFIX:
            (operand,) = operands
            return PREFIX[function](_as_expression(operand))
        if function in METHODS:
            return _call_method(function, _as_expression(operands[0]), operands[1:])
        match function:
            case "is_in":
                return _as_expression(operands[0]).is_in(operands[1:])
            case "coalesce":
                return coalesce(*operands)
            case "concat_str":
                return concat_str(*operands)
            case "when":
                return _when(operands)
    except (TypeError, ValueError) as error:
        raise JobDefinitionError(f"{function!r} in an expression: {error}") from error
    near = get_close_matches(function, [*INFIX, *PREFIX, *METHODS, *OF_VALUES], 1)
    raise JobDefinitionError(
        f"{function!r} is no function of expressions" + (f"; did you mean {near[0]!r}?" if near else "")
    )


def _call_method(function: str, of: Expr, rest: list[Any]) -> Expr:
    kind, _, name = function.rpartition(".")
    target = getattr(of, kind) if kind else of
    if name == "cast":
        rest = [decode_type(*rest)]
    return getattr(target, name)(*rest)


def _when(operands: list[Any]) -> Expr:
    """Conditions and values in turn, and the value of all other rows last."""
    if len(operands) < 3 or len(operands) % 2 == 0:
        raise ValueError("it takes a condition and a value in turn, and last the value of all other rows")
    chosen: Any = None
    for condition, value in zip(operands[:-1:2], operands[1::2], strict=True):
        chosen = (when(condition) if chosen is None else chosen.when(condition)).then(value)
    return chosen.otherwise(operands[-1])


def _as_expression(value: Any) -> Expr:
    return value if isinstance(value, Expr) else lit(value)
