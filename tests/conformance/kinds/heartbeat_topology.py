"""Adapter: cases of kind `heartbeat_topology`: who asks whom, and what follows a timeout."""

from __future__ import annotations

from typing import Any

from runtime.heartbeat import LOST_PEER_REACTIONS, LostPeerReaction, Process, active_side

ALIASES = {"TaskManager": "TaskExecutor", "JobManager": "JobMaster"}


def process(name: str) -> Process:
    return Process(ALIASES.get(name, name))


GIVES_UP = ("disconnect", "close", "remove", "unregister", "forget", "release", "fail", "drop")
GOES_BACK = ("reconnect", "connectagain", "registeragain", "reregister", "newconnection", "establish")
WORDS = {
    LostPeerReaction.DISCONNECT_TASK_MANAGER: GIVES_UP,
    LostPeerReaction.DISCONNECT_JOB_MANAGER: GIVES_UP,
    LostPeerReaction.RECONNECT_TO_RESOURCE_MANAGER: GOES_BACK,
    LostPeerReaction.RECONNECT_TO_JOB_MANAGER: (*GIVES_UP, *GOES_BACK),
}
"""How a scenario may call a reaction. A TaskExecutor without its JobMaster does both: it ends the connection, and looks for another."""


def letters(expected: Any) -> str:
    """Everything that is said, whatever its style: `disconnectTaskManager` and `disconnect_task_manager` are one."""
    if isinstance(expected, dict):
        return " ".join(f"{letters(key)} {letters(value)}" for key, value in expected.items() if value is not False)
    if isinstance(expected, list):
        return " ".join(letters(value) for value in expected)
    return "".join(letter for letter in str(expected).lower() if letter.isalnum())


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
            elif not any(word in letters(expected) for word in WORDS[reaction]):
                failures.append(f"case {number} {case}: the reaction is {reaction.value}")
        else:
            failures.append(f"case {number} {case}: unknown op")
    return failures
