"""Performs the slow effects of one job's CheckpointCoordinator: ids, metadata, pointers, deletions, statistics.

Each runs on the executor for slow work and is answered by exactly one event, told to the job's actor. What an answer
means is decided by the core; here is only what counts as certain: a pointer whose creation failed in any way but "there
is one already" may exist all the same, and is looked for until that is known. Deletions that fail are logged, never
answered as failures: what is left behind costs space, not correctness. Mirrors CheckpointsCleaner and the I/O part of
Flink's PendingCheckpoint.finalizeCheckpoint, DefaultCompletedCheckpointStore and the counters.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from snapline.coordinator.checkpoint import effects as asked
from snapline.coordinator.checkpoint.abandoned_files import leftovers, suspects
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.events import (
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointIdFailed,
    CheckpointStored,
    CheckpointStoreFailed,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    CompletedCheckpointsRecoveryFailed,
)
from snapline.coordinator.checkpoint.metadata import (
    METADATA_FILE_NAME,
    MetadataError,
    build_metadata,
    encode_pointer,
    metadata_path,
    pointer_location,
    resolve_pointer,
)
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker
from snapline.coordinator.checkpoint.statistics.stats_persistence import encode_statistics
from snapline.coordinator.deletions import Deletions
from snapline.coordinator.ha.high_availability import JobStores, PointerExists
from snapline.coordinator.io import DEFAULT_LIMIT_MS, IoLane, TookTooLong
from snapline.coordinator.jobmaster.effects import LoadSavepoint
from snapline.coordinator.jobmaster.events import SavepointLoaded, SavepointLoadFailed
from snapline.coordinator.snapshots import NoSnapshot, read_metadata, read_snapshot
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.staged import is_staged_directory, is_staged_file
from snapline.runtime.actor import Performer
from snapline.runtime.clock import Clock
from snapline.runtime.cores.senders import RefusedSenders
from snapline.runtime.logs import Logger
from snapline.runtime.signing import UNSIGNED, NotSigned, Signer
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageAlreadyExists, StorageError, StorageNotFound
from snapline.runtime.timers import TimerScheduler

VERIFY_PAUSE_MS = 1_000
STATISTICS_PAUSE_MS = 1_000
"""Statistics are written down at most this often."""
CAN_WRITE = ".can-write"
"""An empty file that is made in the directory of a savepoint, and deleted at once."""
CAN_WRITE_LIMIT_MS = 30_000
"""So long a storage may take for that, because no other checkpoint begins meanwhile."""
MAX_TO_DISCARD = 10_000
"""Files of what tasks have said that wait to be discarded; what is more stays until the job has ended."""


class CheckpointIo:
    """One job's. Performers are called on the job's actor; the answers come on other threads, through `tell`."""

    def __init__(
        self,
        job_id: JobID,
        job_directory: str,
        storages: StateStorages,
        stores: JobStores,
        io: IoLane,
        timers: TimerScheduler,
        clock: Clock,
        tell: Callable[[Any], object],
        logger: Logger,
        staged_directories: Sequence[str] = (),
        signer: Signer = UNSIGNED,
    ) -> None:
        """`signer` signs what is written for others to restore, and says what is restored."""
        self._signer = signer
        self._staged_directories = tuple(staged_directories)
        self._job_id = job_id
        self._job_directory = job_directory
        self._storages = storages
        self._counter = stores.counter
        self._pointers = stores.pointers
        self._statistics_store = stores.statistics
        self._submitted_ms = stores.submitted_ms
        self._writes_arrive_within_ms = stores.writes_arrive_within_ms
        self._io = io
        self._timers = timers
        self._clock = clock
        self._tell = tell
        self._logger = logger
        self._statistics_due_ms = 0
        self._statistics_are_late = False
        """Something of them has changed since they were written down."""
        self._statistics_to_write: bytes | None = None
        self._statistics_are_written = False
        self._statistics_lock = threading.Lock()
        self._deletions = Deletions(io, timers, clock)
        self._to_discard: dict[str, None] = {}
        """Files that are to be deleted with those for which that has been asked."""
        self._discard_lock = threading.Lock()
        self._pointing_to: set[CheckpointID] = set()
        """Checkpoints whose pointer is being written just now, whether or not anybody waits for that any more."""
        self._refusals = RefusedSenders()
        self._is_over = False
        """The job has ended: no checkpoint is written any more."""

    def performers(self, statistics: CheckpointStatsTracker) -> dict[type, Performer]:
        """Return what performs this room's effects, for the table of the job's actor."""
        return {
            asked.DrawCheckpointId: self._draw_id,
            asked.SetCheckpointIdCount: self._set_id_count,
            asked.StoreCompletedCheckpoint: self._store,
            asked.VerifyStoredCheckpoint: self._verify,
            asked.RemoveCompletedCheckpoint: self._remove,
            asked.RecoverCompletedCheckpoints: self._recover,
            asked.DiscardCheckpoint: self._discard_checkpoint,
            asked.DiscardState: self._discard_state,
            asked.DeleteLeftovers: self._delete_leftovers,
            asked.ReleaseCompletedCheckpoints: lambda _: self._submit_quietly("release", self._pointers.release),
            asked.ShutdownIdCounter: self._shut_down_id_counter,
            asked.DeleteStagedRows: lambda _: self._delete_staged_rows(),
            asked.PersistStatistics: lambda _: self._persist(statistics),
            asked.MessageRefused: self._refused,
            asked.ReportCheckpoint: self._report,
            LoadSavepoint: self._load_savepoint,
        }

    # --- ids ----------------------------------------------------------------------------------------------------------

    def _draw_id(self, effect: asked.DrawCheckpointId) -> None:
        request, target = effect.request_id, effect.target_location
        can_write = not target

        def work() -> CheckpointIdDrawn:
            nonlocal can_write
            if target:
                self._check_can_write(target)
                can_write = True
            return CheckpointIdDrawn(request, self._counter.get_and_increment())

        def failed(error: BaseException) -> CheckpointIdFailed:
            return CheckpointIdFailed(request, str(error), cannot_write=not can_write)

        limit_ms = CAN_WRITE_LIMIT_MS if target else DEFAULT_LIMIT_MS
        self._io.submit("draw checkpoint id", work, self._tell, failed, limit_ms)

    def _check_can_write(self, directory: str) -> None:
        """Raise StorageError when nothing can be written there."""
        storage, name = self._storages.locate(self._job_directory, f"{directory}/{CAN_WRITE}")
        storage.create(name, b"")
        with contextlib.suppress(StorageError):
            storage.delete(name)

    def _set_id_count(self, effect: asked.SetCheckpointIdCount) -> None:
        request, next_id = effect.request_id, effect.next_id

        def work() -> CheckpointIdCountSet:
            self._counter.set_count(next_id)
            return CheckpointIdCountSet(request)

        self._io.submit("set checkpoint id", work, self._tell, lambda error: CheckpointIdCountSet(request, str(error)))

    # --- completed checkpoints ----------------------------------------------------------------------------------------

    def _store(self, effect: asked.StoreCompletedCheckpoint) -> None:
        checkpoint = effect.checkpoint
        checkpoint_id = checkpoint.checkpoint_id
        pointing: list[None] = []  # not empty: the pointer may be there
        given_up = threading.Event()

        def work() -> CheckpointStored | CheckpointStoreFailed | None:
            if effect.write_metadata:
                built = build_metadata(checkpoint.metadata, checkpoint.location)
                data = self._signer.seal(METADATA_FILE_NAME, built)
                storage, path = self._storages.locate(self._job_directory, metadata_path(checkpoint.location))
                try:
                    storage.create(path, data)
                except StorageAlreadyExists:
                    detail = f"{checkpoint.location} is complete already: another coordinator finished checkpoint {checkpoint_id}"
                    return CheckpointStoreFailed(checkpoint_id, detail, published_by_other=True)
            if effect.register:
                self._pointing_to.add(checkpoint_id)
                try:
                    return point()
                finally:
                    self._pointing_to.discard(checkpoint_id)
            return CheckpointStored(checkpoint_id)

        def point() -> CheckpointStored | CheckpointStoreFailed | None:
            if given_up.is_set():  # its files are being deleted: a pointer would lead to nothing
                return None
            pointing.append(None)
            pointer = encode_pointer(checkpoint)
            try:
                self._pointers.add(checkpoint_id, pointer)
            except PointerExists as error:
                # A leader that died may have begun with the same snapshot, and its write have come late.
                if effect.write_metadata or not self._pointers.contains(checkpoint_id, pointer):
                    return CheckpointStoreFailed(checkpoint_id, str(error))
            return CheckpointStored(checkpoint_id)

        def failed(error: BaseException) -> CheckpointStoreFailed:
            given_up.set()
            unknown = bool(pointing) or (isinstance(error, TookTooLong) and effect.register)
            return CheckpointStoreFailed(checkpoint_id, str(error), outcome_unknown=unknown)

        self._io.submit(f"store checkpoint {checkpoint_id}", work, self._tell, failed)

    def _verify(self, effect: asked.VerifyStoredCheckpoint) -> None:
        """Until it is certain, however long that takes."""
        checkpoint = effect.checkpoint
        checkpoint_id, pointer = checkpoint.checkpoint_id, encode_pointer(checkpoint)

        def work() -> CheckpointStored | CheckpointStoreFailed:
            may_still_come = checkpoint_id in self._pointing_to
            if self._pointers.contains(checkpoint_id, pointer):
                return CheckpointStored(checkpoint_id)
            if may_still_come:
                raise TookTooLong(f"the pointer to checkpoint {checkpoint_id} is still being written")
            because = f": {effect.doubt}" if effect.doubt else ""
            return CheckpointStoreFailed(checkpoint_id, f"its pointer was not written{because}")

        def again(_: BaseException) -> None:
            self._timers.schedule(self._clock.now_ms() + VERIFY_PAUSE_MS, lambda: self._verify(effect))

        self._io.submit(f"verify checkpoint {checkpoint_id}", work, self._tell, again)

    def _remove(self, effect: asked.RemoveCompletedCheckpoint) -> None:
        checkpoint = effect.checkpoint

        def remove() -> None:
            if self._pointers.remove(checkpoint.checkpoint_id) and effect.discard:
                self._delete(checkpoint.location, ())

        def work() -> CompletedCheckpointRemoved:
            remove()
            return CompletedCheckpointRemoved(checkpoint.checkpoint_id)

        name = f"remove checkpoint {checkpoint.checkpoint_id}"

        def failed(error: BaseException) -> CompletedCheckpointRemoved:
            """The job does not wait for a storage that is away."""
            self._deletions.retry_later(name, remove, error)
            return CompletedCheckpointRemoved(checkpoint.checkpoint_id)

        self._io.submit(name, work, self._tell, failed)

    def _recover(self, _: asked.RecoverCompletedCheckpoints) -> None:
        def work() -> CompletedCheckpointsRecovered:
            return CompletedCheckpointsRecovered(tuple(self._read(pointer) for pointer in self._pointers.load()))

        def failed(error: BaseException) -> CompletedCheckpointsRecoveryFailed:
            return CompletedCheckpointsRecoveryFailed(str(error))

        self._io.submit("recover completed checkpoints", work, self._tell, failed)

    def _read(self, pointer: bytes) -> CompletedCheckpoint:
        location = pointer_location(pointer)
        storage, path = self._storages.locate(self._job_directory, metadata_path(location))
        return resolve_pointer(pointer, read_metadata(storage, path, location, self._signer), self._job_id)

    def _load_savepoint(self, effect: LoadSavepoint) -> None:
        def work() -> SavepointLoaded:
            snapshot = read_snapshot(self._storages, effect.path, self._signer)
            return SavepointLoaded(snapshot.metadata, snapshot.location)

        def failed(error: BaseException) -> SavepointLoadFailed:
            user_can_mend = isinstance(error, (NoSnapshot, NotSigned, MetadataError))
            detail = str(error) if user_can_mend else f"cannot read {effect.path}: {error}"
            return SavepointLoadFailed(detail, retryable=not user_can_mend)

        self._io.submit(f"read {effect.path}", work, self._tell, failed)

    # --- deletions ----------------------------------------------------------------------------------------------------

    def _discard_checkpoint(self, effect: asked.DiscardCheckpoint) -> None:
        self._deletions.delete_until_gone(
            f"discard checkpoint {effect.checkpoint_id}", lambda: self._delete(effect.location, effect.paths)
        )

    def _discard_state(self, effect: asked.DiscardState) -> None:
        """Together with what else is to be discarded by the time it is done: tasks may have thousands of such things
        to say at once, and everything of the job waits in one lane."""
        with self._discard_lock:
            is_first = not self._to_discard
            room = max(0, MAX_TO_DISCARD - len(self._to_discard)) if effect.states else None
            self._to_discard.update(dict.fromkeys(effect.paths[:room]))
        if not is_first or not effect.paths:
            return
        paths: list[str] = []

        def work() -> None:
            take()
            self._delete("", paths)

        def take() -> None:
            with self._discard_lock:
                paths.extend(self._to_discard)
                self._to_discard.clear()

        def failed(error: BaseException) -> None:
            take()
            self._deletions.retry_later("discard state", lambda: self._delete("", paths), error)

        self._io.submit("discard state", work, lambda _: None, failed)

    def _shut_down_id_counter(self, effect: asked.ShutdownIdCounter) -> None:
        self._is_over = effect.status.is_globally_terminal
        self._statistics_due_ms = 0  # what is persisted now is the last

        def work() -> None:
            self._counter.shutdown(effect.status)
            self._remove_empty_directory()

        self._deletions.delete_until_gone("id counter", work)

    def _remove_empty_directory(self) -> None:
        """The directory of a job that has ended goes with its last file. Deletions are done in any order, so each of
        them looks."""
        parent, _, name = self._job_directory.rstrip("/").rpartition("/")
        if self._is_over and name == self._job_id and not self._storages.at(self._job_directory).list(""):
            self._storages.at(parent or "/").delete_prefix(name)

    def _delete_leftovers(self, effect: asked.DeleteLeftovers) -> None:
        def work() -> None:
            storage, directory = self._storages.locate(self._job_directory, "")
            there = [path for path, _ in storage.list(directory)]
            suspected = suspects(there, effect.kept_locations, effect.before)
            pointed_to = frozenset(self._pointers.checkpoint_ids if suspected else ())
            orphans = [location for location in suspected if self._is_orphan(location, pointed_to)]
            found = leftovers(there, effect.kept_files, effect.kept_locations, effect.before, orphans)
            if found:
                self._logger.info("files of processes that were killed", count=len(found), first=found[0])
            self._delete("", found)

        self._submit_quietly("delete leftovers", work)

    def _delete_staged_rows(self) -> None:
        """Only directories and files whose names say that they were staged."""
        for directory in filter(is_staged_directory, self._staged_directories):

            def work(directory: str = directory) -> None:
                parent, _, name = directory.rstrip("/").rpartition("/")
                there = [path for path, _ in self._storages.at(directory).list("")]
                self._delete("", [f"{directory}/{path}" for path in there if is_staged_file(path)])
                if all(is_staged_file(path) for path in there):
                    self._storages.at(parent or "/").delete_prefix(name)

            self._deletions.delete_until_gone("delete staged rows", work)

    def _is_orphan(self, location: str, pointed_to: frozenset[CheckpointID]) -> bool:
        """Whether nothing points to the metadata there, and it is of this job, taken since that was submitted. An
        earlier job of the same id may have left a checkpoint for its user; one that is being given up goes with its
        pointer; and the pointer of a leader that was killed may still be on its way."""
        if self._submitted_ms is None:
            return False
        storage, path = self._storages.locate(self._job_directory, metadata_path(location))
        try:
            metadata = read_metadata(storage, path, location)
        except (MetadataError, StorageNotFound):  # the latter: it is being deleted
            return False
        is_own = metadata.job_id == self._job_id and metadata.timestamp_ms >= self._submitted_ms
        is_settled = metadata.timestamp_ms + self._writes_arrive_within_ms <= self._clock.now_ms()
        return is_own and is_settled and metadata.checkpoint_id not in pointed_to

    def _delete(self, directory: str, paths: Sequence[str]) -> None:
        """Everything below the directory, and these files. Goes on after a failure, and raises the last one."""
        last: StorageError | None = None
        if directory:
            try:
                storage, name = self._storages.locate(self._job_directory, directory.rstrip("/"))
                storage.delete_prefix(name)
            except StorageError as error:
                last = error
        for file in paths:
            try:
                storage, name = self._storages.locate(self._job_directory, file)
                storage.delete(name)
            except StorageError as error:
                last = error
        if last is not None:
            raise last
        self._remove_empty_directory()

    # --- what nobody waits for ----------------------------------------------------------------------------------------

    def _submit_quietly(self, name: str, work: Callable[[], None]) -> None:
        self._io.submit(name, work, self._tell, lambda _: None)

    def write_statistics(self, statistics: CheckpointStatsTracker) -> None:
        """Write them down at once: something of them has changed that happens rarely."""
        self._statistics_due_ms = 0
        self._persist(statistics)

    def write_late_statistics(self, statistics: CheckpointStatsTracker) -> None:
        """Write down what was too early to be written when it changed. Called every now and then."""
        if self._statistics_are_late:
            self._persist(statistics)

    def _persist(self, statistics: CheckpointStatsTracker) -> None:
        now_ms = self._clock.now_ms()
        self._statistics_are_late = now_ms < self._statistics_due_ms
        if self._statistics_are_late:
            return
        self._statistics_due_ms = now_ms + STATISTICS_PAUSE_MS
        with self._statistics_lock:
            self._statistics_to_write = encode_statistics(statistics)
        self._submit_quietly("write statistics", self._write_latest_statistics)

    def _write_latest_statistics(self) -> None:
        """One thread writes at a time, always what is newest; others leave theirs to it, and wait for nothing."""
        while True:
            with self._statistics_lock:
                data = self._statistics_to_write
                if data is None or self._statistics_are_written:
                    return
                self._statistics_to_write, self._statistics_are_written = None, True
            try:
                self._statistics_store.write(data)
            finally:
                with self._statistics_lock:
                    self._statistics_are_written = False

    def _report(self, effect: asked.ReportCheckpoint) -> None:
        say = self._logger.warning if effect.is_warning else self._logger.info
        say(effect.said, **dict(effect.details))

    def _refused(self, effect: asked.MessageRefused) -> None:
        say = self._logger.debug if effect.known else self._logger.warning
        untold = self._refusals.note(f"{effect.sender} {effect.known}", self._clock.now_ms() / 1000)
        if untold is not None:
            say(
                "message about a checkpoint refused",
                checkpoint_id=effect.checkpoint_id,
                attempt=str(effect.attempt_id),
                detail=effect.detail,
                not_logged_before=untold,
            )
