"""Adapter: scenarios of kind `operator_state` against
snapline.coordinator.checkpoint.restore.operator_state_redistribution.

Each part of a scenario is one element of a named list state; the blob of an old subtask holds all of its parts in a
row.
"""

from __future__ import annotations

import random
from typing import Any

from snapline.coordinator.checkpoint.restore.operator_state_redistribution import redistribute_operator_state
from snapline.dataflow.snapshot.handles import (
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    SegmentStateHandle,
)
from tests.conformance.replay import difference

State = dict[str, dict[str, Any]]


class Blobs:
    """Where each part lies."""

    def __init__(self, old: list[State | None]) -> None:
        self.names: dict[tuple[str, int], str] = {}
        self.handles: list[tuple[OperatorStateHandle, ...]] = []
        for subtask, states in enumerate(old):
            path, position, entries = f"blob-{subtask}", 0, []
            for name, state in (states or {}).items():
                offsets = []
                for part in state["parts"]:
                    self.names[path, position] = part
                    offsets.append((position, 1))
                    position += 1
                entries.append(OperatorStateEntry(name, OperatorStateMode(state["mode"]), tuple(offsets)))
            handle = SegmentStateHandle(path, 0, position)
            self.handles.append((OperatorStateHandle(handle, tuple(entries)),) if entries else ())

    def parts(self, handles: tuple[OperatorStateHandle, ...]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for handle in handles:
            assert isinstance(handle.handle, SegmentStateHandle)
            for entry in handle.entries:
                names = (self.names[handle.handle.path, offset] for offset, _ in entry.offsets)
                found.setdefault(entry.name, []).extend(names)
        return found


def replay(scenario: dict[str, Any]) -> list[str]:
    """Cases are independent of each other."""
    failures = []
    for number, case in enumerate(scenario["cases"]):
        if case["op"] == "redistribute":
            failures += _redistribute(number, case)
        elif case["op"] == "property_repartition":
            failures += _property(number, case)
        else:
            raise NotImplementedError(f"op {case['op']}")
    return failures


def _redistribute(number: int, case: dict[str, Any]) -> list[str]:
    blobs = Blobs(case["old"])
    new_parallelism = case["new_parallelism"]
    got = [blobs.parts(handles) for handles in redistribute_operator_state(blobs.handles, new_parallelism)]
    expected = case["expect"]["subtasks"]
    balanced = case.get("compare", "exact") == "balanced" and len(case["old"]) != new_parallelism
    split = {
        name
        for states in case["old"]
        for name, state in (states or {}).items()
        if balanced and state["mode"] == "split"
    }
    failures = []
    for subtask, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        failures += [
            difference(number, f"subtask {subtask} {name}", wanted.get(name, []), found.get(name, []))
            for name in sorted(wanted.keys() | found.keys())
            if name not in split and sorted(wanted.get(name, [])) != sorted(found.get(name, []))
        ]
    if split:
        failures += _balance(number, case["old"], got, split)
    return failures


def _balance(number: int, old: list[State], got: list[dict[str, list[str]]], split: set[str]) -> list[str]:
    """Every part exactly once, and the loads differ by at most one."""
    failures = []
    for name in sorted(split):
        wanted = sorted(part for states in old if name in states for part in states[name]["parts"])
        found = sorted(part for states in got for part in states.get(name, []))
        if wanted != found:
            failures.append(difference(number, name, wanted, found))
    loads = [sum(len(states.get(name, [])) for name in split) for states in got]
    if max(loads) - min(loads) > 1:
        failures.append(difference(number, "loads", "a difference of at most 1", loads))
    return failures


def _property(number: int, case: dict[str, Any]) -> list[str]:
    """Random splits: nothing lost, nothing doubled, order kept within a state, loads even."""
    rng = random.Random(case["seed"])
    failures = []
    for round_number in range(case["runs"]):
        old: list[State] = []
        for subtask in range(rng.randint(1, 9)):
            states: State = {}
            for name in ("s", "t", "u"):
                parts = [f"{name}{subtask}.{index}" for index in range(rng.randint(0, 6))]
                states[name] = {"mode": "split", "parts": parts}
            old.append(states)
        new_parallelism = rng.randint(1, 9)
        blobs = Blobs(list(old))
        got = [blobs.parts(handles) for handles in redistribute_operator_state(blobs.handles, new_parallelism)]
        if len(old) != new_parallelism:
            failures += [f"{failure} (round {round_number})" for failure in _balance(number, old, got, {"s", "t", "u"})]
        if failures:
            break
    return failures
