"""The barrier handlers, effect by effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from snapline.dataflow.config import ConfigurationError
from snapline.dataflow.elements import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    SnapshotType,
)
from snapline.dataflow.failures import CheckpointFailureReason as Reason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, StartTimer
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpoint_barrier_tracker import CheckpointBarrierTracker
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    AbortCheckpointOnBarrier,
    AllBarriersReceived,
    BlockConsumption,
    CheckpointStarted,
    CheckpointStopped,
    ConvertToPriority,
    DeclineOvertakenCheckpoint,
    HoldConsumption,
    ReleaseConsumption,
    ResumeConsumption,
    TriggerCheckpointOnBarrier,
)
from snapline.taskmanager.checkpointing.handler_factory import (
    alternating_checkpoint_barrier_handler,
    checkpoint_barrier_aligner,
    checkpoint_barrier_unaligner,
    create_barrier_handler,
)
from snapline.taskmanager.checkpointing.single_checkpoint_barrier_handler import (
    AlignedCheckpointTimeout,
    SingleCheckpointBarrierHandler,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

C0, C1, C2 = (InputChannelInfo(0, index) for index in range(3))
ALIGNED = CheckpointOptions()
UNALIGNED = CheckpointOptions(alignment=AlignmentType.UNALIGNED)
HELD_BACK = UNALIGNED.with_unaligned_unsupported()
SAVEPOINT = CheckpointOptions(SnapshotType.SAVEPOINT)
COUNTED = CheckpointOptions(alignment=AlignmentType.AT_LEAST_ONCE)


def barrier(number: int, options: CheckpointOptions = ALIGNED, at_ms: int = 0) -> CheckpointBarrier:
    return CheckpointBarrier(CheckpointID(number), at_ms, options)


def timeoutable(number: int, timeout_ms: int = 100) -> CheckpointBarrier:
    return barrier(number, CheckpointOptions(aligned_checkpoint_timeout_ms=timeout_ms))


def cancel(number: int) -> CancelCheckpointMarker:
    return CancelCheckpointMarker(CheckpointID(number))


def test_aligner_blocks_each_channel_and_releases_all_on_the_last_barrier() -> None:
    """Trigger first, then resume in the order of blocking; alignment and processed bytes are measured."""
    handler = checkpoint_barrier_aligner([C0, C1, C2])

    assert handler.process_barrier(barrier(1), C1, 10) == [BlockConsumption(C1)]
    handler.add_processed_bytes(64)
    assert handler.process_barrier(barrier(1), C0, 15) == [BlockConsumption(C0)]
    assert handler.process_barrier(barrier(1), C2, 30) == [
        BlockConsumption(C2),
        TriggerCheckpointOnBarrier(
            barrier(1),
            CheckpointMetrics(
                alignment_duration_ms=20, checkpoint_start_delay_ms=10, bytes_processed_during_alignment=64
            ),
        ),
        ResumeConsumption(C1),
        ResumeConsumption(C0),
        ResumeConsumption(C2),
    ]


def test_aligner_resumes_a_channel_whose_barrier_is_obsolete() -> None:
    """Its producer has stopped behind it, whether anybody wants the barrier or not."""
    handler = checkpoint_barrier_aligner([C0, C1])
    handler.process_cancellation_barrier(cancel(3), C0, 0)

    assert handler.process_barrier(barrier(3), C1, 0) == [ResumeConsumption(C1)]
    assert handler.process_barrier(barrier(2), C1, 0) == [ResumeConsumption(C1)]


def test_end_of_partition_stands_for_the_missing_barrier() -> None:
    """The checkpoint goes on with the channels that are left."""
    handler = checkpoint_barrier_aligner([C0, C1])
    handler.process_barrier(barrier(1), C0, 0)

    effects = handler.process_end_of_partition(C1, 5)

    assert [type(effect) for effect in effects] == [TriggerCheckpointOnBarrier, ResumeConsumption]
    assert handler.open_channels == 1
    assert [type(effect) for effect in handler.process_barrier(barrier(2), C0, 6)] == [
        BlockConsumption,
        TriggerCheckpointOnBarrier,
        ResumeConsumption,
    ]


def test_end_of_partition_aborts_when_checkpoints_end_with_tasks() -> None:
    """The feature of newer releases switched off."""
    handler = checkpoint_barrier_aligner([C0, C1], checkpoints_after_tasks_finish=False)
    handler.process_barrier(barrier(1), C0, 0)

    assert handler.process_end_of_partition(C1, 5) == [
        ResumeConsumption(C0),
        AbortCheckpointOnBarrier(CheckpointID(1), Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM),
    ]


def test_a_channel_ends_once() -> None:
    """A second end is a defect."""
    handler = checkpoint_barrier_aligner([C0, C1])
    handler.process_end_of_partition(C0, 0)

    with pytest.raises(InvariantViolation, match="ended twice"):
        handler.process_end_of_partition(C0, 0)


def test_aligner_refuses_unaligned_barriers() -> None:
    """Tasks of one job that disagree about the mode must not go on."""
    with pytest.raises(InvariantViolation, match=r"unaligned\.enabled"):
        checkpoint_barrier_aligner([C0, C1]).process_barrier(barrier(1, UNALIGNED), C0, 0)


def test_unaligned_checkpoint_triggers_first_and_completes_last() -> None:
    """Channels remember before the snapshot; what they remembered is handed over when the last barrier came."""
    handler = checkpoint_barrier_unaligner([C0, C1])

    first = handler.process_barrier(barrier(1, UNALIGNED), C0, 10)
    handler.add_processed_bytes(8)
    last = handler.process_barrier(barrier(1, UNALIGNED), C1, 17)

    assert first == [
        CheckpointStarted(barrier(1, UNALIGNED)),
        TriggerCheckpointOnBarrier(
            barrier(1, UNALIGNED), CheckpointMetrics(checkpoint_start_delay_ms=10, unaligned=True)
        ),
    ]
    assert last == [
        AllBarriersReceived(CheckpointID(1), alignment_duration_ms=7, bytes_processed_during_alignment=8),
        CheckpointStopped(CheckpointID(1), completed=True),
    ]


def test_abandoned_unaligned_checkpoint_forgets_its_data_in_flight() -> None:
    """Whatever newer id the cancellation names, what stops is what was started."""
    handler = checkpoint_barrier_unaligner([C0, C1])
    handler.process_barrier(barrier(1, UNALIGNED), C0, 0)

    assert handler.process_cancellation_barrier(cancel(3), C1, 0) == [
        DeclineOvertakenCheckpoint(CheckpointID(1), 0),
        CheckpointStopped(CheckpointID(1), completed=False),
        AbortCheckpointOnBarrier(CheckpointID(3), Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER),
    ]


@pytest.mark.parametrize("make", [checkpoint_barrier_aligner, alternating_checkpoint_barrier_handler])
def test_checkpoint_that_a_newer_cancellation_overtakes_is_declined(
    make: Callable[[list[InputChannelInfo]], SingleCheckpointBarrierHandler],
) -> None:
    """Nobody would hear of it until it times out; the decline says what happened, and when the checkpoint was
    triggered."""
    handler = make([C0, C1])
    handler.process_barrier(barrier(5, at_ms=70), C0, 80)

    effects = handler.process_cancellation_barrier(cancel(6), C1, 90)

    declined = effects[0]
    assert isinstance(declined, DeclineOvertakenCheckpoint)
    assert effects == [
        DeclineOvertakenCheckpoint(CheckpointID(5), 70),
        ResumeConsumption(C0),
        AbortCheckpointOnBarrier(CheckpointID(6), Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER),
    ]
    expected = "input 0/1 brought the cancellation of checkpoint 6 when 1 of 2 inputs had brought this one."
    assert expected == declined.detail


def test_checkpoint_that_a_newer_barrier_skips_says_so_in_words() -> None:
    """With the time of its trigger."""
    handler = checkpoint_barrier_aligner([C0, C1])
    handler.process_barrier(barrier(5, at_ms=70), C0, 80)

    [*_, abort, _] = handler.process_barrier(barrier(6), C1, 90)

    assert isinstance(abort, AbortCheckpointOnBarrier)
    assert abort.timestamp_ms == 70
    assert abort.detail == "input 0/1 brought checkpoint 6 when 1 of 2 inputs had brought this one."


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (checkpoint_barrier_aligner([C0, C1]), ALIGNED),
        (checkpoint_barrier_unaligner([C0, C1]), UNALIGNED),
        (alternating_checkpoint_barrier_handler([C0, C1]), SAVEPOINT),
        (CheckpointBarrierTracker([C0, C1]), COUNTED),
    ],
)
def test_second_barrier_of_a_checkpoint_on_a_channel_is_an_error(
    handler: CheckpointBarrierHandler, options: CheckpointOptions
) -> None:
    """The stream is corrupt, and nothing that comes of it can be trusted."""
    handler.process_barrier(barrier(1, options), C0, 0)

    with pytest.raises(InvariantViolation, match="stream corrupt: a second barrier of checkpoint 1"):
        handler.process_barrier(barrier(1, options), C0, 0)


def test_savepoint_after_unaligned_checkpoint_subsumes_it() -> None:
    """The alternating handler: each barrier says what it is."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])
    handler.process_barrier(barrier(1, UNALIGNED), C0, 0)

    assert handler.process_barrier(barrier(2, SAVEPOINT), C1, 0) == [
        CheckpointStopped(CheckpointID(1), completed=False),
        AbortCheckpointOnBarrier(CheckpointID(1), Reason.CHECKPOINT_DECLINED_SUBSUMED),
        BlockConsumption(C1),
    ]


def test_alignment_turns_unaligned_when_time_is_up() -> None:
    """Announced barriers come forward, channels remember, the task snapshots; blocked ones wait for the end."""
    handler = alternating_checkpoint_barrier_handler([C0, C1, C2])
    timer = AlignedCheckpointTimeout(CheckpointID(1))

    assert handler.process_barrier_announcement(timeoutable(1), 4, C0, 10) == [StartTimer(timer, 100)]
    assert handler.process_barrier(timeoutable(1), C0, 20) == [BlockConsumption(C0)]
    assert handler.process_barrier_announcement(timeoutable(1), 9, C1, 30) == []
    unaligned = timeoutable(1).as_unaligned()
    assert handler.timer_fired(timer, 100) == [
        ConvertToPriority(C1, 9),
        CheckpointStarted(unaligned),
        TriggerCheckpointOnBarrier(unaligned, CheckpointMetrics(checkpoint_start_delay_ms=20, unaligned=True)),
    ]
    assert handler.process_barrier_announcement(timeoutable(1), 3, C2, 101) == [ConvertToPriority(C2, 3)]
    assert handler.process_barrier(timeoutable(1), C1, 102) == [BlockConsumption(C1)]
    assert handler.process_barrier(unaligned, C2, 103) == [
        AllBarriersReceived(CheckpointID(1), alignment_duration_ms=83, bytes_processed_during_alignment=0),
        CheckpointStopped(CheckpointID(1), completed=True),
        ResumeConsumption(C0),
        ResumeConsumption(C1),
    ]


def test_alignment_in_time_cancels_its_timer() -> None:
    """And a firing that comes nevertheless means nothing."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])
    timer = AlignedCheckpointTimeout(CheckpointID(1))
    handler.process_barrier(timeoutable(1), C0, 10)

    effects = handler.process_barrier(timeoutable(1), C1, 20)

    assert effects[-1] == CancelTimer(timer)
    assert handler.timer_fired(timer, 100) == []


def test_barrier_that_is_too_old_turns_unaligned_by_itself() -> None:
    """Local channels announce nothing; the barrier's age decides."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])

    effects = handler.process_barrier(timeoutable(1), C0, 101)

    assert [type(effect) for effect in effects] == [
        StartTimer,
        BlockConsumption,
        CheckpointStarted,
        TriggerCheckpointOnBarrier,
    ]


def test_what_nothing_may_overtake_is_waited_for_before_an_unaligned_snapshot() -> None:
    """The other channels are held with what their barriers overtook; those that come later run on."""
    handler = alternating_checkpoint_barrier_handler([C0, C1, C2], never_overtaken=[C1])

    assert handler.process_barrier(barrier(1, UNALIGNED), C0, 0) == [HoldConsumption(C0)]
    assert handler.process_barrier(barrier(1, HELD_BACK), C1, 5) == [
        BlockConsumption(C1),
        HoldConsumption(C1),
        CheckpointStarted(barrier(1, UNALIGNED)),
        TriggerCheckpointOnBarrier(barrier(1, UNALIGNED), CheckpointMetrics(unaligned=True)),
        ReleaseConsumption(C0),
        ReleaseConsumption(C1),
    ]
    assert [type(effect) for effect in handler.process_barrier(barrier(1, UNALIGNED), C2, 9)] == [
        AllBarriersReceived,
        CheckpointStopped,
        ResumeConsumption,
    ]


def test_time_is_counted_from_the_barrier_that_has_a_timeout() -> None:
    """The first came from a channel that nothing may overtake; when time is up, and those are there, the rest is
    overtaken."""
    handler = alternating_checkpoint_barrier_handler([C0, C1], never_overtaken=[C0])
    timer = AlignedCheckpointTimeout(CheckpointID(1))

    assert handler.process_barrier(barrier(1, HELD_BACK), C0, 10) == [BlockConsumption(C0)]
    assert handler.process_barrier_announcement(timeoutable(1), 7, C1, 20) == [StartTimer(timer, 100)]
    assert [type(effect) for effect in handler.timer_fired(timer, 100)] == [
        ConvertToPriority,
        CheckpointStarted,
        TriggerCheckpointOnBarrier,
    ]


def test_a_timeout_while_such_a_channel_is_missing_holds_the_others() -> None:
    """Announced barriers come forward all the same, and a cancellation lets everything go on."""
    handler = alternating_checkpoint_barrier_handler([C0, C1, C2], never_overtaken=[C2])
    timer = AlignedCheckpointTimeout(CheckpointID(1))
    handler.process_barrier_announcement(timeoutable(1), 7, C1, 0)
    handler.process_barrier(timeoutable(1), C0, 50)

    assert handler.timer_fired(timer, 100) == [ConvertToPriority(C1, 7)]
    assert handler.process_barrier(timeoutable(1), C1, 101) == [BlockConsumption(C1), HoldConsumption(C1)]
    assert handler.process_cancellation_barrier(cancel(1), C2, 102) == [
        ReleaseConsumption(C1),
        ResumeConsumption(C0),
        ResumeConsumption(C1),
        AbortCheckpointOnBarrier(CheckpointID(1), Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER),
    ]


def test_cancellation_ends_a_checkpoint_that_was_only_announced() -> None:
    """Otherwise its barrier would block a channel for a checkpoint that nobody else waits for."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])
    handler.process_barrier_announcement(timeoutable(1), 4, C0, 0)

    assert handler.process_cancellation_barrier(cancel(1), C1, 0) == [
        CancelTimer(AlignedCheckpointTimeout(CheckpointID(1))),
        AbortCheckpointOnBarrier(CheckpointID(1), Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER),
    ]
    assert handler.process_barrier(timeoutable(1), C0, 1) == [ResumeConsumption(C0)]


def test_what_the_job_master_has_given_up_blocks_nothing() -> None:
    """Neither channels whose aligned barrier has come, nor those that were held; and nobody has to tell the
    JobMaster."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])
    handler.process_barrier(timeoutable(1), C0, 0)
    assert handler.timer_fired(AlignedCheckpointTimeout(CheckpointID(1)), 100)

    assert handler.process_abort_notification(CheckpointID(1), 101) == [
        CheckpointStopped(CheckpointID(1), completed=False),
        ResumeConsumption(C0),
        AbortCheckpointOnBarrier(CheckpointID(1), None),
    ]
    assert handler.process_barrier(timeoutable(1), C1, 102) == [ResumeConsumption(C1)]
    assert BlockConsumption(C1) in handler.process_barrier(timeoutable(2), C1, 103)


def test_barriers_of_what_was_given_up_before_they_came_block_nothing() -> None:
    """The first of them is passed on as a cancellation, for those who wait for it; an announcement means nothing."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])
    handler.process_barrier(timeoutable(1), C0, 0)
    assert handler.process_abort_notification(CheckpointID(2), 1) == []

    assert handler.process_barrier_announcement(timeoutable(2), 5, C0, 2) == []
    assert handler.process_barrier(timeoutable(2), C0, 3) == [
        CancelTimer(AlignedCheckpointTimeout(CheckpointID(1))),
        ResumeConsumption(C0),
        AbortCheckpointOnBarrier(CheckpointID(1), Reason.CHECKPOINT_DECLINED_SUBSUMED),
        AbortCheckpointOnBarrier(CheckpointID(2), None),
        ResumeConsumption(C0),
    ]
    assert handler.process_barrier(timeoutable(2), C1, 4) == [ResumeConsumption(C1)]
    assert not handler.is_checkpoint_pending


def test_only_so_many_given_up_checkpoints_are_remembered() -> None:
    """As many as the SubtaskCheckpointCoordinator does, and none whose barrier has come."""
    handler = checkpoint_barrier_aligner([C0, C1])
    for number in range(1, 300):
        handler.process_abort_notification(CheckpointID(number), 0)

    assert handler.process_barrier(barrier(100), C0, 0) == [BlockConsumption(C0)]
    assert handler.process_barrier(barrier(299), C0, 0)[-2:] == [
        AbortCheckpointOnBarrier(CheckpointID(299), None),
        ResumeConsumption(C0),
    ]
    assert handler.process_abort_notification(CheckpointID(299), 0) == []


def test_closing_a_handler_stops_what_it_started() -> None:
    """Timer and memories."""
    handler = alternating_checkpoint_barrier_handler([C0, C1])
    handler.process_barrier(barrier(1, UNALIGNED), C0, 0)
    assert handler.close() == [CheckpointStopped(CheckpointID(1), completed=False)]

    handler = alternating_checkpoint_barrier_handler([C0, C1])
    handler.process_barrier_announcement(timeoutable(2), 1, C0, 0)
    assert handler.close() == [CancelTimer(AlignedCheckpointTimeout(CheckpointID(2)))]


def test_tracker_measures_the_newest_checkpoint_only() -> None:
    """An older one that completes later reports nothing; one that is subsumed is silent."""
    tracker = CheckpointBarrierTracker([C0, C1])
    tracker.process_barrier(barrier(1, COUNTED), C0, 0)
    tracker.process_barrier(barrier(2, COUNTED), C0, 10)

    assert tracker.process_barrier(barrier(1, COUNTED), C1, 20) == [
        TriggerCheckpointOnBarrier(barrier(1, COUNTED), CheckpointMetrics())
    ]
    assert tracker.process_barrier(barrier(2, COUNTED), C1, 30) == [
        TriggerCheckpointOnBarrier(
            barrier(2, COUNTED), CheckpointMetrics(alignment_duration_ms=20, checkpoint_start_delay_ms=10)
        )
    ]


def test_tracker_resumes_a_channel_that_an_aligned_barrier_stopped() -> None:
    """It never waits, so nothing may wait for it."""
    tracker = CheckpointBarrierTracker([C0, C1])

    assert tracker.process_barrier(barrier(1), C0, 0) == [ResumeConsumption(C0)]


def test_tracker_completes_the_newest_that_waited_for_the_ended_channel() -> None:
    """Older ones are subsumed by it."""
    tracker = CheckpointBarrierTracker([C0, C1])
    for number in (1, 2, 3):
        tracker.process_barrier(barrier(number, COUNTED), C0, 0)

    effects = tracker.process_end_of_partition(C1, 9)

    assert [effect.barrier.checkpoint_id for effect in effects if isinstance(effect, TriggerCheckpointOnBarrier)] == [3]
    assert not tracker.is_checkpoint_pending


def test_tracker_ignores_what_a_single_channel_repeats() -> None:
    """Ids only rise."""
    tracker = CheckpointBarrierTracker([C0])
    assert len(tracker.process_barrier(barrier(2, COUNTED), C0, 0)) == 1

    assert tracker.process_barrier(barrier(2, COUNTED), C0, 0) == []
    assert tracker.process_cancellation_barrier(cancel(1), C0, 0) == []


def test_factory_picks_the_handler_by_mode() -> None:
    """As Flink's InputProcessorUtil does."""
    assert isinstance(create_barrier_handler("AT_LEAST_ONCE", [C0]), CheckpointBarrierTracker)
    aligner = create_barrier_handler("EXACTLY_ONCE", [C0])
    alternating = create_barrier_handler("EXACTLY_ONCE", [C0], unaligned_enabled=True)

    assert isinstance(aligner, SingleCheckpointBarrierHandler)
    assert isinstance(alternating, SingleCheckpointBarrierHandler)
    assert (aligner.state.name, alternating.state.name) == (
        "WAITING_FOR_FIRST_BARRIER",
        "ALTERNATING_WAITING_FOR_FIRST_BARRIER",
    )


@pytest.mark.parametrize(
    ("mode", "unaligned", "message"),
    [
        ("AT_LEAST_ONCE", True, r"execution\.checkpointing\.mode = AT_LEAST_ONCE.*unaligned\.enabled"),
        ("SOMETIMES", False, r"execution\.checkpointing\.mode = 'SOMETIMES': expected EXACTLY_ONCE or AT_LEAST_ONCE"),
    ],
)
def test_factory_refuses_by_name(mode: str, unaligned: bool, message: str) -> None:
    """The error names the settings and the way out."""
    with pytest.raises(ConfigurationError, match=message):
        create_barrier_handler(mode, [C0], unaligned_enabled=unaligned)
