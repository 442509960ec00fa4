"""Python values as columns: what does not fit is refused, and nothing is cut off."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.columnar.python_values import array_of, column_values

I64 = pa.int64()
NESTED: list[tuple[pa.DataType, Any]] = [
    (I64, lambda number: number),
    (pa.list_(I64), lambda number: [1, number]),
    (pa.large_list(I64), lambda number: (number,)),
    (pa.list_(I64, 1), lambda number: [number]),
    (pa.struct([("a", I64), ("b", pa.string())]), lambda number: {"a": number}),
    (pa.map_(pa.string(), I64), lambda number: {"k": number}),
    (pa.map_(I64, pa.string()), lambda number: [(number, "v")]),
    (pa.list_(pa.struct([("a", pa.list_(pa.int8()))])), lambda number: [None, {"a": [number]}, {}]),
]


@pytest.mark.parametrize(("data_type", "holds"), NESTED, ids=[str(data_type) for data_type, _ in NESTED])
@pytest.mark.parametrize("number", [1.5, np.float32(0.5), np.float64(-2.5), Decimal("1.5"), float("nan"), float("inf")])
def test_a_fraction_is_no_integer_however_deep_it_is(data_type: pa.DataType, holds: Any, number: Any) -> None:
    """Below lists, structs and maps its whole part was kept, and nobody heard of the rest; of decimals everywhere."""
    with pytest.raises((pa.ArrowInvalid, ValueError, OverflowError)):
        array_of([None, holds(7), holds(number)], data_type)


@pytest.mark.parametrize(("data_type", "holds"), NESTED, ids=[str(data_type) for data_type, _ in NESTED])
@pytest.mark.parametrize("number", [3.0, np.float64(3), Decimal("3.00"), 3, np.int16(3)])
def test_a_whole_number_is_one_whatever_its_type(data_type: pa.DataType, holds: Any, number: Any) -> None:
    """As it is at the top."""
    assert array_of([None, holds(number)], data_type).equals(array_of([None, holds(3)], data_type))


FINER: list[tuple[pa.DataType, Any, Any]] = [
    (
        pa.timestamp("ms", "UTC"),
        dt.datetime(2020, 1, 1, 0, 0, 0, 1_000, dt.UTC),
        dt.datetime(2020, 1, 1, 0, 0, 0, 1_001, dt.UTC),
    ),
    (pa.timestamp("s", "UTC"), dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, 0, 0, 0, 1, dt.UTC)),
    (pa.time32("s"), dt.time(1, 2, 3), dt.time(1, 2, 3, 4)),
    (pa.time32("ms"), dt.time(1, 2, 3, 4_000), dt.time(1, 2, 3, 4)),
    (pa.duration("ms"), dt.timedelta(milliseconds=-1), dt.timedelta(microseconds=-1)),
]


@pytest.mark.parametrize(("data_type", "whole", "finer"), FINER, ids=[str(data_type) for data_type, _, _ in FINER])
def test_a_time_is_not_cut_to_the_unit_of_its_type(data_type: pa.DataType, whole: Any, finer: Any) -> None:
    """What is finer than the type is refused, alone and in a list, and what is not comes back as it was."""
    assert array_of([None, whole], data_type).to_pylist() == [None, whole]
    for value, its_type in ((finer, data_type), ([finer], pa.list_(data_type))):
        with pytest.raises(pa.ArrowInvalid, match="finer than"):
            array_of([None, value], its_type)


@pytest.mark.parametrize(
    ("data_type", "least", "most"),
    [
        (pa.timestamp("us"), -62_135_596_800_000_000, 253_402_300_799_999_999),
        (pa.timestamp("us", "UTC"), -62_135_596_800_000_000, 253_402_300_799_999_999),
        (pa.timestamp("ms"), -62_135_596_800_000, 253_402_300_799_999),
        (pa.timestamp("s"), -62_135_596_800, 253_402_300_799),
        (pa.date32(), -719_162, 2_932_896),
    ],
)
def test_a_time_beyond_pythons_years_is_refused_and_no_number(data_type: pa.DataType, least: int, most: int) -> None:
    """What lies within is what pyarrow makes of it, and a null is none, also where a greater column is sliced."""
    fits = pa.array([least, None, 0, most], data_type)
    assert column_values(fits) == fits.to_pylist()
    lowest = -(1 << (data_type.bit_width - 1))
    for number in (least - 1, most + 1, lowest, -lowest - 1):
        column = pa.array([0, number, None], data_type)
        assert column_values(column[:1]) == column[:1].to_pylist()
        with pytest.raises(ValueError, match=re.escape(f"a {data_type} lies beyond Python's own times")):
            column_values(column)


@given(st.data())
def test_what_is_taken_is_what_pyarrow_makes_of_it(data: st.DataObject) -> None:
    """Values that fit, of every nesting: the same column."""
    data_type, holds = data.draw(st.sampled_from(NESTED))
    values = data.draw(st.lists(st.one_of(st.none(), st.integers(-100, 100).map(holds)), max_size=5))

    assert array_of(values, data_type).equals(pa.array(values, data_type))


def test_a_value_of_another_kind_is_told_in_pyarrows_words() -> None:
    """A text in the place of a list, or pairs that are none."""
    for value, data_type in (("abc", pa.list_(I64)), (5, pa.struct([("a", I64)])), ([(1,)], pa.map_(I64, I64))):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError)):
            array_of([value], data_type)


NUMBERS = st.one_of(
    st.integers(-(1 << 64), 1 << 65), st.integers(-3, 3), st.booleans(), st.none(), st.integers(-3, 3).map(np.int64)
)


@given(st.one_of(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), st.lists(NUMBERS)))
def test_whole_numbers_become_what_pyarrow_makes_of_them(values: list[object]) -> None:
    """Or fail as they fail there; those that are Python's own take a shorter way."""
    try:
        expected = pa.array(values, pa.int64(), from_pandas=False)
    except (pa.ArrowException, OverflowError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            array_of(values, pa.int64())
        return
    assert array_of(values, pa.int64()).equals(expected)


@pytest.mark.parametrize("holds", [lambda record: record, lambda record: [record], lambda record: {"of": record}])
def test_a_record_with_a_misspelled_field_is_refused_however_deep_it_is(holds: Any) -> None:
    """The field became null in silence, where a misspelled column of a row is refused."""
    kind: pa.DataType = pa.struct({"street": pa.string(), "number": pa.string()})
    known = holds({"street": "Main", "number": "1"})
    data_type = pa.list_(kind) if isinstance(known, list) else pa.struct({"of": kind}) if "of" in known else kind
    assert array_of([known, holds({"street": "Side"}), None], data_type)[0].as_py() == known
    with pytest.raises(
        pa.ArrowInvalid, match="has 'stret', which is no field, and no 'street': the fields are 'street'"
    ):
        array_of([known, holds({"stret": "Main", "number": "1"})], data_type)
    assert array_of([holds({b"street": "Main", b"number": "1"})], data_type)[0].as_py() == known


def test_records_may_have_uuids_in_them() -> None:
    """The columns of a row whose last one is kept are such a record, and pyarrow knows of UUIDs in columns alone."""
    values = [{"id": uuid.UUID(int=1), "in": {"id": uuid.UUID(int=2)}}, {"id": None, "in": None}, {"in": {}}, None]
    kind = pa.struct({"id": pa.uuid(), "in": pa.struct({"id": pa.uuid()})})
    assert array_of(values, kind).to_pylist() == [
        values[0], values[1], {"id": None, "in": {"id": None}}, None,
    ]  # fmt: skip
    assert array_of([], kind).type == kind
    with pytest.raises(pa.ArrowTypeError, match="1 is no record of struct<id: "):
        array_of([1], kind)
