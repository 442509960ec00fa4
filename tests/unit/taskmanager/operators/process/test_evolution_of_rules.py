"""Broadcast state that a job declares otherwise than its snapshot: taken over by column as keyed state is, or refused
when the task starts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.testing import OperatorHarness

ROWS = pa.schema([("k", pa.string())])
RULES = pa.schema([("rule", pa.int32()), ("n", pa.int32())])
NUMBERS = sl.MapStateDescriptor("rules", pa.int32(), pa.int32())
RECORDS = sl.MapStateDescriptor("rules", pa.int32(), pa.struct([("n", pa.int32())]))


class Shown(sl.KeyedBroadcastProcessFunction):
    """For each row what its broadcast state holds."""

    def __init__(self, state: sl.MapStateDescriptor) -> None:
        self.state = state

    def process_element(self, row: sl.Row, context: Any) -> list[sl.Row]:
        return [{"rules": str(dict(context.get_broadcast_state(self.state)))}]

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        value = row["n"] if pa.types.is_integer(self.state.value_type) else {"n": row["n"]}
        context.get_broadcast_state(self.state)[row["rule"]] = value


def harness(state: sl.MapStateDescriptor, **arguments: Any) -> OperatorHarness:
    return OperatorHarness(
        lambda rows, rules: rows.key_by("k").connect(rules.broadcast_state(state)).process(Shown(state), uid="shown"),
        ROWS,
        RULES,
        **arguments,
    )


def restored(before: sl.MapStateDescriptor, after: sl.MapStateDescriptor, *, drop: bool = False) -> str:
    """What a function finds that declares the state otherwise; the next snapshot works as well."""
    snapshot = harness(before).push([{"rule": 1, "n": 5}, {"rule": None, "n": None}], input=1).snapshot()
    settings = {DROP_STATE_COLUMNS.key: str(drop).lower()}
    started = harness(after, restore_from=snapshot, parallelism=2, configuration=settings)
    [shown] = started.push([{"k": "a"}]).rows()
    started.snapshot()
    return str(shown["rules"])


WIDER = pa.struct([("n", pa.int64()), sl.with_default(pa.field("tier", pa.string()), "basic")])


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (NUMBERS, sl.MapStateDescriptor("rules", pa.int64(), pa.int64()), "{1: 5, None: None}"),
        (NUMBERS, sl.MapStateDescriptor("rules", pa.int32(), pa.float64()), "{1: 5.0, None: None}"),
        (
            RECORDS,
            sl.MapStateDescriptor("rules", pa.int32(), WIDER),
            "{1: {'n': 5, 'tier': 'basic'}, None: {'n': None, 'tier': 'basic'}}",
        ),
        (
            NUMBERS,
            sl.MapStateDescriptor("rules", pa.int32(), pa.string(), migrate=lambda old: pc.cast(old, pa.string())),
            "{1: '5', None: None}",
        ),
        (NUMBERS, sl.MapStateDescriptor("others", pa.int32(), pa.string()), "{}"),
    ],
)
def test_rules_become_what_is_declared_now(
    before: sl.MapStateDescriptor, after: sl.MapStateDescriptor, found: str
) -> None:
    """Wider types, more columns, a function of the user's; a state of another name starts empty."""
    assert restored(before, after) == found


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (NUMBERS, sl.MapStateDescriptor("rules", pa.int32(), pa.string()), "column 'rules' is int32 in the snapshot"),
        (NUMBERS, sl.MapStateDescriptor("rules", pa.string(), pa.int32()), r"column 'rules \(key\)' is int32 in the"),
        (NUMBERS, sl.MapStateDescriptor("rules", pa.int32(), serializer="json"), "is written as int32"),
        (sl.MapStateDescriptor("rules", pa.int32(), WIDER), RECORDS, "column 'rules.tier' .* not in the job any more"),
    ],
)
def test_rules_that_cannot_be_what_is_declared_are_refused(
    before: sl.MapStateDescriptor, after: sl.MapStateDescriptor, problem: str
) -> None:
    """When the task starts: a function was handed values of the old type, and each checkpoint failed."""
    with pytest.raises(sl.StateError, match=f"broadcast state 'rules': .*{problem}"):
        restored(before, after)


def test_columns_of_rules_are_dropped_with_leave() -> None:
    """The setting that lets columns of keyed state go lets these go as well."""
    before = sl.MapStateDescriptor("rules", pa.int32(), pa.struct([("n", pa.int32()), ("tier", pa.string())]))
    assert restored(before, RECORDS, drop=True) == "{1: {'n': 5}, None: {'n': None}}"
