"""Types that say the same in another form: what comes out has the same values, whatever part of an array it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.dataflow.columnar.column_types import converted, kept_type, workable, workable_schema, workable_type

VIEWS = pa.array(["a", "b" * 40, None, "c"], pa.string_view())
TEXTS = pa.array(["a", None, "b", "a"]).dictionary_encode()
TEXTS_OF_VIEWS = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), VIEWS.slice(0, 2))
RUNS = pc.run_end_encode(pa.array([1, 1, None, 2]))
OFFSETS = pa.array([0, 1, 1, 4], pa.int32())
LIST_VIEWS = pa.array([["a"], None, ["b", None], []], pa.list_view(pa.string()))
STRUCTS = pa.StructArray.from_arrays([TEXTS_OF_VIEWS, LIST_VIEWS], ["text", "list"])
ARRAYS = {
    "views": VIEWS,
    "bytes as views": VIEWS.cast(pa.binary_view()),
    "dictionary": TEXTS,
    "dictionary of views": TEXTS_OF_VIEWS,
    "runs": RUNS,
    "list of dictionaries": pa.ListArray.from_arrays(OFFSETS, TEXTS, mask=pa.array([False, True, False])),
    "list of runs": pa.ListArray.from_arrays(OFFSETS, RUNS),
    "large list of views": pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), VIEWS),
    "list of one size of views": pa.FixedSizeListArray.from_arrays(VIEWS, 2),
    "list views": LIST_VIEWS,
    "large list views of views": pa.array([["a"], None, ["b"], []], pa.large_list_view(pa.string_view())),
    "struct": pa.StructArray.from_arrays([TEXTS, VIEWS], ["a", "b"], mask=pa.array([False, True, False, False])),
    "list of structs": pa.ListArray.from_arrays(OFFSETS, STRUCTS),
    "map": pa.MapArray.from_arrays(OFFSETS, pa.array(["k"] * 4).dictionary_encode(), VIEWS),
}
PLAIN = [pa.int64(), pa.string(), pa.list_(pa.string()), pa.struct([("a", pa.decimal128(5, 2))]), pa.uuid()]


def values_of(array: pa.Array) -> list[object]:
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array.to_pylist()


@pytest.mark.parametrize("name", ARRAYS)
def test_values_stay_the_same_in_every_slice(name: str) -> None:
    """Offsets, nulls and nesting are carried over."""
    array = ARRAYS[name]
    for begin, end in combinations(range(len(array) + 1), 2):
        part = array.slice(begin, end - begin)
        for target in (workable_type(array.type), kept_type(array.type)):
            found = converted(part, target)
            found.validate(full=True)
            assert found.type == target
            assert values_of(found) == values_of(part)


@pytest.mark.parametrize("name", ARRAYS)
def test_nothing_is_left_that_kernels_do_not_take(name: str) -> None:
    """Rows can be taken, which is what an exchange by key does."""
    array = ARRAYS[name]
    batch = workable(pa.record_batch({"column": array}))
    assert values_of(batch.column(0).take(pa.array([1]))) == values_of(array.slice(1, 1))
    assert "dictionary" not in str(kept_type(array.type)), "state keeps the values"


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_what_is_plain_is_left_alone(kind: pa.DataType) -> None:
    """Neither the type nor the schema is made anew."""
    schema = pa.schema([("column", kind)])
    assert workable_type(kind) is kind and kept_type(kind) is kind and workable_schema(schema) is schema


def test_a_dictionary_goes_through_a_stream_and_state_keeps_its_values() -> None:
    """Only the dictionary's own values change their form."""
    kind = pa.dictionary(pa.int8(), pa.string_view(), ordered=True)
    assert workable_type(kind) == pa.dictionary(pa.int8(), pa.large_string(), ordered=True)
    assert kept_type(kind) == pa.large_string()


@pytest.mark.parametrize(
    "kind", [pa.list_, pa.large_list, lambda value: pa.map_(value, value), lambda value: pa.list_(value, 1)]
)
def test_a_slice_is_converted_without_the_elements_of_others(kind: Callable[[pa.DataType], pa.DataType]) -> None:
    """Many slices of one batch would each convert all of it, and fail by values that are not theirs."""
    one, other = ([(1, 1)], [(2**40, 2**40)]) if pa.types.is_map(kind(pa.int64())) else ([1], [2**40])
    array = pa.array([other, one, None if pa.types.is_list(kind(pa.int64())) else one, other], kind(pa.int64()))
    found = converted(array.slice(1, 2), kind(pa.int8()))
    found.validate(full=True)
    assert found.type == kind(pa.int8()) and found.to_pylist() == array.slice(1, 2).to_pylist()


class Nothing(sl.KeyedCoProcessFunction):
    """Says nothing."""

    def process_element1(self, row: sl.Row, context: sl.ProcessContext) -> None:
        """Of the first stream."""

    def process_element2(self, row: sl.Row, context: sl.ProcessContext) -> None:
        """Of the second stream."""


def test_a_job_knows_the_columns_of_inside_whoever_declares_them() -> None:
    """Behind one stream or two."""
    views, inside = pa.schema([("shop", pa.string_view())]), pa.schema([("shop", pa.large_string())])
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"shop": "x"}], uid="rows")
    mapped = rows.map_batches(lambda batch: batch, schema=views)
    both = rows.connect(rows).key_by("shop", "shop").process(Nothing(), uid="both", schema=views)
    for stream in (mapped, both):
        assert stream.schema == inside
    assert all(vars(stream.node.spec)["output_schema"] == inside for stream in (mapped, both))
