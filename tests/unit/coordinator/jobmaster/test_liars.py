"""JobMaster: a process that holds the cluster's token says what is not true; the real CheckpointCoordinator is behind
it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import MessageRefused, StoreCompletedCheckpoint
from snapline.coordinator.checkpoint.events import (
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointRequestID,
    CompletedCheckpointsRecovered,
)
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    AlignWatermarks,
    DeclineCheckpoint,
    EndOfDataReached,
    ExecutionState,
    HeartbeatResponse,
    JobStatus,
    RegisterTaskExecutorAtJobMaster,
    RegistrationRejected,
    ReportWatermark,
    TaskManagerInfo,
    TaskMetrics,
    TaskStateChanged,
)
from snapline.runtime.cores.connections import CloseConnection, ConnectionID
from tests.unit.coordinator.jobmaster.test_job_master import ONE, A, B, Story, attempt, send

ONE_CHECKPOINT = CheckpointID(1)
WANTED = CheckpointRequestID("wanted")


class Attacked(Story):
    """The one task runs on A, checkpoint 1 waits for it, and B is registered and runs nothing."""

    def __init__(self) -> None:
        self.pending = CheckpointCoordinator(
            JobID(ONE.job_id),
            "one",
            CheckpointCoordinatorConfiguration(),
            ONE.vertices,
            ONE.edges,
            store_survives_suspension=True,
        )
        super().__init__(ONE, checkpoints=self.pending)
        self.start()
        self.take(CompletedCheckpointsRecovered(()))
        self.task_manager(A, 0)
        self.enters("a", attempt(), ExecutionState.RUNNING)
        self.task_manager(B)
        self.take(CheckpointRequested(WANTED))
        self.take(CheckpointIdDrawn(WANTED, ONE_CHECKPOINT))
        assert [pending.checkpoint_id for pending in self.pending.pending_checkpoints] == [ONE_CHECKPOINT]

    def without_timers(self, who: str, message: object) -> list[Any]:
        return [
            effect
            for effect in self.hears(who, message)
            if isinstance(effect, MessageRefused | StoreCompletedCheckpoint)
        ]


def refused(detail: str, *, known: bool = False) -> MessageRefused:
    return MessageRefused(ONE_CHECKPOINT, attempt(), detail, known, "b")


def test_a_stranger_completes_no_checkpoint() -> None:
    """Only the TaskManager that runs the attempt acknowledges for it."""
    story = Attacked()
    acknowledge = AcknowledgeCheckpoint(ONE.job_id, attempt(), ONE_CHECKPOINT)

    assert story.without_timers("b", acknowledge) == [refused("acknowledged by b, but the attempt runs on a")]
    (stored,) = story.without_timers("a", acknowledge)
    assert isinstance(stored, StoreCompletedCheckpoint)


def test_a_stranger_aborts_no_checkpoint() -> None:
    """Only the TaskManager that runs the attempt declines for it, and an attempt of the past not at all."""
    story = Attacked()
    decline = DeclineCheckpoint(
        ONE.job_id, attempt(), ONE_CHECKPOINT, CheckpointFailureReason.CHECKPOINT_DECLINED, "a lie"
    )
    of_the_past = replace(decline, attempt_id=attempt(7))

    assert story.without_timers("b", decline) == [refused("declined by b, but the attempt runs on a")]
    assert story.without_timers("b", of_the_past) == [
        MessageRefused(ONE_CHECKPOINT, attempt(7), "declined by b, but the attempt is over", True, "b")
    ]
    assert [pending.checkpoint_id for pending in story.pending.pending_checkpoints] == [ONE_CHECKPOINT]


def test_a_stranger_ends_no_task_and_counts_nothing() -> None:
    """States, counters and the end of data are those of the TaskManager that runs the attempt."""
    story = Attacked()
    lie = TaskMetrics(attempt(), records_in=7)

    story.hears("b", TaskStateChanged(ONE.job_id, attempt(), ExecutionState.FINISHED, metrics=lie))
    story.hears("b", HeartbeatResponse(metrics=(lie,)))
    story.hears("b", EndOfDataReached(ONE.job_id, attempt()))

    for number in range(1, 50):
        story.hears("b", HeartbeatResponse(metrics=(replace(lie, attempt_id=attempt(number)),)))
    assert (story.core.status, story.core.metrics) == (JobStatus.RUNNING, {})
    assert story.core.scheduler.graph.current(attempt().execution_vertex_id).state is ExecutionState.RUNNING


def test_a_stranger_holds_no_source_back() -> None:
    """Found by the simulator: a watermark for an attempt that nobody runs was kept, and counted in its group."""
    story = Attacked()
    invented = attempt(7)

    assert story.hears("b", ReportWatermark(ONE.job_id, invented, "g", 0, 10)) == []
    assert story.hears("b", ReportWatermark(ONE.job_id, attempt(), "g", 0, 10)) == []
    (answered,) = story.hears("a", ReportWatermark(ONE.job_id, attempt(), "g", 500, 10))
    assert answered == send("a", AlignWatermarks(ONE.job_id, attempt(), 510))


def test_a_stranger_that_takes_the_name_of_a_task_manager_restarts_nothing() -> None:
    """Its resource id, host and process number can be read by everybody; what it drew when it started cannot."""
    story = Attacked()
    info = TaskManagerInfo(A, "a:9", 8, "0.1.0", "host", 1, incarnation="guessed")

    effects = story.hears("mallory", RegisterTaskExecutorAtJobMaster(ONE.job_id, info))

    why = (
        "TaskManager a runs already as process 1 on host; this is a second start of the same Spark task, or a process that "
        "claims to be that one"
    )
    assert effects == [send("mallory", RegistrationRejected(why)), CloseConnection(ConnectionID("tm-mallory"))]
    assert (story.core.status, story.core.scheduler.restarts) == (JobStatus.RUNNING, 0)
