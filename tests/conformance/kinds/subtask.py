"""Adapter: `snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator.SubtaskCheckpointCoordinator`.

The harness is the task around it: it writes down what is called, and keeps books of which background parts run. What
the operators are told to do goes through a real OperatorChain."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from snapline.dataflow.elements import AlignmentType, CheckpointBarrier, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE, TaskStateSnapshot
from snapline.dataflow.wire.messages import CheckpointMetrics, OperatorDescriptor
from snapline.taskmanager.checkpointing.checkpointing_contract import ChannelState, FrozenState, OutputState
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import (
    DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS,
    SubtaskCheckpointCoordinator,
)
from snapline.taskmanager.operators.base.operator_contract import (
    EMPTY_OPERATOR_SNAPSHOT,
    OperatorContext,
    OperatorSnapshot,
    Output,
    RestoredState,
    StreamOperator,
)
from snapline.taskmanager.task.operator_chain import OperatorChain
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from tests.conformance.replay import Scenario, difference
from tests.unit.taskmanager.operators.harness import Harness

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


class _Operator(StreamOperator):
    """One that notes what it is told."""

    def __init__(self, name: str, actions: list[dict[str, Any]]) -> None:
        self.name = name
        self.actions = actions

    def setup(self, context: OperatorContext, output: Output) -> None:
        """It needs nothing."""

    def initialize_state(self, restored: RestoredState) -> None:
        """Noted."""
        self.actions.append({"initialize": self.name})

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        """Noted."""
        self.actions.append({"prepare": self.name})

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        """Noted."""
        self.actions.append({"snapshot": self.name})
        return EMPTY_OPERATOR_SNAPSHOT

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """Noted."""
        self.actions.append({"notify_complete": self.name, "cp": checkpoint_id})

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        """Noted."""
        self.actions.append({"notify_aborted": self.name, "cp": checkpoint_id})


class _Task:
    def __init__(self, config: dict[str, Any]) -> None:
        self.actions: list[dict[str, Any]] = []
        operators = [_Operator(name, self.actions) for name in config.get("operators", ["op1"])]
        descriptors = [
            OperatorDescriptor(OperatorID(item.name), item.name, item.name, b"", chained_input=index - 1)
            for index, item in enumerate(operators)
        ]
        context = Harness(operators[0]).context
        self.chain = OperatorChain(
            list(zip(descriptors, operators, strict=True)), (), lambda _: context, TaskProcessingTime()
        )
        self.unaligned = bool(config.get("unaligned", False))
        self.running = bool(config.get("running", True))
        self.coordinator = SubtaskCheckpointCoordinator(
            self.chain.operators,
            self,
            max_record_aborted_checkpoints=config.get("max_remembered_aborts", DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS),
        )
        self.running_async: set[int] = set()
        self.state_manager_notified: int | None = None

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        """One step, and all that can be seen of it."""
        self.actions.clear()
        self.state_manager_notified = None
        extra: dict[str, Any] = {}
        if "perform" in step:
            extra["accepted"] = self._perform_checkpoint(step["perform"])
        elif "async_done" in step:
            self.coordinator.async_part_done(CheckpointID(step["async_done"]), EMPTY_TASK_STATE)
        elif "notify_complete" in step:
            checkpoint_id = CheckpointID(step["notify_complete"])
            self.coordinator.notify_checkpoint_complete(checkpoint_id, is_running=self.running)
        elif "notify_aborted" in step:
            self._notify_aborted(step["notify_aborted"])
        elif "notify_aborted_range" in step:
            for aborted_id in range(step["notify_aborted_range"]["first"], step["notify_aborted_range"]["last"] + 1):
                self._notify_aborted(aborted_id)
        elif "abort_on_barrier" in step:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
            self.coordinator.abort_checkpoint_on_barrier(CheckpointID(step["abort_on_barrier"]), reason)
        elif "init_checkpoint" in step:
            options = self._options(step["init_checkpoint"])
            extra["channel_writer_started"] = self.coordinator.captures_channel_state(options)
        elif "set_running" in step:
            self.running = bool(step["set_running"])
        elif step.get("initialize"):
            self.chain.initialize_and_open(lambda _: RestoredState())
        return {
            "actions": list(self.actions),
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
        self.coordinator.trigger_checkpoint_on_barrier(barrier, CheckpointMetrics(), 0, is_running=self.running)
        self.coordinator.finish_input(checkpoint_id, {})
        return self.running

    def _notify_aborted(self, checkpoint_id: int) -> None:
        self.coordinator.notify_checkpoint_aborted(CheckpointID(checkpoint_id), is_running=self.running)

    # --- as the coordinator sees it (CheckpointableTask) --------------------------------------------------------------

    def clock_ms(self) -> int:
        """Time stands still."""
        return 0

    def checkpoint_taken(self, barrier: CheckpointBarrier) -> bool:
        """Operators never finish."""
        return False

    def broadcast_barrier(self, barrier: CheckpointBarrier, *, is_priority: bool) -> OutputState:
        """What it overtakes, which is nothing, is captured at once."""
        self.actions.append({"emit_barrier": barrier.checkpoint_id, "priority": is_priority})
        if is_priority:
            self.actions.append({"capture_inflight": barrier.checkpoint_id})
        return {}

    def time_out_barrier(self, barrier: CheckpointBarrier) -> OutputState:
        """No scenario has a timeout."""
        raise AssertionError(f"no scenario has a timeout: {barrier}")

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """Barriers leave at once."""
        return False

    def broadcast_cancel_checkpoint_marker(self, checkpoint_id: CheckpointID) -> None:
        """Noted."""
        self.actions.append({"emit_cancel": checkpoint_id})

    def broadcast_end_of_channel_state(self, *, is_last: bool) -> None:
        """No scenario restores channels."""
        raise AssertionError("no scenario restores channels")

    def start_async_snapshot(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        frozen: Sequence[FrozenState],
        channel_state: ChannelState,
    ) -> None:
        """Noted."""
        self.running_async.add(checkpoint_id)

    def cancel_async_snapshot(self, checkpoint_id: CheckpointID) -> None:
        """Noted."""
        self.running_async.discard(checkpoint_id)

    def acknowledge(self, checkpoint_id: CheckpointID, metrics: CheckpointMetrics, state: TaskStateSnapshot) -> None:
        """Noted."""
        self.running_async.discard(checkpoint_id)
        self.actions.append({"acknowledge": checkpoint_id})

    def decline(
        self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason, detail: str = "", timestamp_ms: int = 0
    ) -> None:
        """Noted."""
        self.actions.append({"decline": checkpoint_id})

    def checkpoint_settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """Noted."""
        self.state_manager_notified = checkpoint_id

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """No scenario has a timeout."""
        raise AssertionError(f"no scenario has a timeout: {key}")

    def cancel_timer(self, key: Hashable) -> None:
        """No scenario has a timeout."""
        raise AssertionError(f"no scenario has a timeout: {key}")
