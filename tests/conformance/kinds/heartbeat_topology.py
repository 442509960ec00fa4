"""Adapter: cases of kind `heartbeat_topology`: who asks whom, and what follows a timeout."""

from __future__ import annotations

from typing import Any

from runtime.heartbeat import LOST_PEER_REACTIONS, Process, active_side

ALIASES = {"TaskManager": "TaskExecutor", "JobManager": "JobMaster"}


def process(name: str) -> Process:
    return Process(ALIASES.get(name, name))


def words(text: Any) -> set[str]:
    """The letters of a name, whatever its style: `disconnectTaskManager` and `disconnect_task_manager` are one."""
    return {"".join(letter for letter in str(text).lower() if letter.isalnum())}


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines; empty when the tables of runtime.heartbeat say the same."""
    failures: list[str] = []
    for number, case in enumerate(scenario["cases"], 1):
        expected = case["expect"]
        if case["op"] == "pair":
            one, other = case["peers"]
            got = active_side(process(one), process(other))
            if got is not process(expected["active"]):
                failures.append(f"case {number} {case}: active is {got.value}")
        elif case["op"] == "lost_peer":
            reaction = LOST_PEER_REACTIONS.get((process(case["observer"]), process(case["lost"])))
            if reaction is None:
                failures.append(f"case {number} {case}: no reaction is known")
            elif not any(words(value) == words(reaction.value) for value in expected.values()):
                failures.append(f"case {number} {case}: the reaction is {reaction.value}")
        else:
            failures.append(f"case {number} {case}: unknown op")
    return failures
