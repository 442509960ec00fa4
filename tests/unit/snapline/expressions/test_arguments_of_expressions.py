"""What expressions are given beside columns: numbers out of range, and types that an operation does not take."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError

X = sl.col("x")


@pytest.mark.parametrize(
    "build",
    [
        lambda: X.round(10**12),
        lambda: X.round("a"),  # type: ignore[arg-type]
        lambda: X.str.slice(10**30),
        lambda: X.str.slice(0, -1),
        lambda: X.str.slice(0, 1.5),  # type: ignore[arg-type]
    ],
)
def test_numbers_out_of_range_are_refused_where_they_are_given(build: Callable[[], sl.Expr]) -> None:
    """Rounding a decimal to a million millions of digits took minutes, and a large offset was an OverflowError."""
    with pytest.raises(JobDefinitionError, match="must be a whole number"):
        build()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.month_day_nano_interval(), pa.list_(pa.int64())])
def test_what_is_no_time_has_no_time_since_1970(kind: pa.DataType) -> None:
    """The message names the column and what the operation takes."""
    with pytest.raises(JobDefinitionError, match="only dates and timestamps have a time since 1970"):
        X.dt.epoch("s").type_in(pa.schema([("x", kind)]))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint64()])
def test_unsigned_integers_have_no_negative_numbers(kind: pa.DataType) -> None:
    """Minus 3 of eight bits was 253."""
    batch = pa.record_batch({"x": pa.array([3, None], kind)})
    with pytest.raises(JobDefinitionError, match="have no negative numbers; cast them to int64 before"):
        (-X).type_in(batch.schema)
    assert (-X.cast(pa.int64())).evaluate(batch).to_pylist() == [-3, None]


@pytest.mark.parametrize("kind", [pa.int16(), pa.int64(), pa.float64(), pa.decimal128(10, 2)])
def test_whole_numbers_are_rounded_to_hundreds_as_others_are(kind: pa.DataType) -> None:
    """Halves go away from zero, whatever the type of the column is."""
    batch = pa.RecordBatch.from_arrays([pa.array([1249, 1250, -1250, None, 0], pa.int16()).cast(kind)], ["x"])
    found = X.round(-2).evaluate(batch)
    assert found.type == X.round(-2).type_in(batch.schema) == kind
    assert found.to_pylist() == [Decimal(1200), Decimal(1300), Decimal(-1300), None, Decimal(0)]
    assert X.round(2).evaluate(batch).to_pylist() == batch["x"].to_pylist()


def test_literals_may_stand_on_the_left_of_every_operator() -> None:
    """A power and an exclusive or are no exceptions."""
    batch = pa.RecordBatch.from_pydict({"x": [0, 3], "b": [True, False]})
    assert (2**X).evaluate(batch).to_pylist() == [1, 8]
    assert (True ^ sl.col("b")).evaluate(batch).to_pylist() == [False, True]


@pytest.mark.parametrize(("kind", "decimals"), [(pa.float32(), -39), (pa.float64(), -309), (pa.float64(), -1_000)])
def test_a_float_rounded_to_more_than_floats_hold_is_zero(kind: pa.DataType, decimals: int) -> None:
    """It stayed as it was; what is no number stays what it is."""
    batch = pa.record_batch({"x": pa.array([1.25, -3e38, float("inf"), float("nan"), None], kind)})
    assert repr(X.round(decimals).evaluate(batch).to_pylist()) == "[0.0, -0.0, inf, nan, None]"
