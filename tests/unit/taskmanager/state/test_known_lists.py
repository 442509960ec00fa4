"""Lists and maps of a row-wise function: what is decoded when, and that what is remembered is what is stored."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapline.dataflow.api.state import ListStateDescriptor, MapStateDescriptor
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.keyed_list_state import KeyedListState
from snapline.taskmanager.state.keyed_map_state import KeyedMapState
from snapline.taskmanager.state.keyed_state import PythonValues

STRUCT = pa.struct([("at", pa.int64()), ("name", pa.string())])
NESTED = pa.struct([("at", pa.int64()), ("names", pa.list_(pa.string()))])
KEYS = 5


class Decoded:
    """How many values were decoded."""

    count = 0


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """Counts what becomes Python objects."""
    counted, original = Decoded(), PythonValues.to_python

    def to_python(self: PythonValues, values: pa.Array) -> list[Any]:
        counted.count += len(values)
        return original(self, values)

    monkeypatch.setattr(PythonValues, "to_python", to_python)
    return counted


class Batches:
    """A state in batches of rows: all keys are in each, `row` is one of them."""

    def __init__(self, make: Any, descriptor: Any) -> None:
        self.scope = BatchScope()
        self.state = make(descriptor, self.scope, KEYS)
        self.begin()

    def begin(self) -> None:
        self.scope.open(np.arange(KEYS, dtype=np.int32), KEYS)

    def next(self) -> None:
        self.state.flush()
        self.scope.close()
        self.begin()


def test_a_list_is_decoded_once(decoded: Decoded) -> None:
    """And later what was added since; adding decodes nothing, nor does putting back all but the first."""
    batches = Batches(KeyedListState, ListStateDescriptor("list", STRUCT))
    for at in range(10):
        batches.state.add({"at": at, "name": "a"})
        batches.next()
    assert decoded.count == 0
    assert len(batches.state.get()) == 10
    batches.next()
    assert decoded.count == 10
    for at in range(10, 15):
        batches.state.update(batches.state.get()[1:])
        batches.next()
        batches.state.add({"at": at, "name": "b"})
        batches.next()

    assert [one["at"] for one in batches.state.get()] == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert decoded.count == 15


def test_a_map_of_structs_is_decoded_once(decoded: Decoded) -> None:
    """A struct that was read and not put back is not changed by what the function does to it."""
    batches = Batches(KeyedMapState, MapStateDescriptor("map", pa.string(), STRUCT))
    batches.state.put("one", {"at": 1, "name": "a"})
    batches.next()
    begun = decoded.count
    for _ in range(5):
        found = batches.state.get("one")
        assert found == {"at": 1, "name": "a"}
        assert list(batches.state.values()) == [found]
        found["at"] = 2
        batches.next()
    assert decoded.count == begun


@pytest.mark.parametrize("element_type", [STRUCT, NESTED, pa.int64(), pa.float64()], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_list_is_what_a_list_of_python_would_be(element_type: pa.DataType, seed: int) -> None:
    """Through adding, cutting at either end, changing in place with and without putting back, and other batches; what
    is stored at the end of each batch is what Python's lists hold."""
    chance = random.Random(seed)
    batches = Batches(KeyedListState, ListStateDescriptor("list", element_type))
    lists: list[list[Any]] = [[] for _ in range(KEYS)]

    def element() -> Any:
        number = chance.randrange(4)
        if element_type == STRUCT:
            return chance.choice([None, {"at": number, "name": "x"}, {"at": number, "name": None}])
        if element_type == NESTED:
            return {"at": number, "names": ["x"] * number}
        return float(number) if element_type == pa.float64() else chance.choice([number, None])

    def shown(values: list[Any]) -> list[Any]:
        return pa.array(values, element_type).to_pylist()

    state = batches.state
    for _ in range(600):
        key = batches.scope.index = chance.randrange(KEYS)
        match chance.randrange(9):
            case 0 | 1 | 2:
                given = element()
                state.add(given)
                lists[key] = shown([*lists[key], given])
            case 3:
                assert shown(state.get()) == lists[key]
            case 4:
                first, end = chance.randrange(4), chance.choice([None, -1, -2])
                state.update(state.get()[first:end])
                lists[key] = lists[key][first:end]
            case 5:
                given = [one for one in state.get() if chance.random() < 0.8] + [element()]
                state.update(given)
                lists[key] = shown(given)
            case 6:
                given = state.get()
                for one in given:
                    if isinstance(one, dict):
                        one["at"] += 1
                        if "names" in one:
                            one["names"].append("y")
                state.update(given)
                lists[key] = shown(given)
            case 7 if element_type == STRUCT:
                batches.next()
                batches.scope.index = key
                for one in state.get():
                    if one is not None:
                        one["name"] = "never put back"
                batches.next()
            case _:
                batches.next()
        if chance.random() < 0.05:
            found = state.get_batch(np.arange(KEYS, dtype=np.int32)).to_pylist()
            batches.next()
            assert [one or [] for one in found] == lists
        if chance.random() < 0.02:
            state.clear_batch(np.array([key], np.int32))
            lists[key] = []


@pytest.mark.parametrize("of", [deque, iter, tuple, np.array], ids=["deque", "iterator", "tuple", "array"])
def test_a_list_is_replaced_by_whatever_has_elements(of: Any) -> None:
    """One that was no list was cut as a list is, which Python refuses, in the first batch or once the list was read."""
    batches = Batches(KeyedListState, ListStateDescriptor("list", pa.int64()))
    for _ in range(2):
        batches.state.update(of([1, 2]))
        batches.state.update(of([*batches.state.get(), 3]))
        assert batches.state.get() == [1, 2, 3]
        batches.next()
    batches.state.update(of([*batches.state.get()[1:], 4]))
    batches.next()

    assert batches.state.get() == [2, 3, 4]
