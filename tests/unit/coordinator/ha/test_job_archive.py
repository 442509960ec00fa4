"""The archive of jobs that have ended."""

from __future__ import annotations

import pytest

from snapline.coordinator.ha import job_archive
from snapline.coordinator.ha.job_archive import JobArchive
from snapline.dataflow.wire.statuses import decode_job_status
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.storage.memory_storage import MemoryStorage


def ended(job_id: str, end_ms: int) -> pb.ArchivedJob:
    overview = pb.JobOverview(job_id=job_id, status=job_pb2.JOB_STATUS_FINISHED, end_time_ms=end_ms)
    return pb.ArchivedJob(details=pb.JobDetails(overview=overview))


def ids(archive: JobArchive, now_ms: int) -> list[str]:
    return [job.details.overview.job_id for job in archive.load(now_ms).jobs]


def test_another_leader_finds_the_jobs_in_the_order_of_their_ends() -> None:
    """With all that was known of them."""
    storage = MemoryStorage("ha")
    archive = JobArchive(storage, capacity=10, expiration_ms=0)
    for job_id, end_ms in (("b", 20), ("a", 10), ("c", 3_000_000_000_000)):
        archive.put(ended(job_id, end_ms), end_ms)
    assert JobArchive(storage, 10, 0).load(0).jobs == (ended("a", 10), ended("b", 20), ended("c", 3_000_000_000_000))


def test_only_the_latest_are_kept() -> None:
    """`jobstore.max-capacity` of them; with 0 nothing is."""
    storage = MemoryStorage("ha")
    for n in range(5):
        JobArchive(storage, capacity=2, expiration_ms=0).put(ended(f"job{n}", n), n)
    assert ids(JobArchive(storage, 10, 0), 5) == ["job3", "job4"]
    empty = MemoryStorage("none")
    JobArchive(empty, capacity=0, expiration_ms=0).put(ended("a", 1), 1)
    assert empty.list("") == []


def test_what_is_too_old_goes() -> None:
    """It is not shown any more, and deleted when the next job ends."""
    storage = MemoryStorage("ha")
    archive = JobArchive(storage, capacity=10, expiration_ms=100)
    archive.put(ended("old", 50), 50)
    archive.put(ended("new", 140), 140)
    assert ids(archive, 151) == ["new"]
    archive.put(ended("newest", 160), 160)
    assert len(storage.list("archive")) == 2


def test_a_damaged_file_is_named_and_keeps_no_other_job_away() -> None:
    """With the place and the way out, in the log and as the cause of what `snapline history` shows in its place."""
    storage = MemoryStorage("ha")
    archive = JobArchive(storage, capacity=10, expiration_ms=0)
    archive.put(ended("good", 7), 7)
    storage.put(f"archive/{9:015d}-bad", b"\xff\xff\xff")
    found = archive.load(10)
    (line,) = found.unreadable
    assert "archive/000000000000009-bad is no archived job, or is damaged" in line and line.endswith("delete it")
    good, bad = found.jobs
    overview = bad.details.overview
    assert good == ended("good", 7)
    assert ("bad", 9, line) == (overview.job_id, overview.end_time_ms, overview.failure.summary)
    assert decode_job_status(overview.status).is_globally_terminal


STRANGE = {
    "cut short to nothing": (f"{9:015d}-bad", b""),
    "another job": (f"{9:015d}-bad", ended("other", 9).SerializeToString()),
    "too large": (f"{9:015d}-bad", bytes(100)),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_file_that_holds_another_job_or_none_is_damaged(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What is too large for any job is not even read."""
    storage = MemoryStorage("ha")
    storage.put(f"archive/{STRANGE[kind][0]}", STRANGE[kind][1])
    monkeypatch.setattr(job_archive, "MAX_ARCHIVED_BYTES", 99)
    found = JobArchive(storage, capacity=10, expiration_ms=0).load(10)
    assert (1, ["bad"]) == (len(found.unreadable), [job.details.overview.job_id for job in found.jobs])


@pytest.mark.parametrize("name", ["\u00b2-x", "-x", "x", f"{'9' * 19}-x"])
def test_a_stray_file_is_no_archived_job(name: str) -> None:
    """Whatever its name begins with, jobs are shown and archived as ever."""
    storage = MemoryStorage("ha")
    storage.put(f"archive/{name}", b"x")
    archive = JobArchive(storage, capacity=1, expiration_ms=1000)
    archive.put(ended("good", 7), 7)
    assert ((ended("good", 7),), ()) == (archive.load(10).jobs, archive.load(10).unreadable)


@pytest.mark.parametrize("field", ["status", "start_time_ms", "unknown status"])
def test_what_nobody_can_show_keeps_no_other_job_from_being_shown(field: str) -> None:
    """A status that is missing or unknown, a time behind the year 9999: one such file broke every list."""
    job = ended("bad", 9)
    overview = job.details.overview
    if field == "status":
        overview.ClearField("status")
    elif field == "start_time_ms":
        overview.start_time_ms = 1 << 62
    else:
        overview.status = 99  # type: ignore[assignment]
    storage = MemoryStorage("ha")
    storage.put(f"archive/{9:015d}-bad", job.SerializeToString())
    found = JobArchive(storage, 10, 0).load(10)

    (line,) = found.unreadable
    assert "JobOverview." in line
    assert job_pb2.JOB_STATUS_FAILED == found.jobs[0].details.overview.status
