"""Adapter: scenarios of kind `request_decider` against snapline.coordinator.checkpoint.request_decider."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.request_decider import (
    CheckpointRequestDecider,
    CheckpointTriggerRequest,
    DeciderInputs,
    Decision,
)
from snapline.dataflow.elements import SnapshotType
from tests.conformance.replay import difference

FLINK_MAX_QUEUED_PERIODIC = 1000
"""Flink's scenarios let periodic requests wait like all others."""
SAVEPOINTS = {"savepoint": SnapshotType.SAVEPOINT, "sync_savepoint": SnapshotType.SAVEPOINT_SUSPEND}


class Harness:
    def __init__(self, config: dict[str, Any]) -> None:
        self.decider = CheckpointRequestDecider(
            config.get("max_concurrent", 1),
            config.get("min_pause_ms", 1),
            config.get("max_queued", 1000),
            config.get("max_queued_periodic", FLINK_MAX_QUEUED_PERIODIC),
        )
        self.pending = config.get("pending", 0)
        self.now_ms = config.get("start_ms", 86_400_000)
        self.last_completion_ms = config.get("last_completion_ms", 0)
        self.sequence = 0

    def inputs(self, step: dict[str, Any]) -> DeciderInputs:
        return DeciderInputs(
            step.get("triggering", False),
            self.pending,
            0,
            self.last_completion_ms,
            self.now_ms,
        )

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        decision = Decision()
        match step:
            case {"submit": request}:
                self.sequence += 1
                decision = self.decider.submit(self.request_of(request), self.inputs(step))
            case {"poll": _}:
                decision = self.decider.poll(self.inputs(step))
            case {"pending": count}:
                self.pending = count
            case {"advance": by_ms}:
                self.now_ms += by_ms
            case {"abort_all": reason}:
                failed = {request.request_id: reason for request in self.decider.abort_all()}
                return {"failed": failed, "queued": self.decider.queued_count, "chosen": None, "reschedule_ms": None}
            case _:
                raise NotImplementedError(f"step {sorted(step)}")
        return {
            "chosen": None if decision.chosen is None else decision.chosen.request_id,
            "failed": {request.request_id: reason.name for request, reason in decision.dropped},
            "queued": self.decider.queued_count,
            "reschedule_ms": decision.reschedule_ms,
        }

    def request_of(self, request: dict[str, Any]) -> CheckpointTriggerRequest:
        forced = request.get("force", False)
        kind = request.get("type", "checkpoint")
        if kind == "checkpoint":
            properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
            if forced:
                properties = CheckpointProperties(SnapshotType.CHECKPOINT, True, True, True, True, True, True)
        else:
            properties = CheckpointProperties.for_savepoint(SAVEPOINTS[kind], forced=forced)
        periodic = request.get("periodic", False)
        return CheckpointTriggerRequest(request["as"], properties, "", periodic, self.now_ms, self.sequence)


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked."""
    harness = Harness(scenario.get("config", {}))
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            if expected != "*" and got[key] != expected:
                failures.append(difference(number, key, expected, got[key]))
    return failures
