"""The reference: keyed state as dictionaries, and random programs over it, one row at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from snapline.dataflow.api.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace
from snapline.taskmanager.state.outside.spilling_backend import SpillingKeyedStateBackend

MAX_PARALLELISM = 16
ALL = KeyGroupRange(0, MAX_PARALLELISM - 1)


class MeanOf(AggregateFunction):
    """A mean over (count, sum) kept as JSON."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + 1, accumulator[1] + value]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[1] / accumulator[0]


NUMBER = ValueStateDescriptor("number", pa.int64())
TEXT = ValueStateDescriptor("text", pa.string())
DOCUMENT = ValueStateDescriptor("document", serializer="json")
NUMBERS = ListStateDescriptor("numbers", pa.int32())
TEXTS = MapStateDescriptor("texts", pa.string(), pa.string())
BY_NUMBER = MapStateDescriptor("by number", pa.int64(), serializer="json")
HIGHEST = ReducingStateDescriptor("highest", max, pa.int64())
MEAN = AggregatingStateDescriptor("mean", MeanOf(), serializer="json")

numbers = st.integers(-5, 5)
texts = st.sampled_from(["", "a", "b", "cc"])
OPERATIONS = st.one_of(
    st.tuples(
        st.sampled_from(["number.update", "numbers.add", "highest.add", "mean.add", "timer.set", "timer.drop"]), numbers
    ),
    st.tuples(st.just("text.update"), texts),
    st.tuples(st.just("document.update"), st.one_of(st.none(), st.lists(numbers, max_size=2))),
    st.tuples(st.just("numbers.update"), st.lists(numbers, max_size=3)),
    st.tuples(st.just("texts.put"), st.tuples(texts, st.one_of(st.none(), texts))),
    st.tuples(st.just("texts.remove"), texts),
    st.tuples(st.just("by number.put"), st.tuples(numbers, numbers)),
    st.tuples(st.just("by number.remove"), numbers),
    st.tuples(
        st.sampled_from(
            [
                "number.clear",
                "text.clear",
                "numbers.clear",
                "texts.clear",
                "by number.clear",
                "highest.clear",
                "mean.clear",
            ]
        ),
        st.none(),
    ),
    st.tuples(st.just("look"), st.none()),
)
"""What a row does. Reading is an operation of its own, so that state is also written without having been loaded."""
MEMORY = st.sampled_from([None, 0, 900, 1 << 20])
"""Of the backend: no limit, one key at a time, a few keys, enough for all."""
KEYS = st.one_of(st.none(), st.sampled_from(["x", "y", "", "zz"]), st.text(max_size=3))
Row = tuple[Any, tuple[str, Any]]
ROWS = st.lists(st.tuples(KEYS, OPERATIONS), max_size=25)


@dataclass
class Naive:
    """All state of one key, in plain Python."""

    number: int | None = None
    text: str | None = None
    document: Any = None
    numbers: list[int] = field(default_factory=list)
    texts: dict[str, Any] = field(default_factory=dict)
    by_number: dict[int, int] = field(default_factory=dict)
    highest: int | None = None
    mean: list[int] = field(default_factory=lambda: [0, 0])
    timers: set[int] = field(default_factory=set)

    def apply(self, operation: str, value: Any) -> Any:
        match operation:
            case "number.update" | "text.update" | "document.update":
                setattr(self, operation.split(".")[0], value)
            case "numbers.add":
                self.numbers.append(value)
            case "numbers.update":
                self.numbers = list(value)
            case "texts.put":
                self.texts[value[0]] = value[1]
            case "texts.remove":
                self.texts.pop(value, None)
            case "by number.put":
                self.by_number[value[0]] = value[1]
            case "by number.remove":
                self.by_number.pop(value, None)
            case "highest.add":
                self.highest = value if self.highest is None else max(self.highest, value)
            case "mean.add":
                self.mean = [self.mean[0] + 1, self.mean[1] + value]
            case "timer.set":
                self.timers.add(value)
            case "timer.drop":
                self.timers.discard(value)
            case "look":
                return self.look()
            case _:
                name = operation.split(".")[0].replace(" ", "_")
                setattr(self, name, getattr(Naive(), name))
        return None

    def look(self) -> tuple[Any, ...]:
        """Everything but the timers, which nobody can ask for."""
        return (
            self.number,
            self.text,
            self.document,
            list(self.numbers),
            dict(self.texts),
            dict(self.by_number),
            self.highest,
            self.mean[1] / self.mean[0] if self.mean[0] else None,
        )

    @property
    def is_empty(self) -> bool:
        return self == Naive()


class Subject:
    """The backend under test behind the same operations."""

    def __init__(
        self,
        key_group_range: KeyGroupRange = ALL,
        max_parallelism: int = MAX_PARALLELISM,
        memory_bytes: int | None = None,
    ) -> None:
        """`memory_bytes`: of the backend that keeps no more than that in memory; None: the one that keeps all."""
        schema = pa.schema([("key", pa.string())])
        self.backend = KeyedStateBackend(schema, key_group_range, max_parallelism)
        if memory_bytes is not None:
            self.backend = SpillingKeyedStateBackend(
                schema, key_group_range, max_parallelism, MemorySegmentSpace(), memory_bytes
            )

    def claim(self) -> None:
        """Ask for the states, as an operator does when it opens (after a restore)."""
        backend = self.backend
        self.number = backend.get_state(NUMBER)
        self.text = backend.get_state(TEXT)
        self.document = backend.get_state(DOCUMENT)
        self.numbers = backend.get_list_state(NUMBERS)
        self.texts = backend.get_map_state(TEXTS)
        self.by_number = backend.get_map_state(BY_NUMBER)
        self.highest = backend.get_reducing_state(HIGHEST)
        self.mean = backend.get_aggregating_state(MEAN)
        self.timers = backend.get_timers()

    def process(self, rows: list[Row]) -> list[Any]:
        """One batch, row by row."""
        column = pa.array([key for key, _ in rows], pa.string())
        numbers = self.backend.begin_batch(self.backend.slots([column]))
        results = []
        for number, (key, (operation, value)) in zip(numbers, rows, strict=True):
            self.backend.scope.index = number
            assert self.backend.current_key == key
            results.append(self.apply(operation, value))
        self.backend.end_batch()
        return results

    def apply(self, operation: str, value: Any) -> Any:
        if operation == "look":
            return self.look()
        if operation == "timer.set":
            return self.timers.register_event_time_timer(value)
        if operation == "timer.drop":
            return self.timers.delete_event_time_timer(value)
        name, verb = operation.split(".")
        method = getattr(getattr(self, name.replace(" ", "_")), verb)
        if verb == "clear":
            return method()
        return method(*value) if verb == "put" else method(value)

    def look(self) -> tuple[Any, ...]:
        texts = dict(self.texts.items())
        assert self.texts.is_empty() == (not texts)
        assert sorted(self.texts.keys()) == sorted(texts)
        assert all(self.texts.contains(key) and self.texts.get(key) == value for key, value in texts.items())
        return (
            self.number.value(),
            self.text.value(),
            self.document.value(),
            self.numbers.get(),
            texts,
            dict(self.by_number.items()),
            self.highest.get(),
            self.mean.get(),
        )

    def everything(self, keys: list[Any]) -> dict[Any, tuple[Any, ...]]:
        """What is known of these keys."""
        looks = self.process([(key, ("look", None)) for key in keys])
        return dict(zip(keys, looks, strict=True))

    def pending_timers(self) -> set[tuple[Any, int]]:
        """(key, timestamp) of all timers; they are gone afterwards."""
        fired = self.timers.event.advance(2**62, 10_000)
        keys = self.backend.keys(fired.slots)[0].to_pylist()
        return set(zip(keys, fired.timestamps.tolist(), strict=True))


def run_naive(rows: list[Row], states: dict[Any, Naive]) -> list[Any]:
    return [states.setdefault(key, Naive()).apply(*operation) for key, operation in rows]
