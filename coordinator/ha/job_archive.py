"""What is kept of jobs that have ended, in high availability storage: one file a job, for every leader that comes.

Decides the names (`archive/<end in ms>-<job id>`, so that the order of names is the order of ends) and which files go:
all but the latest `jobstore.max-capacity`, and those older than `jobstore.expiration-time`. A file that cannot be read
is named and left where it is; it keeps no other job from being shown. A file is written before the graph of its job is
removed, so that no job is forgotten, and once more when all is known of it. A job whose graph is still there runs
again, whatever is archived of it: a leader that is none any more may have written that. Mirrors Flink's
FsJobArchivist, JobResultStore and history server, without a process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.storage.storage_port import Storage, StorageError

DIRECTORY = "archive"
MAX_ARCHIVED_BYTES = 1 << 28
"""As a message that shows one."""
DIGITS_MAX = 18
"""The end of a job has fewer digits in the name of its file; more are no time, and no field holds them."""
GREATEST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999, behind which nobody can show a time."""


@dataclass(frozen=True, slots=True)
class ArchivedJobs:
    """What a new leader finds."""

    jobs: tuple[pb.ArchivedJob, ...] = ()
    """The job that ended first stands first; one whose file cannot be read has the line about that as its cause."""
    unreadable: tuple[str, ...] = ()
    """One line for each file that cannot be read."""


class JobArchive:
    """The files of one cluster. Every method may take long, and raise StorageError."""

    def __init__(self, storage: Storage, capacity: int, expiration_ms: int) -> None:
        """`capacity`: jobs that are kept; `expiration_ms`: for how long, 0: for ever."""
        self._storage = storage
        self._capacity = capacity
        self._expiration_ms = expiration_ms

    def put(self, job: pb.ArchivedJob, now_ms: int) -> None:
        """Keep the job, and delete what is too old or too much."""
        if not self._capacity:
            return
        overview = job.details.overview
        name = f"{DIRECTORY}/{overview.end_time_ms or now_ms:015d}-{overview.job_id}"
        self._storage.put(name, job.SerializeToString())
        for old in self._superfluous(now_ms):
            self._storage.delete(old)

    def load(self, now_ms: int) -> ArchivedJobs:
        """All that are kept and not too old."""
        jobs, unreadable = [], []
        superfluous = set(self._superfluous(now_ms))
        for name, size in self._storage.list(DIRECTORY):
            end_ms = _end_ms(name)
            if end_ms is None or name in superfluous:
                continue
            try:
                jobs.append(self._read(name, size))
            except (DecodeError, StorageError, ValueError) as error:
                line = f"{self._storage.url}/{name} is no archived job, or is damaged ({error}); delete it"
                unreadable.append(line)
                jobs.append(_unreadable_job(name, end_ms, line))
        return ArchivedJobs(tuple(jobs), tuple(unreadable))

    def _read(self, name: str, size: int) -> pb.ArchivedJob:
        if size > MAX_ARCHIVED_BYTES:
            raise ValueError(f"it has {size} bytes, more than any")
        job = pb.ArchivedJob.FromString(self._storage.get_range(name, 0, size))
        _check_shown(job)
        if job.details.overview.job_id != _job_id(name):
            raise ValueError("it holds another job than its name says")
        return job

    def _names(self) -> list[str]:
        return sorted(name for name, _ in self._storage.list(DIRECTORY) if _end_ms(name) is not None)

    def _superfluous(self, now_ms: int) -> list[str]:
        names = self._names()
        too_many = names[: -self._capacity] if self._capacity else names
        expires_ms = now_ms - self._expiration_ms
        too_old = [name for name in names if self._expiration_ms and (_end_ms(name) or 0) < expires_ms]
        return list(dict.fromkeys([*too_many, *too_old]))


def _end_ms(name: str) -> int | None:
    text = name.rpartition("/")[2].partition("-")[0]
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX else None


def _check_shown(message: Message) -> None:
    """Raise ValueError for statuses and times that nobody can show: they would keep all other jobs from being shown."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.enum_type is not None and field.name in ("status", "state") and not value:
            raise ValueError(f"its {field.full_name} is missing")
        if field.name == "overview" and not message.HasField(field.name):
            raise ValueError(f"its {field.full_name} is missing")
    for field, value in message.ListFields():
        values = list(value.values() if hasattr(value, "values") else value if hasattr(value, "append") else [value])
        for each in values:
            if isinstance(each, Message):
                _check_shown(each)
            elif field.enum_type is not None and each not in field.enum_type.values_by_number:
                raise ValueError(f"its {field.full_name} is {each}, which nobody knows")
            elif field.name.endswith(TIMES) and not -1 <= each <= GREATEST_TIME_MS:
                raise ValueError(f"its {field.full_name} is {each}, which is no time")


TIMES = ("time_ms", "timestamp_ms", "timestamps_ms", "since_ms")


def _job_id(name: str) -> str:
    return name.rpartition("/")[2].partition("-")[2]


def _unreadable_job(name: str, end_ms: int, line: str) -> pb.ArchivedJob:
    """What is shown in place of a job of which only the name of its file can be read."""
    overview = pb.JobOverview(
        job_id=_job_id(name), name="(its archive cannot be read)", status=job_pb2.JOB_STATUS_FAILED, end_time_ms=end_ms
    )
    overview.failure.summary = line
    return pb.ArchivedJob(details=pb.JobDetails(overview=overview))
