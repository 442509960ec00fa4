"""What a function puts into broadcast state, and what it finds there: the same before a restore and after it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.testing import OperatorHarness

ROWS = pa.schema([("k", pa.string())])
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "a map": (pa.map_(pa.string(), pa.int64()), {"a": 1}),
    "a tuple": (pa.list_(pa.int64()), (1, 2)),
    "a float": (pa.float32(), 0.1),
    "a part of a record": (pa.struct([("n", pa.int64()), ("m", pa.int64())]), {"n": 1, "other": 2}),
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
