"""A task and its operators for SubtaskCheckpointCoordinator that write down each call, as text, in order.

Every look at the clock takes a millisecond. `overtaken` is what barriers overtake; `failing` names an operator that
cannot freeze.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.checkpointing_contract import ChannelState, FrozenState, OutputState
from snapline.taskmanager.operators.base.failure import OperatorFailure
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot


class RecordedOperator:
    """One operator of the chain (CheckpointedOperator)."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls
        self.failing = False

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        """Written down."""
        self.calls.append(f"{self.name}: prepare {checkpoint_id}")

    def snapshot_state(self, barrier: CheckpointBarrier, *, is_final: bool) -> FrozenState:
        """Written down, or refused."""
        if self.failing:
            raise OperatorFailure(self.name, self.name, "snapshot_state", OSError("disk"))
        final = ", final" if is_final else ""
        self.calls.append(f"{self.name}: freeze {barrier.checkpoint_id} of {barrier.timestamp_ms} ms{final}")
        return OperatorID(self.name), OperatorSnapshot(is_final=is_final)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """Written down."""
        self.calls.append(f"{self.name}: complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        """Written down."""
        self.calls.append(f"{self.name}: aborted {checkpoint_id}")


class RecordedTask:
    """The rest of the task (CheckpointableTask)."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.overtaken: OutputState = {}
        self.finished = False
        self.sent: list[CheckpointBarrier] = []
        self.waiting: set[CheckpointID] = set()
        """Checkpoints whose barrier is in an output."""
        self.uploads: dict[CheckpointID, ChannelState] = {}
        self.acknowledged: list[tuple[CheckpointMetrics, TaskStateSnapshot]] = []
        self.now_ms = 0

    def take_calls(self) -> list[str]:
        """What was called since the last look."""
        calls = list(self.calls)
        self.calls.clear()
        return calls

    def clock_ms(self) -> int:
        """One more at each look."""
        self.now_ms += 1
        return self.now_ms

    def checkpoint_taken(self, barrier: CheckpointBarrier) -> bool:
        """As the test says."""
        return self.finished

    def broadcast_barrier(self, barrier: CheckpointBarrier, *, is_priority: bool) -> OutputState:
        """Written down."""
        self.sent.append(barrier)
        self.waiting.add(barrier.checkpoint_id)
        self.calls.append(f"barrier {barrier.checkpoint_id}{' overtakes' if is_priority else ''}")
        return self.overtaken if is_priority else {}

    def time_out_barrier(self, barrier: CheckpointBarrier) -> OutputState:
        """Written down."""
        self.calls.append(f"barrier {barrier.checkpoint_id} overtakes late")
        return self.overtaken

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """As the test says."""
        return checkpoint_id in self.waiting

    def broadcast_cancel_checkpoint_marker(self, checkpoint_id: CheckpointID) -> None:
        """Written down."""
        self.calls.append(f"cancel marker {checkpoint_id}")

    def broadcast_end_of_channel_state(self, *, is_last: bool) -> None:
        """Written down."""
        self.calls.append(f"end of channel state{', the last' if is_last else ''}")

    def start_async_snapshot(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        frozen: Sequence[FrozenState],
        channel_state: ChannelState,
    ) -> None:
        """Written down."""
        self.uploads[checkpoint_id] = channel_state
        self.calls.append(f"upload {checkpoint_id} of {' '.join(name for name, _ in frozen)} to {target_location!r}")

    def cancel_async_snapshot(self, checkpoint_id: CheckpointID) -> None:
        """Written down."""
        self.uploads.pop(checkpoint_id, None)
        self.calls.append(f"cancel upload {checkpoint_id}")

    def acknowledge(self, checkpoint_id: CheckpointID, metrics: CheckpointMetrics, state: TaskStateSnapshot) -> None:
        """Written down."""
        self.uploads.pop(checkpoint_id, None)
        self.acknowledged.append((metrics, state))
        self.calls.append(f"acknowledge {checkpoint_id}")

    def decline(
        self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason, detail: str = "", timestamp_ms: int = 0
    ) -> None:
        """Written down."""
        self.calls.append(f"decline {checkpoint_id}: {reason.name}{' ' + detail if detail else ''}")

    def checkpoint_settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """Written down."""
        self.calls.append(f"settled {checkpoint_id} as {'complete' if completed else 'aborted'}")

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """Written down."""
        self.calls.append(f"timer at {at_ms} ms")

    def cancel_timer(self, key: Hashable) -> None:
        """Written down."""
        self.calls.append("no timer")
