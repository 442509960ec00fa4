"""Adapter: scenarios of kind `pending_checkpoint` against snapline.coordinator.checkpoint.pending_checkpoint."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.checkpoint_plan import CheckpointPlan
from snapline.coordinator.checkpoint.finalization import FinalizeRefused, operator_states_of
from snapline.coordinator.checkpoint.pending_checkpoint import (
    PendingCheckpoint,
    PendingCheckpointStatus,
    TaskAcknowledgeResult,
)
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.jobgraph import JobVertex, OperatorNode
from snapline.dataflow.ids import CheckpointID, JobID, JobVertexID, OperatorID
from snapline.dataflow.snapshot.handles import MasterState
from snapline.runtime.cores.machine import InvariantViolation
from tests.conformance.kinds.coordinator import attempt_of, names_in, snapshot_of
from tests.conformance.kinds.properties import reason_of
from tests.conformance.replay import ANY, difference

PROPERTIES = {
    "checkpoint": CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
    "savepoint": CheckpointProperties.for_savepoint(),
    "sync_savepoint": CheckpointProperties.for_savepoint(SnapshotType.SAVEPOINT_SUSPEND),
}
FUTURES = {
    PendingCheckpointStatus.PENDING: "pending",
    PendingCheckpointStatus.FINALIZED: "completed",
    PendingCheckpointStatus.COMPLETED: "completed",
    PendingCheckpointStatus.ABORTED: "failed",
}
DONE = ("completed", "failed")
WORDS: dict[Any, tuple[str, ...]] = {
    "pending": ("pending",),
    "incomplete": ("pending",),
    False: ("pending",),
    "completed": ("completed",),
    "succeeded": ("completed",),
    "success": ("completed",),
    "failed": ("failed",),
    "exception": ("failed",),
    "exceptionally": ("failed",),
    "aborted": ("failed",),
    "done": DONE,
    True: DONE,
}
"""What a scenario may call a future, and what that is; Flink's test asks only whether it is done."""

OPERATOR_COORDINATOR = "operator coordinator "


class Harness:
    """The coordinator's side of one pending checkpoint: its timer, and the discarding of its state."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.tasks = [str(task) for task in config.get("tasks", ["T1"])]
        self.pending = self.construct()

    def construct(self) -> PendingCheckpoint:
        attempts = tuple(attempt_of(task) for task in self.tasks)
        return PendingCheckpoint(
            JobID("job"),
            CheckpointID(1),
            0,
            PROPERTIES[self.config.get("type", "checkpoint")],
            "chk-1",
            CheckpointPlan(attempts, attempts, attempts),
            (*self.config.get("hooks", ()), *map(_hook_of, self.config.get("coordinators", ()))),
        )

    def vertices(self) -> list[JobVertex]:
        return [JobVertex(JobVertexID(t), t, 1, 128, (OperatorNode(OperatorID(t), t, t, b""),)) for t in self.tasks]

    def discardable(self) -> list[str]:
        states = [state.data.decode() for state in self.pending.master_states]
        return names_in(self.pending.task_states) + states

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        got: dict[str, Any] = {"error": False}
        pending = self.pending
        try:
            match step:
                case {"ack": ack}:
                    result = pending.acknowledge_task(
                        attempt_of(ack["task"]), snapshot_of(ack["task"], ack.get("state"))
                    )
                    got["result"] = result.name
                    if result in (TaskAcknowledgeResult.UNKNOWN, TaskAcknowledgeResult.DISCARDED) and ack.get("state"):
                        got["discarded_state"] = [ack["state"]]
                case {"ack_hook": ack}:
                    got["result"] = pending.acknowledge_master_state(ack["hook"], _state(ack.get("state"))).name
                case {"ack_coordinator": ack}:
                    state = _state(ack.get("state"), _hook_of(ack["id"]))
                    result = pending.acknowledge_master_state(_hook_of(ack["id"]), state)
                    known = result is TaskAcknowledgeResult.UNKNOWN and ack["id"] in self.config["coordinators"]
                    got["result"] = "DUPLICATE" if known else result.name
                case {"abort": reason}:
                    discarded = self.discardable()
                    got["canceller_cancelled"] = False
                    got["discarded_state"] = []
                    was_over = pending.is_disposed
                    try:
                        got["canceller_cancelled"] = pending.abort(reason_of(reason))
                    finally:
                        if not was_over:
                            got["discarded_state"] = discarded
                case {"finalize": _}:
                    completed = pending.finalize("conformance", self.vertices(), {}, {}, 0)
                    got["error"] = isinstance(completed, FinalizeRefused)
                case {"set_canceller": _}:
                    got["accepted"] = pending.set_canceller()
                case {"can_be_subsumed": _}:
                    got["value"] = pending.can_be_subsumed
                case {"future": _}:
                    pass
                case {"operator_states": _}:
                    got |= self.operator_states()
                case {"master_states": _}:
                    states = [
                        state for state in pending.master_states if not state.hook_id.startswith(OPERATOR_COORDINATOR)
                    ]
                    got["values"] = [state.data.decode() for state in states]
                    got["count"] = len(states)
                case {"unacknowledged_coordinators": _}:
                    got["values"] = self.unacknowledged_coordinators()
                    got["count"] = len(got["values"])
                case {"construct": _}:
                    self.pending = self.construct()
                case _:
                    raise NotImplementedError(f"step {sorted(step)}")
        except InvariantViolation:
            got["error"] = True
        return got | self.state()

    def operator_states(self) -> dict[str, Any]:
        """What the acknowledgements so far amount to."""
        operators = operator_states_of(self.vertices(), self.pending._acknowledged, (), {}, frozenset())
        assert not isinstance(operators, FinalizeRefused)
        with_state = [operator for operator in operators if operator.subtasks]
        names = sorted(
            handle.path  # type: ignore[union-attr]
            for operator in with_state
            for state in operator.subtasks.values()
            for handle in state.stream_handles
        )
        return {
            "count": len(with_state),
            "values": names,
            "operators": [operator.operator_id for operator in with_state],
        }

    def unacknowledged_coordinators(self) -> list[str]:
        waiting = self.pending._waiting_hooks
        return [operator for operator in self.config.get("coordinators", ()) if _hook_of(operator) in waiting]

    def state(self) -> dict[str, Any]:
        pending = self.pending
        return {
            "fully_acknowledged": pending.is_fully_acknowledged,
            "hooks_acknowledged": len(pending._waiting_hooks) == len(self.unacknowledged_coordinators()),
            "future": FUTURES[pending.status],
            "discarded": pending.status is PendingCheckpointStatus.ABORTED,
        }


def _is_future(expected: Any, pending: PendingCheckpoint) -> bool:
    """`failed` also with its reason, `failed:CHECKPOINT_EXPIRED`. A word that is not known is none of them."""
    word, _, reason = str(expected).partition(":") if isinstance(expected, str) else (expected, "", "")
    if reason and (pending.failure_reason is None or pending.failure_reason is not reason_of(reason)):
        return False
    return FUTURES[pending.status] in WORDS.get(word.lower() if isinstance(word, str) else word, ())


def _hook_of(operator: Any) -> str:
    """An operator coordinator of Flink's takes part as a master hook does."""
    return f"{OPERATOR_COORDINATOR}{operator}"


def _state(text: str | None, name: str = "x") -> MasterState | None:
    return None if text is None else MasterState(name, 1, str(text).encode())


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked; sets are compared as such."""
    config = scenario.get("config", {})
    failures: list[str] = []
    try:
        harness = Harness(config)
    except (InvariantViolation, ValueError):
        first = scenario["steps"][0]
        refused = "construct" in first and first.get("expect", {}).get("error")
        return [] if refused else [difference(0, "error", False, True)]
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            value = got.get(key)
            if expected == ANY:
                continue
            if key == "values" and set(expected) <= set(harness.tasks):  # operators, not their handles
                value = got.get("operators", value)
            if key in ("discarded_state", "values"):
                expected, value = sorted(expected, key=str), sorted(value or [], key=str)
            right = value == expected if key != "future" else _is_future(expected, harness.pending)
            if not right:
                failures.append(difference(number, key, expected, value))
    return failures
