"""Expressions over the columns of a stream, as data: `sl.col("price") * 1.1`, checked before a job runs and computed
batch by batch.

An expression is a tree of columns, literals and operations. Decides how it reads in messages, what its column is
called, and what type it has for a schema: that of its value over a row of nulls, so that nothing can be said here that
the computation does not keep, and a pattern that means nothing is found. Names follow Polars, and PySpark where the two
agree. What an operation computes is in `column_operations`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapline.dataflow.arguments import check_whole
from snapline.dataflow.columnar.arrow_columns import column_named
from snapline.dataflow.errors import JobDefinitionError

Text = str
"""`str`, where a class has a property of that name."""
_EVERY = re.compile(r"0*[1-9]\d{0,8}(us|ms|mo|s|m|h|d|w|q|y)")
_DIRECTIVE = re.compile(r"%[-_:#0^]?\.?\d?[EO]?(.?)", re.DOTALL)
_READ = re.compile(r"%([-_0]?[deHIjmMSy]|[aAbBcDFhklnprRstTxXYzZ%])")
_WRITTEN = re.compile(r"%([EO]?[aAbBcCdDeFgGhHIjmMnprRSTtuUVwWxXyYzZ]|\.?[369]f|[fs%])")
"""What of a form of strptime, and of strftime, means the same wherever a job runs."""
MOST_DECIMALS = 1_000
"""Far more than any number has: Arrow multiplies by ten so often."""
MOST_CHARACTERS = 2**62
_INFIX = frozenset("+ - * / // % ** == != < <= > >= & | ^".split())
_LITERALS = (
    bool,
    int,
    float,
    str,
    bytes,
    decimal.Decimal,
    dt.date,
    dt.time,
    dt.timedelta,
    type(None),
)


@dataclass(frozen=True, eq=False)
class Expr:
    """A value for each row, computed from its columns. Make one with `col` or `lit`; combine them with operators and
    methods.

    >>> (sl.col("price") * 1.1).alias("gross")
    (col("price") * 1.1).alias("gross")
    >>> batch = pa.RecordBatch.from_pydict({"x": [-1.5, None, 4.0], "s": ["ab", "c", None], "l": [[1], [], None]})
    >>> sl.col("x").abs().sqrt().round(1).evaluate(batch).to_pylist()
    [1.2, None, 2.0]
    >>> [kind(batch).to_pylist() for kind in (sl.col("x").floor().evaluate, sl.col("x").ceil().evaluate)]
    [[-2.0, None, 4.0], [-1.0, None, 4.0]]
    >>> sl.col("x").fill_null(0).cast(pa.int64()).type_in(batch.schema)
    DataType(int64)
    >>> (sl.col("x").is_null() | sl.col("x").is_between(0, 5)).evaluate(batch).to_pylist()
    [False, True, True]
    >>> (sl.col("s").is_in(["ab"]) & sl.col("x").is_not_null() & ~sl.col("x").is_nan()).evaluate(batch).to_pylist()
    [True, False, None]
    >>> sl.col("s").str.to_uppercase().evaluate(batch).to_pylist(), sl.col("l").len_list().evaluate(batch).to_pylist()
    (['AB', 'C', None], [1, 0, None])
    >>> sl.col("x").exp().log().name, list((sl.col("x") + sl.col("s").str.len_chars()).columns())
    ('x', ['x', 's'])
    >>> sl.col("at").dt.truncate("1h"), sl.col("place").field("town")
    (col("at").dt.truncate("1h"), col("place").field("town"))
    """

    operation: str
    operands: tuple[Expr, ...] = ()
    arguments: tuple[Any, ...] = ()
    """What is no column: a name, a literal, a type, a pattern."""

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Expr:
        return _infix("+", self, other)

    def __radd__(self, other: Any) -> Expr:
        return _infix("+", other, self)

    def __sub__(self, other: Any) -> Expr:
        return _infix("-", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _infix("-", other, self)

    def __mul__(self, other: Any) -> Expr:
        return _infix("*", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _infix("*", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _infix("/", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _infix("/", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return _infix("//", self, other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return _infix("//", other, self)

    def __mod__(self, other: Any) -> Expr:
        return _infix("%", self, other)

    def __rmod__(self, other: Any) -> Expr:
        return _infix("%", other, self)

    def __pow__(self, other: Any) -> Expr:
        return _infix("**", self, other)

    def __rpow__(self, other: Any) -> Expr:
        return _infix("**", other, self)

    def __neg__(self) -> Expr:
        return Expr("negate", (self,))

    # --- comparison and logic -----------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]  # as in Polars and PySpark: an expression, not an answer
        return _infix("==", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _infix("!=", self, other)

    def __lt__(self, other: Any) -> Expr:
        return _infix("<", self, other)

    def __le__(self, other: Any) -> Expr:
        return _infix("<=", self, other)

    def __gt__(self, other: Any) -> Expr:
        return _infix(">", self, other)

    def __ge__(self, other: Any) -> Expr:
        return _infix(">=", self, other)

    def __and__(self, other: Any) -> Expr:
        return _infix("&", self, other)

    def __rand__(self, other: Any) -> Expr:
        return _infix("&", other, self)

    def __or__(self, other: Any) -> Expr:
        return _infix("|", self, other)

    def __ror__(self, other: Any) -> Expr:
        return _infix("|", other, self)

    def __xor__(self, other: Any) -> Expr:
        return _infix("^", self, other)

    def __rxor__(self, other: Any) -> Expr:
        return _infix("^", other, self)

    def __invert__(self) -> Expr:
        return Expr("not", (self,))

    def __bool__(self) -> bool:
        """Raises TypeError: whether it is true differs from row to row."""
        raise TypeError(
            f"{self!r} has a value for each row and is neither true nor false: combine conditions with & and |, each in "
            "parentheses, not with `and`, `or`, `not` or a chain of comparisons"
        )

    def __hash__(self) -> int:
        """Raises TypeError: `==` makes an expression, so expressions are no keys of dictionaries."""
        raise TypeError(f"{self!r} is no key of a dictionary: == between expressions makes an expression")

    # --- names and types ----------------------------------------------------------------------------------------------

    def alias(self, name: Text) -> Expr:
        """Return the same expression, whose result is called `name`."""
        if not isinstance(name, Text):
            raise JobDefinitionError(f"alias takes the name of a column, not {name!r}")
        return Expr("alias", (self,), (name,))

    def cast(self, data_type: pa.DataType) -> Expr:
        """The value in another Arrow type; the job fails at a value that does not fit."""
        if not isinstance(data_type, pa.DataType):
            raise JobDefinitionError(f"cast takes an Arrow type such as pyarrow.int64(), not {data_type!r}")
        return Expr("cast", (self,), (data_type,))

    # --- nulls and choices --------------------------------------------------------------------------------------------

    def is_null(self) -> Expr:
        """Whether there is no value."""
        return Expr("is_null", (self,))

    def is_not_null(self) -> Expr:
        """Whether there is a value."""
        return Expr("is_not_null", (self,))

    def is_nan(self) -> Expr:
        """Whether the value is NaN."""
        return Expr("is_nan", (self,))

    def fill_null(self, value: Any) -> Expr:
        """`value` (a literal or an expression) where there is none."""
        return Expr("fill_null", (self, as_expression(value)))

    def is_in(self, values: Sequence[Any]) -> Expr:
        """Whether the value is one of these literals; null where there is no value."""
        if isinstance(values, (Text, bytes)) or not isinstance(values, Iterable):
            raise JobDefinitionError(f"is_in takes a list of literals, not {values!r}")
        return Expr("is_in", (self,), (_in_arrow(list(values), pa.array),))

    def is_between(self, lower: Any, upper: Any, closed: Text = "both") -> Expr:
        """Whether the value lies between two bounds; `closed` is `both`, `left`, `right` or `none`."""
        if closed not in ("both", "left", "right", "none"):
            raise JobDefinitionError(f"closed is 'both', 'left', 'right' or 'none', not {closed!r}")
        above = self >= lower if closed in ("both", "left") else self > lower
        below = self <= upper if closed in ("both", "right") else self < upper
        return above & below

    # --- numbers ------------------------------------------------------------------------------------------------------

    def abs(self) -> Expr:
        """The value without its sign."""
        return Expr("abs", (self,))

    def round(self, decimals: int = 0) -> Expr:
        """Rounded to so many digits behind the point, or less than 0: to tens, hundreds, ...; halves go away from
        zero."""
        check_whole("round: decimals", decimals, -MOST_DECIMALS, MOST_DECIMALS)
        return Expr("round", (self,), (decimals,))

    def floor(self) -> Expr:
        """The greatest whole number that is not above the value."""
        return Expr("floor", (self,))

    def ceil(self) -> Expr:
        """The least whole number that is not below the value."""
        return Expr("ceil", (self,))

    def sqrt(self) -> Expr:
        """Return the square root of each value, as float64, or as float32 of float32."""
        return Expr("sqrt", (self,))

    def exp(self) -> Expr:
        """E to the power of the value, float64, or float32 of float32."""
        return Expr("exp", (self,))

    def log(self) -> Expr:
        """Return the natural logarithm of each value, as float64, or as float32 of float32."""
        return Expr("log", (self,))

    # --- kinds of values ----------------------------------------------------------------------------------------------

    @property
    def str(self) -> TextExpr:
        """What can be done with text."""
        return TextExpr(self)

    @property
    def dt(self) -> TimeExpr:
        """What can be done with dates and times."""
        return TimeExpr(self)

    def field(self, name: Text) -> Expr:
        """A field of a struct, called by its name."""
        if not isinstance(name, Text):
            raise JobDefinitionError(f"field takes the name of a field, not {name!r}")
        return Expr("field", (self,), (name,))

    def len_list(self) -> Expr:
        """The number of elements of a list."""
        return Expr("list.len", (self,))

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> Text:
        """What the result is called: its alias, else the first column that is named in it."""
        if self.operation in ("alias", "col", "field"):
            name: Text = self.arguments[0]
            return name
        named = self.operands[1:2] if self.operation == "if_else" else self.operands
        return next((operand.name for operand in named if operand.operation != "lit"), "literal")

    def columns(self) -> Iterator[Text]:
        """The columns that it reads, by name; one may come more than once."""
        if self.operation == "col":
            yield self.arguments[0]
        for operand in self.operands:
            yield from operand.columns()

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """The values for the rows of a batch. Raises what Arrow raises for values that do not fit."""
        value = self._value(batch)
        return pa.repeat(value, batch.num_rows) if isinstance(value, pa.Scalar) else value

    def _value(self, batch: pa.RecordBatch) -> pa.Array | pa.Scalar:
        match self.operation:
            case "col":
                return column_named(batch, self.arguments[0])
            case "lit":
                return self.arguments[0]
            case "alias":
                return self.operands[0]._value(batch)  # noqa: SLF001 - of its own kind
        from snapline.expressions.column_operations import (
            KERNELS,  # brings pyarrow.compute, which a program that only builds does not need
        )

        kernel = KERNELS[self.operation]
        operands = [operand._value(batch) for operand in self.operands]  # noqa: SLF001
        if self.operation.startswith("str.") or self.operation in ("+", "is_in"):  # which Arrow has for no categories
            operands = [one.dictionary_decode() if isinstance(one, pa.DictionaryArray) else one for one in operands]
        if self.operation == "str.concat":
            return kernel(*self.arguments, *operands)
        return kernel(*operands, *self.arguments)

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of the expression over rows of a schema. Raises JobDefinitionError where an operation does not take
        the types of its operands."""
        try:
            return self.evaluate(_row_of_nulls(schema)).type
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
            culprit = self._culprit(schema)
            types = ", ".join(f"{operand!r} is {operand.type_in(schema)}" for operand in culprit.operands)
            reason = str(error).splitlines()[0]
            raise JobDefinitionError(f"{culprit!r} cannot be computed ({types}): {reason}") from None

    def _culprit(self, schema: pa.Schema) -> Expr:
        """The innermost part that cannot be computed."""
        for operand in self.operands:
            try:
                operand.type_in(schema)
            except JobDefinitionError:
                return operand._culprit(schema)  # noqa: SLF001
        return self

    def __repr__(self) -> Text:
        shown = [repr(operand) for operand in self.operands]
        match self.operation:
            case "col":
                return f'col("{self.arguments[0]}")'
            case "lit":
                return repr(self.arguments[0].as_py())
            case "negate":
                return f"-{shown[0]}"
            case "not":
                return f"~{shown[0]}"
            case "if_else":
                cases = "".join(f".when({c}).then({v})" for c, v in zip(shown[:-1:2], shown[1::2], strict=True))
                return f"{cases[1:]}.otherwise({shown[-1]})"
            case operation if operation in _INFIX:
                return f"({shown[0]} {operation} {shown[1]})"
            case "alias":
                return f'{shown[0]}.alias("{self.arguments[0]}")'
        rest = [*shown[1:], *(_shown(argument) for argument in self.arguments)]
        return f"{shown[0]}.{self.operation}({', '.join(rest)})"


def _shown(argument: Any) -> str:
    """An argument as it would be written."""
    if isinstance(argument, pa.Array):
        return repr(argument.to_pylist())
    return f'"{argument}"' if isinstance(argument, str) else f"{argument}"


def _row_of_nulls(schema: pa.Schema) -> pa.RecordBatch:
    """Without any row Arrow's kernels would look at no pattern, and not at the zones that they compare."""
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)


def _check_form(form: Any, known: re.Pattern[str], function: str, way_out: str = "") -> None:
    """JobDefinitionError for what of a form has no meaning: Arrow would keep it as it is."""
    if not isinstance(form, str):
        raise JobDefinitionError(f"{function} takes a form such as '%Y-%m-%d', not {form!r}")
    for directive in _DIRECTIVE.finditer(form):
        if known.fullmatch(directive.group()) is None:
            raise JobDefinitionError(f"{function}: {directive.group()!r} in {form!r} has no meaning here{way_out}")


class TextExpr:
    """The operations on columns of text: `sl.col("name").str.to_uppercase()`."""

    def __init__(self, of: Expr) -> None:
        self._of = of

    def to_uppercase(self) -> Expr:
        """Return each text in upper case."""
        return Expr("str.to_uppercase", (self._of,))

    def to_lowercase(self) -> Expr:
        """Return each text in lower case."""
        return Expr("str.to_lowercase", (self._of,))

    def len_chars(self) -> Expr:
        """Return the number of characters of each text."""
        return Expr("str.len_chars", (self._of,))

    def starts_with(self, prefix: str) -> Expr:
        """Whether the text begins with `prefix`."""
        return Expr("str.starts_with", (self._of,), (prefix,))

    def ends_with(self, suffix: str) -> Expr:
        """Whether the text ends with `suffix`."""
        return Expr("str.ends_with", (self._of,), (suffix,))

    def contains(self, pattern: str, *, literal: bool = False) -> Expr:
        """Whether a regular expression (RE2) matches somewhere, or with `literal` whether the text holds `pattern`."""
        return Expr("str.contains", (self._of,), (pattern, literal))

    def replace(self, pattern: str, value: str, *, literal: bool = False) -> Expr:
        """The first match of a regular expression (RE2), or with `literal` of the text itself, replaced."""
        return Expr("str.replace", (self._of,), (pattern, value, literal, False))

    def replace_all(self, pattern: str, value: str, *, literal: bool = False) -> Expr:
        """Return each text with every match replaced."""
        return Expr("str.replace", (self._of,), (pattern, value, literal, True))

    def slice(self, offset: int, length: int | None = None) -> Expr:
        """`length` characters from `offset` on (all that follow without it); a negative offset counts from the end."""
        check_whole("slice: offset", offset, -MOST_CHARACTERS, MOST_CHARACTERS)
        if length is not None:
            check_whole("slice: length", length, 0, MOST_CHARACTERS)
        return Expr("str.slice", (self._of,), (offset, length))

    def strip_chars(self, characters: str | None = None) -> Expr:
        """Without white space, or these characters, at both ends."""
        return Expr("str.strip_chars", (self._of,), (characters,))

    def to_datetime(self, form: str, time_unit: str = "us") -> Expr:
        """The time that the text says, in the form of strptime such as `%Y-%m-%d %H:%M:%S`; without a zone, or with
        `%z` in UTC. A cast to a timestamp reads ISO 8601 with a fraction of a second."""
        _check_form(form, _READ, "to_datetime", "; .cast(pyarrow.timestamp('us')) reads ISO 8601 with a fraction")
        return Expr("str.to_datetime", (self._of,), (form, time_unit))


class TimeExpr:
    """Operations on dates and times: `sl.col("at").dt.truncate("1h")`. A column with a zone is read in its zone."""

    def __init__(self, of: Expr) -> None:
        self._of = of

    def year(self) -> Expr:
        """Return the year of each date or timestamp."""
        return Expr("dt.year", (self._of,))

    def month(self) -> Expr:
        """The month, 1 to 12."""
        return Expr("dt.month", (self._of,))

    def day(self) -> Expr:
        """The day of the month, from 1 on."""
        return Expr("dt.day", (self._of,))

    def ordinal_day(self) -> Expr:
        """The day of the year, from 1 on."""
        return Expr("dt.ordinal_day", (self._of,))

    def weekday(self) -> Expr:
        """The day of the week: Monday is 1, Sunday is 7."""
        return Expr("dt.weekday", (self._of,))

    def hour(self) -> Expr:
        """The hour, 0 to 23."""
        return Expr("dt.hour", (self._of,))

    def minute(self) -> Expr:
        """The minute, 0 to 59."""
        return Expr("dt.minute", (self._of,))

    def second(self) -> Expr:
        """The second, 0 to 59."""
        return Expr("dt.second", (self._of,))

    def date(self) -> Expr:
        """Return the date of each timestamp, without its time."""
        return Expr("dt.date", (self._of,))

    def truncate(self, every: str) -> Expr:
        """The beginning of the `10s`, `15m`, `1h`, `1d`, `1w` or `1mo` that the time lies in."""
        if not isinstance(every, str) or _EVERY.fullmatch(every) is None:
            raise JobDefinitionError(f"{every!r} is no length of time, such as 10s, 15m, 1h, 1d, 1w, 1mo")
        return Expr("dt.truncate", (self._of,), (every,))

    def epoch(self, time_unit: str = "us") -> Expr:
        """The time since 1970-01-01 in `s`, `ms`, `us` or `ns`, int64."""
        return Expr("dt.epoch", (self._of,), (time_unit,))

    def strftime(self, form: str) -> Expr:
        """The time as text, in the form of strftime such as `%Y-%m-%d`; `%3f`, `%6f` and `%f` are three, six and nine
        digits of the second's fraction, and `%.3f` has the point as well."""
        _check_form(form, _WRITTEN, "strftime")
        return Expr("dt.strftime", (self._of,), (form,))


@dataclass(frozen=True, eq=False)
class When:
    """A choice that is not finished: say `.then(...)`."""

    cases: tuple[Expr, ...]
    condition: Expr

    def then(self, value: Any) -> Then:
        """The value where the condition is true."""
        return Then((*self.cases, self.condition, as_expression(value)))


@dataclass(frozen=True, eq=False)
class Then:
    """A choice: add cases by `.when(...)`, and end it with `.otherwise(...)`."""

    cases: tuple[Expr, ...]

    def when(self, condition: Any) -> When:
        """Another case, for rows that no case before has taken."""
        return When(self.cases, as_expression(condition))

    def otherwise(self, value: Any) -> Expr:
        """The value of all other rows."""
        return Expr("if_else", (*self.cases, as_expression(value)))


def col(name: str) -> Expr:
    """The column called `name`.

    >>> sl.col("price") > 3
    (col("price") > 3)
    """
    if not isinstance(name, str) or not name:
        raise JobDefinitionError(f"col takes the name of a column, not {name!r}")
    return Expr("col", (), (name,))


def lit(value: Any, data_type: pa.DataType | None = None) -> Expr:
    """The same value for every row, in the given Arrow type or the one that Arrow infers.

    >>> sl.lit(1, pa.int32()).type_in(pa.schema([]))
    DataType(int32)
    """
    return Expr("lit", (), (_in_arrow(value, pa.scalar, data_type),))


def when(condition: Any) -> When:
    """Choose by conditions: `sl.when(sl.col("n") > 9).then("many").otherwise("few")`. A null condition counts as false.

    >>> sl.when(sl.col("n") > 9).then("many").otherwise("few")
    when((col("n") > 9)).then('many').otherwise('few')
    """
    return When((), as_expression(condition))


def coalesce(*values: Any) -> Expr:
    """The first of several values that is not null.

    >>> sl.coalesce(sl.col("nick"), sl.col("name"), "nobody").name
    'nick'
    """
    return Expr("coalesce", _at_least_one("coalesce", values))


def concat_str(*values: Any, separator: str = "") -> Expr:
    """Texts one after the other, null where one of them is null.

    >>> batch = pa.RecordBatch.from_pydict({"a": ["x", None], "b": ["y", "z"]})
    >>> sl.concat_str(sl.col("a"), sl.col("b"), separator="-").evaluate(batch).to_pylist()
    ['x-y', None]
    """
    return Expr("str.concat", _at_least_one("concat_str", values), (separator,))


def _at_least_one(function: str, values: tuple[Any, ...]) -> tuple[Expr, ...]:
    if not values:
        raise JobDefinitionError(f"{function} takes at least one column, expression or literal")
    return tuple(as_expression(value) for value in values)


def _in_arrow(value: Any, function: Callable[..., Any], data_type: pa.DataType | None = None) -> Any:
    """Literals as Arrow has them, whole numbers up to those of uint64. Raises JobDefinitionError for others."""
    numbers = value if isinstance(value, list) else [value]
    if data_type is None and all(isinstance(one, int) for one in numbers) and any(one >= 2**63 for one in numbers):
        data_type = pa.uint64()
    try:
        return function(value, data_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise JobDefinitionError(
            f"{reprlib.repr(value)} is no literal that Arrow can hold: {str(error).splitlines()[0]}"
        ) from None


def _infix(operation: str, left: Any, right: Any) -> Expr:
    return Expr(operation, (as_expression(left), as_expression(right)))


def as_expression(value: Any) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, (When, Then)):
        raise JobDefinitionError("a choice ends with .otherwise(...): say what all other rows get (None for null)")
    if isinstance(value, (*_LITERALS, pa.Scalar)):
        return Expr("lit", (), (value,)) if isinstance(value, pa.Scalar) else lit(value)
    raise JobDefinitionError(
        f"{value!r} is no expression and no literal: make a column with sl.col, a value with sl.lit"
    )
