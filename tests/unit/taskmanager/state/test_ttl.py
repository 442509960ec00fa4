"""Time-to-live: every kind of state against dictionaries with times, clean-up, snapshots, and what cannot be."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    descriptor_of,
)
from snapline.dataflow.api.state_ttl import StateTtlConfig, TtlError, TtlUpdate
from snapline.dataflow.errors import StateError
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM, MeanOf
from tests.unit.taskmanager.state.test_keyed_backend import StoredFile, snapshot_of

TTL_MS = 100


def ttl(update: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE, ms: int = TTL_MS) -> StateTtlConfig:
    return StateTtlConfig(dt.timedelta(milliseconds=ms), update)


class Subject:
    """One state of each kind, and a clock in the test's hands."""

    def __init__(self, config: StateTtlConfig) -> None:
        self.now = 0
        self.backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
        self.backend.scope.now_ms = lambda: self.now
        self.config = config

    def claim(self) -> None:
        backend, config = self.backend, self.config
        self.value = backend.get_state(ValueStateDescriptor("value", pa.string(), ttl=config))
        self.document = backend.get_state(ValueStateDescriptor("document", serializer="json", ttl=config))
        self.list = backend.get_list_state(ListStateDescriptor("list", pa.int64(), ttl=config))
        self.map = backend.get_map_state(MapStateDescriptor("map", pa.string(), pa.float64(), ttl=config))
        self.most = backend.get_reducing_state(ReducingStateDescriptor("most", max, pa.int64(), ttl=config))
        self.mean = backend.get_aggregating_state(
            AggregatingStateDescriptor("mean", MeanOf(), serializer="json", ttl=config)
        )

    def run(self, rows: list[tuple[int, str, int]]) -> list[Any]:
        numbers = self.backend.begin_batch(self.backend.slots([pa.array([key for key, _, _ in rows], pa.int64())]))
        results = []
        for number, (_, operation, value) in zip(numbers, rows, strict=True):
            self.backend.scope.index = number
            results.append(self.apply(operation, value))
        self.backend.end_batch()
        return results

    def apply(self, operation: str, value: int) -> Any:
        match operation:
            case "value":
                return self.value.update(str(value))
            case "document":
                return self.document.update([value])
            case "list":
                return self.list.add(value)
            case "map":
                return self.map.put(str(value), None if value == 0 else value / 2)
            case "map.remove":
                return self.map.remove(str(value))
            case "most":
                return self.most.add(value)
            case "mean":
                return self.mean.add(value)
            case "map.get":
                return self.map.contains(str(value)), self.map.get(str(value))
            case "clear":
                self.value.clear()
                self.list.clear()
                return None
            case _:
                return (
                    self.value.value(),
                    self.document.value(),
                    self.list.get(),
                    dict(self.map.items()),
                    self.most.get(),
                    self.mean.get(),
                )


@dataclass
class Naive:
    """One key: values with the time when they were touched."""

    config: StateTtlConfig
    single: dict[str, tuple[Any, int]] = field(default_factory=dict)
    list: list[tuple[int, int]] = field(default_factory=list)
    map: dict[str, tuple[Any, int]] = field(default_factory=dict)

    def apply(self, operation: str, value: int, now: int) -> Any:
        ms, renews = self.config.ttl_ms, self.config.renews_on_read
        self.single = {name: kept for name, kept in self.single.items() if kept[1] + ms > now}
        self.map = {name: kept for name, kept in self.map.items() if kept[1] + ms > now}
        self.list = [kept for kept in self.list if kept[1] + ms > now]
        old = {name: kept[0] for name, kept in self.single.items()}
        match operation:
            case "value":
                self.single["value"] = (str(value), now)
            case "document":
                self.single["document"] = ([value], now)
            case "list":
                self.list.append((value, now))
            case "map":
                self.map[str(value)] = (None if value == 0 else value / 2, now)
            case "map.remove":
                self.map.pop(str(value), None)
            case "most":
                self.single["most"] = (max(old.get("most", value), value), now)
            case "mean":
                count, total = old.get("mean", (0, 0))
                self.single["mean"] = ((count + 1, total + value), now)
            case "map.get":
                found = self.map.get(str(value))
                if found is not None and renews:
                    self.map[str(value)] = (found[0], now)
                return found is not None, None if found is None else found[0]
            case "clear":
                self.single.pop("value", None)
                self.list.clear()
            case _:
                if renews:
                    self.single = {name: (kept[0], now) for name, kept in self.single.items()}
                    self.map = {name: (kept[0], now) for name, kept in self.map.items()}
                    self.list = [(kept[0], now) for kept in self.list]
                mean = old.get("mean")
                return (
                    old.get("value"),
                    old.get("document"),
                    [kept[0] for kept in self.list],
                    {name: kept[0] for name, kept in self.map.items()},
                    old.get("most"),
                    None if mean is None else mean[1] / mean[0],
                )
        return None


OPERATIONS = ["value", "document", "list", "map", "map.remove", "most", "mean", "map.get", "clear", "look", "look"]
ROWS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(OPERATIONS), st.integers(0, 3)), min_size=1, max_size=15)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(TtlUpdate),
    st.lists(st.tuples(st.sampled_from([0, 1, 40, 99, 100, 250]), ROWS), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_states_against_dictionaries_with_times(update: TtlUpdate, batches: list[Any], restore_at: int) -> None:
    """Whatever is written and read when, a restore in between included."""
    subject, states = Subject(ttl(update)), {key: Naive(ttl(update)) for key in range(3)}
    subject.claim()
    for number, (pause, rows) in enumerate(batches):
        if number == restore_at:
            data = snapshot_of(subject.backend)
            now, subject = subject.now, Subject(ttl(update))
            subject.now = now
            subject.backend.restore([StoredFile(data)])
            subject.claim()
        subject.now += pause
        expected = [states[key].apply(operation, value, subject.now) for key, operation, value in rows]

        assert expected == subject.run(rows)


def test_what_has_expired_goes_without_being_asked_for() -> None:
    """Keys that nobody comes back to leave nothing behind, and incremental snapshots say so."""
    subject = Subject(ttl())
    subject.claim()
    chain = subject.backend.incremental_snapshots("op")
    operations = ["value", "document", "list", "map", "most", "mean"]
    subject.run([(key, operation, 1) for key in range(50) for operation in operations])
    subject.now = 50
    subject.run([(99, operation, 1) for operation in operations])
    (first,) = chain.snapshot(1)
    base = first.stored(ByteStreamStateHandle(bytes(first.encode())))
    chain.completed(1)
    subject.now = TTL_MS + 10
    subject.run([(100, "value", 1)])
    subject.run([(100, "value", 1)])
    assert 2 == subject.backend._occupied().sum()

    (delta,) = chain.snapshot(2)
    files = [StoredFile(base.handle.data), StoredFile(bytes(delta.encode()))]  # type: ignore[union-attr]
    restored = Subject(ttl())
    restored.now = 50  # a clock that goes back does not bring anything back
    restored.backend.restore(files)
    restored.claim()
    assert 2 == restored.backend._occupied().sum()


def test_a_new_time_to_live_counts_for_what_is_there() -> None:
    """The configuration of the job that restores is the one that counts."""
    subject = Subject(ttl())
    subject.claim()
    subject.run([(1, "value", 7)])
    longer = Subject(ttl(ms=10 * TTL_MS))
    longer.now = 5 * TTL_MS
    longer.backend.restore([StoredFile(snapshot_of(subject.backend))])
    longer.claim()

    assert "7" == longer.run([(1, "look", 0)])[0][0]


def test_the_field_in_a_snapshot_says_how_long_values_live() -> None:
    """And gives the descriptor back, without the functions."""
    for descriptor in (
        ValueStateDescriptor("v", pa.int64(), ttl=ttl()),
        ListStateDescriptor("l", serializer="json", ttl=ttl(TtlUpdate.ON_READ_AND_WRITE)),
        MapStateDescriptor("m", pa.string(), pa.schema([("a", pa.int8())]), ttl=ttl()),
    ):
        read = descriptor_of(descriptor.to_field())
        assert (descriptor.ttl, descriptor.storage_type) == (read.ttl, read.storage_type)


@pytest.mark.parametrize("wrong", [dt.timedelta(0), dt.timedelta(seconds=-1), 5, "1 h"])
def test_a_time_that_is_none_is_refused(wrong: Any) -> None:
    """With an example of one that is."""
    with pytest.raises(TtlError, match=r"StateTtlConfig\(timedelta\(hours=1\)\)"):
        StateTtlConfig(wrong)


def test_a_state_with_and_one_without_are_not_the_same() -> None:
    """Values without times cannot be given one."""
    subject = Subject(ttl())
    subject.backend.get_state(ValueStateDescriptor("value", pa.string()))
    with pytest.raises(StateError, match="'value'"):
        subject.claim()


def test_without_a_clock_nothing_can_expire() -> None:
    """An operator that has none says so at once."""
    backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
    with pytest.raises(StateError, match="no clock"):
        backend.get_state(ValueStateDescriptor("value", pa.string(), ttl=ttl()))
