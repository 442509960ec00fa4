"""Adapter: scenarios of kind `failure_manager` against snapline.coordinator.checkpoint.failure_manager."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.failure_manager import (
    UNLIMITED_TOLERABLE_FAILURES,
    CheckpointFailureManager,
    FailureVerdict,
)
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobVertexID
from tests.conformance.kinds.properties import reason_of
from tests.conformance.replay import ANY, difference

CHECKPOINT = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
TYPES = {
    "checkpoint": CHECKPOINT,
    "savepoint": CheckpointProperties.for_savepoint(),
    "sync_savepoint": CheckpointProperties.for_savepoint(SnapshotType.SAVEPOINT_SUSPEND),
}


def replay(scenario: dict[str, Any]) -> list[str]:
    """`failed`: what this step fails; a rejected construction is the step's error."""
    tolerable = scenario.get("config", {}).get("tolerable_failures", 0)
    try:
        manager = CheckpointFailureManager(UNLIMITED_TOLERABLE_FAILURES if tolerable == "unlimited" else tolerable)
    except ValueError:
        first = scenario["steps"][0]
        refused = "construct" in first and first.get("expect", {}).get("error")
        return [] if refused else [difference(0, "error", False, True)]
    failures = []
    for number, step in enumerate(scenario["steps"]):
        verdict = _play(manager, step)
        failed = None if verdict is None else "job" if verdict.attempt_id is None else "task"
        got = {"failed": failed, "error": False}
        for key, expected in step.get("expect", {}).items():
            if expected not in (ANY, got[key]):
                failures.append(difference(number, key, expected, got[key]))
    return failures


def _play(manager: CheckpointFailureManager, step: dict[str, Any]) -> FailureVerdict | None:
    match step:
        case {"fail": failure}:
            task = failure.get("task")
            attempt = None if task is None else ExecutionAttemptID("graph", JobVertexID(task), 0, 0)
            number = failure.get("cp")
            checkpoint_id = None if number is None or number < 0 else CheckpointID(number)
            properties = TYPES[failure.get("type", "checkpoint")]
            reason = reason_of(failure["reason"])
            return manager.handle_failure(checkpoint_id, properties, reason, attempt)
        case {"success": checkpoint_id}:
            manager.handle_success(checkpoint_id)
            return None
        case {"sync_savepoint_failed": reason}:
            return manager.handle_synchronous_savepoint_failure(reason_of(reason))
        case {"construct": _}:
            return None
        case _:
            raise NotImplementedError(f"step {sorted(step)}")
