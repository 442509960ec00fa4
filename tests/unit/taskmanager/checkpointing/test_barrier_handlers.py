"""The barrier handlers, call by call."""

from __future__ import annotations

from functools import partial

import pytest

from snapline.dataflow.config import ConfigurationError
from snapline.dataflow.elements import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    SnapshotType,
)
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpoint_barrier_tracker import CheckpointBarrierTracker
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
from tests.unit.taskmanager.checkpointing.recorded_handler import MakeHandler, RecordedCalls, RecordedHandler

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
    handler = RecordedHandler(checkpoint_barrier_aligner, C0, C1, C2)

    assert handler.process_barrier(barrier(1), C1, 10) == ["block C1"]
    handler.add_processed_bytes(64)
    assert handler.process_barrier(barrier(1), C0, 15) == ["block C0"]
    assert handler.process_barrier(barrier(1), C2, 30) == [
        "block C2",
        "trigger 1 aligned, aligned in 20 ms, 10 ms late, 64 bytes",
        "resume C1",
        "resume C0",
        "resume C2",
    ]


def test_aligner_resumes_a_channel_whose_barrier_is_obsolete() -> None:
    """Its producer has stopped behind it, whether anybody wants the barrier or not."""
    handler = RecordedHandler(checkpoint_barrier_aligner, C0, C1)
    handler.process_cancellation_barrier(cancel(3), C0, 0)

    assert handler.process_barrier(barrier(3), C1, 0) == ["resume C1"]
    assert handler.process_barrier(barrier(2), C1, 0) == ["resume C1"]


def test_end_of_partition_stands_for_the_missing_barrier() -> None:
    """The checkpoint goes on with the channels that are left."""
    handler = RecordedHandler(checkpoint_barrier_aligner, C0, C1)
    handler.process_barrier(barrier(1), C0, 0)

    effects = handler.process_end_of_partition(C1, 5)

    assert effects == ["trigger 1 aligned, aligned in 5 ms", "resume C0"]
    assert handler.handler.open_channels == 1
    assert handler.process_barrier(barrier(2), C0, 6) == ["block C0", "trigger 2 aligned, 6 ms late", "resume C0"]


def test_end_of_partition_aborts_when_checkpoints_end_with_tasks() -> None:
    """The feature of newer releases switched off."""
    handler = RecordedHandler(partial(checkpoint_barrier_aligner, checkpoints_after_tasks_finish=False), C0, C1)
    handler.process_barrier(barrier(1), C0, 0)

    assert handler.process_end_of_partition(C1, 5) == [
        "resume C0",
        "abort 1: CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
    ]


def test_a_channel_ends_once() -> None:
    """A second end is a defect."""
    handler = RecordedHandler(checkpoint_barrier_aligner, C0, C1)
    handler.process_end_of_partition(C0, 0)

    with pytest.raises(InvariantViolation, match="ended twice"):
        handler.process_end_of_partition(C0, 0)


def test_aligner_refuses_unaligned_barriers() -> None:
    """Tasks of one job that disagree about the mode must not go on."""
    with pytest.raises(InvariantViolation, match=r"unaligned\.enabled"):
        RecordedHandler(checkpoint_barrier_aligner, C0, C1).process_barrier(barrier(1, UNALIGNED), C0, 0)


def test_unaligned_checkpoint_triggers_first_and_completes_last() -> None:
    """Channels remember before the snapshot; what they remembered is handed over when the last barrier came."""
    handler = RecordedHandler(checkpoint_barrier_unaligner, C0, C1)

    first = handler.process_barrier(barrier(1, UNALIGNED), C0, 10)
    handler.add_processed_bytes(8)
    last = handler.process_barrier(barrier(1, UNALIGNED), C1, 17)

    assert first == [
        "remember for 1",
        "trigger 1 unaligned, 10 ms late",
    ]
    assert last == [
        "all barriers of 1: 7 ms, 8 bytes",
        "stop remembering for 1",
        "inputs of 1 are known",
    ]


def test_abandoned_unaligned_checkpoint_forgets_its_data_in_flight() -> None:
    """Whatever newer id the cancellation names, what stops is what was started."""
    handler = RecordedHandler(checkpoint_barrier_unaligner, C0, C1)
    handler.process_barrier(barrier(1, UNALIGNED), C0, 0)

    assert handler.process_cancellation_barrier(cancel(3), C1, 0) == [
        "decline 1",
        "stop remembering for 1",
        "abort 3: CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
    ]


@pytest.mark.parametrize("make", [checkpoint_barrier_aligner, alternating_checkpoint_barrier_handler])
def test_checkpoint_that_a_newer_cancellation_overtakes_is_declined(
    make: MakeHandler[CheckpointBarrierHandler],
) -> None:
    """Nobody would hear of it until it times out; the decline says what happened, and when the checkpoint was
    triggered."""
    handler = RecordedHandler(make, C0, C1)
    handler.process_barrier(barrier(5, at_ms=70), C0, 80)

    effects = handler.process_cancellation_barrier(cancel(6), C1, 90)

    assert effects == [
        "decline 5",
        "resume C0",
        "abort 6: CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
    ]
    expected = "input 0/1 brought the cancellation of checkpoint 6 when 1 of 2 inputs had brought this one."
    assert (expected, 70) == (handler.details[0], handler.triggered_at_ms[0])


def test_checkpoint_that_a_newer_barrier_skips_says_so_in_words() -> None:
    """With the time of its trigger."""
    handler = RecordedHandler(checkpoint_barrier_aligner, C0, C1)
    handler.process_barrier(barrier(5, at_ms=70), C0, 80)

    assert handler.process_barrier(barrier(6), C1, 90) == [
        "resume C0",
        "abort 5: CHECKPOINT_DECLINED_SUBSUMED",
        "block C1",
    ]
    assert handler.triggered_at_ms == [70]
    assert handler.details == ["input 0/1 brought checkpoint 6 when 1 of 2 inputs had brought this one."]


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (RecordedHandler(checkpoint_barrier_aligner, C0, C1), ALIGNED),
        (RecordedHandler(checkpoint_barrier_unaligner, C0, C1), UNALIGNED),
        (RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1), SAVEPOINT),
        (RecordedHandler(CheckpointBarrierTracker, C0, C1), COUNTED),
    ],
)
def test_second_barrier_of_a_checkpoint_on_a_channel_is_an_error(
    handler: RecordedHandler, options: CheckpointOptions
) -> None:
    """The stream is corrupt, and nothing that comes of it can be trusted."""
    handler.process_barrier(barrier(1, options), C0, 0)

    with pytest.raises(InvariantViolation, match="stream corrupt: a second barrier of checkpoint 1"):
        handler.process_barrier(barrier(1, options), C0, 0)


def test_savepoint_after_unaligned_checkpoint_subsumes_it() -> None:
    """The alternating handler: each barrier says what it is."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1)
    handler.process_barrier(barrier(1, UNALIGNED), C0, 0)

    assert handler.process_barrier(barrier(2, SAVEPOINT), C1, 0) == [
        "stop remembering for 1",
        "abort 1: CHECKPOINT_DECLINED_SUBSUMED",
        "block C1",
    ]


def test_alignment_turns_unaligned_when_time_is_up() -> None:
    """Announced barriers come forward, channels remember, the task snapshots; blocked ones wait for the end."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1, C2)
    timer = AlignedCheckpointTimeout(CheckpointID(1))

    assert handler.process_barrier_announcement(timeoutable(1), 4, C0, 10) == ["timer at 100 ms"]
    assert handler.process_barrier(timeoutable(1), C0, 20) == ["block C0"]
    assert handler.process_barrier_announcement(timeoutable(1), 9, C1, 30) == []
    unaligned = timeoutable(1).as_unaligned()
    assert handler.timer_fired(timer, 100) == [
        "prioritize number 9 of C1",
        "remember for 1",
        "trigger 1 unaligned, 20 ms late",
    ]
    assert handler.process_barrier_announcement(timeoutable(1), 3, C2, 101) == ["prioritize number 3 of C2"]
    assert handler.process_barrier(timeoutable(1), C1, 102) == ["block C1"]
    assert handler.process_barrier(unaligned, C2, 103) == [
        "all barriers of 1: 83 ms, 0 bytes",
        "stop remembering for 1",
        "inputs of 1 are known",
        "resume C0",
        "resume C1",
    ]


def test_alignment_in_time_cancels_its_timer() -> None:
    """And a firing that comes nevertheless means nothing."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1)
    timer = AlignedCheckpointTimeout(CheckpointID(1))
    handler.process_barrier(timeoutable(1), C0, 10)

    effects = handler.process_barrier(timeoutable(1), C1, 20)

    assert effects[-1] == "no timer"
    assert handler.timer_fired(timer, 100) == []


def test_barrier_that_is_too_old_turns_unaligned_by_itself() -> None:
    """Local channels announce nothing; the barrier's age decides."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1)

    effects = handler.process_barrier(timeoutable(1), C0, 101)

    assert effects == ["timer at 101 ms", "block C0", "remember for 1", "trigger 1 unaligned, 101 ms late"]


def test_what_nothing_may_overtake_is_waited_for_before_an_unaligned_snapshot() -> None:
    """The other channels are held with what their barriers overtook; those that come later run on."""
    handler = RecordedHandler(partial(alternating_checkpoint_barrier_handler, never_overtaken=[C1]), C0, C1, C2)

    assert handler.process_barrier(barrier(1, UNALIGNED), C0, 0) == ["hold C0"]
    assert handler.process_barrier(barrier(1, HELD_BACK), C1, 5) == [
        "block C1",
        "hold C1",
        "remember for 1",
        "trigger 1 unaligned",
        "release C0",
        "release C1",
    ]
    assert handler.process_barrier(barrier(1, UNALIGNED), C2, 9) == [
        "all barriers of 1: 9 ms, 0 bytes",
        "stop remembering for 1",
        "inputs of 1 are known",
        "resume C1",
    ]


def test_time_is_counted_from_the_barrier_that_has_a_timeout() -> None:
    """The first came from a channel that nothing may overtake; when time is up, and those are there, the rest is
    overtaken."""
    handler = RecordedHandler(partial(alternating_checkpoint_barrier_handler, never_overtaken=[C0]), C0, C1)
    timer = AlignedCheckpointTimeout(CheckpointID(1))

    assert handler.process_barrier(barrier(1, HELD_BACK), C0, 10) == ["block C0"]
    assert handler.process_barrier_announcement(timeoutable(1), 7, C1, 20) == ["timer at 100 ms"]
    assert handler.timer_fired(timer, 100) == [
        "prioritize number 7 of C1",
        "remember for 1",
        "trigger 1 unaligned, 10 ms late",
    ]


def test_a_timeout_while_such_a_channel_is_missing_holds_the_others() -> None:
    """Announced barriers come forward all the same, and a cancellation lets everything go on."""
    handler = RecordedHandler(partial(alternating_checkpoint_barrier_handler, never_overtaken=[C2]), C0, C1, C2)
    timer = AlignedCheckpointTimeout(CheckpointID(1))
    handler.process_barrier_announcement(timeoutable(1), 7, C1, 0)
    handler.process_barrier(timeoutable(1), C0, 50)

    assert handler.timer_fired(timer, 100) == ["prioritize number 7 of C1"]
    assert handler.process_barrier(timeoutable(1), C1, 101) == ["block C1", "hold C1"]
    assert handler.process_cancellation_barrier(cancel(1), C2, 102) == [
        "release C1",
        "resume C0",
        "resume C1",
        "abort 1: CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
    ]


def test_cancellation_ends_a_checkpoint_that_was_only_announced() -> None:
    """Otherwise its barrier would block a channel for a checkpoint that nobody else waits for."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1)
    handler.process_barrier_announcement(timeoutable(1), 4, C0, 0)

    assert handler.process_cancellation_barrier(cancel(1), C1, 0) == [
        "no timer",
        "abort 1: CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER",
    ]
    assert handler.process_barrier(timeoutable(1), C0, 1) == ["resume C0"]


def test_what_the_job_master_has_given_up_blocks_nothing() -> None:
    """Neither channels whose aligned barrier has come, nor those that were held; and nobody has to tell the
    JobMaster."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1)
    handler.process_barrier(timeoutable(1), C0, 0)
    assert handler.timer_fired(AlignedCheckpointTimeout(CheckpointID(1)), 100)

    assert handler.process_abort_notification(CheckpointID(1), 101) == [
        "stop remembering for 1",
        "resume C0",
        "abort 1: the JobMaster knows",
    ]
    assert handler.process_barrier(timeoutable(1), C1, 102) == ["resume C1"]
    assert "block C1" in handler.process_barrier(timeoutable(2), C1, 103)


def test_barriers_of_what_was_given_up_before_they_came_block_nothing() -> None:
    """The first of them is passed on as a cancellation, for those who wait for it; an announcement means nothing."""
    handler = RecordedHandler(alternating_checkpoint_barrier_handler, C0, C1)
    handler.process_barrier(timeoutable(1), C0, 0)
    assert handler.process_abort_notification(CheckpointID(2), 1) == []

    assert handler.process_barrier_announcement(timeoutable(2), 5, C0, 2) == []
    assert handler.process_barrier(timeoutable(2), C0, 3) == [
        "no timer",
        "resume C0",
        "abort 1: CHECKPOINT_DECLINED_SUBSUMED",
        "abort 2: the JobMaster knows",
        "resume C0",
    ]
    assert handler.process_barrier(timeoutable(2), C1, 4) == ["resume C1"]
    assert not handler.handler.is_checkpoint_pending


def test_only_so_many_given_up_checkpoints_are_remembered() -> None:
    """As many as the SubtaskCheckpointCoordinator does, and none whose barrier has come."""
    handler = RecordedHandler(checkpoint_barrier_aligner, C0, C1)
    for number in range(1, 300):
        handler.process_abort_notification(CheckpointID(number), 0)

    assert handler.process_barrier(barrier(100), C0, 0) == ["block C0"]
    assert handler.process_barrier(barrier(299), C0, 0)[-2:] == [
        "abort 299: the JobMaster knows",
        "resume C0",
    ]
    assert handler.process_abort_notification(CheckpointID(299), 0) == []


def test_tracker_measures_the_newest_checkpoint_only() -> None:
    """An older one that completes later reports nothing; one that is subsumed is silent."""
    tracker = RecordedHandler(CheckpointBarrierTracker, C0, C1)
    tracker.process_barrier(barrier(1, COUNTED), C0, 0)
    tracker.process_barrier(barrier(2, COUNTED), C0, 10)

    assert tracker.process_barrier(barrier(1, COUNTED), C1, 20) == ["trigger 1 aligned"]
    assert tracker.process_barrier(barrier(2, COUNTED), C1, 30) == ["trigger 2 aligned, aligned in 20 ms, 10 ms late"]


def test_tracker_resumes_a_channel_that_an_aligned_barrier_stopped() -> None:
    """It never waits, so nothing may wait for it."""
    tracker = RecordedHandler(CheckpointBarrierTracker, C0, C1)

    assert tracker.process_barrier(barrier(1), C0, 0) == ["resume C0"]


def test_tracker_completes_the_newest_that_waited_for_the_ended_channel() -> None:
    """Older ones are subsumed by it."""
    tracker = RecordedHandler(CheckpointBarrierTracker, C0, C1)
    for number in (1, 2, 3):
        tracker.process_barrier(barrier(number, COUNTED), C0, 0)

    effects = tracker.process_end_of_partition(C1, 9)

    assert effects == ["trigger 3 aligned, aligned in 9 ms"]
    assert not tracker.handler.is_checkpoint_pending


def test_tracker_ignores_what_a_single_channel_repeats() -> None:
    """Ids only rise."""
    tracker = RecordedHandler(CheckpointBarrierTracker, C0)
    assert len(tracker.process_barrier(barrier(2, COUNTED), C0, 0)) == 1

    assert tracker.process_barrier(barrier(2, COUNTED), C0, 0) == []
    assert tracker.process_cancellation_barrier(cancel(1), C0, 0) == []


def test_factory_picks_the_handler_by_mode() -> None:
    """As Flink's InputProcessorUtil does."""
    calls = RecordedCalls(C0)
    assert isinstance(create_barrier_handler("AT_LEAST_ONCE", calls, calls), CheckpointBarrierTracker)
    aligner = create_barrier_handler("EXACTLY_ONCE", calls, calls)
    alternating = create_barrier_handler("EXACTLY_ONCE", calls, calls, unaligned_enabled=True)

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
    calls = RecordedCalls(C0)
    with pytest.raises(ConfigurationError, match=message):
        create_barrier_handler(mode, calls, calls, unaligned_enabled=unaligned)
