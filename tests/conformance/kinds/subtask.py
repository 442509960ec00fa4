"""Adapter: `snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator.SubtaskCheckpointCoordinator`.

The harness is the task around it: it performs nothing but the bookkeeping of which background parts run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snapline.dataflow.elements import AlignmentType, CheckpointBarrier, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    Acknowledge,
    BroadcastBarrier,
    BroadcastCancelCheckpointMarker,
    CancelAsyncSnapshot,
    CaptureOutputState,
    Decline,
    InitializeOperator,
    NotifyOperatorAborted,
    NotifyOperatorComplete,
    NotifyStateManager,
    PrepareSnapshotPreBarrier,
    SnapshotOperator,
    StartAsyncSnapshot,
    SubtaskEffect,
    TriggerCheckpointOnBarrier,
)
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import (
    DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS,
    SubtaskCheckpointCoordinator,
)
from tests.conformance.replay import Scenario, difference

TYPES = {
    "checkpoint": SnapshotType.CHECKPOINT,
    "savepoint": SnapshotType.SAVEPOINT,
    "sync_savepoint": SnapshotType.SAVEPOINT_SUSPEND,
}


def replay(scenario: Scenario) -> list[str]:
    """Play the steps on one task."""
    task = _Task(scenario.get("config") or {})
    failures: list[str] = []
    for number, step in enumerate(scenario["steps"]):
        got = task.play(step)
        for key, expected in step.get("expect", {}).items():
            if expected != "*" and expected != got.get(key):
                failures.append(difference(number, key, expected, got.get(key)))
    return failures


class _Task:
    def __init__(self, config: dict[str, Any]) -> None:
        self.operators: list[str] = config.get("operators", ["op1"])
        self.unaligned = bool(config.get("unaligned", False))
        self.running = bool(config.get("running", True))
        self.coordinator = SubtaskCheckpointCoordinator(
            len(self.operators),
            max_record_aborted_checkpoints=config.get("max_remembered_aborts", DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS),
        )
        self.running_async: set[int] = set()
        self.actions: list[dict[str, Any]] = []
        self.state_manager_notified: int | None = None

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        """One step, and all that can be seen of it."""
        self.actions = []
        self.state_manager_notified = None
        extra: dict[str, Any] = {}
        if "perform" in step:
            extra["accepted"] = self._perform_checkpoint(step["perform"])
        elif "async_done" in step:
            self._do(self.coordinator.async_part_completed(CheckpointID(step["async_done"]), 0))
        elif "notify_complete" in step:
            checkpoint_id = CheckpointID(step["notify_complete"])
            self._do(self.coordinator.notify_checkpoint_complete(checkpoint_id, is_running=self.running))
        elif "notify_aborted" in step:
            self._notify_aborted(step["notify_aborted"])
        elif "notify_aborted_range" in step:
            for aborted_id in range(step["notify_aborted_range"]["first"], step["notify_aborted_range"]["last"] + 1):
                self._notify_aborted(aborted_id)
        elif "abort_on_barrier" in step:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
            self._do(self.coordinator.abort_checkpoint_on_barrier(CheckpointID(step["abort_on_barrier"]), reason))
        elif "init_checkpoint" in step:
            options = self._options(step["init_checkpoint"])
            extra["channel_writer_started"] = self.coordinator.captures_channel_state(options)
        elif "set_running" in step:
            self.running = bool(step["set_running"])
        elif step.get("initialize"):
            self._do(self.coordinator.initialize())
        return {
            "actions": self.actions,
            "remembered_aborts": self.coordinator.remembered_aborts,
            "running_async": len(self.running_async),
            "state_manager_notified": self.state_manager_notified,
            **extra,
        }

    def _options(self, step: dict[str, Any]) -> CheckpointOptions:
        unaligned = step.get("unaligned", self.unaligned)
        alignment = AlignmentType.UNALIGNED if unaligned else AlignmentType.ALIGNED
        return CheckpointOptions(TYPES[step.get("type", "checkpoint")], alignment)

    def _perform_checkpoint(self, step: dict[str, Any]) -> bool:
        checkpoint_id = CheckpointID(step["cp"])
        barrier = CheckpointBarrier(checkpoint_id, 0, self._options(step))
        trigger = TriggerCheckpointOnBarrier(barrier, CheckpointMetrics())
        self._do(self.coordinator.trigger_checkpoint_on_barrier(trigger, 0, is_running=self.running))
        self._do(self.coordinator.sync_part_completed(checkpoint_id, 0))
        self._do(self.coordinator.finish_input(checkpoint_id, {}))
        return self.running

    def _notify_aborted(self, checkpoint_id: int) -> None:
        self._do(self.coordinator.notify_checkpoint_aborted(CheckpointID(checkpoint_id), is_running=self.running))

    def _do(self, effects: Sequence[SubtaskEffect]) -> None:
        for effect in effects:
            match effect:
                case InitializeOperator(index):
                    self.actions.append({"initialize": self.operators[index]})
                case PrepareSnapshotPreBarrier(index, _):
                    self.actions.append({"prepare": self.operators[index]})
                case BroadcastBarrier(barrier, is_priority):
                    self.actions.append({"emit_barrier": barrier.checkpoint_id, "priority": is_priority})
                case BroadcastCancelCheckpointMarker(checkpoint_id):
                    self.actions.append({"emit_cancel": checkpoint_id})
                case CaptureOutputState(checkpoint_id):
                    self.actions.append({"capture_inflight": checkpoint_id})
                    self._do(self.coordinator.finish_output(checkpoint_id, {}))
                case SnapshotOperator(index, _, _):
                    self.actions.append({"snapshot": self.operators[index]})
                case StartAsyncSnapshot(checkpoint_id, _, _):
                    self.running_async.add(checkpoint_id)
                case CancelAsyncSnapshot(checkpoint_id):
                    self.running_async.discard(checkpoint_id)
                case Acknowledge(checkpoint_id, _):
                    self.running_async.discard(checkpoint_id)
                    self.actions.append({"acknowledge": checkpoint_id})
                case Decline(checkpoint_id, _, _):
                    self.actions.append({"decline": checkpoint_id})
                case NotifyOperatorComplete(index, checkpoint_id):
                    self.actions.append({"notify_complete": self.operators[index], "cp": checkpoint_id})
                case NotifyOperatorAborted(index, checkpoint_id):
                    self.actions.append({"notify_aborted": self.operators[index], "cp": checkpoint_id})
                case NotifyStateManager(checkpoint_id, _):
                    self.state_manager_notified = checkpoint_id
                case _:
                    raise AssertionError(f"an effect that no scenario can see: {effect}")
