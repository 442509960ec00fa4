"""Rules that reach all subtasks of a stream without keys (BroadcastProcessFunction)."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import snapline as sl
from snapline.testing import OperatorHarness

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("ms"))])
RULES = pa.schema([("k", pa.string()), ("factor", pa.int64()), ("at", pa.timestamp("ms"))])
FACTORS = sl.MapStateDescriptor("factors", pa.string(), pa.int64())
AT_FIVE = dt.datetime(1970, 1, 1, 0, 0, 5)  # noqa: DTZ001


class Multiplied(sl.BroadcastProcessFunction):
    """Multiplies numbers by the factor of their text, and puts those without one aside."""

    def process_element(self, row: sl.Row, context: sl.BroadcastContext) -> list[sl.Row]:
        factors = context.get_broadcast_state(FACTORS)
        if row["k"] == "write":
            factors["a"] = 1
        if row["k"] == "timer":
            context.timer_service.register_event_time_timer(9)
        if row["k"] not in factors:
            context.output("unknown", {"k": row["k"]})
            return []
        return [{"n": row["n"] * factors[row["k"]], "at": context.timestamp_ms}]

    def process_broadcast_element(self, row: sl.Row, context: sl.BroadcastContext) -> list[sl.Row]:
        if row["k"] == "timer":
            context.timer_service.register_event_time_timer(9)
        context.get_broadcast_state(FACTORS)[row["k"]] = row["factor"]
        return [{"n": context.timer_service.current_watermark(), "at": context.timestamp_ms}]


def harness() -> OperatorHarness:
    return OperatorHarness(
        lambda rows, rules: rows.connect(rules.broadcast_state(FACTORS)).process(Multiplied()),
        ROWS,
        RULES,
        event_time="at",
    )


def row(key: str, number: int = 2) -> sl.Row:
    return {"k": key, "n": number, "at": AT_FIVE}


def rule(key: str, factor: int) -> sl.Row:
    return {"k": key, "factor": factor, "at": AT_FIVE}


def test_rows_follow_the_rules_that_came_before_them() -> None:
    """Both know their event time; a rule gives rows as well, and the last one of a key counts."""
    made = harness()
    assert made.push([row("a")]).side_rows("unknown") == [{"k": "a"}]
    assert made.watermark(3_000).push([rule("a", 10)], input=1).rows() == [{"n": 3_000, "at": 5_000}]
    assert made.push([row("a", 2), row("a", 3)]).rows() == [{"n": 20, "at": 5_000}, {"n": 30, "at": 5_000}]
    made.push([rule("a", 7)], input=1)
    assert made.push([row("a")]).rows()[-1] == {"n": 14, "at": 5_000}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rules_survive_a_restore_at_any_parallelism(parallelism: int) -> None:
    """Each subtask has all of them."""
    made = harness().push([rule("a", 10), rule("b", 20)], input=1)
    again = made.snapshot().restore(parallelism=parallelism)
    found = again.push([row("a"), row("b"), row("a"), row("b")]).rows()
    assert sorted(one["n"] for one in found) == [20, 20, 40, 40]


def test_rows_cannot_change_rules_and_nobody_sets_timers() -> None:
    """There is no key, so that a timer would be nobody's; rules would differ from subtask to subtask."""
    made = harness()
    with pytest.raises(TypeError, match="does not support item assignment"):
        made.push([row("write")])
    with pytest.raises(sl.JobDefinitionError, match="sets a timer, but its input is not keyed"):
        harness().push([row("timer")])
    with pytest.raises(sl.StateError, match="process_broadcast_element has no timers"):
        harness().push([rule("timer", 1)], input=1)


def test_a_job_with_rules_and_without_keys_runs() -> None:
    """What is at first without a rule is a side output of the whole job."""
    env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    rules = env.from_collection([{"k": "a", "factor": 10}], uid="rules").broadcast_state(FACTORS)
    numbers = env.from_collection([{"k": "b", "n": n} for n in range(5)], uid="numbers")
    multiplied = numbers.connect(rules).process(Multiplied(), uid="multiplied")
    unknown = multiplied.get_side_output("unknown", pa.schema([("k", pa.string())]))
    assert list(unknown.execute_and_collect(local=True)) == [{"k": "b"}] * 5
