"""The adapters compare: what a scenario states wrongly fails, and what no adapter would look at is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.format import CASES, STEPS
from tests.conformance.replay import Scenario, replay
from tests.conformance.test_scenarios import SCENARIOS
from tests.unit.taskmanager.task.local_job import Gates

FREE = {
    ("barrier_handler", "may_abort"): "either will do",
    ("key_groups", "not_contains"): "another group that is outside is right as well",
    ("two_phase_commit", "warnings"): "tested below: the numbers are binding, not the words",
}


def wrong(value: Any) -> Any:
    """Something else of the same form."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dict) and value:
        last = list(value)[-1]
        return {**value, last: wrong(value[last])}
    if isinstance(value, list) and value:
        return [*value[:-1], wrong(value[-1])]
    if isinstance(value, str):
        return f"{value}x"
    return [4711] if isinstance(value, list) else {"x": 1} if isinstance(value, dict) else 4711


def stated() -> Iterator[tuple[str, str, int, Scenario]]:
    """Where each expectation of each kind is stated first: (kind, key, step or case, scenario)."""
    seen = set()
    for scenario in SCENARIOS:
        kind = scenario["kind"]
        if kind in ("pipeline", "heartbeat_topology", "operator_state"):  # prose; or only sums are binding
            continue
        for number, step in enumerate(scenario.get("steps") or scenario["cases"]):
            for key in step.get("expect") or {}:
                if (kind, key) not in seen and (kind, key) not in FREE:
                    seen.add((kind, key))
                    yield kind, key, number, scenario


@pytest.mark.parametrize(
    ("number", "scenario", "key"),
    [pytest.param(number, scenario, key, id=f"{kind}-{key}") for kind, key, number, scenario in stated()],
)
def test_a_wrong_expectation_fails(number: int, scenario: Scenario, key: str) -> None:
    """Each key of each kind is compared with what the core did."""
    changed = copy.deepcopy(scenario)
    changed.pop("final", None)
    expect = (changed.get("steps") or changed["cases"])[number]["expect"]
    expect[key] = wrong(expect[key])

    failures = replay(changed).failures

    assert failures, f"{scenario['id']}: {key} may be {expect[key]!r} as well"
    assert any(failure.startswith(f"step {number}:") for failure in failures), failures


def test_every_kind_is_covered() -> None:
    """No kind of the format is without a scenario."""
    assert {scenario["kind"] for scenario in SCENARIOS} == STEPS.keys() | CASES.keys()


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"kind": "stats", "config": {"size": 1}, "steps": [{"pending": 1}]}, "config has keys .*: size"),
        ({"kind": "stats", "steps": [{"begin": 1}]}, "step 0: the step has keys .*: begin"),
        ({"kind": "stats", "steps": [{"pending": 1, "complete": 1}]}, "step 0: expected exactly one operation"),
        ({"kind": "stats", "steps": [{"pending": 1, "expect": {"total": 1}}]}, "step 0: expect has keys .*: total"),
        ({"kind": "stats", "steps": [{"pending": 1}], "final": {"counts": {}}}, "final has keys .*: counts"),
        ({"kind": "stats", "step": [{"pending": 1}]}, "the scenario has keys .*: step"),
        ({"kind": "stats", "steps": []}, "expected steps, got none"),
        ({"kind": "key_groups"}, "expected cases, got none"),
        ({"kind": "key_groups", "cases": [{"op": "sizes"}]}, "step 0: op: expected one of .*, got 'sizes'"),
        (
            {"kind": "key_groups", "cases": [{"op": "range", "start": 1, "first": 1, "last": 2, "expect": {}}]},
            "step 0: the case has keys .*: start",
        ),
        (
            {"kind": "key_groups", "cases": [{"op": "range", "first": 1, "last": 2, "expect": {"length": 2}}]},
            "step 0: length: expected 2, got .nothing of that name",
        ),
        ({"kind": "heartbeat", "config": {"role": "both", "timeout_ms": 1}, "steps": [{"stop": True}]}, "'both'"),
        ({"kind": "coordinator", "config": {"tasks": []}, "steps": [{"job_status": "LOST"}]}, "expected False, got True"),
        (
            {"kind": "barrier_handler", "config": {"handler": "tracker", "channels": 1, "mailbox": "later"},
             "steps": [{"drain": True}]},
            "mailbox 'later'",
        ),
        (
            {"kind": "channel_state", "cases": [{"op": "subtask_mapping", "mapper": "unsupported", "old": 3, "new": 2,
                                                 "expect": {"error": False}}]},
            "step 0: error: expected False, got 'data in flight cannot be restored",
        ),
        (
            {"kind": "pipeline", "cases": [{"op": "invariants", "expect": {"speed": "a million rows a second"}}]},
            "step 0: speed: expected 'a million rows a second', got 'nothing: no job here shows that'",
        ),
        (
            {"kind": "operator_state", "cases": [{"op": "redistribute", "compare": "balanced", "new_parallelism": 1,
                                                  "old": [{"s": {"mode": "split", "parts": ["a"]}}] * 2,
                                                  "expect": {"subtasks": [{}, {}]}}]},
            "zip",
        ),
    ],
)  # fmt: skip
def test_what_no_adapter_looks_at_is_refused(scenario: Scenario, message: str) -> None:
    """A key, an operation or a value that the format does not have is named, not passed over."""
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(replay({"id": "strange", **scenario}).failures))


@pytest.mark.parametrize(
    ("observer", "lost", "expect", "message"),
    [
        ("JobMaster", "TaskExecutor", {"action": "reconnect"}, "reconnect is not what disconnect_task_manager does"),
        ("ResourceManager", "JobMaster", {"calls": ["failTasks"]}, "fail is not what disconnect_job_manager does"),
        ("ResourceManager", "JobMaster", {"action": "disconnectTaskManager"}, "taskmanager is neither"),
        ("TaskExecutor", "JobMaster", {"action": "nothing"}, "nothing of reconnect_to_job_manager"),
    ],
)
def test_reactions_are_taken_at_their_word(observer: str, lost: str, expect: dict[str, Any], message: str) -> None:
    """A deed that the observer does not do is a failure, whatever else is right."""
    case = {"op": "lost_peer", "observer": observer, "lost": lost, "expect": expect}

    (failure,) = replay({"id": "x", "kind": "heartbeat_topology", "cases": [case]}).failures

    assert message in failure


@pytest.mark.parametrize(
    ("warnings", "is_right"),
    [
        (1, True),
        (True, True),
        (["open for 502 of 1000 ms"], True),
        ([{"tx": 1, "elapsed_ms": 502}], True),
        (["open for 503 of 1000 ms"], False),
        ([1, 2], False),
        (2, False),
        (False, False),
        ([], False),
    ],
)
def test_warnings_say_all_numbers(warnings: Any, is_right: bool) -> None:
    """How it is worded is free; which transaction, for how long, and how many warnings is not."""
    steps = [
        *({"clock": 0}, {"open": True}, {"write": "a"}, {"snapshot": 0}, {"clock": 502}),
        {"notify_complete": 0, "expect": {"warnings": warnings}},
    ]
    config = {"transaction_timeout_ms": 1000, "warning_ratio": 0.5}

    failures = replay({"id": "x", "kind": "two_phase_commit", "config": config, "steps": steps}).failures

    assert (failures == ()) is is_right


def test_a_job_does_not_see_what_another_test_has_left() -> None:
    """The sources of these jobs wait at gates that the whole process shares: a scenario begins with all of them
    closed."""
    Gates.opened.add("s0")
    scenario = next(
        scenario for scenario in SCENARIOS if scenario["id"] == "pipeline-chained-source-sink-in-flight-record"
    )

    assert replay(scenario).failures == ()


def test_a_star_is_unchecked_until_it_is_stated_again() -> None:
    """Then, and only then, it counts."""
    steps: list[dict[str, Any]] = [
        {"trigger": {"as": "r1"}, "expect": {"sent": "*", "pending": "*", "requests": {"r1": "pending"}}},
        {"ack": {"cp": 1, "task": "T1"}, "expect": {"requests": {"r1": "completed"}, "retained": [1]}},
        {"trigger": {"as": "r2"}, "expect": {"requests": {"r2": "pending"}, "pending": [2], "sent": {}}},
    ]

    failures = replay({"id": "x", "kind": "coordinator", "config": {"tasks": [{"id": "T1"}]}, "steps": steps}).failures

    assert failures == ("step 2: sent: expected {}, got {'trigger': {2: ['T1']}}",)
