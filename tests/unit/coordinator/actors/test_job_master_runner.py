"""JobMasterRunner: what it makes of a JobMaster that ends, or breaks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from snapline.coordinator.actors import job_master_runner
from snapline.coordinator.actors.job_master_runner import JobMasterRunner, JobServices
from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.events import CheckpointStored, Shutdown
from snapline.coordinator.dispatcher.events import JobMasterEnded
from snapline.coordinator.execution.given_slots import ANYTHING_IS_GIVEN
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability, EmbeddedJobGraphs
from snapline.coordinator.ha.high_availability import JobStores
from snapline.coordinator.ha.job_archive import JobArchive
from snapline.coordinator.ha.start_marks import StartMarks
from snapline.coordinator.io import IoExecutor
from snapline.coordinator.jobmaster.events import OperationRequested
from snapline.coordinator.jobmaster.operations import CancelJob, RequestID
from snapline.coordinator.rpc.switchboard import Switchboard
from snapline.dataflow.config import Configuration
from snapline.dataflow.failures import Blame
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.runtime.clock import SystemClock
from snapline.runtime.leaders.leader_retrieval import LeaderAddress
from snapline.runtime.logs import silent_logger
from snapline.runtime.storage.memory_storage import MemoryStorage, named_memory_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError
from snapline.runtime.timers import TimerScheduler
from tests.simulation.jobs import keyed_job

GRAPH = keyed_job()
CANCEL = OperationRequested(RequestID("r"), CancelJob())


class Running:
    """A job that waits for slots which nobody has."""

    def __init__(self, *, recovered: bool = False, suspects: Sequence[JobID] = ()) -> None:
        clock, logger = SystemClock(), silent_logger()
        self.timers = TimerScheduler(clock)
        self.io = IoExecutor(self.timers, clock, logger)
        self.high_availability = EmbeddedHighAvailability(MemoryStorage(), None, durable=True)
        self.high_availability.job_graphs.put(GRAPH)
        self.start_marks = StartMarks(self.high_availability.storage)
        for job_id in suspects:
            self.start_marks.begin(job_id)
            self.start_marks.why_parked(job_id, "")
        self.told: queue.Queue[Any] = queue.Queue()
        self.table, self.replies = Mock(), Mock()
        services = JobServices(
            address="jm:1",
            resource_manager=LeaderAddress,
            configuration=Configuration({}),
            checkpoint_base="memory://runner",
            storages=StateStorages(named_memory_storage),
            high_availability=self.high_availability,
            io=self.io,
            timers=self.timers,
            clock=clock,
            switchboard=Switchboard(Mock()),
            leaders=Mock(),
            registry=self.table,
            archive=JobArchive(self.high_availability.storage, 10, 0),
            start_marks=self.start_marks,
            given=ANYTHING_IS_GIVEN,
            replies=self.replies,
            logger=logger,
        )
        self.runner = JobMasterRunner(GRAPH, services, self.told.put, recovered=recovered)
        self.runner.start()

    def end(self) -> JobMasterEnded:
        """How it ended."""
        while True:
            event = self.told.get(timeout=10)
            if isinstance(event, JobMasterEnded):
                return event

    def close(self) -> None:
        self.runner.stop()
        self.io.close()
        self.timers.close()


@pytest.fixture
def running() -> Iterator[Running]:
    job = Running()
    yield job
    job.close()


def test_whoever_is_gone_is_told_nothing(running: Running) -> None:
    """All that wait are answered at the end; whoever comes later would wait for ever."""
    heard: list[bool] = []
    running.replies.job_master_gone.side_effect = lambda *_: heard.append(running.runner.tell(CANCEL))
    assert running.runner.tell(CANCEL)

    assert running.end() == JobMasterEnded(GRAPH.job_id, JobStatus.CANCELED, None)
    assert heard == [False]
    (_, why), _ = running.replies.job_master_gone.call_args
    assert (why.summary, why.blame) == ("the job is CANCELED", Blame.USER), "no defect of the coordinator"
    assert running.high_availability.job_graphs.load().graphs == ()


def test_a_job_that_is_over_stays_so_when_its_job_master_breaks(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph is gone: whoever ran it again would run a job that nobody finds after the next failure, and that its
    user has cancelled."""
    handle = CheckpointCoordinator.handle

    def breaks(core: CheckpointCoordinator, event: Any, now_ms: int) -> Any:
        if isinstance(event, Shutdown):
            raise ValueError("defect")
        return handle(core, event, now_ms)

    monkeypatch.setattr(CheckpointCoordinator, "handle", breaks)
    running.runner.tell(CANCEL)

    assert_cancelled_with_defect(running.end())
    ((_, view),) = (call.args for call in running.table.ended.call_args_list)
    assert decode_job_status(view.details.overview.status) is JobStatus.CANCELED


def test_a_job_whose_end_nobody_has_heard_of_is_not_shown_as_it_was(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks while its graph cannot be removed: the Dispatcher goes on with that, and says how the job has ended."""

    def away(*_: object) -> None:
        raise StorageError("away")

    monkeypatch.setattr(EmbeddedJobGraphs, "remove", away)
    running.runner.tell(CANCEL)
    running.runner.tell(CheckpointStored(CheckpointID(1)))

    assert_cancelled_with_defect(running.end())
    running.table.ended.assert_called_once_with(GRAPH.job_id, None)


def test_a_job_is_archived_before_its_graph_is_gone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that died just after its graph was removed left a job that was over and that nobody had heard of."""
    remove = EmbeddedJobGraphs.remove
    archived: list[pb.ArchivedJob] = []

    def look_first(graphs: EmbeddedJobGraphs, job_id: JobID) -> None:
        archived.extend(JobArchive(running.high_availability.storage, 10, 0).load(0).jobs)
        remove(graphs, job_id)

    monkeypatch.setattr(EmbeddedJobGraphs, "remove", look_first)
    running.runner.tell(CANCEL)

    assert running.end().status is JobStatus.CANCELED
    (overview,) = (job.details.overview for job in archived)
    assert decode_job_status(overview.status) is JobStatus.CANCELED
    assert (overview.job_id, overview.status_detail) == (GRAPH.job_id, "")
    assert overview.end_time_ms >= overview.start_time_ms > 0


def test_a_job_that_cannot_be_archived_ends_all_the_same(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a graph can still be removed; a job that is over must not stay until there is room."""

    def full(*_: object) -> None:
        raise StorageError("no space")

    monkeypatch.setattr(JobArchive, "put", full)
    running.runner.tell(CANCEL)

    assert running.end().status is JobStatus.CANCELED
    assert running.high_availability.job_graphs.load().graphs == ()


def assert_cancelled_with_defect(end: JobMasterEnded) -> None:
    assert end.status is JobStatus.CANCELED
    assert end.failure is not None and "defect in the JobMaster" in end.failure.summary


def test_a_leader_that_tries_on_marks_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the stores were away each try counted as a leader that had ended, and the next leader parked the job."""
    open_job = EmbeddedHighAvailability.open_job
    marks: list[int] = []

    def opens_late(high_availability: EmbeddedHighAvailability, job_id: JobID) -> JobStores:
        marks.append(StartMarks(high_availability.storage).count(job_id))
        if len(marks) < 3:
            raise StorageError("away")
        return open_job(high_availability, job_id)

    monkeypatch.setattr(EmbeddedHighAvailability, "open_job", opens_late)
    monkeypatch.setattr(job_master_runner, "STORE_RETRY_MS", 1)
    running = Running(recovered=True)
    try:
        running.told.get(timeout=10)
        assert marks == [0, 0, 0]
    finally:
        running.close()


def test_a_job_that_hangs_as_it_starts_holds_up_no_other_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's master hook never came back from its connection, and of all jobs that the leader had found marked none
    began."""
    goes_on, other_began = threading.Event(), threading.Event()
    monkeypatch.setattr(job_master_runner, "create_hooks", lambda _: [goes_on.wait(60)][1:])
    monkeypatch.setattr(job_master_runner, "TURN_LIMIT_MS", 1)
    other = JobID("other")
    running = Running(recovered=True, suspects=[GRAPH.job_id, other])
    try:
        running.start_marks.start_in_turn(other, other_began.set)
        assert other_began.wait(10)
    finally:
        goes_on.set()
        running.close()
