"""KeyIndex against a dictionary: every type of key, any cut into batches, removal and reuse, growth."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.taskmanager.state.index.bytes_key_index import BytesKeyIndex
from snapline.taskmanager.state.index.key_index import KeyIndex
from snapline.taskmanager.state.index.word_key_index import WordKeyIndex

KEYS: dict[str, tuple[list[pa.DataType], st.SearchStrategy[tuple[Any, ...]]]] = {
    "int64": ([pa.int64()], st.tuples(st.one_of(st.none(), st.integers(-4, 4), st.integers(-(2**63), 2**63 - 1)))),
    "uint64": ([pa.uint64()], st.tuples(st.integers(0, 2**64 - 1))),
    "int8": ([pa.int8()], st.tuples(st.integers(-128, 127))),
    "bool": ([pa.bool_()], st.tuples(st.one_of(st.none(), st.booleans()))),
    "double": ([pa.float64()], st.tuples(st.floats(allow_nan=False).map(lambda value: value + 0.0))),
    "timestamp": ([pa.timestamp("us")], st.tuples(st.datetimes(dt.datetime(2013, 1, 1), dt.datetime(2013, 1, 9)))),  # noqa: DTZ001
    "date": ([pa.date32()], st.tuples(st.dates(dt.date(2013, 1, 1), dt.date(2013, 3, 1)))),
    "string": ([pa.string()], st.tuples(st.one_of(st.none(), st.text(max_size=40)))),
    "binary": ([pa.binary()], st.tuples(st.binary(max_size=20))),
    "fixed": ([pa.binary(3)], st.tuples(st.one_of(st.none(), st.binary(min_size=3, max_size=3)))),
    "decimal": ([pa.decimal128(38, 2)], st.tuples(st.one_of(st.none(), st.integers(-9, 9).map(Decimal)))),
    "pair": ([pa.int64(), pa.int32()], st.tuples(st.integers(-3, 3), st.one_of(st.none(), st.integers(0, 2)))),
    "triple": (
        [pa.int64(), pa.bool_(), pa.float64()],
        st.tuples(st.integers(-3, 3), st.booleans(), st.one_of(st.none(), st.sampled_from([0.0, 1.5, -2.0]))),
    ),
    "four": ([pa.int8()] * 4, st.tuples(*[st.one_of(st.none(), st.integers(0, 1))] * 4)),
    "mixed": (
        [pa.string(), pa.bool_(), pa.decimal128(10, 1), pa.string()],
        st.tuples(
            st.one_of(st.none(), st.text(max_size=9)),
            st.booleans(),
            st.integers(0, 3).map(Decimal),
            st.one_of(st.none(), st.just(""), st.text(max_size=2)),
        ),
    ),
}
"""A composite of strings is where ("a", "") and ("", "a") must differ, and a null from an empty string."""


def columns_of(rows: list[tuple[Any, ...]], types: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], data_type) for i, data_type in enumerate(types)]


def index_of(types: list[pa.DataType]) -> KeyIndex:
    return KeyIndex([pa.field(f"k{i}", data_type) for i, data_type in enumerate(types)])


@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=40)
@given(data=st.data())
def test_against_a_dictionary(name: str, data: st.DataObject) -> None:
    """Inserts, look-ups and removals in any order; slots are dense, stable, and reused."""
    types, rows = KEYS[name]
    index = index_of(types)
    reference: dict[tuple[Any, ...], int] = {}
    most = 0
    for _ in range(data.draw(st.integers(1, 4))):
        batch = data.draw(st.lists(rows, max_size=30))
        slots = index.lookup_or_insert(columns_of(batch, types)).tolist()
        for row, slot in zip(batch, slots, strict=True):
            assert reference.setdefault(row, slot) == slot
        assert len(set(reference.values())) == len(reference)
        most = max(most, len(reference))
        assert max(reference.values(), default=-1) < most

        asked = data.draw(st.lists(rows, max_size=10))
        assert index.lookup(columns_of(asked, types)).tolist() == [reference.get(row, -1) for row in asked]

        if reference:
            gone = data.draw(st.lists(st.sampled_from(list(reference)), max_size=5))
            index.remove(np.array([reference[row] for row in gone], np.int32))
            for row in set(gone):
                del reference[row]

        assert len(index) == len(reference)
        assert sorted(reference.values()) == index.live_slots().tolist()
        if reference:
            owned = np.array(list(reference.values()), np.int32)
            got = zip(*(column.to_pylist() for column in index.keys(owned)), strict=True)
            assert list(reference) == list(got)


@pytest.mark.parametrize("name", ["int64", "string", "pair"])
@pytest.mark.parametrize("reserved", [0, 2500, 20_000])
def test_growth_keeps_every_slot(name: str, reserved: int) -> None:
    """From the first table through several doublings, with keys that crowd and keys that spread; or with room for some
    or all of them that was asked for before, which is never asked for twice."""
    types, _ = KEYS[name]
    index = index_of(types)
    index.reserve(reserved)
    numbers = np.concatenate([np.arange(3000), np.arange(3000) * 2**40, -np.arange(1, 3000) * 4096])
    numbers = np.unique(numbers)
    columns = {
        "int64": [pa.array(numbers)],
        "string": [pa.array([f"key-{n}" for n in numbers])],
        "pair": [pa.array(numbers), pa.array(np.arange(len(numbers), dtype=np.int32) % 7)],
    }[name]
    for start in range(0, len(numbers), 997):
        piece = [column.slice(start, 997) for column in columns]
        assert index.lookup_or_insert(piece).tolist() == list(range(start, start + len(piece[0])))
        index.reserve(1 << 20)

    assert index.capacity == (32768 if reserved == 20_000 else 16384)
    assert index.lookup(columns).tolist() == list(range(len(numbers)))
    assert [column.to_pylist() for column in columns] == [
        column.to_pylist() for column in index.keys(np.arange(len(numbers), dtype=np.int32))
    ]


@pytest.mark.parametrize("name", ["int64", "string"])
def test_removed_keys_leave_no_trace(name: str) -> None:
    """Ever new keys in constant memory: the table, and the bytes of strings, are used again."""
    types, _ = KEYS[name]
    index = index_of(types)
    capacity = 0
    for turn in range(200):
        values = [turn * 100 + i for i in range(100)]
        column = pa.array(
            [f"a key of some length {value}" for value in values] if name == "string" else values, types[0]
        )
        slots = index.lookup_or_insert([column])
        assert index.lookup([column]).tolist() == slots.tolist()
        assert index.keys(slots)[0].to_pylist() == column.to_pylist()
        index.remove(slots)
        if turn == 50:
            capacity = index.capacity

    assert len(index) == 0
    assert index.capacity == capacity


@pytest.mark.parametrize("name", ["int64", "string", "mixed"])
def test_frozen_keys_do_not_move(name: str) -> None:
    """What was frozen is what it was, whatever happens to the index afterwards."""
    types, _ = KEYS[name]
    batch = [(n if name == "int64" else f"{n}", True, Decimal(n % 3), "x")[: len(types)] for n in range(300)]
    index = index_of(types)
    slots = index.lookup_or_insert(columns_of(batch, types))
    frozen = index.freeze()
    before = [column.to_pylist() for column in frozen.keys(slots)]

    index.remove(slots[:200])
    others = [(n + 1000 if name == "int64" else f"new {n}", *row[1:]) for n, row in enumerate(batch)]
    index.lookup_or_insert(columns_of(others, types))

    assert before == [column.to_pylist() for column in frozen.keys(slots)]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_keys_of_a_table_beyond_the_caches(width: int) -> None:
    """Memory is asked for ahead there; batches of known keys, of new ones and of both, short ones too, and one that
    makes the table grow in its middle."""
    index, count = WordKeyIndex(width), 0
    words = np.random.default_rng(7).permutation(width * 280_000).astype(np.int64).reshape(-1, width)
    for end in (200_000, 200_007, 200_100, 280_000):
        rows = np.concatenate([words[:end:3], words[count:end], words[:end:5]])
        slots = index.lookup_or_insert(rows.reshape(-1), None)
        count = end
        assert len(index) == count and np.array_equal(index.lookup(rows.reshape(-1), None), slots)
    slots = index.lookup(words.reshape(-1), None)
    kept, _ = index.view().gather(slots)

    assert np.array_equal(np.sort(slots), np.arange(count)) and np.array_equal(kept, words.reshape(-1))
    assert (index.lookup(-1 - words.reshape(-1), None) == -1).all()


def test_floats_by_value() -> None:
    """-0.0 is 0.0 and NaN is NaN, so that a key is found again."""
    index = index_of([pa.float64()])

    assert index.lookup_or_insert([pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.0])]).tolist() == [0, 0, 1, 1, 2]
    assert index_of([pa.float32()]).lookup_or_insert([pa.array([0.1, 0.1], pa.float32())]).tolist() == [0, 0]


def test_encodings_do_not_matter() -> None:
    """Dictionary, large offsets, views, chunks and slices find the same key."""
    index = index_of([pa.string()])
    plain = pa.array(["x", "a", None, "b", "a"]).slice(1)
    expected = index.lookup_or_insert([plain]).tolist()

    for column in (
        plain.dictionary_encode(),
        plain.cast(pa.large_string()),
        plain.cast(pa.string_view()),
        pa.chunked_array([plain.slice(0, 1), plain.slice(1)]),
    ):
        assert index.lookup([column]).tolist() == expected
    assert index.lookup([pa.nulls(2)]).tolist() == [expected[1], expected[1]]


def test_a_key_column_that_changes_its_type_is_named() -> None:
    """With both types, and what to do."""
    index = KeyIndex([pa.field("user", pa.int64())])

    with pytest.raises(TypeError, match=r"key column 'user' changed its type: .* int64, this batch has string; cast"):
        index.lookup_or_insert([pa.array(["1"])])
    with pytest.raises(ValueError, match="the key has 1 columns, 2 were given"):
        index.lookup_or_insert([pa.array([1]), pa.array([1])])


def test_a_type_that_cannot_be_a_key_is_named() -> None:
    """With the column."""
    with pytest.raises(TypeError, match="key column 'tags': a value of type list<item: string> cannot be"):
        KeyIndex([pa.field("tags", pa.list_(pa.string()))])


def test_empty_batches() -> None:
    """Nothing in, nothing out."""
    for types, _ in KEYS.values():
        index = index_of(types)
        empty = [pa.array([], data_type) for data_type in types]
        assert index.lookup_or_insert(empty).tolist() == index.lookup(empty).tolist() == []
        assert [len(column) for column in index.keys(np.zeros(0, np.int32))] == [0] * len(types)


GROWING: dict[str, tuple[list[pa.DataType], Callable[[list[int]], list[pa.Array]]]] = {
    "int64": ([pa.int64()], lambda keys: [pa.array(keys, pa.int64())]),
    "string": ([pa.string()], lambda keys: [pa.array([f"key {key}" for key in keys], pa.string())]),
    "pair": (
        [pa.int64(), pa.int32()],
        lambda keys: [pa.array(keys, pa.int64()), pa.array([key % 7 for key in keys], pa.int32())],
    ),
    "triple": ([pa.int64(), pa.int64(), pa.int64()], lambda keys: [pa.array(keys, pa.int64())] * 3),
    "four": ([pa.int64()] * 4, lambda keys: [pa.array(keys, pa.int64())] * 4),
}
"""Types of keys, and how numbers are such."""


@pytest.mark.parametrize("name", GROWING)
@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "look", "remove"]), st.lists(st.integers(0, 3000), max_size=60)),
        max_size=60,
    )
)
def test_entries_move_to_a_larger_table_in_steps(name: str, steps: list[tuple[str, list[int]]]) -> None:
    """Whatever happens before all have moved: a key keeps its slot, and an unknown one is not found."""
    types, columns = GROWING[name]
    index = index_of(types)
    first = list(range(10_000, 10_000 + 8100))
    index.lookup_or_insert(columns(first))  # 8,192 fit: the next growth moves 16,384 places
    known = {key: number for number, key in enumerate(first)}
    for number, (step, keys) in enumerate(steps):
        if step == "insert":
            keys = [*keys, *range(5000 + 40 * number, 5000 + 40 * number + 40)]
            for key, slot in zip(keys, index.lookup_or_insert(columns(keys)).tolist(), strict=True):
                assert known.setdefault(key, slot) == slot
        elif step == "remove":
            gone = [key for key in dict.fromkeys(keys) if key in known][:2]
            index.remove(np.array([known.pop(key) for key in gone], np.int32))
        asked = [*keys, 10_000, 18_099]
        assert index.lookup(columns(asked)).tolist() == [known.get(key, -1) for key in asked]
    everything = list(known)
    assert index.lookup(columns(everything)).tolist() == [known[key] for key in everything]
    assert len(set(known.values())) == len(known) == len(index)


@pytest.mark.parametrize("name", GROWING)
def test_growing_is_spread_over_batches(name: str) -> None:
    """After growing most entries are still where they were; some batches later none is."""
    types, columns = GROWING[name]
    index = index_of(types)
    table: Any = index._table.index
    assert isinstance(table, WordKeyIndex | BytesKeyIndex)
    for first in range(0, 1 << 17, 1 << 10):
        index.lookup_or_insert(columns(list(range(first, first + (1 << 10)))))
    index.lookup_or_insert(columns([-1]))
    assert table._progress[0] <= 128
    assert table._old is not None and len(table._old) == 1 << 18
    for first in range(1 << 17, (1 << 17) + (1 << 16), 1 << 10):
        index.lookup_or_insert(columns(list(range(first, first + (1 << 10)))))
    assert table._old is None or not len(table._old)


@pytest.mark.parametrize("name", GROWING)
def test_who_only_looks_up_has_one_table_soon(name: str) -> None:
    """Entries of the smaller table move while keys are looked up, too: a table of enrich() gets no more rows."""
    types, columns = GROWING[name]
    index = index_of(types)
    table: Any = index._table.index
    keys = list(range((1 << 15) + 1))
    slots = index.lookup_or_insert(columns(keys)).tolist()
    while table._old is not None and len(table._old):
        moved = int(table._progress[0])
        assert index.lookup(columns(keys[:1_000])).tolist() == slots[:1_000]
        assert table._old is None or int(table._progress[0]) > moved
    assert index.lookup(columns(keys)).tolist() == slots


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["insert", "take", "freeze"]), st.lists(st.integers(0, 400), max_size=80)),
        max_size=30,
    )
)
def test_what_is_taken_is_found_once_more_and_then_gone(width: int, steps: list[tuple[str, list[int]]]) -> None:
    """A key that is asked for twice is there for the first one; a snapshot still has what it had."""

    def words(keys: list[int]) -> Any:
        rows = [[key % (column + 2) if column else key for column in range(width)] for key in keys]
        return np.array(rows, np.int64).reshape(-1)

    index, known, frozen = WordKeyIndex(width), dict[int, int](), list[tuple[Any, list[int]]]()
    for step, keys in steps:
        if step == "insert":
            for key, slot in zip(keys, index.lookup_or_insert(words(keys), None).tolist(), strict=True):
                assert known.setdefault(key, slot) == slot
        elif step == "take":
            assert index.take(words(keys)).tolist() == [known.pop(key, -1) for key in keys]
        else:
            frozen.append((index.freeze(), sorted(known)))
        assert len(index) == len(known)
    assert index.lookup(words(list(known)), None).tolist() == list(known.values())
    for keys_then, had in frozen:
        assert sorted(keys_then.gather(keys_then.live_slots())[0][::width].tolist()) == had
