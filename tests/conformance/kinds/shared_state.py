"""Adapter: scenarios of kind `shared_state` against snapline.coordinator.checkpoint.shared_state_registry.

On checkpoint level the registry is driven as the publication of completed checkpoints does it.
"""

from __future__ import annotations

import sys
from typing import Any

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.shared_state_registry import SharedStateRegistry
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
    StreamStateHandle,
)
from snapline.runtime.cores.machine import InvariantViolation
from tests.conformance.replay import ANY, difference

PROPERTIES = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)


def _handle(name: str) -> SegmentStateHandle:
    return SegmentStateHandle(name, 0, 1)


def _name(handle: StreamStateHandle | None) -> str | None:
    return handle.path if isinstance(handle, SegmentStateHandle) else None


def _checkpoint(number: int, shared: list[str]) -> CompletedCheckpoint:
    keyed = tuple(KeyedStateHandle(KeyGroupRange(0, 127), _handle(name), shared_key=name) for name in shared)
    operator = OperatorState(OperatorID("op"), "op", "op", 1, 128, {0: OperatorSubtaskState(managed_keyed=keyed)})
    return CompletedCheckpoint(JobID("job"), "", CheckpointID(number), 0, 0, PROPERTIES, f"chk-{number}", (operator,))


class Harness:
    def __init__(self, config: dict[str, Any]) -> None:
        self.max_retained = config.get("max_retained", sys.maxsize)
        self.registry = SharedStateRegistry()
        self.completed: dict[int, CompletedCheckpoint] = {}

    def drop(self, number: int) -> list[str | None]:
        return [_name(handle) for handle in self.registry.unregister_all(self.completed.pop(number))]

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        got: dict[str, Any] = {"discarded": [], "error": False}
        try:
            match step:
                case {"register": entry}:
                    registration = self.registry.register(entry["key"], _handle(entry.get("handle", entry["key"])))
                    got |= {"refs": registration.references, "canonical": _name(registration.handle)}
                    got["discarded"] = [name for name in [_name(registration.discarded)] if name is not None]
                case {"unregister": key}:
                    registration = self.registry.unregister(key)
                    got |= {"refs": registration.references, "canonical": _name(registration.handle)}
                    got["discarded"] = [name for name in [_name(registration.discarded)] if name is not None]
                case {"complete": entry}:
                    checkpoint = _checkpoint(entry["cp"], entry.get("shared", []))
                    _, duplicates = self.registry.register_all(checkpoint.operators)
                    self.completed[entry["cp"]] = checkpoint
                    got["discarded"] = [_name(handle) for handle in duplicates]
                    while len(self.completed) > self.max_retained:
                        got["discarded"] += self.drop(min(self.completed))
                case {"drop": number}:
                    got["discarded"] = self.drop(number)
                case {"suspend_and_restore": _}:
                    self.registry.close()
                    self.registry = SharedStateRegistry()
                    for checkpoint in self.completed.values():
                        self.registry.register_all(checkpoint.operators)
                case _:
                    raise NotImplementedError(f"step {sorted(step)}")
        except (InvariantViolation, KeyError):
            got["error"] = True
        return got


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked."""
    harness = Harness(scenario.get("config", {}))
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            value: Any = got.get(key)
            if key == "discarded" and expected != ANY:
                expected, value = sorted(expected), sorted(value)
            if expected not in (ANY, value):
                failures.append(difference(number, key, expected, value))
    return failures
