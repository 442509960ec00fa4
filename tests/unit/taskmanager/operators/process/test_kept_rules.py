"""What a function puts into broadcast state, and what it finds there: the same before a restore and after it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import StateError
from snapline.testing import OperatorHarness

ROWS = pa.schema([("k", pa.string())])
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "a map": (pa.map_(pa.string(), pa.int64()), {"a": 1}),
    "a tuple": (pa.list_(pa.int64()), (1, 2)),
    "a float": (pa.float32(), 0.1),
    "a part of a record": (pa.struct([("n", pa.int64()), ("m", pa.int64())]), {"n": 1}),
    "bytes": (pa.binary(), bytearray(b"x")),
}


class Ruled(sl.KeyedBroadcastProcessFunction):
    """For each row what its broadcast state holds; the rule is put in and changed afterwards, where it can be."""

    def __init__(self, state: sl.MapStateDescriptor, key: Any, value: Any) -> None:
        self.state, self.key, self.value = state, key, value

    def process_element(self, row: sl.Row, context: Any) -> list[sl.Row]:
        return [{"rules": repr(dict(context.get_broadcast_state(self.state)))}]

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        context.get_broadcast_state(self.state)[self.key] = self.value
        if isinstance(self.value, dict):
            self.value.clear()


def rules(state: sl.MapStateDescriptor, key: Any, value: Any) -> tuple[str, str]:
    """As a function finds them before a savepoint and after it."""
    ruled = Ruled(state, key, value)
    harness = OperatorHarness(
        lambda rows, rules: rows.key_by("k").connect(rules.broadcast_state(state)).process(ruled), ROWS, ROWS
    )
    [before] = harness.push([{"k": "rule"}], input=1).push([{"k": "a"}]).rows()
    [after] = harness.snapshot().restore(parallelism=2).push([{"k": "a"}]).rows()
    return before["rules"], after["rules"]


@pytest.mark.parametrize("name", VALUES)
def test_a_rule_is_at_once_what_a_restore_gives_back(name: str) -> None:
    """A function that asked a rule of the type of a map for its keys found a list of pairs after the first restart."""
    data_type, value = VALUES[name]
    before, after = rules(sl.MapStateDescriptor("rules", pa.string(), data_type), "x", value)
    assert before == after


def test_the_key_of_a_rule_is_at_once_what_a_restore_gives_back() -> None:
    """A rule under a number that a float32 rounds was found until the first restart, and never again."""
    before, after = rules(sl.MapStateDescriptor("rules", pa.float32(), pa.int64()), 0.1, 1)
    assert before == after


def test_objects_of_a_serializer_are_handed_out_as_they_were_put() -> None:
    """They may hold one another, and nobody but the serializer knows what is kept of them."""
    before, after = rules(sl.MapStateDescriptor("rules", pa.string(), serializer="json"), "x", [1, {"a": 2}])
    assert before == after == "{'x': [1, {'a': 2}]}"


class Counted(sl.KeyedBroadcastProcessFunction):
    """Counts its rules under one key, in all ways in which a dictionary is asked for it."""

    def __init__(self, state: sl.MapStateDescriptor, key: Any) -> None:
        self.state, self.key = state, key

    def process_element(self, row: sl.Row, context: Any) -> list[sl.Row]:
        rules, key = context.get_broadcast_state(self.state), self.key
        return [{"found": [rules[key], rules.get(key, 0), int(key in rules), len(rules)]}]

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        rules, key = context.get_broadcast_state(self.state), self.key
        if row["k"] == "none":
            rules[key] = rules.pop(key)
            del rules[key]
        rules.setdefault(key, 0)
        rules[key] = rules.get(key, 0) + 1


@pytest.mark.parametrize(
    ("key_type", "key"), [(pa.float32(), 0.1), (pa.date32(), dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC))], ids=str
)
def test_a_rule_is_found_under_the_key_that_it_was_put_in_with(key_type: pa.DataType, key: Any) -> None:
    """A count under 0.1 in a column of float32 began anew with each rule, and setdefault failed the job for ever."""
    counted = Counted(sl.MapStateDescriptor("rules", key_type, pa.int64()), key)
    harness = OperatorHarness(
        lambda rows, rules: rows.key_by("k").connect(rules.broadcast_state(counted.state)).process(counted), ROWS, ROWS
    )
    harness.push([{"k": "one"}, {"k": "two"}], input=1)
    assert harness.push([{"k": "a"}]).rows() == [{"found": [2, 2, 1, 1]}]
    again = harness.snapshot().restore(parallelism=2)
    assert again.push([{"k": "three"}], input=1).push([{"k": "a"}]).rows() == [{"found": [3, 3, 1, 1]}]
    assert again.push([{"k": "none"}], input=1).push([{"k": "a"}]).rows() == [{"found": [1, 1, 1, 1]}]


TIMED = pa.schema([("k", pa.string()), ("at", pa.timestamp("ms"))])


class Timed(sl.KeyedBroadcastProcessFunction):
    """Says of its rules when they are from, and where event time is; sets a timer for one."""

    def process_element(self, row: sl.Row, context: Any) -> None:
        return None

    def process_broadcast_element(self, row: sl.Row, context: Any) -> list[sl.Row]:
        times = context.timer_service
        if row["k"] == "timer":
            times.register_event_time_timer(9)
        if row["k"] == "untimed":
            return [{"k": row["k"]}]
        return [{"k": row["k"], "at": context.timestamp_ms, "watermark": times.current_watermark()}]


def test_a_rule_tells_its_event_time_and_the_watermark() -> None:
    """The time of a rule was always None, and whoever asked for the watermark failed; timers are refused as before."""
    state = sl.MapStateDescriptor("rules", pa.string(), pa.int64())
    harness = OperatorHarness(
        lambda rows, rules: rows.key_by("k").connect(rules.broadcast_state(state)).process(Timed()),
        TIMED,
        TIMED,
        event_time="at",
    )
    moments = [dt.datetime.fromtimestamp(second, dt.UTC).replace(tzinfo=None) for second in (5, 7)]
    rules = [{"k": "a", "at": moments[0]}, {"k": "b", "at": moments[1]}]
    assert harness.watermark(4_000).push(rules, input=1).rows() == [
        {"k": "a", "at": 5_000, "watermark": 4_000},
        {"k": "b", "at": 7_000, "watermark": 4_000},
    ]
    assert [row["k"] for row in harness.push([{"k": "untimed", "at": None}], input=1).rows()] == ["untimed"]
    with pytest.raises(StateError, match="process_broadcast_element has no timers"):
        harness.push([{"k": "timer", "at": moments[0]}], input=1)
