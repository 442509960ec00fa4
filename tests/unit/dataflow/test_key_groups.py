"""Key-group arithmetic, and the cutting of a batch by the owner of each row's key."""

from __future__ import annotations

import datetime as dt
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.columnar.key_partition import assign_to_key_groups, partition_by_key, split_batch
from snapline.dataflow.key_groups import (
    EMPTY_KEY_GROUP_RANGE,
    KeyGroupRange,
    compute_default_max_parallelism,
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
    redistribute_key_groups,
)

parallelisms = st.integers(1, 300).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))


@given(parallelisms)
def test_ranges_tile_the_key_groups(bounds: tuple[int, int]) -> None:
    """Every key group belongs to exactly one subtask, and both formulas agree on whose it is."""
    most, parallelism = bounds
    ranges = [compute_key_group_range_for_operator_index(most, parallelism, index) for index in range(parallelism)]

    assert [group for part in ranges for group in range(part.start, part.end + 1)] == list(range(most))
    for index, part in enumerate(ranges):
        assert {
            compute_operator_index_for_key_group(most, parallelism, group) for group in range(part.start, part.end + 1)
        } == {index}


def test_default_max_parallelism() -> None:
    """A power of two at or above one and a half times the parallelism, from 128 to 32768."""
    cases = {1: 128, 85: 128, 86: 256, 171: 256, 172: 512, 1000: 2048, 30_000: 32_768}

    assert cases == {parallelism: compute_default_max_parallelism(parallelism) for parallelism in cases}


@pytest.mark.parametrize(
    ("most", "parallelism", "message"),
    [
        (0, 1, "between 1 and 32768, not 0"),
        (40_000, 1, "not 40000"),
        (128, 129, "parallelism 129"),
        (128, 0, "parallelism 0"),
    ],
)
def test_impossible_parallelism_is_named(most: int, parallelism: int, message: str) -> None:
    """The refusal says which number is wrong."""
    with pytest.raises(ValueError, match=message):
        compute_key_group_range_for_operator_index(most, parallelism, 0)
    with pytest.raises(ValueError, match=message):
        compute_operator_index_for_key_group(most, parallelism, 0)
    with pytest.raises(ValueError, match=message):
        redistribute_key_groups(most, [KeyGroupRange(0, 1)], parallelism)
    with pytest.raises(ValueError, match=message):
        partition_by_key([pa.array([1, 2])], most, parallelism)


def test_a_key_group_that_is_not_there_has_no_owner() -> None:
    """There are as many as the max parallelism says."""
    with pytest.raises(ValueError, match="key group 128 does not lie between 0 and 127"):
        compute_operator_index_for_key_group(128, 4, 128)
    with pytest.raises(ValueError, match="not 32769"):
        assign_to_key_groups([pa.array([1, 2])], 32_769)


def test_ranges_intersect() -> None:
    """Inclusive on both ends; nothing in common is the empty range."""
    assert KeyGroupRange(2, 5) == KeyGroupRange(0, 5).intersect(KeyGroupRange(2, 9))
    assert KeyGroupRange(0, 1).intersect(KeyGroupRange(2, 9)) == EMPTY_KEY_GROUP_RANGE
    assert EMPTY_KEY_GROUP_RANGE.intersect(KeyGroupRange(0, 9)) == EMPTY_KEY_GROUP_RANGE


def test_there_is_no_negative_key_group() -> None:
    """A range that begins below 0 is refused, not carried along."""
    with pytest.raises(ValueError, match="key groups begin with 0, not with -3"):
        KeyGroupRange(-3, 2)


@given(parallelisms, st.data())
def test_redistribution_reads_everything_once(bounds: tuple[int, int], data: st.DataObject) -> None:
    """The new subtasks together read every key group once, each exactly its own."""
    most, old = bounds
    new = data.draw(st.integers(1, most))
    ranges = [compute_key_group_range_for_operator_index(most, old, index) for index in range(old)]

    for index, parts in enumerate(redistribute_key_groups(most, ranges, new)):
        read = [group for _, part in parts for group in range(part.start, part.end + 1)]
        own = compute_key_group_range_for_operator_index(most, new, index)
        assert list(range(own.start, own.end + 1)) == read


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "i": (pa.int64(), st.integers(-5, 5)),
    "s": (pa.string(), st.text(max_size=3)),
    "n": (pa.int32(), st.one_of(st.none(), st.integers(0, 3))),
    "b": (pa.bool_(), st.booleans()),
    "l": (pa.list_(pa.int64()), st.lists(st.integers(0, 3), max_size=2)),
    "t": (pa.timestamp("us"), st.datetimes(dt.datetime(2013, 1, 1), dt.datetime(2014, 1, 1))),  # noqa: DTZ001
    "d": (pa.binary(2), st.binary(min_size=2, max_size=2)),
}
KEYS = ["i", "s", "n", "b", "t", "d"]


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 40))
    columns = {
        name: pa.array(draw(st.lists(values, min_size=rows + 2, max_size=rows + 2)), data_type)
        for name, (data_type, values) in COLUMNS.items()
    }
    return pa.record_batch(columns).slice(1, rows)


@given(batches(), st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True), parallelisms)
def test_split_batch_against_a_loop(batch: pa.RecordBatch, keys: list[str], bounds: tuple[int, int]) -> None:
    """Each part has the rows of its owner, in their order, of every type of column."""
    most, parallelism = bounds
    groups = assign_to_key_groups([batch.column(key) for key in keys], most).tolist()
    owners = [compute_operator_index_for_key_group(most, parallelism, group) for group in groups]
    rows = batch.to_pylist()

    parts = split_batch(batch, keys, most, parallelism)

    assert [[row for row, owner in zip(rows, owners, strict=True) if owner == part] for part in range(parallelism)] == [
        part.to_pylist() for part in parts
    ]
    assert {part.schema for part in parts} == {batch.schema}


@given(batches(), parallelisms)
def test_partition_by_key_is_stable(batch: pa.RecordBatch, bounds: tuple[int, int]) -> None:
    """Inside a partition, rows keep their order; every row is in one."""
    order, ends = partition_by_key([batch.column("i"), batch.column("s")], *bounds)

    assert sorted(order.tolist()) == list(range(batch.num_rows))
    assert len(ends) == bounds[1] + 1
    assert all((np.diff(order[start:end]) > 0).all() for start, end in itertools.pairwise(ends))


def test_one_owner_costs_no_copy() -> None:
    """Parallelism 1, or a batch whose keys all have one owner: the batch itself is handed on."""
    batch = pa.record_batch({"k": pa.array([7] * 10), "v": pa.array(range(10))})

    assert split_batch(batch, ["k"], 128, 1)[0] is batch
    parts = split_batch(batch, ["k"], 128, 4)
    assert sum(part is batch for part in parts) == 1
    assert [10, 0, 0, 0] == sorted((part.num_rows for part in parts), reverse=True)


def test_an_unknown_key_column_is_named() -> None:
    """With the columns that there are."""
    with pytest.raises(KeyError, match="no key column 'x' in the batch: its columns are 'k', 'v'"):
        split_batch(pa.record_batch({"k": [1], "v": [2]}), ["x"], 128, 2)


def test_key_groups_do_not_depend_on_the_cut() -> None:
    """The same rows in other batches go to the same key groups."""
    generator = random.Random(1)
    whole = pa.record_batch({"k": pa.array([generator.randrange(50) for _ in range(500)]), "v": pa.array(range(500))})
    expected = [part.to_pylist() for part in split_batch(whole, ["k"], 100, 3)]
    got: list[list[object]] = [[], [], []]
    start = 0
    while start < 500:
        size = generator.randrange(1, 60)
        for index, part in enumerate(split_batch(whole.slice(start, size), ["k"], 100, 3)):
            got[index] += part.to_pylist()
        start += size

    assert expected == got
