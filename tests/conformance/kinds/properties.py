"""Adapter: scenarios of kind `properties`: tables about snapshots, modes and reasons."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.dataflow.config import ConfigurationError
from snapline.dataflow.elements import AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from snapline.taskmanager.checkpointing.checkpoint_barrier_tracker import CheckpointBarrierTracker
from snapline.taskmanager.checkpointing.handler_factory import create_barrier_handler
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo
from tests.conformance.replay import ANY, difference
from tests.unit.taskmanager.checkpointing.recorded_handler import RecordedCalls

STATUSES = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)
TYPES = {
    "checkpoint": SnapshotType.CHECKPOINT,
    "savepoint": SnapshotType.SAVEPOINT,
    "sync_savepoint": SnapshotType.SAVEPOINT_SUSPEND,
}


def replay(scenario: dict[str, Any]) -> list[str]:
    """Cases are independent of each other."""
    failures = []
    for number, case in enumerate(scenario["cases"]):
        got = _answer(case)
        for key, expected in case["expect"].items():
            if expected == "alternating_timeout":  # one handler serves both of these names
                expected = "alternating"
            value = got.get(key)
            if isinstance(expected, dict) and isinstance(value, dict):  # only the job states that are stated
                value = {name: value.get(name) for name in expected}
            if expected != ANY and value != expected:
                failures.append(difference(number, key, expected, value))
    return failures


def reason_of(name: str) -> CheckpointFailureReason:
    """Reasons have Flink's names; KeyError for one that is none."""
    return CheckpointFailureReason[name]


def state_of(name: str) -> ExecutionState:
    """A task that reconciles has become one that initializes: neither runs."""
    return ExecutionState("INITIALIZING" if name == "RECONCILING" else name)


def _properties(case: dict[str, Any]) -> CheckpointProperties:
    kind = TYPES[case.get("type", "checkpoint")]
    if kind.is_savepoint:
        return CheckpointProperties.for_savepoint(kind)
    policy = case.get("policy", "NEVER_RETAIN_AFTER_TERMINATION")
    return CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy(policy), kind)


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    match case["op"]:
        case "retention":
            properties = _properties(case)
            discard: dict[str, bool] = {status.name: properties.discard_on(status) for status in STATUSES}
            return {"discard_on": discard | {"SUBSUMED": properties.discard_on_subsumed}}
        case "needs_alignment":
            options = _options(case)
            return {"value": options.alignment is AlignmentType.ALIGNED and not options.is_timeoutable}
        case "handler_for":
            return _handler_for(case)
        case "is_preflight":
            return {"value": reason_of(case["reason"]).pre_flight}
        case "match":
            first, second = _checkpoints(case["first"]), _checkpoints(case["second"])
            return {
                "value": [(c.job_id, c.checkpoint_id) for c in first] == [(c.job_id, c.checkpoint_id) for c in second]
            }
        case other:
            raise NotImplementedError(f"op {other}")


def _checkpoints(pairs: list[list[Any]]) -> list[CompletedCheckpoint]:
    properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
    return [
        CompletedCheckpoint(JobID(job), "", CheckpointID(number), 0, 0, properties, f"chk-{number}", ())
        for job, number in pairs
    ]


def _options(case: dict[str, Any]) -> CheckpointOptions:
    """CheckpointOptions.needsAlignment: exactly-once, and a savepoint or not unaligned."""
    exactly_once = case.get("exactly_once", case.get("mode", "exactly_once") in ("exactly_once", "EXACTLY_ONCE"))
    configuration = CheckpointCoordinatorConfiguration(
        exactly_once=exactly_once, unaligned=case.get("unaligned", False) and exactly_once
    )
    return configuration.options_of(TYPES[case.get("type", "checkpoint")], "")


def _handler_for(case: dict[str, Any]) -> dict[str, Any]:
    """The handler that a task of this mode gets, by its name in the scenarios."""
    mode = str(case["mode"]).upper()
    try:
        calls = RecordedCalls(InputChannelInfo(0, 0))
        handler = create_barrier_handler(mode, calls, calls, unaligned_enabled=case["unaligned"])
    except ConfigurationError:
        return {"error": True}
    if isinstance(handler, CheckpointBarrierTracker):
        name = "tracker"
    else:
        name = "alternating" if case["unaligned"] else "aligner"
    return {"error": False, "handler": name, "value": name}
