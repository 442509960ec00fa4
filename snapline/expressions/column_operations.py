"""What each operation of an expression computes, on whole Arrow columns.

Decides the meaning of operations where Arrow, Polars and Spark differ: `/` divides as numbers with fractions, `//` and
`%` round down and give null for a divisor of zero, a whole-number literal takes the type of the column beside it when
it fits, and logic with nulls is three-valued. Everything else is what `pyarrow.compute` does. It knows nothing of names
and streams.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import zoneinfo
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.columnar.arrow_columns import fixed_array, numpy_values, units_per_second, validity

Value: TypeAlias = Any
"""A pyarrow.Array, or a Scalar for what is the same in every row."""
_NO_OFFSET = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})
"""Zones whose times are what is stored."""
_UNITS = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
    "mo": "month",
    "q": "quarter",
    "y": "year",
}
_DAY_OF_MONTH = re.compile(r"%[EO]?[deDFxc]")
"""What of a form of strptime is the day of a month."""
_FRACTIONS = re.compile(r"(%%|%s|%\.?[369]f|%f)")
"""What of a form of strftime Arrow does not know, and `%%`, which is none of it."""
_OFFSETS = re.compile(r"%[EO]?[zZ]")
"""What of a form of strftime says the zone."""
_KNOWN_UNTIL_S = 2_114_380_800
"""The first of January 2037."""
_YEAR_10000_S = 253_402_300_800
_DAY_S = 86_400
_QUARTER_S = 900
"""Clocks are changed at the beginning of a quarter of an hour."""
_DIGITS_OF = {pa.float32(): (24, 37), pa.float64(): (53, 300)}
"""Bits of a float that are digits, and behind how many places of decimals it has none to speak of."""
_DIGITS_OF_128_BITS, _MOST_DIGITS = 38, 76
"""What decimals of 128 and of 256 bits hold."""
_FEWEST_DECIMALS = 6
"""Digits behind the point that a decimal keeps, if it has them, where there is no room for all before and behind."""
_GREATEST_POWER = {pa.float32(): 38, pa.float64(): 308}
"""Exponents of the greatest powers of ten that floats hold."""
_ANY_WHOLE = pa.decimal128(20, 0)
"""Holds every int64 and every uint64."""
_WITHIN_A_DAY = frozenset({"microsecond", "millisecond", "second", "minute", "hour"})


def _fitted(value: Value, beside: Value) -> Value:
    """A literal in the type of the column beside it, where it means the same there."""
    if not isinstance(value, pa.Scalar) or isinstance(beside, pa.Scalar) or not value.is_valid:
        return value
    own, other = value.type, beside.type
    whole = pa.types.is_integer(own) and (pa.types.is_integer(other) or pa.types.is_floating(other))
    fraction = pa.types.is_floating(own) and pa.types.is_floating(other)
    if own == other or not (whole or fraction):
        return value
    try:
        return value.cast(other)
    except (pa.ArrowInvalid, OverflowError):
        return value


def _beside_floats(*values: Value) -> tuple[Value, ...]:
    """Whole numbers beside floats as the nearest ones of these: Arrow takes none that a float has to round."""
    floats = {value.type for value in values if pa.types.is_floating(value.type)}
    if not floats:
        return values
    wide = max(floats, key=lambda data_type: data_type.bit_width)
    return tuple(v.cast(wide, safe=False) if pa.types.is_integer(v.type) else v for v in values)


def _aligned(left: Value, right: Value) -> tuple[Value, Value]:
    """Literals fitted, whole numbers beside floats as floats, the two kinds of strings as one, and two zones as one."""
    left, right = _beside_floats(_fitted(left, right), _fitted(right, left))
    if left.type != right.type and pa.types.is_large_string(left.type) | pa.types.is_large_string(right.type):
        left, right = (v.cast(pa.large_string()) if pa.types.is_string(v.type) else v for v in (left, right))
    zones = {getattr(value.type, "tz", None) for value in (left, right)}
    if None not in zones:  # else Arrow says it
        left, right = _in_one_zone(left, right)
    return left, right


def _in_one_zone(*values: Value) -> tuple[Value, ...]:
    """Times of several zones in that of the first column among them, and in the finest unit: Arrow compares only those
    of equal units, and may take the number of one for a time of another. Raises ArrowInvalid for times without a
    zone."""
    times = [value for value in values if pa.types.is_timestamp(value.type)]
    zones = {time.type.tz for time in times}
    if len(zones) < 2:
        return values
    if None in zones:
        raise pa.ArrowInvalid("times with a zone are no times without one: cast one to the type of the other")
    zone = next((time for time in times if isinstance(time, pa.Array)), times[-1]).type.tz
    unit = max((time.type.unit for time in times), key=("s", "ms", "us", "ns").index)
    return tuple(v.cast(pa.timestamp(unit, zone)) if pa.types.is_timestamp(v.type) else v for v in values)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    def apply(left: Value, right: Value) -> Value:
        return function(*_aligned(left, right))

    return apply


def _compared(function: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    """A comparison, which whole numbers with and without a sign have in common also where neither type holds both."""

    def apply(left: Value, right: Value) -> Value:
        left, right = _aligned(left, right)
        for one, other in ((left, right), (right, left)):
            if pa.types.is_uint64(one.type) and pa.types.is_signed_integer(other.type):
                left, right = left.cast(_ANY_WHOLE), right.cast(_ANY_WHOLE)
        return function(left, right)

    return apply


def _wide(value: Value, digits: int) -> Value:
    """A decimal of 128 bits, or whole numbers, as one of 256, with so many digits at most."""
    kind = value.type
    if pa.types.is_integer(kind):
        return value.cast(_ANY_WHOLE).cast(pa.decimal256(_ANY_WHOLE.precision, 0))
    return value.cast(pa.decimal256(min(kind.precision, digits), kind.scale))


def _narrow(value: Value) -> Value:
    """What needs more than 38 digits: those before the point, and as many behind it as there is room for, but six where
    there were so many, as in Spark. Raises ArrowInvalid for a number that does not fit."""
    kind = value.type
    if not pa.types.is_decimal256(kind):
        return value
    before = kind.precision - kind.scale
    scale = min(kind.scale, max(_DIGITS_OF_128_BITS - before, _FEWEST_DECIMALS))
    return pc.round(value, scale, "half_towards_infinity").cast(pa.decimal128(_DIGITS_OF_128_BITS, scale))


def _with_digits(function: Callable[[Value, Value], Value], right_digits: int = 38) -> Callable[[Value, Value], Value]:
    """The function of two values also where Arrow has no decimal of 128 bits for what it gives, as beside a sum, which
    has 38 digits. `right_digits`: the most that the right one may have then."""

    def apply(left: Value, right: Value) -> Value:
        try:
            return function(left, right)
        except pa.ArrowInvalid:
            kinds = (left.type, right.type)
            decimals = [kind for kind in kinds if pa.types.is_decimal128(kind)]
            if not decimals or not all(kind in decimals or pa.types.is_integer(kind) for kind in kinds):
                raise
        return _narrow(function(_wide(left, _DIGITS_OF_128_BITS), _wide(right, right_digits)))

    return apply


def _is_text(value: Value) -> bool:
    return bool(pa.types.is_string(value.type) or pa.types.is_large_string(value.type))


def _add(left: Value, right: Value) -> Value:
    left, right = _aligned(left, right)
    if _is_text(left) and _is_text(right):
        return pc.binary_join_element_wise(left, right, pa.scalar("", left.type))
    return pc.add(left, right)


def _concat(separator: str, *values: Value) -> Value:
    if any(pa.types.is_large_string(value.type) for value in values):
        values = tuple(v.cast(pa.large_string()) if pa.types.is_string(v.type) else v for v in values)
    return pc.binary_join_element_wise(*values, pa.scalar(separator, values[0].type))


def _as_fraction(value: Value) -> Value:
    return value.cast(pa.float64(), safe=False) if pa.types.is_integer(value.type) else value


def _divide(left: Value, right: Value) -> Value:
    left, right = _aligned(left, right)
    return pc.divide(_as_fraction(left), _as_fraction(right))


def _without_zeros(value: Value) -> Value:
    """Null in the place of zero."""
    if isinstance(value, pa.Scalar):
        return pa.scalar(None, value.type) if value.as_py() == 0 else value
    zeros = pc.equal(value, pa.scalar(0, value.type))
    return pc.if_else(zeros, pa.scalar(None, value.type), value) if pc.any(zeros).as_py() else value


def _by_numpy(left: Value, right: Value, function: Callable[[Any, Any], Any]) -> Value | None:
    """Whole numbers by a whole number, in one pass; None where numpy would not mean the same."""
    if not isinstance(left, pa.Array) or not isinstance(right, pa.Scalar) or left.type != right.type:
        return None
    if not pa.types.is_integer(left.type) or not right.is_valid or right.as_py() in (0, -1):
        return None
    values = numpy_values(left)
    return fixed_array(function(values, values.dtype.type(right.as_py())), validity(left), left.type)


def _floor_divide(left: Value, right: Value) -> Value:
    left, right = _aligned(left, right)
    found = _by_numpy(left, right, np.floor_divide)
    if found is not None:
        return found
    right = _without_zeros(right)
    quotient = pc.divide(left, right)
    if pa.types.is_floating(quotient.type):
        return pc.floor(quotient)
    if pa.types.is_decimal(quotient.type):
        kind = pa.decimal256 if pa.types.is_decimal256(quotient.type) else pa.decimal128
        quotient = pc.trunc(quotient).cast(kind(max(quotient.type.precision - quotient.type.scale, 1), 0))
    elif pa.types.is_signed_integer(quotient.type) and pa.types.is_signed_integer(right.type):
        # The least number by -1 does not fit: it wraps, where Arrow's quotient is zero.
        by_minus_one = pc.equal(right, pa.scalar(-1, right.type))
        quotient = pc.if_else(by_minus_one, pc.negate(left.cast(quotient.type)), quotient)
    rest = pc.subtract(left, pc.multiply(quotient, right))
    zero = pa.scalar(0, rest.type)
    down = pc.and_(pc.not_equal(rest, zero), pc.xor(pc.less(rest, zero), pc.less(right, pa.scalar(0, right.type))))
    return pc.if_else(down, pc.subtract(quotient, pa.scalar(1, quotient.type)), quotient)


def _numpy_remainder(values: Any, divisor: Any) -> Any:
    """A third of the time of numpy's own, which divides once more."""
    return values - np.floor_divide(values, divisor) * divisor


def _remainder(left: Value, right: Value) -> Value:
    left, right = _aligned(left, right)
    found = _by_numpy(left, right, _numpy_remainder)
    if found is not None:
        return found
    return pc.subtract(left, pc.multiply(_floor_divide(left, right), _without_zeros(right)))


def _negate(value: Value) -> Value:
    if pa.types.is_unsigned_integer(value.type):
        raise pa.ArrowNotImplementedError("unsigned integers have no negative numbers; cast them to int64 before")
    return pc.negate(value)


def _before_decimals(value: Value, kind: pa.DataType) -> Value:
    """Whole numbers that become decimals: Arrow asks for room for the greatest of their type, and not for what there
    is, unless they are decimals already."""
    return value.cast(_ANY_WHOLE) if pa.types.is_integer(value.type) and pa.types.is_decimal(kind) else value


def _castable(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The literals that a column of this type can hold; numbers and times that it has no room for are left out."""
    values = _before_decimals(values, kind)
    try:
        return values.cast(kind, safe=not (pa.types.is_integer(values.type) and kind in _DIGITS_OF))
    except pa.ArrowInvalid:
        if not (pa.types.is_primitive(values.type) or pa.types.is_decimal(values.type)):
            raise
    kept = []
    for value in values:
        with contextlib.suppress(pa.ArrowInvalid):
            kept.append(value.cast(kind).as_py())
    return pa.array(kept, kind)


def _is_in(value: Value, values: pa.Array) -> Value:
    values, plain = _castable(values, value.type), value
    if value.type in (pa.float32(), pa.float64()):  # zero is one value here as well, whichever sign it has
        plain, values = (pc.add(one, pa.scalar(0, one.type)) for one in (value, values))
    held = pc.is_in(plain, value_set=values, skip_nulls=True)
    if isinstance(value, pa.Array) and value.null_count == 0:
        return held
    return pc.if_else(pc.is_null(value), pa.scalar(None, pa.bool_()), held)


def _fill_null(value: Value, with_: Value) -> Value:
    return _coalesce(value, _fitted(with_, value))


def _coalesce(*values: Value) -> Value:
    return pc.coalesce(*_in_one_zone(*_beside_floats(*values)))


def _if_else(*values: Value) -> Value:
    """Conditions and values in turn, and last what else there is; a null condition counts as false."""
    result = values[-1]
    for condition, value in zip(reversed(values[:-1:2]), reversed(values[1::2]), strict=True):
        chosen, other = _aligned(value, result)
        result = pc.if_else(pc.fill_null(condition, False), chosen, other)
    return result


def _slice(value: Value, offset: int, length: int | None) -> Value:
    if offset < 0 and length is not None and offset + length < 0:
        return pc.utf8_slice_codeunits(value, offset, offset + length)
    stop = None if length is None or (offset < 0 and offset + length >= 0) else offset + length
    return pc.utf8_slice_codeunits(value, offset, stop) if stop is not None else pc.utf8_slice_codeunits(value, offset)


def _contains(value: Value, pattern: str, literal: bool) -> Value:
    return pc.match_substring(value, pattern) if literal else pc.match_substring_regex(value, pattern)


def _replace(value: Value, pattern: str, replacement: str, literal: bool, all_: bool) -> Value:
    # Arrow replaces an empty text for ever.
    function = pc.replace_substring if literal and pattern else pc.replace_substring_regex
    if literal and not pattern:
        replacement = replacement.replace("\\", r"\\")
    return function(value, pattern, replacement, max_replacements=None if all_ else 1)


def _cased(function: Callable[[Any], Value], of_text: Callable[[str], str]) -> Callable[[Value], Value]:
    """Arrow changes one character into one: texts where it may take several, as `SS` for a sharp s, or where the place
    counts, as for a Greek sigma at the end of a word, are Python's."""

    def cased(value: Value) -> Value:
        changed = function(value)
        others = pc.invert(pc.coalesce(pc.string_is_ascii(value), True))
        if isinstance(value, pa.Scalar):
            return pa.scalar(of_text(value.as_py()), value.type) if others.as_py() else changed
        texts = [of_text(text) for text in value.filter(others).to_pylist()]
        return pc.replace_with_mask(changed, others, pa.array(texts, value.type)) if texts else changed

    return cased


def _strip(value: Value, characters: str | None) -> Value:
    return pc.utf8_trim_whitespace(value) if characters is None else pc.utf8_trim(value, characters)


def _to_datetime(value: Value, form: str, time_unit: str) -> Value:
    found = pc.strptime(value, form, time_unit)
    if not isinstance(value, pa.Array) or _DAY_OF_MONTH.search(form) is None:
        return found
    if "%z" in form:
        _check_days(value, form, found)
        return found
    # Arrow takes 30 February for 2 March: a text that says January as well has the day that was meant.
    early = pc.less_equal(pc.day(found), 3)
    texts, days = value.filter(early), pc.day(found.filter(early))
    in_january = pc.binary_join_element_wise(texts, pa.scalar("01", value.type), pa.scalar(" ", value.type))
    wrong = texts.filter(pc.not_equal(pc.day(pc.strptime(in_january, f"{form} %m", time_unit)), days))
    if len(wrong):
        raise pa.ArrowInvalid(f"Failed to parse string: {wrong[0].as_py()!r} as a {found.type}: there is no such day")
    return found


def _check_days(texts: pa.Array, form: str, found: pa.Array) -> None:
    """ArrowInvalid for 30 February, in texts whose times are moved by an offset: how far a time is from the first of
    January says which day it is."""

    def read(more: str, forms: str) -> pa.Array:
        longer = pc.binary_join_element_wise(texts, pa.scalar(more, texts.type), pa.scalar(" ", texts.type))
        return _plain_time(pc.strptime(longer, f"{form} {forms}", found.type.unit))

    new_year, in_january = read("01 01", "%m %d"), read("01", "%m")
    meant = pc.add(pc.days_between(new_year, in_january), 1)
    two_days = pa.scalar(dt.timedelta(days=2), pa.duration(found.type.unit))  # no offset has so much
    begin = pc.floor_temporal(pc.add(new_year, two_days), unit="year")
    wrong = texts.filter(pc.not_equal(pc.day(pc.add(begin, pc.subtract(_plain_time(found), new_year))), meant))
    if len(wrong):
        raise pa.ArrowInvalid(f"Failed to parse string: {wrong[0].as_py()!r} as a {found.type}: there is no such day")


def _strftime(value: Value, form: str) -> Value:
    """Seconds without a fraction, which Arrow's %S would bring, and fractions apart, which it has not."""
    if pa.types.is_timestamp(value.type):
        shown = value if _OFFSETS.search(form) else _moved(value)  # beside an offset it is the moment that counts
        seconds = _truncate(shown, "1s").cast(pa.timestamp("s", value.type.tz))
    elif pa.types.is_time(value.type):
        seconds = pc.floor_temporal(value, 1, "second").cast(pa.time32("s"))
    else:
        seconds = value.cast(pa.timestamp("s")) if pa.types.is_date64(value.type) else value
    parts = [part for part in _FRACTIONS.split(form) if part] or [form]
    texts = [_fraction(value, part) if _FRACTIONS.fullmatch(part) else pc.strftime(seconds, part) for part in parts]
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, pa.scalar("", texts[0].type))


def _fraction(value: Value, directive: str) -> Value:
    """`%s`, `%f` or so many digits of a fraction, as text."""
    if directive == "%%":
        return pc.strftime(value, directive)
    if directive == "%s":
        return _epoch(value, "s").cast(pa.string())
    digits = int(directive.strip("%.f") or 9)
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(value.type, "unit", "s")]
    stored = value.cast(pa.timestamp("s") if pa.types.is_date(value.type) else value.type)
    below = _remainder(
        stored.cast(pa.int32() if stored.type.bit_width == 32 else pa.int64()).cast(pa.int64()), pa.scalar(per_second)
    )
    shown = pc.utf8_lpad(below.cast(pa.string()), len(str(per_second)) - 1, "0")
    shown = pc.utf8_slice_codeunits(pc.utf8_rpad(shown, 9, "0"), 0, digits)
    return pc.binary_join_element_wise(pa.scalar("."), shown, pa.scalar("")) if "." in directive else shown


def _plain_time(value: Value) -> Value:
    """The same time without its zone, where that is UTC: no offset has to be looked up, which is most of the work."""
    zone = getattr(value.type, "tz", None)
    if zone not in _NO_OFFSET or not isinstance(value, pa.Array):
        return value
    return value.view(pa.timestamp(value.type.unit))


def _has_offset(value: Value) -> bool:
    """Whether a zone other than UTC is between what is stored and the time that it says."""
    zone = getattr(value.type, "tz", None)
    return zone is not None and zone not in _NO_OFFSET


def _moved(value: Value) -> Value:
    """Times of a zone after 2036, moved so that Arrow reads the time that the clocks show then: it knows the beginnings
    of summer and winter up to 2037, and lets the last one last for ever."""
    if not isinstance(value, pa.Array) or not _has_offset(value):
        return value
    counts, valid, second = numpy_values(value), validity(value), units_per_second(value.type)
    late = counts >= _KNOWN_UNTIL_S * second
    if not late.any():
        return value
    late &= counts // second < _YEAR_10000_S
    late = late if valid is None else late & valid
    if not late.any():
        return value
    try:
        zone = zoneinfo.ZoneInfo(value.type.tz)
    except (KeyError, ValueError):  # an offset, which has no summer
        return value
    quarters, of_row = np.unique(counts[late] // (_QUARTER_S * second), return_inverse=True)
    # The last day of 9999 has the clocks of its beginning: Python has no year 10000, which some zones reach.
    begins = (
        dt.datetime.fromtimestamp(min(int(quarter) * _QUARTER_S, _YEAR_10000_S - _DAY_S), zone) for quarter in quarters
    )
    offsets = np.array([(begin.utcoffset() or dt.timedelta()).total_seconds() for begin in begins], np.int64)
    known = numpy_values(pc.local_timestamp(value))[late] - counts[late]
    if (known == offsets[of_row] * second).all():
        return value
    moved = counts.copy()
    moved[late] += offsets[of_row] * second - known
    return fixed_array(moved, valid, value.type)


def _local(value: Value) -> Value:
    """What the clocks of its zone show, without the zone."""
    return pc.local_timestamp(_moved(value))


def _part(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: function(_plain_time(_moved(value)))


def _truncate(value: Value, every: str) -> Value:
    digits = len(every) - len(every.lstrip("0123456789"))
    unit = _UNITS[every[digits:]]
    local = _local(value) if _has_offset(value) else _plain_time(value)
    floored = pc.floor_temporal(local, int(every[:digits]), unit)
    if getattr(value.type, "unit", "") == "ns" and pc.any(pc.greater(floored, local)).as_py():  # it has wrapped
        raise pa.ArrowInvalid(
            f"the {every} that a time lies in began before what {value.type} holds: leave such rows out"
        )
    if not _has_offset(value):
        return floored if floored.type == value.type else floored.view(value.type)
    # Where the clocks go back, hours come twice: a time lies in its own one, and a day begins with the first.
    since = pc.subtract(value, pc.subtract(local, floored))
    is_begin = pc.equal(_local(since), floored)
    if unit in _WITHIN_A_DAY and pc.all(is_begin).as_py() is not False:
        return since
    begin = pc.assume_timezone(floored, value.type.tz, ambiguous="earliest", nonexistent="latest")
    if _moved(begin) is not begin:
        again = pc.subtract(begin, pc.subtract(_local(begin), floored))
        begin = pc.if_else(pc.equal(_local(again), floored), again, begin)
    return pc.if_else(is_begin, since, begin) if unit in _WITHIN_A_DAY else begin


def _epoch(value: Value, unit: str) -> Value:
    if not pa.types.is_timestamp(value.type) and not pa.types.is_date(value.type):
        raise TypeError(f"only dates and timestamps have a time since 1970, not {value.type}")
    value = value.cast(pa.timestamp("ms" if pa.types.is_date(value.type) else value.type.unit))
    if unit in _UNITS:  # a cast to a coarser unit would go towards zero
        value = _truncate(value, f"1{unit}")
    return value.cast(pa.timestamp(unit)).cast(pa.int64())


def _cast(value: Value, target: pa.DataType) -> Value:
    """Whole numbers as the nearest floats; all else has to fit."""
    nearest = pa.types.is_integer(value.type) and target in _DIGITS_OF
    return _before_decimals(value, target).cast(target, safe=not nearest)


def _with_room(value: Value, function: Callable[[Value], Value]) -> Value:
    """The value rounded by the function. Raises ArrowInvalid for a decimal that gets a digit more than its type has:
    Arrow puts zero in its place."""
    kind = value.type
    if not (pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind)) or kind.precision == _MOST_DIGITS:
        return function(value)
    wide = pa.decimal128 if kind.precision < _DIGITS_OF_128_BITS else pa.decimal256
    rounded = function(value.cast(wide(kind.precision + 1, kind.scale)))
    try:
        return rounded.cast(kind)
    except pa.ArrowInvalid:
        raise pa.ArrowInvalid(
            f"a number that is rounded does not fit into {kind}: cast it to a decimal with more digits before"
        ) from None


def _round(value: Value, decimals: int) -> Value:
    if pa.types.is_integer(value.type) and decimals >= 0:
        return value

    def rounded(values: Value) -> Value:
        return _with_room(values, lambda each: pc.round(each, decimals, "half_towards_infinity"))

    bits, most_decimals = _DIGITS_OF.get(value.type, (0, 0))
    if bits and -decimals > _GREATEST_POWER[value.type]:  # more than twice any of them, which Arrow leaves as it is
        return pc.if_else(pc.is_finite(value), pc.multiply(value, pa.scalar(0, value.type)), value)
    if not bits or decimals < 0:
        return rounded(value)
    if decimals > most_decimals:
        return value
    # One so large has no more digits behind the point, and is more than a float when it is multiplied.
    has_digits = pc.less(pc.abs(value), pa.scalar(2.0**bits / 10.0**decimals, value.type))
    if pc.all(has_digits).as_py():
        return rounded(value)
    return pc.if_else(has_digits, rounded(pc.if_else(has_digits, value, pa.scalar(0, value.type))), value)


KERNELS: dict[str, Callable[..., Value]] = {
    "+": _with_digits(_add),
    "-": _with_digits(_binary(pc.subtract)),
    "*": _with_digits(_binary(pc.multiply), 37),
    "/": _with_digits(_divide, 37),
    "//": _with_digits(_floor_divide),
    "%": _with_digits(_remainder),
    "**": _binary(pc.power),
    "==": _with_digits(_compared(pc.equal)),
    "!=": _with_digits(_compared(pc.not_equal)),
    "<": _with_digits(_compared(pc.less)),
    "<=": _with_digits(_compared(pc.less_equal)),
    ">": _with_digits(_compared(pc.greater)),
    ">=": _with_digits(_compared(pc.greater_equal)),
    "&": pc.and_kleene,
    "|": pc.or_kleene,
    "^": pc.xor,
    "not": pc.invert,
    "negate": _negate,
    "abs": pc.abs,
    "sqrt": lambda value: pc.sqrt(_as_fraction(value)),
    "exp": lambda value: pc.exp(_as_fraction(value)),
    "log": lambda value: pc.ln(_as_fraction(value)),
    "floor": lambda value: value if pa.types.is_integer(value.type) else _with_room(value, pc.floor),
    "ceil": lambda value: value if pa.types.is_integer(value.type) else _with_room(value, pc.ceil),
    "round": _round,
    "is_null": pc.is_null,
    "is_not_null": pc.is_valid,
    "is_nan": pc.is_nan,
    "is_in": _is_in,
    "fill_null": _fill_null,
    "coalesce": _coalesce,
    "cast": _cast,
    "if_else": _if_else,
    "field": pc.struct_field,
    "list.len": pc.list_value_length,
    "str.to_uppercase": _cased(pc.utf8_upper, str.upper),
    "str.to_lowercase": _cased(pc.utf8_lower, str.lower),
    "str.len_chars": pc.utf8_length,
    "str.starts_with": pc.starts_with,
    "str.ends_with": pc.ends_with,
    "str.contains": _contains,
    "str.replace": _replace,
    "str.slice": _slice,
    "str.strip_chars": _strip,
    "str.concat": _concat,
    "str.to_datetime": _to_datetime,
    "dt.year": _part(pc.year),
    "dt.month": _part(pc.month),
    "dt.day": _part(pc.day),
    "dt.hour": _part(pc.hour),
    "dt.minute": _part(pc.minute),
    "dt.second": _part(pc.second),
    "dt.weekday": _part(lambda value: pc.day_of_week(value, count_from_zero=False)),
    "dt.ordinal_day": _part(pc.day_of_year),
    "dt.date": _part(lambda value: value.cast(pa.date32(), safe=False)),
    "dt.truncate": _truncate,
    "dt.epoch": _epoch,
    "dt.strftime": _strftime,
}
"""The kernels by the name that an expression shows; operands come first, then what is no column."""
