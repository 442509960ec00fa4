"""Mailbox, timers, processing time, failures: the small parts of a task."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.config import ConfigurationError
from snapline.dataflow.elements import CheckpointBarrier, CheckpointOptions, SnapshotType
from snapline.dataflow.errors import ConnectorError, JobDefinitionError
from snapline.dataflow.failures import Blame, CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID, LeaderSessionID
from snapline.dataflow.wire.codec import decode_envelope, encode_envelope
from snapline.dataflow.wire.messages import DeclineCheckpoint, NotifyCheckpointComplete
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.operators.base.failure import OperatorFailure, RowFailure
from snapline.taskmanager.snapshots.blobs import encode_channel
from snapline.taskmanager.task.checkpoint_execution import CheckpointExecution
from snapline.taskmanager.task.mailbox import CancelMail, Mailbox
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from snapline.taskmanager.task.task_completion import DataPhase, TaskCompletion
from snapline.taskmanager.task.task_failure import ChannelFailure, InputPosition, RestoreFailure, serialize_failure
from snapline.taskmanager.task.task_restore import decode_channel_state
from snapline.taskmanager.task.task_timers import TaskTimers


def test_mail_keeps_its_order_and_wakes_the_task() -> None:
    """Until the task has ended."""
    rung: list[int] = []
    mailbox = Mailbox(lambda: rung.append(1))
    completed = NotifyCheckpointComplete(
        JobID("job"), ExecutionAttemptID("graph", JobVertexID("vertex"), 0, 0), CheckpointID(1), 0
    )
    mailbox.put(completed)
    mailbox.put(CancelMail())

    assert [mailbox.take(), mailbox.take(), mailbox.take()] == [completed, CancelMail(), None]
    mailbox.close()
    mailbox.put(CancelMail())
    assert (mailbox.is_empty, len(rung)) == (True, 2)


def note(fired: list[tuple[str, int]], name: str, at_ms: int) -> None:
    fired.append((name, at_ms))


def test_due_timers_fire_in_order_of_time_then_registration() -> None:
    """Cancelled ones do not; time does not go back."""
    time = TaskProcessingTime()
    fired: list[tuple[str, int]] = []
    for name, at_ms in (("late", 9), ("first", 5), ("second", 5), ("gone", 1)):
        registered = time.register_timer(at_ms, functools.partial(note, fired, name))
        if name == "gone":
            time.cancel_timer(registered)
    assert time.next_at_ms == 5
    time.advance(7)
    time.advance(3)
    while (token := time.take_due()) is not None:
        token.callback(token.at_ms)

    assert fired == [("first", 5), ("second", 5)]
    assert (time.now_ms(), time.next_at_ms) == (7, 9)


def test_a_keyed_timer_is_replaced_by_its_next_start() -> None:
    """One firing per key."""
    timers = TaskTimers()
    timers.start("a", 5)
    timers.start("b", 4)
    timers.start("a", 3)
    timers.start("c", 1)
    timers.cancel("c")

    assert (timers.next_at_ms, timers.take_due(2)) == (3, None)
    assert [timers.take_due(9), timers.take_due(9), timers.take_due(9)] == ["a", "b", None]


def barrier(checkpoint_id: int, snapshot_type: SnapshotType = SnapshotType.CHECKPOINT) -> CheckpointBarrier:
    return CheckpointBarrier(CheckpointID(checkpoint_id), 0, CheckpointOptions(snapshot_type))


def test_a_drained_task_waits_for_a_checkpoint_that_was_taken_after_its_end() -> None:
    """A later one will do, an earlier one will not."""
    completion: Any = TaskCompletion(waits_for_final_checkpoint=True)
    completion.checkpoint_taken(barrier(1))
    completion.end_of_input(drain=True)
    assert completion.phase is DataPhase.FINISHING
    completion.end_of_data_sent()
    completion.checkpoint_completed(CheckpointID(1))
    assert not completion.may_end

    completion.checkpoint_taken(barrier(2))
    completion.checkpoint_taken(barrier(3))
    completion.checkpoint_completed(CheckpointID(3))
    assert completion.may_end


def test_without_checkpoints_a_drained_task_ends_at_once() -> None:
    """Unless a savepoint to stop with is under way."""
    completion: Any = TaskCompletion(waits_for_final_checkpoint=False)
    completion.end_of_input(drain=True)
    completion.end_of_data_sent()
    assert completion.may_end
    assert not completion.reports_end_of_data

    completion.checkpoint_taken(barrier(1, SnapshotType.SAVEPOINT_TERMINATE))
    assert not completion.may_end
    assert completion.is_failed_savepoint(CheckpointID(1))
    completion.checkpoint_completed(CheckpointID(1))
    assert completion.may_end
    assert not completion.is_failed_savepoint(CheckpointID(1))


def test_a_suspended_task_waits_for_its_savepoint_only() -> None:
    """It does not drain, does not finish, reports nothing."""
    completion = TaskCompletion(waits_for_final_checkpoint=True)
    completion.end_of_input(drain=False)
    assert (completion.phase, completion.operators_finished, completion.reports_end_of_data) == (
        DataPhase.ENDED,
        False,
        False,
    )
    completion.checkpoint_completed(CheckpointID(7))
    assert not completion.may_end

    completion.checkpoint_taken(barrier(8, SnapshotType.SAVEPOINT_SUSPEND))
    completion.checkpoint_taken(barrier(9))
    completion.checkpoint_completed(CheckpointID(9))
    assert not completion.may_end, "its savepoint may still fail"
    completion.checkpoint_completed(CheckpointID(8))
    assert completion.may_end


@pytest.mark.parametrize(
    ("error", "blame", "retryable", "summary"),
    [
        (ChannelFailure("input 0: gone"), Blame.EXTERNAL, True, "input 0: gone"),
        (RestoreFailure("state of 'x' cannot be read"), Blame.EXTERNAL, True, "state of 'x' cannot be read"),
        (JobDefinitionError("no column"), Blame.USER, False, "no column"),
        (ConfigurationError("x = 1"), Blame.USER, False, "x = 1"),
        (InvariantViolation("two"), Blame.INTERNAL, True, "InvariantViolation: two"),
        (ValueError("what\nmore"), Blame.INTERNAL, True, "ValueError: what"),
        (
            OperatorFailure("u", "map", "open", ConnectorError("cannot read s3://b/k")),
            Blame.EXTERNAL,
            True,
            "operator 'map' (uid 'u') failed in open: ConnectorError: cannot read s3://b/k",
        ),
        (
            OperatorFailure("u", "map", "process_batch", RowFailure(3, KeyError("x"))),
            Blame.USER,
            True,
            "operator 'map' (uid 'u') failed in process_batch: KeyError: 'x'",
        ),
    ],
)
def test_failures_say_who_is_to_blame(error: Exception, blame: Blame, retryable: bool, summary: str) -> None:
    """And whether trying again can help."""
    failure = serialize_failure(error, InputPosition())

    assert (failure.blame, failure.retryable, failure.summary) == (blame, retryable, summary)


def test_a_position_is_told_when_there_is_one() -> None:
    """Only while a batch was being processed."""
    position = InputPosition("input 1, channel 2", 5, 10, 40)
    in_batch = serialize_failure(
        OperatorFailure("u", "m", "process_batch", RowFailure(3, KeyError("x"), "d1")), position
    )
    outside = serialize_failure(OperatorFailure("u", "m", "snapshot_state", KeyError("x")), position)

    assert in_batch.position == "input 1, channel 2, batch 5 (rows 40 to 49 of this attempt), row 3 of the batch"
    assert in_batch.row == "d1"
    assert (outside.position, outside.row) == ("", "")
    assert str(InputPosition("source")) == "source"


def test_channel_state_is_read_as_it_was_written() -> None:
    """A schema may change in the middle of a stream."""
    batches = [pa.record_batch({"a": [1]}), pa.record_batch({"a": [2, 3]}), pa.record_batch({"b": ["x"]})]

    assert decode_channel_state(bytes(encode_channel(batches))) == batches
    assert decode_channel_state(b"") == []


def test_what_a_function_raised_is_declined_in_words_that_a_message_can_carry() -> None:
    """The stream to the JobMaster ends at a message of hundreds of megabytes, and at halves of characters."""
    said: list[DeclineCheckpoint] = []
    world: Any = SimpleNamespace(decline_checkpoint=said.append)
    attempt = ExecutionAttemptID("graph", JobVertexID("vertex"), 0, 0)
    task: Any = SimpleNamespace(job_id=JobID("job"), attempt_id=attempt)
    execution = CheckpointExecution(task, (), world, TaskTimers(), lambda _: None, lambda _: False)

    reason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE
    execution.decline(CheckpointID(1), reason, "ValueError: \udcff is no name" + "x" * 1_000_000)

    [declined] = said
    assert declined.detail.startswith(r"ValueError: \udcff is no name") and len(declined.detail) < 5_000
    [message] = decode_envelope(encode_envelope(LeaderSessionID("session"), said))[1]
    assert message == declined
