"""Numbers that are large for their type, in expressions: as Polars and Python have them, and no error of Arrow's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import snapline as sl

NS = 1_700_000_000_123_456_789
WHOLE = [2**63 - 1, -(2**63), 2**53 + 1, -(2**24) - 1, 7, None]


@pytest.mark.parametrize(
    ("floats", "of_polars"), [(pa.float64(), pl.Float64), (pa.float32(), pl.Float32)], ids=["double", "float"]
)
def test_whole_numbers_are_cast_to_the_nearest_floats(floats: pa.DataType, of_polars: Any) -> None:
    """One that a float has to round failed the job, which the advice for means of large numbers led to."""
    batch = pa.RecordBatch.from_pydict({"n": pa.array(WHOLE, pa.int64())})
    expected = pl.DataFrame(pl.from_arrow(batch)).select(pl.col("n").cast(of_polars))["n"].to_list()

    assert sl.col("n").cast(floats).evaluate(batch).to_pylist() == expected
    with pytest.raises(pa.ArrowInvalid):
        sl.col("n").cast(pa.int32()).evaluate(batch)


def test_the_mean_of_nanoseconds_since_1970() -> None:
    """What the guide advises: the sum of twenty of them is more than 64 bits hold."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"k": 1, "ns": NS + number} for number in range(20)])
    mean = sl.mean(sl.col("ns").cast(pa.float64()))
    found = rows.key_by("k").running_aggregate(uid="mean", mean=mean).execute_and_collect(local=True)

    assert [*found][-1]["mean"] == pytest.approx(NS, rel=1e-12)


@pytest.mark.parametrize("decimals", [0, 1, 2, 15, 22, 37, 100, 300, 400])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_float_that_has_no_digits_behind_the_point_stays(decimals: int, kind: pa.DataType) -> None:
    """It failed the job, because it is multiplied by a power of ten on the way."""
    most = float(np.finfo(kind.to_pandas_dtype()).max)
    stay = pa.array([most, -most, float("inf"), 2.0**53, 0.0, -0.0, None], kind)
    batch = pa.RecordBatch.from_pydict({"x": stay})

    assert repr(sl.col("x").round(decimals).evaluate(batch).to_pylist()) == repr(stay.to_pylist())


def test_floats_beside_large_ones_are_rounded_as_ever() -> None:
    """Halves go away from zero, and what is no number stays."""
    batch = pa.RecordBatch.from_pydict({"x": [1e308, 2.675, -2.5, 0.125, float("nan"), None, 123456789.987654321]})
    found = sl.col("x").round(2).evaluate(batch).to_pylist()

    assert repr(found) == repr([1e308, 2.68, -2.5, 0.13, float("nan"), None, 123456789.99])


@pytest.mark.parametrize("operation", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("signed", [pa.int8(), pa.int64()], ids=str)
def test_numbers_with_and_without_a_sign_are_compared(operation: str, signed: pa.DataType) -> None:
    """One in the upper half of uint64 beside a column of int64 failed the job."""
    most = 2 ** (signed.bit_width - 1) - 1
    pairs = [(u, s) for u in (0, 1, most, 2**63, 2**64 - 1, None) for s in (-most - 1, -1, 0, 1, most, None)]
    unsigned, others = zip(*pairs, strict=True)
    columns = {"u": pa.array(unsigned, pa.uint64()), "s": pa.array(others, signed)}
    batch = pa.RecordBatch.from_pydict(columns)
    expected = [None if None in pair else eval(f"{pair[0]} {operation} {pair[1]}") for pair in pairs]
    compare = eval(f"lambda left, right: left {operation} right")

    assert compare(sl.col("u"), sl.col("s")).evaluate(batch).to_pylist() == expected
    assert compare(sl.col("u"), sl.lit(-1)).evaluate(batch).to_pylist() == [
        None if one is None else compare(one, -1) for one in unsigned
    ]
    swapped = {">": "<", "<": ">", ">=": "<=", "<=": ">="}.get(operation, operation)
    again = eval(f"lambda left, right: left {swapped} right")(sl.col("s"), sl.col("u"))
    assert again.evaluate(batch).to_pylist() == expected


def test_a_literal_may_be_any_number_of_uint64() -> None:
    """Arrow takes a Python number for int64, so a column's own greatest value could not be asked for."""
    batch = pa.RecordBatch.from_pydict({"u": pa.array([2**64 - 1, 2**63, 1, None], pa.uint64())})

    assert (sl.col("u") == 2**64 - 1).evaluate(batch).to_pylist() == [True, False, False, None]
    assert (sl.col("u").cast(pa.float64()) < 2**63).evaluate(batch).to_pylist() == [False, False, True, None]
    assert sl.col("u").is_in([2**63, 1]).evaluate(batch).to_pylist() == [False, True, True, None]


@pytest.mark.parametrize("digits", [3, 38, 39])
@pytest.mark.parametrize(
    "rounded", [sl.col("d").round(), sl.col("d").ceil(), -(-sl.col("d")).floor(), sl.col("d").round(1)]
)
def test_a_decimal_that_is_rounded_to_more_digits_than_it_has_room_for_is_no_zero(
    rounded: sl.Expr, digits: int
) -> None:
    """9.99, whose type Arrow takes from its digits, was rounded to 0.00 without a word."""
    kind = (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, 2)
    most = Decimal("9" * (digits - 2) + ".99")
    batch = pa.record_batch({"d": pa.array([Decimal("1.00"), None], kind)})
    assert rounded.evaluate(batch).to_pylist() == [Decimal(1), None]
    assert rounded.type_in(batch.schema) == kind
    full = pa.record_batch({"d": pa.array([most], kind)})
    with pytest.raises(
        pa.ArrowInvalid, match=f"does not fit into decimal.*{digits}, 2.*: cast it to a decimal with more"
    ):
        rounded.evaluate(full)
    wider = pa.record_batch({"d": full["d"].cast(pa.decimal256(digits + 1, 2))})
    assert rounded.evaluate(wider).to_pylist() == [Decimal("1" + "0" * (digits - 2))]


def test_sums_of_decimals_are_reckoned_with_further() -> None:
    """A sum has 38 digits, and one more that its type might need failed the job when it was defined."""
    kind = pa.decimal128(38, 2)
    sums = {"s": pa.array([Decimal("10.50"), None], kind), "t": pa.array([Decimal("3.25")] * 2, kind)}
    batch = pa.record_batch(sums | {"fine": pa.array([Decimal("10.5000")] * 2, pa.decimal128(38, 4))})
    s, t = sl.col("s"), sl.col("t")
    expected = {
        "plus": (s + t, pa.decimal128(38, 2), Decimal("13.75")),
        "less one": (s - 1, pa.decimal128(38, 2), Decimal("9.50")),
        "with tax": (s * Decimal("1.19"), pa.decimal128(38, 4), Decimal("12.4950")),
        "of both": (s * t, pa.decimal128(38, 4), Decimal("34.1250")),
        "mean": (s / t, pa.decimal128(38, 6), Decimal("3.230769")),
        "whole": (s // 3, pa.decimal128(38, 0), Decimal(3)),
        "rest": (s % 3, pa.decimal128(38, 2), Decimal("1.50")),
        "more": (s > Decimal("10.499"), pa.bool_(), True),
        "same": (s == sl.col("fine"), pa.bool_(), True),
    }
    for name, (expression, data_type, value) in expected.items():
        assert expression.type_in(batch.schema) == data_type, name
        assert expression.evaluate(batch).to_pylist() == [value, None], name
    full = pa.record_batch({"s": pa.array([Decimal("9" * 36 + ".99")], kind)})
    assert (s - 1).evaluate(full).to_pylist() == [Decimal("9" * 35 + "8.99")]
    with pytest.raises(pa.ArrowInvalid, match="does not fit in precision"):
        (s + 1).evaluate(full)


@pytest.mark.parametrize(
    ("column", "literals"),
    [
        (pa.array([3, 4, None], pa.int32()), [3, 2**40]),
        (pa.array([3, 4, None], pa.int32()), [3.0, 1.5]),
        (pa.array([3, 4, None], pa.uint8()), [3, -1]),
        (pa.array([Decimal("3.00"), Decimal(4), None], pa.decimal128(5, 2)), [Decimal("3.000"), Decimal("4.001")]),
        (pa.array([Decimal("3.00"), Decimal("4.50"), None], pa.decimal128(5, 2)), [3, 4, 5_000]),
        (pa.array([2.0**53, 4.0, None]), [2**53 + 1]),
    ],
)
def test_a_literal_that_the_column_has_no_room_for_is_not_in_it(column: pa.Array, literals: list[Any]) -> None:
    """`==` with such a literal is false in each row; is_in with it failed the job when it was defined."""
    batch = pa.record_batch({"x": column})
    assert sl.col("x").is_in(literals).evaluate(batch).to_pylist() == [True, False, None]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()], ids=str)
def test_whole_numbers_become_decimals_that_have_room_for_them(kind: pa.DataType) -> None:
    """A decimal had to have room for every number of their type, whatever the rows hold."""
    batch = pa.record_batch({"n": pa.array([99, 0, None], kind)})
    cents = sl.col("n").cast(pa.decimal128(4, 2))

    assert cents.type_in(batch.schema) == pa.decimal128(4, 2)
    assert cents.evaluate(batch).to_pylist() == [Decimal("99.00"), Decimal("0.00"), None]
    with pytest.raises(pa.ArrowInvalid):
        cents.evaluate(pa.record_batch({"n": pa.array([100], kind)}))
