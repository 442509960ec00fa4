"""Lists and dictionaries of keyed state that a function changes in place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
NUMBERS = pa.list_(pa.int64())
COUNTED = pa.struct([("count", pa.int64()), ("numbers", NUMBERS)])
OUT = pa.schema([("numbers", NUMBERS)])
SUM = pa.struct([("sum", pa.int64())])
TTL = sl.StateTtlConfig(timedelta(days=1))
ROWS = [{"k": n % 2, "n": n} for n in range(6)]
SO_FAR = [[0], [1], [0, 2], [1, 3], [0, 2, 4], [1, 3, 5]]


class Collect(sl.AggregateFunction):
    """An aggregate whose accumulator is the list that it gives."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right


def extend(known: list[int], more: list[int]) -> list[int]:
    known.extend(more)
    return known


def of_value(state: Any, number: int, *, puts_back: bool) -> list[int]:
    numbers = state.value()
    if numbers is None:
        state.update([number])
    else:
        numbers.append(number)
        if puts_back:
            state.update(numbers)
    return state.value()


def of_struct(state: Any, number: int, *, puts_back: bool) -> list[int]:
    value = state.value()
    if value is None:
        state.update({"count": 1, "numbers": [number]})
    else:
        value["count"] += 1
        value["numbers"].append(number)
        if puts_back:
            state.update(value)
    return state.value()["numbers"]


def of_map(state: Any, number: int, *, puts_back: bool) -> list[int]:
    for key, numbers in state.items():
        numbers.append(number)
        if puts_back:
            state.put(key, numbers)
    if not state.contains("it"):
        state.put("it", [number])
    return state.get("it")


def of_list(state: Any, number: int, *, puts_back: bool) -> list[int]:
    lists = state.get()
    if not lists:
        state.add([number])
    else:
        lists[0].append(number)
        if puts_back:
            state.update(lists)
    return state.get()[0]


CASES: dict[str, tuple[Any, Callable[..., list[int]]]] = {
    "value": (sl.ValueStateDescriptor("s", NUMBERS), of_value),
    "value with a time-to-live": (sl.ValueStateDescriptor("s", NUMBERS, ttl=TTL), of_value),
    "json": (sl.ValueStateDescriptor("s", serializer="json"), of_value),
    "struct": (sl.ValueStateDescriptor("s", COUNTED), of_struct),
    "map": (sl.MapStateDescriptor("s", pa.string(), NUMBERS), of_map),
    "map with a time-to-live": (sl.MapStateDescriptor("s", pa.string(), NUMBERS, ttl=TTL), of_map),
    "list": (sl.ListStateDescriptor("s", NUMBERS), of_list),
    "list with a time-to-live": (sl.ListStateDescriptor("s", NUMBERS, ttl=TTL), of_list),
}


class Works(sl.KeyedProcessFunction):
    """Calls one of the functions above on its state."""

    def __init__(self, case: str, *, puts_back: bool) -> None:
        self.descriptor, self.work = CASES[case]
        self.puts_back = puts_back

    def open(self, context: sl.RuntimeContext) -> None:
        if isinstance(self.descriptor, sl.ValueStateDescriptor):
            self.state: Any = context.get_state(self.descriptor)
        elif isinstance(self.descriptor, sl.MapStateDescriptor):
            self.state = context.get_map_state(self.descriptor)
        else:
            self.state = context.get_list_state(self.descriptor)

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> list[sl.Row]:
        return [{"numbers": self.work(self.state, row["n"], puts_back=self.puts_back)}]


class Combines(sl.KeyedProcessFunction):
    """Keeps a list that its functions change in place."""

    def __init__(self, ttl: sl.StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, context: sl.RuntimeContext) -> None:
        self.reduced = context.get_reducing_state(sl.ReducingStateDescriptor("r", extend, NUMBERS, ttl=self.ttl))
        self.folded = context.get_aggregating_state(
            sl.AggregatingStateDescriptor("a", Collect(), NUMBERS, ttl=self.ttl)
        )

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> list[sl.Row]:
        one = [row["n"]]
        self.reduced.add(one)
        self.folded.add(row["n"])
        return [{"numbers": self.reduced.get()}, {"numbers": self.folded.get()}]


def rows_of(function: sl.KeyedProcessFunction, at_once: int) -> list[list[int]]:
    """What it puts out for batches of so many rows."""
    with OperatorHarness(lambda rows: rows.key_by("k").process(function, schema=OUT), SCHEMA) as harness:
        for begin in range(0, len(ROWS), at_once):
            harness.push(ROWS[begin : begin + at_once])
        return [row["numbers"] for row in harness.rows()]


@pytest.mark.parametrize("at_once", [6, 1])
@pytest.mark.parametrize("case", CASES)
def test_what_was_put_out_stays_as_it_was_when_the_state_changes(case: str, at_once: int) -> None:
    """Rows of one key and batch all had the last list that the state had been."""
    assert rows_of(Works(case, puts_back=True), at_once) == SO_FAR


@pytest.mark.parametrize("at_once", [6, 1])
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_put_back_changes_nothing(case: str, at_once: int) -> None:
    """It was kept to the end of the batch, and so the result depended on how the stream was cut."""
    assert rows_of(Works(case, puts_back=False), at_once) == [[0], [1]] * 3


@pytest.mark.parametrize("at_once", [6, 1])
@pytest.mark.parametrize("ttl", [None, TTL])
def test_a_function_that_combines_in_place_changes_no_row_that_was_put_out(
    ttl: sl.StateTtlConfig | None, at_once: int
) -> None:
    """Reducing and aggregating state gave the accumulator itself away."""
    assert rows_of(Combines(ttl), at_once) == [each for each in SO_FAR for _ in range(2)]


class Sums(sl.KeyedProcessFunction):
    """Adds each number to all that came before it, in place."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.sums = context.get_list_state(sl.ListStateDescriptor("sums", SUM))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> list[sl.Row]:
        sums = [*self.sums.get(), {"sum": 0}]
        for each in sums:
            each["sum"] += row["n"]
        self.sums.update(sums)
        return [{"sums": sums}]


class Tree(sl.KeyedProcessFunction):
    """Keeps a tree whose leaves know their root, by a serializer of its own."""

    def open(self, context: sl.RuntimeContext) -> None:
        sl.register_serializer("a tree", pickle.dumps, pickle.loads)
        self.tree = context.get_state(sl.ValueStateDescriptor("tree", serializer="a tree"))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> list[sl.Row]:
        root = self.tree.value() or {"leaves": []}
        root["leaves"].append({"root": root})
        self.tree.update(root)
        kept = self.tree.value()
        return [{"numbers": [len(kept["leaves"]), sum(leaf["root"] is kept for leaf in kept["leaves"])]}]


@pytest.mark.parametrize("at_once", [6, 1])
def test_objects_of_a_serializer_may_hold_one_another(at_once: int) -> None:
    """They are handed out as they are kept: a copy of each would have no end, or another shape."""
    assert rows_of(Tree(), at_once) == [[n, n] for n in (1, 1, 2, 2, 3, 3)]


@pytest.mark.parametrize("at_once", [6, 1])
def test_structs_of_a_list_stay_in_rows_as_they_were(at_once: int) -> None:
    """They are kept from one call to the next, to be compared with those that are put back."""
    out = pa.schema([("sums", pa.list_(SUM))])
    with OperatorHarness(lambda rows: rows.key_by("k").process(Sums(), schema=out), SCHEMA) as harness:
        for begin in range(0, len(ROWS), at_once):
            harness.push(ROWS[begin : begin + at_once])
        sums = [[each["sum"] for each in row["sums"]] for row in harness.rows()]

    assert sums == [[0], [1], [2, 2], [4, 3], [6, 6, 4], [9, 8, 5]]
