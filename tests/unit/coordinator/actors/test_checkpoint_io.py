"""Slow effects of a checkpoint coordinator against storage that works, is taken, and fails."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.coordinator import deletions
from snapline.coordinator.actors.checkpoint_io import CheckpointIo
from snapline.coordinator.checkpoint import effects as asked
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.events import (
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointIdFailed,
    CheckpointRequestID,
    CheckpointStored,
    CheckpointStoreFailed,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    CompletedCheckpointsRecoveryFailed,
)
from snapline.coordinator.checkpoint.metadata import build_metadata, parse_metadata
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker
from snapline.coordinator.checkpoint.statistics.stats_persistence import decode_statistics
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability, EmbeddedPointers
from snapline.coordinator.io import LANE_QUEUE, IoExecutor, TookTooLong
from snapline.coordinator.jobmaster.effects import LoadSavepoint
from snapline.coordinator.jobmaster.events import SavepointLoaded, SavepointLoadFailed
from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID
from snapline.dataflow.snapshot.handles import CheckpointMetadata
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.clock import ManualClock, SystemClock
from snapline.runtime.logs import make_logger, silent_logger
from snapline.runtime.storage.memory_storage import MemoryStorage, named_memory_storage
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError
from snapline.runtime.timers import TimerScheduler

JOB = JobID("a" * 32)
REQUEST = CheckpointRequestID("request")
ATTEMPT = ExecutionAttemptID("graph", JobVertexID("v"), 0, 0)


class Desk:
    def __init__(self, name: str):
        self.clock = SystemClock()
        self.timers = TimerScheduler(self.clock)
        self.io = IoExecutor(self.timers, self.clock, silent_logger(), 1)
        self.files = named_memory_storage(name)
        self.store = MemoryStorage()
        self.stores = EmbeddedHighAvailability(self.store, None, durable=True).open_job(JOB)
        self.told: queue.Queue[Any] = queue.Queue()
        self.statistics = CheckpointStatsTracker(5)
        self.name = name
        self.submitted_at(None)

    def submitted_at(self, submitted_ms: int | None) -> None:
        name = self.name
        stores = replace(self.stores, submitted_ms=submitted_ms)
        storages = StateStorages(lambda url: self.files if url == f"memory://{name}" else named_memory_storage(url))
        self.checkpoint_io = CheckpointIo(
            JOB, f"memory://{name}", storages, stores, self.io, self.timers, self.clock, self.told.put,
            silent_logger(),
        )  # fmt: skip
        self.performers = self.checkpoint_io.performers(self.statistics)

    def ask(self, effect):
        self.performers[type(effect)](effect)
        return self.told.get(timeout=20)

    def tell(self, effect):
        """An effect without an answer; returns when it is done."""
        self.performers[type(effect)](effect)
        self.io.submit("after it", lambda: "done", self.told.put, lambda error: error)
        assert self.told.get(timeout=20) == "done"


@pytest.fixture
def desk(request):
    desk = Desk(request.node.name)
    yield desk
    desk.io.close()
    desk.timers.close()


def checkpoint(number: int, location: str = "") -> CompletedCheckpoint:
    properties = CheckpointProperties.for_checkpoint(
        CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION, SnapshotType.CHECKPOINT
    )
    where = location or f"chk-{number}"
    return CompletedCheckpoint(JOB, "job", CheckpointID(number), 1000, 2000, properties, where, ())


def test_ids_are_drawn(desk):
    """And the counter can be moved."""
    assert desk.ask(asked.DrawCheckpointId(REQUEST)) == CheckpointIdDrawn(REQUEST, CheckpointID(1))
    assert desk.ask(asked.SetCheckpointIdCount(REQUEST, CheckpointID(7))) == CheckpointIdCountSet(REQUEST)
    assert desk.ask(asked.DrawCheckpointId(REQUEST)) == CheckpointIdDrawn(REQUEST, CheckpointID(7))


def test_a_counter_that_fails_is_answered(desk, monkeypatch):
    """With what went wrong."""
    monkeypatch.setattr(desk.stores.counter, "get_and_increment", lambda: 1 / 0)
    failed = desk.ask(asked.DrawCheckpointId(REQUEST))
    assert failed == CheckpointIdFailed(REQUEST, "division by zero")


def test_no_id_is_drawn_for_a_savepoint_that_cannot_be_written(desk, monkeypatch):
    """No task hears of it; one that can be written leaves nothing of the trial in its directory."""
    place = named_memory_storage("memory://savepoints/one")
    monkeypatch.setattr(place, "create", fail)
    failed = desk.ask(asked.DrawCheckpointId(REQUEST, "memory://savepoints/one"))
    assert failed == CheckpointIdFailed(REQUEST, "the network is down", cannot_write=True)

    drawn = desk.ask(asked.DrawCheckpointId(REQUEST, "memory://savepoints/two"))
    assert drawn == CheckpointIdDrawn(REQUEST, CheckpointID(1))
    assert named_memory_storage("memory://savepoints/two").list("") == []


def test_a_savepoint_may_go_below_the_directory_of_its_job(desk, monkeypatch):
    """Where its tasks write it, too, when its directory is a relative path."""
    created: list[str] = []
    monkeypatch.setattr(desk.files, "create", lambda path, data: created.append(path))
    drawn = desk.ask(asked.DrawCheckpointId(REQUEST, "savepoints/one"))
    assert drawn == CheckpointIdDrawn(REQUEST, CheckpointID(1))
    assert created == ["savepoints/one/.can-write"]


def test_a_checkpoint_is_stored_and_recovered(desk):
    """Metadata first, then the pointer; a successor reads both."""
    assert desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3))) == CheckpointStored(CheckpointID(3))
    assert parse_metadata(desk.files.get("chk-3/_metadata"), "chk-3").checkpoint_id == 3
    assert desk.ask(asked.RecoverCompletedCheckpoints()) == CompletedCheckpointsRecovered((checkpoint(3),))
    assert desk.ask(asked.VerifyStoredCheckpoint(checkpoint(3))) == CheckpointStored(CheckpointID(3))


def test_two_coordinators_never_finish_the_same_id(desk):
    """The second one fails, and leaves the first one's metadata as it was."""
    desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    before = desk.files.get("chk-3/_metadata")
    failed = desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    assert isinstance(failed, CheckpointStoreFailed)
    assert "another coordinator finished checkpoint 3" in failed.detail
    assert failed.published_by_other
    assert not failed.outcome_unknown
    assert desk.files.get("chk-3/_metadata") == before


def test_a_pointer_that_is_taken_is_a_certain_failure(desk):
    """It points to what somebody else completed."""
    desk.stores.pointers.add(CheckpointID(3), b"another")
    failed = desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    assert (failed.checkpoint_id, failed.outcome_unknown) == (3, False)
    assert desk.ask(asked.VerifyStoredCheckpoint(checkpoint(3))) == CheckpointStoreFailed(
        CheckpointID(3), "its pointer was not written"
    )


def fail(*_arguments):
    raise StorageError("the network is down")


def test_a_failure_before_the_pointer_is_certain(desk, monkeypatch):
    """Nothing can point to it."""
    monkeypatch.setattr(desk.files, "create", fail)
    failed = desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    assert failed == CheckpointStoreFailed(CheckpointID(3), "the network is down")


def test_a_failure_at_the_pointer_is_not(desk, monkeypatch):
    """It may have been written: the core asks to verify, and that is tried until it is certain."""
    monkeypatch.setattr("snapline.coordinator.actors.checkpoint_io.VERIFY_PAUSE_MS", 1)
    monkeypatch.setattr(desk.store, "create", fail)
    failed = desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    assert failed == CheckpointStoreFailed(CheckpointID(3), "the network is down", outcome_unknown=True)
    asked_for: list[str] = []

    def get_range(path, *_of):
        asked_for.append(path)
        return fail() if len(asked_for) < 3 else b""

    monkeypatch.setattr(desk.store, "get_range", get_range)
    desk.performers[asked.VerifyStoredCheckpoint](asked.VerifyStoredCheckpoint(checkpoint(3)))
    answer = desk.told.get(timeout=20)
    assert answer == CheckpointStoreFailed(CheckpointID(3), "its pointer was not written")
    assert len(asked_for) == 3


def test_nothing_points_to_a_checkpoint_whose_metadata_came_after_it_was_given_up(desk, monkeypatch):
    """A storage that stood still for longer than anybody waits: the files of the checkpoint are gone by then, and the
    next leader could read nothing behind the pointer."""
    begun, goes_on, create = threading.Event(), threading.Event(), desk.files.create

    def create_late(path, data):
        begun.set()
        assert goes_on.wait(20)
        create(path, data)

    failures: list[Any] = []

    class Impatient:
        def submit(self, name, work, tell, failed):
            failures.append(failed)
            desk.io.submit(name, work, tell, failed)

    monkeypatch.setattr(desk.files, "create", create_late)
    monkeypatch.setattr(desk.checkpoint_io, "_io", Impatient())
    desk.performers[asked.StoreCompletedCheckpoint](asked.StoreCompletedCheckpoint(checkpoint(3)))
    assert begun.wait(20)
    (given_up,) = failures
    assert given_up(TookTooLong("it took too long")).outcome_unknown

    goes_on.set()
    desk.io.close()
    assert desk.files.get("chk-3/_metadata")
    assert desk.stores.pointers.checkpoint_ids == []


def test_a_pointer_that_is_still_being_written_is_waited_for(desk, monkeypatch):
    """A store that stood still for longer than anybody waits was asked, did not have it, and got it later: it pointed
    to a checkpoint whose files were deleted, and no later leader could start the job."""
    monkeypatch.setattr("snapline.coordinator.actors.checkpoint_io.VERIFY_PAUSE_MS", 1)
    begun, goes_on, create, contains = (
        threading.Event(),
        threading.Event(),
        desk.store.create,
        EmbeddedPointers.contains,
    )
    looked: list[bool] = []

    def create_late(path, data):
        begun.set()
        assert goes_on.wait(20)
        create(path, data)

    def look(pointers, checkpoint_id, pointer):
        looked.append(contains(pointers, checkpoint_id, pointer))
        if len(looked) == 3:
            goes_on.set()
        return looked[-1]

    monkeypatch.setattr(desk.store, "create", create_late)
    monkeypatch.setattr(EmbeddedPointers, "contains", look)
    desk.performers[asked.StoreCompletedCheckpoint](asked.StoreCompletedCheckpoint(checkpoint(3)))
    assert begun.wait(20)
    others = IoExecutor(desk.timers, desk.clock, silent_logger(), 1)
    monkeypatch.setattr(desk.checkpoint_io, "_io", others)
    answers = [desk.ask(asked.VerifyStoredCheckpoint(checkpoint(3))), desk.told.get(timeout=20)]
    assert answers == [CheckpointStored(CheckpointID(3))] * 2
    assert not looked[0]
    others.close()


def test_a_pointer_that_was_surely_not_written_says_what_was_wrong(desk):
    """A full disk under the pointers, say: the line names it, not that there is no pointer alone."""
    doubt = "cannot write /ha/pointers/3: No space left on device; make room"
    failed = desk.ask(asked.VerifyStoredCheckpoint(checkpoint(3), doubt))
    assert failed == CheckpointStoreFailed(CheckpointID(3), f"its pointer was not written: {doubt}")


def test_a_savepoint_has_no_pointer(desk):
    """Nor is metadata written again for a snapshot that is adopted."""
    location = "memory://elsewhere/savepoint-1"
    desk.ask(asked.StoreCompletedCheckpoint(checkpoint(4, location), register=False))
    assert desk.stores.pointers.load() == []
    assert desk.ask(asked.StoreCompletedCheckpoint(checkpoint(4, location), write_metadata=False)) == CheckpointStored(
        CheckpointID(4)
    )
    assert len(desk.stores.pointers.load()) == 1


def test_a_checkpoint_is_removed(desk):
    """Pointer and files; without `discard` the pointer only."""
    for number in (3, 4):
        desk.ask(asked.StoreCompletedCheckpoint(checkpoint(number)))
    desk.files.put("chk-3/segment", b"state")
    removed = desk.ask(asked.RemoveCompletedCheckpoint(checkpoint(3), discard=True))
    assert removed == CompletedCheckpointRemoved(CheckpointID(3))
    desk.ask(asked.RemoveCompletedCheckpoint(checkpoint(4), discard=False))
    assert [path for path, _ in desk.files.list("")] == ["chk-4/_metadata"]
    assert desk.stores.pointers.load() == []


def test_a_deletion_that_fails_is_not_a_failure_of_the_checkpoint(desk, monkeypatch):
    """It is answered like one that worked."""
    desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    monkeypatch.setattr(desk.files, "delete_prefix", fail)
    removed = desk.ask(asked.RemoveCompletedCheckpoint(checkpoint(3), discard=True))
    assert removed == CompletedCheckpointRemoved(CheckpointID(3))


@pytest.mark.parametrize(
    "effect",
    [
        asked.RemoveCompletedCheckpoint(checkpoint(3), discard=True),
        asked.DiscardCheckpoint(CheckpointID(3), "chk-3", (), ()),
    ],
    ids=lambda effect: type(effect).__name__,
)
def test_a_deletion_that_failed_is_tried_again(desk, monkeypatch, effect):
    """Storage that was away for a moment leaves nothing behind."""
    desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    gone = threading.Event()
    calls = []
    delete_prefix = desk.files.delete_prefix

    def sometimes(prefix):
        calls.append(prefix)
        if len(calls) < 3:
            raise StorageError("the network is down")
        delete_prefix(prefix)
        gone.set()

    monkeypatch.setattr(deletions, "DELETE_PAUSES_MS", (1, 1, 1))
    monkeypatch.setattr(desk.files, "delete_prefix", sometimes)
    desk.checkpoint_io.performers(desk.statistics)[type(effect)](effect)
    assert gone.wait(30)
    assert calls == ["chk-3"] * 3
    assert not [path for path, _ in desk.files.list("") if path.startswith("chk-3")]


def test_a_pointer_to_nothing_is_named(desk):
    """The job cannot start from what is not there."""
    desk.ask(asked.StoreCompletedCheckpoint(checkpoint(3)))
    desk.files.delete("chk-3/_metadata")
    failed = desk.ask(asked.RecoverCompletedCheckpoints())
    assert isinstance(failed, CompletedCheckpointsRecoveryFailed)
    assert "chk-3/_metadata" in failed.detail


def test_what_will_never_complete_is_deleted(desk):
    """The directory of a checkpoint, files outside it, and state that belongs to nothing."""
    for path in ("chk-5/a", "chk-5/b", "taskowned/c", "chk-6/late", "chk-6/other"):
        desk.files.put(path, b"state")
    desk.tell(asked.DiscardCheckpoint(CheckpointID(5), "chk-5", (), ("taskowned/c",)))
    desk.tell(asked.DiscardState(CheckpointID(6), (), ("chk-6/late",)))
    assert [path for path, _ in desk.files.list("")] == ["chk-6/other"]


def test_thousands_of_late_states_keep_no_checkpoint_from_being_stored(desk):
    """Each was a piece of work in the lane of its job, in which a thousand may wait: the next checkpoint of a job, of
    which anybody had said much that was late, failed because its metadata could not be written."""
    held = threading.Event()
    desk.io.submit("held up", held.wait, lambda _: None, lambda _: None)
    for number in range(2 * LANE_QUEUE):
        desk.files.put(f"chk-6/{number}", b"late")
        desk.performers[asked.DiscardState](asked.DiscardState(CheckpointID(6), (), (f"chk-6/{number}",)))
        desk.performers[asked.DiscardState](asked.DiscardState(CheckpointID(6), (), ()))
    desk.performers[asked.StoreCompletedCheckpoint](asked.StoreCompletedCheckpoint(checkpoint(7)))
    held.set()

    assert desk.told.get(timeout=20) == CheckpointStored(CheckpointID(7))
    assert [path for path, _ in desk.files.list("")] == ["chk-7/_metadata"]


def test_what_is_refused_of_checkpoints_is_one_line_a_second_for_each_sender(desk):
    """A TaskManager that speaks for the attempts of others twenty thousand times a second filled the log."""
    log = StringIO()
    storages, logger = StateStorages(named_memory_storage), make_logger("", stream=log)
    io = CheckpointIo(JOB, "memory://x", storages, desk.stores, desk.io, desk.timers, desk.clock, desk.told.put, logger)
    refuse = io.performers(desk.statistics)[asked.MessageRefused]
    for sender in ("tm-1",) * 300 + ("tm-2",):
        detail = f"acknowledged by {sender}, but the attempt runs on tm-3"
        refuse(asked.MessageRefused(CheckpointID(1), ATTEMPT, detail, sender=sender))

    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    seconds = {line["ts"][:19] for line in lines}
    senders = Counter(line["context"]["detail"].split(",")[0] for line in lines)
    assert senders["acknowledged by tm-1"] <= len(seconds) + 1
    assert senders["acknowledged by tm-2"] == 1


@pytest.mark.parametrize("ends_first", [True, False])
def test_the_directory_of_a_job_goes_with_its_last_file(desk, tmp_path, ends_first):
    """When the job has ended, in whatever order that is done; not before, and not while a savepoint lies there."""
    job = tmp_path / JOB
    storages = StateStorages(lambda url: open_storage(url, Configuration()))
    io = CheckpointIo(
        JOB, f"file://{job}", storages, desk.stores, desk.io, desk.timers, desk.clock, desk.told.put, silent_logger()
    )
    desk.performers = io.performers(desk.statistics)
    for name in ("chk-1", "chk-2", "savepoint-x"):
        storages.at(f"file://{job}").put(f"{name}/_metadata", b"")
    desk.tell(asked.ShutdownIdCounter(JobStatus.SUSPENDED))
    desk.tell(asked.DiscardCheckpoint(CheckpointID(1), "chk-1", (), ()))
    assert (job / "savepoint-x").exists()
    last = [asked.ShutdownIdCounter(JobStatus.CANCELED), asked.DiscardCheckpoint(CheckpointID(2), "chk-2", (), ())]
    for effect in last if ends_first else reversed(last):
        desk.tell(effect)
        assert (job / "savepoint-x" / "_metadata").exists()
    (job / "savepoint-x" / "_metadata").unlink()
    desk.tell(asked.DiscardCheckpoint(CheckpointID(3), "chk-3", (), ()))
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_tasks_are_deleted(desk):
    """What they wrote for older checkpoints; nothing that is kept, newer, complete, or somebody else's."""
    stays = [
        "chk-5/_metadata",
        "chk-5/segment-a-5-0",
        "chk-7/segment-a-7-0",
        "chk-9/segment-a-9-0",
        "savepoint-1/_metadata",
        "savepoint-1/segment-a-3-0",
        "shared/notes",
        "shared/segment-a-3-0",
        "shared/segment-a-9-0",
    ]
    for path in (*stays, "chk-6/segment-a-6-0", "shared/segment-a-6-0", "shared/segment-tm-9-4-0"):
        desk.files.put(path, b"state")
    desk.tell(asked.DeleteLeftovers(frozenset({"shared/segment-a-3-0"}), frozenset({"chk-7"}), CheckpointID(9)))
    assert [path for path, _ in desk.files.list("")] == stays


def test_a_checkpoint_that_nothing_points_to_is_deleted(desk):
    """Its coordinator died before the pointer. What an earlier job of this id left is older than the submission, and
    stays."""
    desk.stores.pointers.add(CheckpointID(7), b"being given up")
    for number, timestamp_ms in ((4, 900), (5, 2_000), (6, 2_000), (7, 2_000), (9, 2_000)):
        metadata = CheckpointMetadata(JOB, "job", CheckpointID(number), timestamp_ms, SnapshotType.CHECKPOINT, ())
        desk.files.put(f"chk-{number}/_metadata", build_metadata(metadata, f"chk-{number}"))
        desk.files.put(f"chk-{number}/segment-a-{number}-0", b"state")
    desk.files.put("chk-3/_metadata", b"no metadata")
    desk.submitted_at(1_000)
    desk.tell(asked.DeleteLeftovers(frozenset(), frozenset({"chk-6"}), CheckpointID(9)))
    assert {path.partition("/")[0] for path, _ in desk.files.list("")} == {
        "chk-3",
        "chk-4",
        "chk-6",
        "chk-7",
        "chk-9",
    }


def test_a_checkpoint_that_is_being_deleted_is_in_no_leftovers_way(desk, monkeypatch):
    """It was there when the directory was listed."""
    for path in ("chk-5/_metadata", "shared/segment-a-6-0"):
        desk.files.put(path, b"state")
    there = desk.files.list("")
    desk.files.delete("chk-5/_metadata")
    desk.submitted_at(1_000)
    monkeypatch.setattr(desk.files, "list", lambda _: there)
    desk.tell(asked.DeleteLeftovers(frozenset(), frozenset(), CheckpointID(9)))
    monkeypatch.undo()
    assert not desk.files.list("")


def test_the_end_of_a_job(desk):
    """The counter goes with it; a suspended job keeps its own."""
    desk.ask(asked.DrawCheckpointId(REQUEST))
    desk.tell(asked.ReleaseCompletedCheckpoints())
    desk.tell(asked.ShutdownIdCounter(JobStatus.SUSPENDED))
    assert desk.store.list("counters")
    desk.tell(asked.ShutdownIdCounter(JobStatus.FINISHED))
    assert not desk.store.list("counters")


def test_statistics_are_written_at_a_bounded_pace(desk):
    """However many checkpoints a second there are."""
    written: list[bytes] = []
    object.__setattr__(
        desk.checkpoint_io, "_statistics_store", type("Store", (), {"write": staticmethod(written.append)})
    )
    for _ in range(5):
        desk.tell(asked.PersistStatistics())
    assert len(written) == 1


def test_the_last_change_of_the_statistics_is_written_down(desk, monkeypatch):
    """Once it may be, or when the coordinator stops: a savepoint right behind a checkpoint was forgotten by the next
    leader."""
    written: list[bytes] = []
    clock = ManualClock(5_000)
    store = SimpleNamespace(write=written.append)
    monkeypatch.setattr(desk.checkpoint_io, "_statistics_store", store)
    monkeypatch.setattr(desk.checkpoint_io, "_clock", clock)
    for number in (1, 2):
        desk.statistics.report_pending(CheckpointID(number), SnapshotType.CHECKPOINT, 0, {})
        desk.tell(asked.PersistStatistics())
    desk.checkpoint_io.write_late_statistics(desk.statistics)
    clock.advance(1_000)
    for _ in range(2):
        desk.checkpoint_io.write_late_statistics(desk.statistics)
    desk.io.submit("after it", lambda: "done", desk.told.put, lambda error: error)
    assert desk.told.get(timeout=20) == "done"
    assert [decode_statistics(data, 5).counts.total for data in written] == [1, 2]

    desk.statistics.report_pending(CheckpointID(3), SnapshotType.CHECKPOINT, 0, {})
    desk.tell(asked.ShutdownIdCounter(JobStatus.SUSPENDED))
    desk.tell(asked.PersistStatistics())
    assert [decode_statistics(data, 5).counts.total for data in written] == [1, 2, 3]


def test_a_savepoint_is_loaded(desk):
    """By its directory or its file, from wherever it lies."""
    location = "memory://elsewhere/savepoint-1"
    desk.ask(asked.StoreCompletedCheckpoint(checkpoint(4, location), register=False))
    for path in (location, f"{location}/", f"{location}/_metadata"):
        assert desk.ask(LoadSavepoint(path)) == SavepointLoaded(checkpoint(4, location).metadata, location)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("memory://elsewhere/nothing", "memory://elsewhere/nothing"),
        ("relative/path", "relative/path"),
    ],
)
def test_a_savepoint_that_is_not_there_is_named(desk, path, reason):
    """And is not looked for again."""
    failed = desk.ask(LoadSavepoint(path))
    assert isinstance(failed, SavepointLoadFailed)
    assert reason in failed.detail
    assert not failed.retryable


def test_lines_about_checkpoints_go_to_the_log(desk, monkeypatch):
    """With their level and their details."""
    said = []
    monkeypatch.setattr(desk.checkpoint_io, "_logger", SimpleNamespace(
        info=lambda text, **details: said.append(("info", text, details)),
        warning=lambda text, **details: said.append(("warning", text, details)),
    ))  # fmt: skip
    desk.tell(asked.ReportCheckpoint("checkpoint completed", (("checkpoint_id", 7), ("duration_ms", 5))))
    desk.tell(asked.ReportCheckpoint("periodic checkpoints are refused", (), is_warning=True))
    assert said == [
        ("info", "checkpoint completed", {"checkpoint_id": 7, "duration_ms": 5}),
        ("warning", "periodic checkpoints are refused", {}),
    ]


def test_staged_rows_are_deleted_and_nothing_else(desk, tmp_path):
    """A job graph names directories, and only those that were staged, and in them only what was staged, go."""
    staged, mixed, other = (
        tmp_path / f"snapline-staged-{'0' * 32}",
        tmp_path / f"snapline-staged-{'1' * 32}",
        tmp_path / "home",
    )
    for directory in (staged, mixed, other):
        directory.mkdir()
        (directory / "part-00000-0a.parquet").write_text("rows")
    (mixed / "notes.txt").write_text("mine")
    io = CheckpointIo(
        JOB, f"memory://{desk.name}", StateStorages(open_storage), desk.stores, desk.io, desk.timers, desk.clock,
        desk.told.put, silent_logger(), [str(staged), str(mixed), str(other)],
    )  # fmt: skip
    desk.performers = io.performers(desk.statistics)
    desk.tell(asked.DeleteStagedRows())
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["home/part-00000-0a.parquet", f"{mixed.name}/notes.txt"]
    assert not staged.exists()
