"""Which copies of snapshot files a TaskManager keeps on the disk of its own machine.

A core. A copy has the name of the file that it is a copy of, and so belongs to a job and to the checkpoint for which
that file was written. It is kept as long as a checkpoint may be restored that refers to it: the latest completed one,
or a later one that was acknowledged here; it goes when neither does any more, when the checkpoint is aborted, when the
file itself is deleted, and with its job. Copies that were taken over from a TaskManager that is gone wait for their job
to come here; those of jobs that do not come go when `InheritedTimedOut` says so. It does not know where copies lie, nor
what is in them. Mirrors Flink's TaskLocalStateStoreImpl, where a copy is a task's; here tasks share files, so it is the
TaskManager's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from snapline.dataflow.ids import CheckpointID, JobID

NO_CHECKPOINT = CheckpointID(0)


@dataclass(frozen=True, slots=True)
class CopiesInherited:
    """(job, path) of what another TaskManager has left behind."""

    copies: tuple[tuple[JobID, str], ...]


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A task of the job is deployed here."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class CopyWritten:
    """There is a copy of a file that was written for the checkpoint."""

    job_id: JobID
    checkpoint_id: CheckpointID
    path: str


@dataclass(frozen=True, slots=True)
class SnapshotReferred:
    """A task's part of the checkpoint, acknowledged or restored here, refers to these files."""

    job_id: JobID
    checkpoint_id: CheckpointID
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalSnapshotCompleted:
    """No checkpoint before this one will be restored."""

    job_id: JobID
    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class SnapshotAborted:
    """The checkpoint will not be restored."""

    job_id: JobID
    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class OriginalDeleted:
    """There is no such file any more; or its copy is of no use."""

    job_id: JobID
    path: str


@dataclass(frozen=True, slots=True)
class JobGone:
    """Nothing of the job is left here."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class InheritedTimedOut:
    """What was taken over was kept long enough for its job to come."""


RetentionEvent = (
    CopiesInherited
    | JobArrived
    | CopyWritten
    | SnapshotReferred
    | LocalSnapshotCompleted
    | SnapshotAborted
    | OriginalDeleted
    | JobGone
    | InheritedTimedOut
)


@dataclass(frozen=True, slots=True)
class DeleteCopies:
    """Delete these copies, because nobody will read them."""

    job_id: JobID
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteJobCopies:
    """Nobody will read any copy of the job."""

    job_id: JobID


RetentionEffect = DeleteCopies | DeleteJobCopies


@dataclass(slots=True)
class _JobCopies:
    is_here: bool = False
    """Whether the job has or had a task here."""
    copies: dict[str, CheckpointID] = field(default_factory=dict)
    """The checkpoint for which each file was written, by path; NO_CHECKPOINT: inherited."""
    referred: dict[CheckpointID, set[str]] = field(default_factory=dict)
    completed: CheckpointID = NO_CHECKPOINT
    """The latest that is known."""
    aborted: set[CheckpointID] = field(default_factory=set)
    """After that one: the disk may be slower than the coordinator."""


class LocalStateRetention:
    """All copies of one TaskManager."""

    def __init__(self) -> None:
        self._jobs: dict[JobID, _JobCopies] = {}

    @property
    def jobs(self) -> tuple[JobID, ...]:
        """Jobs that are here, or of which something is kept."""
        return tuple(self._jobs)

    def copies_of(self, job_id: JobID) -> tuple[str, ...]:
        """Paths of what is kept, sorted."""
        job = self._jobs.get(job_id)
        return () if job is None else tuple(sorted(job.copies))

    def handle(self, event: RetentionEvent) -> list[RetentionEffect]:
        """Take one event, and return what is to be done."""
        match event:
            case CopiesInherited(copies):
                for job_id, path in copies:
                    self._jobs.setdefault(job_id, _JobCopies()).copies[path] = NO_CHECKPOINT
                return []
            case JobArrived(job_id):
                self._jobs.setdefault(job_id, _JobCopies()).is_here = True
                return []
            case CopyWritten():
                return self._written(event)
            case SnapshotReferred(job_id, checkpoint_id, paths):
                job = self._jobs.get(job_id)
                if job is not None and checkpoint_id >= job.completed:
                    job.referred.setdefault(checkpoint_id, set()).update(paths)
                return []
            case LocalSnapshotCompleted(job_id, checkpoint_id):
                return self._completed(job_id, checkpoint_id)
            case SnapshotAborted(job_id, checkpoint_id):
                job = self._jobs.get(job_id)
                if job is None:
                    return []
                job.referred.pop(checkpoint_id, None)
                if checkpoint_id > job.completed:
                    job.aborted.add(checkpoint_id)
                return self._drop(job_id, [path for path, of in job.copies.items() if of == checkpoint_id])
            case OriginalDeleted(job_id, path):
                job = self._jobs.get(job_id)
                if job is None or job.copies.pop(path, None) is None:
                    return []
                return [DeleteCopies(job_id, (path,))]
            case JobGone(job_id):
                return [DeleteJobCopies(job_id)] if self._jobs.pop(job_id, None) is not None else []
            case InheritedTimedOut():
                strangers = [job_id for job_id, job in self._jobs.items() if not job.is_here]
                for job_id in strangers:
                    del self._jobs[job_id]
                return [DeleteJobCopies(job_id) for job_id in strangers]

    def _written(self, event: CopyWritten) -> list[RetentionEffect]:
        job = self._jobs.get(event.job_id)
        if job is None or not job.is_here:
            return [DeleteCopies(event.job_id, (event.path,))]
        job.copies[event.path] = event.checkpoint_id
        is_over = event.checkpoint_id <= job.completed or event.checkpoint_id in job.aborted
        return self._drop(event.job_id, [event.path]) if is_over else []

    def _completed(self, job_id: JobID, checkpoint_id: CheckpointID) -> list[RetentionEffect]:
        job = self._jobs.get(job_id)
        if job is None or checkpoint_id <= job.completed:
            return []
        job.completed = checkpoint_id
        job.aborted = {known for known in job.aborted if known > checkpoint_id}
        for older in [known for known in job.referred if known < checkpoint_id]:
            del job.referred[older]
        return self._drop(job_id, [path for path, of in job.copies.items() if of <= checkpoint_id])

    def _drop(self, job_id: JobID, paths: Iterable[str]) -> list[RetentionEffect]:
        """Those of these copies that no checkpoint refers to."""
        job = self._jobs[job_id]
        unused = tuple(path for path in paths if not any(path in referred for referred in job.referred.values()))
        for path in unused:
            del job.copies[path]
        return [DeleteCopies(job_id, unused)] if unused else []
