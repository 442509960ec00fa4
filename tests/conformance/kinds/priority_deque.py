"""Adapter: `snapline.taskmanager.network.channels.prioritized_deque.PrioritizedDeque`."""

from __future__ import annotations

from typing import Any

from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.prioritized_deque import PrioritizedDeque
from tests.conformance.replay import Scenario, difference


class _Named:
    """Elements are told apart by identity; a scenario knows them by name."""

    def __init__(self, name: str) -> None:
        self.name = name


def _name(element: _Named | None) -> str | None:
    return None if element is None else element.name


def replay(scenario: Scenario) -> list[str]:
    """Play the steps on one deque."""
    deque: PrioritizedDeque[_Named] = PrioritizedDeque()
    failures: list[str] = []
    for number, step in enumerate(scenario["steps"]):
        got: dict[str, Any] = {"error": None}
        try:
            got.update(_perform(deque, step))
        except InvariantViolation as error:
            got["error"] = str(error)
        got["content"] = [element.name for element in deque]
        got["num_priority"] = deque.num_priority_elements
        for key, expected in step.get("expect", {}).items():
            actual = got.get(key)
            matches = bool(expected) == bool(actual) if key == "error" else expected == actual
            if expected != "*" and not matches:
                failures.append(difference(number, key, expected, actual))
    return failures


def _perform(deque: PrioritizedDeque[_Named], step: dict[str, Any]) -> dict[str, Any]:
    if "add" in step:
        deque.add(_Named(step["add"]), priority=bool(step.get("priority", False)))
    elif "prioritize" in step:
        queued = deque.find(lambda element: element.name == step["prioritize"])
        deque.prioritize(queued if queued is not None else _Named(step["prioritize"]))
    elif "get_and_remove" in step:
        return {"polled": _name(deque.get_and_remove(lambda element: element.name == step["get_and_remove"]))}
    elif step.get("poll"):
        return {"polled": _name(deque.poll())}
    elif step.get("peek"):
        return {"peeked": _name(deque.peek())}
    elif step.get("clear"):
        deque.clear()
    return {}
