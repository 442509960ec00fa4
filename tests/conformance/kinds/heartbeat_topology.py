"""Adapter: cases of kind `heartbeat_topology`: who asks whom, and what follows a timeout.

How a reaction is worded is not fixed, so what is said is taken word by word: every deed that is named must be one that
the observer does, every process that is named must be one of the pair, and at least one deed must be named.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from tests.conformance.replay import difference


class Process(Enum):
    """The three processes that watch each other."""

    RESOURCE_MANAGER = "ResourceManager"
    JOB_MASTER = "JobMaster"
    TASK_EXECUTOR = "TaskExecutor"


class LostPeerReaction(Enum):
    """What a process does when a peer's heartbeat timed out."""

    DISCONNECT_TASK_MANAGER = "disconnect_task_manager"
    """Remove its slots, fail what ran in them."""
    DISCONNECT_JOB_MANAGER = "disconnect_job_manager"
    """Forget its registration; it registers again when it still lives."""
    RECONNECT_TO_RESOURCE_MANAGER = "reconnect_to_resource_manager"
    """Close the connection and register again."""
    RECONNECT_TO_JOB_MANAGER = "reconnect_to_job_manager"
    """Close the connection, look for a leader; fail the job's tasks when none comes back in time."""


LOST_PEER_REACTIONS: dict[tuple[Process, Process], LostPeerReaction] = {
    (Process.RESOURCE_MANAGER, Process.TASK_EXECUTOR): LostPeerReaction.DISCONNECT_TASK_MANAGER,
    (Process.RESOURCE_MANAGER, Process.JOB_MASTER): LostPeerReaction.DISCONNECT_JOB_MANAGER,
    (Process.JOB_MASTER, Process.TASK_EXECUTOR): LostPeerReaction.DISCONNECT_TASK_MANAGER,
    (Process.JOB_MASTER, Process.RESOURCE_MANAGER): LostPeerReaction.RECONNECT_TO_RESOURCE_MANAGER,
    (Process.TASK_EXECUTOR, Process.RESOURCE_MANAGER): LostPeerReaction.RECONNECT_TO_RESOURCE_MANAGER,
    (Process.TASK_EXECUTOR, Process.JOB_MASTER): LostPeerReaction.RECONNECT_TO_JOB_MANAGER,
}
"""What a process (first) does when it has lost another (second). The cores' own tests show that each does so."""


def active_side(one: Process, other: Process) -> Process:
    """Which of two processes sends heartbeat requests: the ResourceManager to both others, the JobMaster to
    TaskExecutors."""
    for process in (Process.RESOURCE_MANAGER, Process.JOB_MASTER):
        if process in (one, other) and one is not other:
            return process
    raise ValueError(f"{one.value} and {other.value} do not watch each other")


ALIASES = {"TaskManager": "TaskExecutor", "JobManager": "JobMaster"}

GIVES_UP = ("disconnect", "close", "unmonitor", "remove", "unregister", "forget", "drop", "deregister", "abandon")
FREES = ("release", "freeslot", "freesslot", "freeitsslot", "freeall")
FAILS = ("fail",)
GOES_BACK = (
    "reconnect",
    "connectagain",
    "tryconnect",
    "registeragain",
    "reregister",
    "newconnection",
    "establish",
    "lookfor",
    "newleader",
)
DEEDS: dict[LostPeerReaction, tuple[str, ...]] = {
    LostPeerReaction.DISCONNECT_TASK_MANAGER: (*GIVES_UP, *FREES, *FAILS),
    LostPeerReaction.DISCONNECT_JOB_MANAGER: GIVES_UP,
    LostPeerReaction.RECONNECT_TO_RESOURCE_MANAGER: (*GIVES_UP, *GOES_BACK),
    LostPeerReaction.RECONNECT_TO_JOB_MANAGER: (*GIVES_UP, *FREES, *FAILS, *GOES_BACK),
}
"""What a process does besides, in the words of Flink's methods. A TaskExecutor without its JobMaster ends the
connection, looks for another one, and fails the tasks of the job if there is none."""
NAMES = {
    "resourcemanager": Process.RESOURCE_MANAGER,
    "jobmaster": Process.JOB_MASTER,
    "jobmanager": Process.JOB_MASTER,
    "jobleader": Process.JOB_MASTER,
    "taskexecutor": Process.TASK_EXECUTOR,
    "taskmanager": Process.TASK_EXECUTOR,
}


def process(name: str) -> Process:
    return Process(ALIASES.get(name, name))


def letters(expected: Any) -> str:
    """Everything that is said, whatever its style: `disconnectTaskManager` and `disconnect the task manager` are
    one."""
    if isinstance(expected, dict):
        return "".join(letters(key) + letters(value) for key, value in expected.items() if value is not False)
    if isinstance(expected, list):
        return "".join(letters(value) for value in expected)
    return "".join(letter for letter in str(expected).lower() if letter.isalnum())


def contradictions(said: str, observer: Process, lost: Process) -> list[str]:
    """What is named and not done, or done by or to somebody else."""
    reaction = LOST_PEER_REACTIONS.get((observer, lost))
    if reaction is None:
        return [f"no reaction of a {observer.value} to the loss of a {lost.value}"]
    known = DEEDS[reaction]
    # `reconnect` and `unregister` hold other words
    rest = said.replace("disconnect", "#") if "disconnect" in known else said
    named = [deed for deeds in DEEDS.values() for deed in deeds if deed in rest] + ["disconnect"] * (rest != said)
    found = [f"{deed} is not what {reaction.value} does" for deed in dict.fromkeys(named) if deed not in known]
    found += [f"{name} is neither" for name, who in NAMES.items() if name in said and who not in (observer, lost)]
    return found or ([] if named else [f"nothing of {reaction.value}"])


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines; empty when the tables above say the same."""
    failures: list[str] = []
    for number, case in enumerate(scenario["cases"]):
        expected = case["expect"]
        if case["op"] == "pair":
            one, other = (process(name) for name in case["peers"])
            got = active_side(one, other)
            if got is not process(expected["active"]):
                failures.append(difference(number, "active", expected["active"], got.value))
            passive = expected.get("passive")
            if passive is not None and process(passive) is not (other if got is one else one):
                failures.append(difference(number, "passive", passive, (other if got is one else one).value))
        else:
            observer, lost = process(case["observer"]), process(case["lost"])
            failures += [
                difference(number, f"{case['observer']} without {case['lost']}", expected, line)
                for line in contradictions(letters(expected), observer, lost)
            ]
    return failures
