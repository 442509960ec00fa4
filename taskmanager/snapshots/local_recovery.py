"""Local recovery: copies of snapshot files on the TaskManager's own disk, written after the upload and read before the
storage.

The shell around LocalStateRetention, which says what is kept. One per TaskManager; used from upload threads and task
threads. A disk is taken when the first job with `execution.state-recovery.from-local` comes. Nothing here ever fails a
checkpoint or a restore: a copy that cannot be written is none, one that cannot be read, or believed, is read from the
storage instead; each kind of trouble is one line in the log. Mirrors Flink's TaskExecutorLocalStateStoresManager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.snapshot.handles import SegmentStateHandle, TaskStateSnapshot
from snapline.runtime.logs import Logger
from snapline.runtime.storage.storage_port import Buffer
from snapline.taskmanager.snapshots.local_copy import CopiedPart, DamagedCopy, LocalFile, checksums, open_part
from snapline.taskmanager.snapshots.planning.local_state_retention import (
    CopiesInherited,
    CopyWritten,
    DeleteCopies,
    DeleteJobCopies,
    InheritedTimedOut,
    JobArrived,
    JobGone,
    LocalSnapshotCompleted,
    LocalStateRetention,
    OriginalDeleted,
    RetentionEvent,
    SnapshotAborted,
    SnapshotReferred,
)

INHERITED_MS = 300_000
"""How long copies of another TaskManager wait for their job: as long as a job waits for slots
(slot.request.timeout)."""


class LocalDisk(Protocol):
    """Where copies of state lie on local disks (see `local_directories.LocalDirectories`)."""

    def inherited(self) -> Sequence[tuple[JobID, str]]: ...

    def write(self, job_id: JobID, path: str, parts: Sequence[Buffer]) -> None: ...

    def find(self, job_id: JobID, path: str) -> LocalFile | None: ...

    def delete(self, job_id: JobID, path: str) -> None: ...

    def delete_job(self, job_id: JobID) -> None: ...

    def close(self, *, keep: bool) -> None: ...


class LocalRecovery:
    """The local copies of state of one TaskManager."""

    def __init__(
        self,
        take_disk: Callable[[], LocalDisk],
        after_ms: Callable[[int, Callable[[], None]], object],
        logger: Logger,
        inherited_ms: int = INHERITED_MS,
    ) -> None:
        """`take_disk` may raise OSError: then there are no copies. `after_ms` calls back later, from any thread."""
        self._take_disk = take_disk
        self._after_ms = after_ms
        self._logger = logger
        self._inherited_ms = inherited_ms
        self._lock = threading.Lock()
        self._retention = LocalStateRetention()
        self._disk: LocalDisk | None = None
        self._is_taken = False
        self._has_failed_to_write = False

    def of_job(self, job_id: JobID) -> JobLocalRecovery:
        """A task of the job is deployed here, with local recovery."""
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                self._take()
        self._tell(JobArrived(job_id))
        return JobLocalRecovery(self, job_id)

    def write(self, job_id: JobID, checkpoint_id: CheckpointID, path: str, parts: Sequence[Buffer]) -> None:
        """Keep a copy of a file that is durable."""
        disk = self._disk
        if disk is None:
            return
        try:
            disk.write(job_id, path, [*parts, checksums(parts)])
        except OSError as error:
            if not self._has_failed_to_write:
                self._has_failed_to_write = True
                self._logger.warning("state cannot be copied to the local disk", path=path, reason=str(error))
        else:
            self._tell(CopyWritten(job_id, checkpoint_id, path))

    def open_part(self, job_id: JobID, path: str, offset: int, size: int) -> CopiedPart | None:
        """A part of the copy of a file, None where there is none to be believed."""
        disk = self._disk
        file = None if disk is None else disk.find(job_id, path)
        if file is None:
            return None
        try:
            return open_part(file, offset, size)
        except (OSError, DamagedCopy) as error:
            self.give_up(job_id, path, error)
            return None

    def give_up(self, job_id: JobID, path: str, error: Exception) -> None:
        """The copy is of no use; the original will be read."""
        self._logger.warning("a local copy of state is not used, the storage is read", path=path, reason=str(error))
        self._tell(OriginalDeleted(job_id, path))

    def tell(self, event: SnapshotReferred | LocalSnapshotCompleted | SnapshotAborted | OriginalDeleted) -> None:
        """What has become of a snapshot or file."""
        self._tell(event)

    def release_job(self, job_id: JobID) -> None:
        """Nothing of the job is left here."""
        self._tell(JobGone(job_id))

    def close(self, *, keep: bool) -> None:
        """The TaskManager ends. `keep`: a job will come back for its copies, to the next one on this machine."""
        with self._lock:
            disk, self._disk = self._disk, None
            keep = keep and bool(self._retention.jobs)
        if disk is not None:
            disk.close(keep=keep)

    def _take(self) -> None:
        """Take a disk and what is left on it; called while the lock is held."""
        try:
            self._disk = self._take_disk()
            inherited = tuple(self._disk.inherited())
        except OSError as error:
            self._logger.warning("no local recovery: the disk cannot be used", reason=str(error))
            return
        if inherited:
            self._retention.handle(CopiesInherited(inherited))
            self._after_ms(self._inherited_ms, lambda: self._tell(InheritedTimedOut()))
            self._logger.info("copies of state were taken over", files=len(inherited))

    def _tell(self, event: RetentionEvent) -> None:
        with self._lock:
            effects, disk = self._retention.handle(event), self._disk
        for effect in effects:
            match effect:
                case DeleteCopies(job_id, paths) if disk is not None:
                    for path in paths:
                        disk.delete(job_id, path)
                case DeleteJobCopies(job_id) if disk is not None:
                    disk.delete_job(job_id)


@dataclass(frozen=True, slots=True)
class JobLocalRecovery:
    """The same, for one job: what its tasks' snapshot sinks and state readers use."""

    recovery: LocalRecovery
    job_id: JobID

    def open_part(self, handle: SegmentStateHandle) -> CopiedPart | None:
        """The local copy of some state, None where there is none to be believed."""
        return self.recovery.open_part(self.job_id, handle.path, handle.offset, handle.size)

    def give_up(self, path: str, error: Exception) -> None:
        """The copy is of no use."""
        self.recovery.give_up(self.job_id, path, error)

    def refer(self, checkpoint_id: CheckpointID, state: TaskStateSnapshot) -> None:
        """A task has acknowledged, or restores, this."""
        paths = {
            handle.path
            for operator in state.operators.values()
            for handle in operator.stream_handles
            if isinstance(handle, SegmentStateHandle)
        }
        if paths:
            self.recovery.tell(SnapshotReferred(self.job_id, checkpoint_id, tuple(sorted(paths))))

    def complete(self, checkpoint_id: CheckpointID) -> None:
        """Keep the copies of this checkpoint, which is durable."""
        self.recovery.tell(LocalSnapshotCompleted(self.job_id, checkpoint_id))

    def abort(self, checkpoint_id: CheckpointID) -> None:
        """Delete the copies of this checkpoint, which will never complete."""
        self.recovery.tell(SnapshotAborted(self.job_id, checkpoint_id))
