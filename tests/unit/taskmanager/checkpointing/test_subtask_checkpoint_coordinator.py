"""Order and books of one subtask's checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from snapline.dataflow.elements import AlignmentType, CheckpointBarrier, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason as Reason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    ChannelState,
)
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import (
    OutputBarrierTimeout,
    SubtaskCheckpointCoordinator,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo, ResultSubpartitionInfo
from snapline.taskmanager.operators.base.failure import OperatorFailure
from tests.unit.taskmanager.checkpointing.recorded_task import RecordedOperator, RecordedTask

ONE, TWO = CheckpointID(1), CheckpointID(2)
UNALIGNED = CheckpointOptions(alignment=AlignmentType.UNALIGNED, target_location="chk-1")
TIMEOUTABLE = CheckpointOptions(aligned_checkpoint_timeout_ms=50)
BATCH = pa.record_batch({"n": pa.array([1, 2], pa.int64())})


class Story:
    """A coordinator with what it calls."""

    def __init__(
        self, operators: int = 1, *, has_outputs: bool = True, max_record_aborted_checkpoints: int = 128
    ) -> None:
        self.task = RecordedTask()
        self.operators = [RecordedOperator(f"op{index}", self.task.calls) for index in range(operators)]
        self.coordinator = SubtaskCheckpointCoordinator(
            self.operators,
            self.task,
            has_outputs=has_outputs,
            max_record_aborted_checkpoints=max_record_aborted_checkpoints,
        )

    def on_barrier(
        self, number: int, options: CheckpointOptions, now_ms: int, metrics: CheckpointMetrics | None = None
    ) -> list[str]:
        """The barrier handler triggers the checkpoint; its barrier left the source at 100 ms."""
        barrier = CheckpointBarrier(CheckpointID(number), 100, options)
        self.coordinator.trigger_checkpoint_on_barrier(barrier, metrics or CheckpointMetrics(), now_ms)
        return self.task.take_calls()

    def trigger(self, number: int, options: CheckpointOptions | None = None, *, is_running: bool = True) -> list[str]:
        """The JobMaster triggers the checkpoint at 0 ms."""
        barrier = CheckpointBarrier(CheckpointID(number), 0, options or CheckpointOptions())
        self.coordinator.trigger_checkpoint(barrier, 0, is_running=is_running)
        return self.task.take_calls()


def test_unaligned_checkpoint_waits_for_both_sides_of_its_data_in_flight() -> None:
    """Upload starts with the last of sync part, outputs and inputs; the acknowledgement carries all metrics."""
    story = Story(2)
    story.task.overtaken = {ResultSubpartitionInfo(0, 0): (BATCH,)}
    inputs = {InputChannelInfo(0, 1): (BATCH,)}

    assert story.on_barrier(1, UNALIGNED, 100, CheckpointMetrics(checkpoint_start_delay_ms=3, unaligned=True)) == [
        "op0: prepare 1",
        "op1: prepare 1",
        "barrier 1 overtakes",
        "op1: freeze 1 of 100 ms",
        "op0: freeze 1 of 100 ms",
    ]
    story.coordinator.all_barriers_received(ONE, 5, 6)
    assert story.task.take_calls() == []
    story.coordinator.finish_input(ONE, inputs)
    assert story.task.take_calls() == ["upload 1 of op1 op0 to 'chk-1'"]
    assert story.task.uploads == {ONE: ChannelState(inputs, story.task.overtaken)}
    story.coordinator.async_part_done(ONE, EMPTY_TASK_STATE)
    assert story.task.take_calls() == ["acknowledge 1"]
    assert story.task.acknowledged == [
        (
            CheckpointMetrics(
                sync_duration_ms=1,
                async_duration_ms=1,
                alignment_duration_ms=5,
                checkpoint_start_delay_ms=3,
                bytes_processed_during_alignment=6,
                bytes_persisted_during_alignment=2 * BATCH.nbytes,
                unaligned=True,
            ),
            EMPTY_TASK_STATE,
        )
    ]
    assert story.coordinator.pending_checkpoint_ids == ()


def test_timeoutable_barrier_keeps_the_upload_waiting_until_it_has_left_the_outputs() -> None:
    """Before, it may still turn unaligned, and what it overtakes belongs to the snapshot."""
    story = Story()

    assert story.on_barrier(1, TIMEOUTABLE, 120) == [
        "op0: prepare 1",
        "barrier 1",
        "timer at 150 ms",
        "op0: freeze 1 of 100 ms",
    ]
    story.coordinator.check_output_barriers()
    assert story.task.take_calls() == []
    story.task.waiting.clear()
    story.coordinator.check_output_barriers()
    assert story.task.take_calls() == ["no timer", "upload 1 of op0 to ''"]
    assert story.task.uploads == {ONE: ChannelState()}


def test_timeout_in_the_outputs_makes_what_was_overtaken_channel_state() -> None:
    """The checkpoint counts as unaligned then."""
    story = Story()
    story.on_barrier(1, TIMEOUTABLE, 120)
    story.task.overtaken = {ResultSubpartitionInfo(0, 0): (BATCH,)}

    story.coordinator.timer_fired(OutputBarrierTimeout(ONE))

    assert story.task.take_calls() == ["barrier 1 overtakes late", "upload 1 of op0 to ''"]
    assert story.task.uploads == {ONE: ChannelState({}, story.task.overtaken)}
    story.coordinator.async_part_done(ONE, EMPTY_TASK_STATE)
    assert [metrics.unaligned for metrics, _ in story.task.acknowledged] == [True]


def test_task_without_outputs_waits_for_none() -> None:
    """A sink's timeoutable checkpoint is uploaded at once."""
    story = Story(has_outputs=False)

    assert story.on_barrier(1, TIMEOUTABLE, 100)[-1] == "upload 1 of op0 to ''"
    assert story.task.uploads == {ONE: ChannelState()}


def test_forced_alignment_ends_behind_the_edge_that_needed_it() -> None:
    """The barrier goes on as it was meant; the inputs were aligned, so nothing of them is in flight."""
    story = Story()

    calls = story.on_barrier(1, UNALIGNED.with_unaligned_unsupported(), 100)

    assert story.task.sent == [CheckpointBarrier(ONE, 100, UNALIGNED)]
    assert calls[1:] == ["barrier 1 overtakes", "op0: freeze 1 of 100 ms", "upload 1 of op0 to 'chk-1'"]
    assert story.task.uploads == {ONE: ChannelState()}


def test_savepoints_never_overtake() -> None:
    """Whatever the trigger says about alignment."""
    story = Story()

    calls = story.trigger(1, CheckpointOptions(SnapshotType.SAVEPOINT, AlignmentType.UNALIGNED))

    assert calls[1] == "barrier 1"
    assert [barrier.options for barrier in story.task.sent] == [CheckpointOptions(SnapshotType.SAVEPOINT)]


def test_source_that_does_not_run_declines_and_tells_downstream() -> None:
    """So that nobody waits for a barrier."""
    story = Story()

    assert story.trigger(1, is_running=False) == [
        f"decline 1: {Reason.CHECKPOINT_DECLINED_TASK_NOT_READY.name} The task does not run yet, or not any more.",
        "cancel marker 1",
    ]
    assert story.coordinator.pending_checkpoint_ids == ()


def test_failures_decline_with_their_detail() -> None:
    """In the synchronous part, and in the background; what fails in the synchronous part fails the task."""
    story = Story(2)
    story.operators[0].failing = True

    with pytest.raises(OperatorFailure) as failure:
        story.trigger(1)

    assert story.task.take_calls() == [
        "op0: prepare 1",
        "op1: prepare 1",
        "barrier 1",
        "op1: freeze 1 of 0 ms",
        f"decline 1: {Reason.TASK_CHECKPOINT_FAILURE.name} {failure.value}",
    ]
    story.operators[0].failing = False
    assert story.trigger(2)[-1] == "upload 2 of op1 op0 to ''"
    story.coordinator.async_part_done(TWO, OSError("s3"))
    assert story.task.take_calls() == [
        "cancel upload 2",
        f"decline 2: {Reason.CHECKPOINT_ASYNC_EXCEPTION.name} OSError: s3",
    ]
    story.coordinator.async_part_done(TWO, EMPTY_TASK_STATE)
    assert story.task.take_calls() == []


def test_the_last_snapshot_of_a_task_says_so() -> None:
    """To whoever restores it: nothing has to be opened again."""
    story = Story()
    story.task.finished = True

    assert "op0: freeze 1 of 0 ms, final" in story.trigger(1)
    story.coordinator.async_part_done(ONE, EMPTY_TASK_STATE)
    assert [state for _, state in story.task.acknowledged] == [replace(EMPTY_TASK_STATE, is_task_finished=True)]


def test_abort_notification_stops_the_running_snapshot_and_tells_operators() -> None:
    """Tail to head, then the state manager."""
    story = Story(2)
    story.trigger(1, TIMEOUTABLE)
    story.coordinator.notify_checkpoint_aborted(ONE)
    assert story.task.take_calls() == ["no timer", "op1: aborted 1", "op0: aborted 1", "settled 1 as aborted"]

    story.trigger(2)
    story.coordinator.notify_checkpoint_aborted(TWO)
    assert story.task.take_calls() == ["cancel upload 2", "op1: aborted 2", "op0: aborted 2", "settled 2 as aborted"]
    assert story.coordinator.remembered_aborts == 0


def test_completion_is_told_to_operators_and_then_to_the_state_manager() -> None:
    """Tail to head."""
    story = Story(2)

    story.coordinator.notify_checkpoint_complete(ONE)

    assert story.task.take_calls() == ["op1: complete 1", "op0: complete 1", "settled 1 as complete"]


def test_abort_on_barrier_also_gives_up_older_snapshots_that_wait_for_barriers() -> None:
    """Their barriers never come; one that only uploads goes on."""
    story = Story(has_outputs=False)
    story.on_barrier(1, CheckpointOptions(), 0)
    story.on_barrier(2, UNALIGNED, 0)
    reason = Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER

    story.coordinator.abort_checkpoint_on_barrier(CheckpointID(4), reason)

    assert story.task.take_calls() == [f"decline 4: {reason.name}", "cancel marker 4"]
    assert story.coordinator.pending_checkpoint_ids == (ONE,)
    assert story.trigger(3) == []


def test_the_job_master_is_not_told_what_it_has_said_itself() -> None:
    """Those downstream are: they wait for the barrier."""
    story = Story()
    story.coordinator.notify_checkpoint_aborted(ONE)
    story.task.take_calls()

    story.coordinator.abort_checkpoint_on_barrier(ONE, None)

    assert story.task.take_calls() == ["cancel marker 1"]
    assert story.trigger(1) == []


def test_what_inputs_recovered_is_passed_on() -> None:
    """Those behind the task wait for it, too."""
    story = Story()

    story.coordinator.inputs_recovered(is_last=False)
    story.coordinator.inputs_recovered(is_last=True)

    assert story.task.take_calls() == ["end of channel state", "end of channel state, the last"]


def test_aborts_too_old_to_be_remembered_still_count() -> None:
    """A trigger far behind the newest abort belongs to a checkpoint that was aborted long ago."""
    story = Story(max_record_aborted_checkpoints=2)
    for number in range(5, 10):
        story.coordinator.notify_checkpoint_aborted(CheckpointID(number))
    story.task.take_calls()

    calls = story.trigger(6)

    assert story.coordinator.remembered_aborts == 2
    assert calls == ["cancel marker 6"]


def test_closing_abandons_everything_that_is_under_way() -> None:
    """Once each."""
    story = Story()
    story.trigger(1)
    story.trigger(2, TIMEOUTABLE)

    story.coordinator.close()
    assert story.task.take_calls() == ["cancel upload 1", "no timer"]
    story.coordinator.close()
    assert story.task.take_calls() == []
