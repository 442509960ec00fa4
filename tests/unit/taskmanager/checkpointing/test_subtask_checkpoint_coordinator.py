"""Order and books of one subtask's checkpoints."""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.elements import AlignmentType, CheckpointBarrier, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason as Reason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.runtime.cores.machine import CancelTimer, StartTimer
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    Acknowledge,
    AllBarriersReceived,
    BroadcastBarrier,
    BroadcastCancelCheckpointMarker,
    CancelAsyncSnapshot,
    CaptureOutputState,
    ChannelState,
    Decline,
    NotifyOperatorAborted,
    NotifyStateManager,
    PrepareSnapshotPreBarrier,
    SnapshotOperator,
    StartAsyncSnapshot,
    TimeOutBarrier,
    TriggerCheckpointOnBarrier,
)
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import (
    OutputBarrierTimeout,
    SubtaskCheckpointCoordinator,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo, ResultSubpartitionInfo

ONE, TWO = CheckpointID(1), CheckpointID(2)
UNALIGNED = CheckpointOptions(alignment=AlignmentType.UNALIGNED, target_location="chk-1")
TIMEOUTABLE = CheckpointOptions(aligned_checkpoint_timeout_ms=50)
BATCH = pa.record_batch({"n": pa.array([1, 2], pa.int64())})


def on_barrier(number: int, options: CheckpointOptions, metrics: CheckpointMetrics | None = None):
    return TriggerCheckpointOnBarrier(
        CheckpointBarrier(CheckpointID(number), 100, options), metrics or CheckpointMetrics()
    )


def test_unaligned_checkpoint_waits_for_both_sides_of_its_data_in_flight() -> None:
    """Upload starts with the last of sync part, outputs and inputs; the acknowledgement carries all metrics."""
    coordinator = SubtaskCheckpointCoordinator(2)
    barrier = CheckpointBarrier(ONE, 100, UNALIGNED)
    metrics = CheckpointMetrics(checkpoint_start_delay_ms=3, unaligned=True)

    assert coordinator.trigger_checkpoint_on_barrier(on_barrier(1, UNALIGNED, metrics), 100, is_running=True) == [
        PrepareSnapshotPreBarrier(0, ONE),
        PrepareSnapshotPreBarrier(1, ONE),
        BroadcastBarrier(barrier, is_priority=True),
        CaptureOutputState(ONE),
        SnapshotOperator(1, ONE, 100),
        SnapshotOperator(0, ONE, 100),
    ]
    outputs = {ResultSubpartitionInfo(0, 0): (BATCH,)}
    inputs = {InputChannelInfo(0, 1): (BATCH,)}
    assert coordinator.finish_output(ONE, outputs) == []
    assert coordinator.sync_part_completed(ONE, 4) == []
    assert coordinator.all_barriers_received(AllBarriersReceived(ONE, 5, 6)) == []
    state = ChannelState(inputs, outputs)
    assert coordinator.finish_input(ONE, inputs) == [StartAsyncSnapshot(ONE, "chk-1", state)]
    assert coordinator.async_part_completed(ONE, 7) == [
        Acknowledge(
            ONE,
            CheckpointMetrics(
                sync_duration_ms=4,
                async_duration_ms=7,
                alignment_duration_ms=5,
                checkpoint_start_delay_ms=3,
                bytes_processed_during_alignment=6,
                bytes_persisted_during_alignment=2 * BATCH.nbytes,
                unaligned=True,
            ),
        )
    ]
    assert coordinator.pending_checkpoint_ids == ()


def test_timeoutable_barrier_keeps_the_upload_waiting_until_it_has_left_the_outputs() -> None:
    """Before, it may still turn unaligned, and what it overtakes belongs to the snapshot."""
    coordinator = SubtaskCheckpointCoordinator(1)
    timer = OutputBarrierTimeout(ONE)

    effects = coordinator.trigger_checkpoint_on_barrier(on_barrier(1, TIMEOUTABLE), 120, is_running=True)

    assert StartTimer(timer, 150) in effects
    assert BroadcastBarrier(CheckpointBarrier(ONE, 100, TIMEOUTABLE), is_priority=False) in effects
    assert coordinator.sync_part_completed(ONE, 0) == []
    assert coordinator.awaited_output_barriers == (ONE,)
    assert coordinator.output_barriers_sent(ONE) == [
        CancelTimer(timer),
        StartAsyncSnapshot(ONE, "", ChannelState()),
    ]


def test_timeout_in_the_outputs_makes_what_was_overtaken_channel_state() -> None:
    """The checkpoint counts as unaligned then."""
    coordinator = SubtaskCheckpointCoordinator(1)
    coordinator.trigger_checkpoint_on_barrier(on_barrier(1, TIMEOUTABLE), 120, is_running=True)
    coordinator.sync_part_completed(ONE, 0)

    assert coordinator.timer_fired(OutputBarrierTimeout(ONE), 150) == [
        TimeOutBarrier(CheckpointBarrier(ONE, 100, TIMEOUTABLE))
    ]
    outputs = {ResultSubpartitionInfo(0, 0): (BATCH,)}
    assert coordinator.finish_output(ONE, outputs) == [StartAsyncSnapshot(ONE, "", ChannelState({}, outputs))]
    acknowledge = coordinator.async_part_completed(ONE, 1)[0]
    assert isinstance(acknowledge, Acknowledge)
    assert acknowledge.metrics.unaligned


def test_task_without_outputs_waits_for_none() -> None:
    """A sink's timeoutable checkpoint is uploaded at once."""
    coordinator = SubtaskCheckpointCoordinator(1, has_outputs=False)
    coordinator.trigger_checkpoint_on_barrier(on_barrier(1, TIMEOUTABLE), 100, is_running=True)

    assert coordinator.sync_part_completed(ONE, 0) == [StartAsyncSnapshot(ONE, "", ChannelState())]


def test_forced_alignment_ends_behind_the_edge_that_needed_it() -> None:
    """The barrier goes on as it was meant; the inputs were aligned, so nothing of them is in flight."""
    coordinator = SubtaskCheckpointCoordinator(1)
    forced = UNALIGNED.with_unaligned_unsupported()

    effects = coordinator.trigger_checkpoint_on_barrier(on_barrier(1, forced), 100, is_running=True)

    assert BroadcastBarrier(CheckpointBarrier(ONE, 100, UNALIGNED), is_priority=True) in effects
    assert coordinator.finish_output(ONE, {}) == []
    assert coordinator.sync_part_completed(ONE, 0) == [StartAsyncSnapshot(ONE, "chk-1", ChannelState())]


def test_savepoints_never_overtake() -> None:
    """Whatever the trigger says about alignment."""
    options = CheckpointOptions(SnapshotType.SAVEPOINT, AlignmentType.UNALIGNED)
    coordinator = SubtaskCheckpointCoordinator(1)

    effects = coordinator.trigger_checkpoint(CheckpointBarrier(ONE, 100, options), 100, is_running=True)

    sent = next(effect for effect in effects if isinstance(effect, BroadcastBarrier))
    assert not sent.is_priority
    assert sent.barrier.options == CheckpointOptions(SnapshotType.SAVEPOINT)


def test_source_that_does_not_run_declines_and_tells_downstream() -> None:
    """So that nobody waits for a barrier."""
    coordinator = SubtaskCheckpointCoordinator(1)

    assert coordinator.trigger_checkpoint(CheckpointBarrier(ONE, 0), 0, is_running=False) == [
        Decline(ONE, Reason.CHECKPOINT_DECLINED_TASK_NOT_READY),
        BroadcastCancelCheckpointMarker(ONE),
    ]
    assert coordinator.pending_checkpoint_ids == ()


def test_failures_decline_with_their_detail() -> None:
    """In the synchronous part, and in the background."""
    coordinator = SubtaskCheckpointCoordinator(1)
    coordinator.trigger_checkpoint(CheckpointBarrier(ONE, 0), 0, is_running=True)
    assert coordinator.sync_part_failed(ONE, "disk") == [
        CancelAsyncSnapshot(ONE),
        Decline(ONE, Reason.TASK_CHECKPOINT_FAILURE, "disk"),
    ]
    coordinator.trigger_checkpoint(CheckpointBarrier(TWO, 0), 0, is_running=True)
    coordinator.sync_part_completed(TWO, 0)
    assert coordinator.async_part_failed(TWO, "s3") == [Decline(TWO, Reason.CHECKPOINT_ASYNC_EXCEPTION, "s3")]
    assert coordinator.async_part_completed(TWO, 0) == []


def test_abort_notification_stops_the_running_snapshot_and_tells_operators() -> None:
    """Tail to head, then the state manager."""
    coordinator = SubtaskCheckpointCoordinator(2)
    coordinator.trigger_checkpoint(CheckpointBarrier(ONE, 0, TIMEOUTABLE), 0, is_running=True)

    assert coordinator.notify_checkpoint_aborted(ONE, is_running=True) == [
        CancelTimer(OutputBarrierTimeout(ONE)),
        CancelAsyncSnapshot(ONE),
        NotifyOperatorAborted(1, ONE),
        NotifyOperatorAborted(0, ONE),
        NotifyStateManager(ONE, completed=False),
    ]
    assert coordinator.remembered_aborts == 0


def test_abort_on_barrier_also_gives_up_older_snapshots_that_wait_for_barriers() -> None:
    """Their barriers never come; one that only uploads goes on."""
    coordinator = SubtaskCheckpointCoordinator(1, has_outputs=False)
    coordinator.trigger_checkpoint_on_barrier(on_barrier(1, CheckpointOptions()), 0, is_running=True)
    coordinator.sync_part_completed(ONE, 0)
    coordinator.trigger_checkpoint_on_barrier(on_barrier(2, UNALIGNED), 0, is_running=True)
    coordinator.sync_part_completed(TWO, 0)
    reason = Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER

    assert coordinator.abort_checkpoint_on_barrier(CheckpointID(4), reason) == [
        CancelAsyncSnapshot(TWO),
        Decline(CheckpointID(4), reason),
        BroadcastCancelCheckpointMarker(CheckpointID(4)),
    ]
    assert coordinator.pending_checkpoint_ids == (ONE,)
    assert coordinator.trigger_checkpoint(CheckpointBarrier(CheckpointID(3), 0), 0, is_running=True) == []


def test_the_job_master_is_not_told_what_it_has_said_itself() -> None:
    """Those downstream are: they wait for the barrier."""
    coordinator = SubtaskCheckpointCoordinator(1)
    coordinator.notify_checkpoint_aborted(ONE, is_running=True)

    assert coordinator.abort_checkpoint_on_barrier(ONE, None) == [BroadcastCancelCheckpointMarker(ONE)]
    assert coordinator.last_checkpoint_id == ONE


def test_aborts_too_old_to_be_remembered_still_count() -> None:
    """A trigger far behind the newest abort belongs to a checkpoint that was aborted long ago."""
    coordinator = SubtaskCheckpointCoordinator(1, max_record_aborted_checkpoints=2)
    for number in range(5, 10):
        coordinator.notify_checkpoint_aborted(CheckpointID(number), is_running=True)

    effects = coordinator.trigger_checkpoint(CheckpointBarrier(CheckpointID(6), 0), 0, is_running=True)

    assert coordinator.remembered_aborts == 2
    assert effects == [BroadcastCancelCheckpointMarker(CheckpointID(6))]


def test_closing_abandons_everything_that_is_under_way() -> None:
    """Once each."""
    coordinator = SubtaskCheckpointCoordinator(1)
    for number in (1, 2):
        coordinator.trigger_checkpoint(CheckpointBarrier(CheckpointID(number), 0), 0, is_running=True)

    assert coordinator.close() == [CancelAsyncSnapshot(ONE), CancelAsyncSnapshot(TWO)]
    assert coordinator.close() == []
