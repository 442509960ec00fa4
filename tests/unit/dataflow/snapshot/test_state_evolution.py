"""What a state may become: added, dropped, wider columns; the user's own migration; and what is refused, by column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.api.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RunningAggregateDescriptor,
    ValueStateDescriptor,
)
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.errors import StateError
from snapline.dataflow.snapshot.declared_states import declared_schema
from snapline.dataflow.snapshot.state_evolution import (
    Evolution,
    convert,
    evolution_of,
    key_problem,
    schema_problems,
    widens,
    with_default,
)

OLD = pa.schema([("name", pa.string()), ("age", pa.int32()), ("city", pa.string())])
ROWS: list[dict[str, Any]] = [{"name": "a", "age": 1, "city": "x"}, {"name": None, "age": 2, "city": None}]


def turned(was, now, values, now_ms=5):
    """Values of one declaration as those of another."""
    assert evolution_of(was, now, drop_columns=True).problems == ()
    column = convert(pa.array(values, was.storage_type), was, now, now_ms)
    column.validate(full=True)
    assert column.type == now.storage_type
    return column.to_pylist()


def test_columns_are_added_with_a_default_or_null() -> None:
    """The default stands in the field; every value that was there gets it."""
    tier = with_default(pa.field("tier", pa.string(), nullable=False), "basic")
    since = with_default(pa.field("since", pa.date32()), dt.date(2026, 1, 2))
    now = pa.schema([*OLD, tier, since, ("score", pa.float64())])
    added = {"tier": "basic", "since": dt.date(2026, 1, 2), "score": None}
    found = turned(ValueStateDescriptor("p", OLD), ValueStateDescriptor("p", now), ROWS)
    assert found == [{**row, **added} for row in ROWS]
    refused = pa.schema([*OLD, pa.field("tier", pa.string(), nullable=False)])
    (problem,) = evolution_of(ValueStateDescriptor("p", OLD), ValueStateDescriptor("p", refused)).problems
    assert "column 'p.tier' is new and not nullable" in problem and "with_default" in problem


def test_a_default_of_another_type_is_refused() -> None:
    """When it is declared."""
    with pytest.raises(StateError, match="column 'n': 'x' cannot be a default of int64"):
        with_default(pa.field("n", pa.int64()), "x")


@pytest.mark.parametrize(
    ("data_type", "value", "said"),
    [
        (pa.int64(), 1.5, "1.5 is no whole number"),
        (pa.int64(), float("nan"), "cannot be a default of int64"),
        (pa.time32("ms"), dt.time(0, 0, 0, 1), "is finer than time32"),
    ],
)
def test_a_default_is_not_cut_to_its_type(data_type: pa.DataType, value: object, said: str) -> None:
    """Restored values would have another one in the column than the field was given."""
    with pytest.raises(StateError, match=said):
        with_default(pa.field("n", data_type), value)


def test_columns_are_dropped_with_leave_only() -> None:
    """By name, and with the flag that allows it."""
    was, now = ValueStateDescriptor("p", OLD), ValueStateDescriptor("p", pa.schema([("age", pa.int64())]))
    problems = evolution_of(was, now).problems
    assert len(problems) == 2
    assert "column 'p.city' (string) is in the snapshot and not in the job" in problems[1]
    assert "--drop-state-columns" in problems[1]
    assert evolution_of(was, now, drop_columns=True).changes == (
        "p.age: int32 -> int64",
        "p.name: dropped",
        "p.city: dropped",
    )
    assert turned(was, now, ROWS) == [{"age": 1}, {"age": 2}]


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint32(), pa.int64(), True),
        (pa.uint32(), pa.int32(), False),
        (pa.int32(), pa.uint64(), False),
        (pa.uint8(), pa.uint64(), True),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int32(), pa.float32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(9, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(9, 2), pa.decimal128(10, 4), False),
        (pa.timestamp("s"), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.timestamp("ms"), False),
        (pa.timestamp("ms"), pa.timestamp("ms", "UTC"), False),
        (pa.string(), pa.large_string(), True),
        (pa.large_string(), pa.string(), True),
        (pa.large_binary(), pa.binary(), True),
        (pa.string(), pa.int64(), False),
        (pa.bool_(), pa.int64(), False),
        (pa.binary(4), pa.binary(), True),
        (pa.date32(), pa.date64(), True),
        (pa.time32("ms"), pa.time64("us"), True),
        (pa.duration("ms"), pa.duration("s"), False),
    ],
)
def test_types_become_wider(old, new, fits) -> None:
    """If every value of the old type is one of the new."""
    assert widens(old, new) is fits
    was, now = ListStateDescriptor("l", old), ListStateDescriptor("l", new)
    problems = evolution_of(was, now).problems
    assert bool(problems) is not fits
    assert all(f"column 'l' is {old} in the snapshot and {new} in the job" in problem for problem in problems)


def test_lists_maps_and_what_lies_in_them() -> None:
    """Nested columns are told apart by path; nulls and slices survive."""
    inner = pa.struct([("a", pa.int32()), ("tags", pa.list_(pa.int8()))])
    wider = pa.struct([("tags", pa.list_(pa.int32())), ("a", pa.float64()), ("b", pa.string())])
    rows: list[Any] = [[{"a": 1, "tags": [1, None]}, None], [], [{"a": None, "tags": None}]]
    expected: list[Any] = [[{"a": 1.0, "tags": [1, None], "b": None}, None], [], [{"a": None, "tags": None, "b": None}]]
    was, now = ListStateDescriptor("l", inner), ListStateDescriptor("l", wider)
    assert turned(was, now, rows) == expected
    sliced = pa.array([[], *rows], was.storage_type).slice(1)
    assert convert(sliced, was, now, 0).to_pylist() == expected
    maps = MapStateDescriptor("m", pa.int32(), inner), MapStateDescriptor("m", pa.int64(), wider)
    pairs = [[(1, row) for row in some] for some in rows]
    assert turned(*maps, pairs) == [[(1, row) for row in some] for some in expected]
    nested = pa.struct([("m", pa.map_(pa.string(), pa.int32()))])
    onto = pa.struct([("m", pa.map_(pa.string(), pa.int64()))])
    assert turned(ValueStateDescriptor("v", nested), ValueStateDescriptor("v", onto), [{"m": [("x", 1)]}]) == [
        {"m": [("x", 1)]}
    ]


def to_cents(euros: pa.Array) -> pa.Array:
    """An own migration."""
    return pc.cast(pc.multiply(euros, 100), pa.int64())


def test_a_map_within_a_value_gets_defaults_and_keeps_every_time() -> None:
    """What lies in it evolves as elsewhere: by column, with defaults, and without a detour over Python's values."""
    was = pa.map_(pa.string(), pa.struct([("n", pa.int8()), ("at", pa.timestamp("ns"))]))
    x = with_default(pa.field("x", pa.int64()), 7)
    now = pa.map_(pa.large_string(), pa.struct([x, ("n", pa.int64()), ("at", pa.timestamp("ns"))]))
    at = pa.scalar(1_700_000_000_123_456_789, pa.timestamp("ns"))
    old = pa.array([[("", {"n": 0, "at": at})], None, [], [("a", {"n": 1, "at": at}), ("b", None)]], was)
    named = pa.StructArray.from_arrays([old, pa.array([1, 2, 3, 4])], names=["m", "id"])
    written = ValueStateDescriptor("v", pa.struct([("m", was), ("id", pa.int64())]))
    declared = ValueStateDescriptor("v", pa.struct([("m", now), ("id", pa.int64())]))
    expected = [[("", {"x": 7, "n": 0, "at": at})], None, [], [("a", {"x": 7, "n": 1, "at": at}), ("b", None)]]
    for values in (named, named.slice(1)):
        found = convert(values, written, declared, 0)
        found.validate(full=True)
        assert found.field("m").equals(pa.array(expected[-len(values) :], now))


def test_the_users_own_migration_turns_what_nothing_else_can() -> None:
    """Elements in, as many elements out; a wrong answer is refused by name."""
    was = ValueStateDescriptor("price", pa.float64())
    now = ValueStateDescriptor("price", pa.int64(), migrate=to_cents)
    assert evolution_of(was, ValueStateDescriptor("price", pa.int64())).problems
    assert turned(was, now, [1.5, 2.25]) == [150, 225]
    of_json = ValueStateDescriptor("price", serializer="json")
    parse = ValueStateDescriptor(
        "price", pa.int64(), migrate=lambda texts: pa.array([int(one) for one in texts.to_pylist()])
    )
    assert turned(of_json, parse, [b"7"]) == [7]
    lists = ListStateDescriptor("l", pa.float64()), ListStateDescriptor("l", pa.int64(), migrate=to_cents)
    assert turned(*lists, [[1.0], [], [2.0, 3.0]]) == [[100], [], [200, 300]]
    wrong = ValueStateDescriptor("price", pa.int64(), migrate=lambda old: old)
    with pytest.raises(
        StateError, match="state 'price': its migrate function got an array of 1 double and has to return one"
    ):
        convert(pa.array([1.0]), was, wrong, 0)
    with pytest.raises(StateError, match="state 'price' cannot be taken over from double as int64"):
        convert(
            pa.array([1.0]),
            was,
            ValueStateDescriptor("price", pa.int64(), migrate=lambda old: old.cast(pa.string()) and old["x"]),
            0,
        )


def test_keys_within_a_map_are_held_against_the_snapshot_before_the_job_starts_although_its_values_migrate() -> None:
    """A migrate function gets the values alone: the task would refuse the keys, again and again."""
    was = MapStateDescriptor("m", pa.int64(), pa.float64())
    now = MapStateDescriptor("m", pa.string(), pa.int64(), migrate=to_cents)
    written = pa.schema([was.to_field()])
    (problem,) = schema_problems(written, declared_schema([now], ()), drop_columns=False)
    assert "column 'm (key)' is int64 in the snapshot and string in the job" in problem
    fits = MapStateDescriptor("m", pa.int64(), pa.int64(), migrate=to_cents)
    assert schema_problems(written, declared_schema([fits], ()), drop_columns=False) == []


def test_kind_serializer_and_key_are_not_changed() -> None:
    """Whatever migrate says, a value is no list; keys decide on the key groups."""
    value = ValueStateDescriptor("v", pa.int64())
    (problem,) = evolution_of(value, ReducingStateDescriptor("v", max, pa.int64(), migrate=to_cents)).problems
    assert problem == "state 'v' is a value state, and is declared as a reducing state"
    (problem,) = evolution_of(value, ValueStateDescriptor("v", serializer="json")).problems
    assert "state 'v' is written as int64, and is declared as bytes of the serializer 'json'" in problem
    assert key_problem([pa.field("k", pa.int64())], [pa.field("k", pa.int64())]) == ""
    assert key_problem([pa.field("k", pa.large_string())], [pa.field("k", pa.string())]) == ""
    assert "written for the key k int64, the operator is now keyed by k string" in key_problem(
        [pa.field("k", pa.int64())], [pa.field("k", pa.string())]
    )


def test_a_time_to_live_comes_and_goes() -> None:
    """What was there counts as touched now."""
    ttl = StateTtlConfig(dt.timedelta(hours=1))
    plain, timed = ValueStateDescriptor("v", pa.int32()), ValueStateDescriptor("v", pa.int64(), ttl=ttl)
    assert turned(plain, timed, [1, 2], now_ms=9) == [{"value": 1, "touched": 9}, {"value": 2, "touched": 9}]
    assert turned(ValueStateDescriptor("v", pa.int32(), ttl=ttl), ValueStateDescriptor("v", pa.int64()), [
        {"value": 1, "touched": 3}
    ]) == [1]  # fmt: skip


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=4), max_size=6))
def test_widening_keeps_every_value(rows: list[list[int | None]]) -> None:
    """Lists of any shape."""
    assert turned(ListStateDescriptor("l", pa.int32()), ListStateDescriptor("l", pa.float64()), rows) == rows
    decimals = [[None if one is None else Decimal(one) for one in row] for row in rows]
    was, now = ListStateDescriptor("l", pa.decimal128(10, 0)), ListStateDescriptor("l", pa.decimal128(14, 2))
    assert turned(was, now, decimals) == decimals


def test_running_aggregates_stay_what_they_are() -> None:
    """A minimum that is added now would only be that of later rows."""
    was = RunningAggregateDescriptor("v", pa.int32(), ("sum",))
    assert evolution_of(was, RunningAggregateDescriptor("v", pa.int64(), ("sum",))) == Evolution()
    (problem,) = evolution_of(was, RunningAggregateDescriptor("v", pa.int64(), ("sum", "min"))).problems
    assert "running aggregate 'v' is struct<count: int64, sum: int64> in the snapshot" in problem
    assert "another uid" in problem
