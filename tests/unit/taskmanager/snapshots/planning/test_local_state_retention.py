"""Which local copies are kept, and until when."""

from __future__ import annotations

from snapline.dataflow.ids import CheckpointID, JobID
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
    RetentionEffect,
    RetentionEvent,
    SnapshotAborted,
    SnapshotReferred,
)

JOB, OTHER = JobID("job"), JobID("other")


def n(number: int) -> CheckpointID:
    return CheckpointID(number)


def told(retention: LocalStateRetention, *events: RetentionEvent) -> list[RetentionEffect]:
    """What the last of these leads to; the ones before lead to nothing."""
    for event in events[:-1]:
        assert retention.handle(event) == []
    return retention.handle(events[-1])


def test_a_completed_checkpoint_takes_the_place_of_the_ones_before() -> None:
    """A later one that was acknowledged stays beside it."""
    retention = LocalStateRetention()
    told(retention, JobArrived(JOB))
    for number in (1, 2, 3):
        told(
            retention,
            CopyWritten(JOB, n(number), f"chk-{number}/a"),
            SnapshotReferred(JOB, n(number), (f"chk-{number}/a",)),
        )

    assert told(retention, LocalSnapshotCompleted(JOB, n(2))) == [DeleteCopies(JOB, ("chk-1/a",))]
    assert told(retention, LocalSnapshotCompleted(JOB, n(1))) == []
    assert retention.copies_of(JOB) == ("chk-2/a", "chk-3/a")


def test_a_shared_file_stays_as_long_as_a_checkpoint_refers_to_it() -> None:
    """Incremental checkpoints go on with files of older ones."""
    retention = LocalStateRetention()
    told(retention, JobArrived(JOB), CopyWritten(JOB, n(1), "shared/a"), SnapshotReferred(JOB, n(1), ("shared/a",)))
    told(retention, CopyWritten(JOB, n(2), "shared/b"), SnapshotReferred(JOB, n(2), ("shared/a", "shared/b")))

    assert told(retention, LocalSnapshotCompleted(JOB, n(2))) == []
    told(retention, CopyWritten(JOB, n(3), "shared/c"), SnapshotReferred(JOB, n(3), ("shared/c",)))
    assert told(retention, LocalSnapshotCompleted(JOB, n(3))) == [DeleteCopies(JOB, ("shared/a", "shared/b"))]


def test_an_aborted_checkpoint_leaves_nothing() -> None:
    """Unless another one refers to it; also what is written after that."""
    retention = LocalStateRetention()
    told(retention, JobArrived(JOB), CopyWritten(JOB, n(1), "shared/a"), CopyWritten(JOB, n(1), "chk-1/a"))
    told(retention, SnapshotReferred(JOB, n(1), ("shared/a", "chk-1/a")), SnapshotReferred(JOB, n(2), ("shared/a",)))

    assert told(retention, SnapshotAborted(JOB, n(1))) == [DeleteCopies(JOB, ("chk-1/a",))]
    assert told(retention, CopyWritten(JOB, n(1), "chk-1/late")) == [DeleteCopies(JOB, ("chk-1/late",))]
    assert told(retention, LocalSnapshotCompleted(JOB, n(2))) == []
    assert retention.copies_of(JOB) == ("shared/a",)


def test_a_copy_that_comes_late() -> None:
    """The disk was slower than the coordinator: kept when it is still needed."""
    retention = LocalStateRetention()
    told(retention, JobArrived(JOB), SnapshotReferred(JOB, n(5), ("chk-5/a",)), LocalSnapshotCompleted(JOB, n(5)))

    assert told(retention, CopyWritten(JOB, n(5), "chk-5/a")) == []
    assert told(retention, CopyWritten(JOB, n(4), "chk-4/a")) == [DeleteCopies(JOB, ("chk-4/a",))]
    assert told(retention, JobGone(JOB)) == [DeleteJobCopies(JOB)]
    assert told(retention, CopyWritten(JOB, n(6), "chk-6/a")) == [DeleteCopies(JOB, ("chk-6/a",))]
    assert retention.jobs == ()


def test_a_file_that_is_deleted_takes_its_copy_along() -> None:
    """Once; of a file without a copy nothing is done."""
    retention = LocalStateRetention()
    told(retention, JobArrived(JOB), CopyWritten(JOB, n(1), "chk-1/a"))

    assert told(retention, OriginalDeleted(JOB, "chk-1/a")) == [DeleteCopies(JOB, ("chk-1/a",))]
    assert told(retention, OriginalDeleted(JOB, "chk-1/a")) == []
    assert told(retention, OriginalDeleted(OTHER, "chk-1/a")) == []


def test_what_was_taken_over_waits_for_its_job() -> None:
    """A job that came keeps what its checkpoint needs, until the next one; of a job that did not come nothing is
    kept."""
    retention = LocalStateRetention()
    told(retention, CopiesInherited(((JOB, "chk-7/a"), (JOB, "chk-6/a"), (OTHER, "chk-1/a"))), JobArrived(JOB))
    told(retention, SnapshotReferred(JOB, n(7), ("chk-7/a",)))

    assert told(retention, InheritedTimedOut()) == [DeleteJobCopies(OTHER)]
    assert told(retention, InheritedTimedOut()) == []
    assert retention.copies_of(JOB) == ("chk-6/a", "chk-7/a")
    assert told(retention, SnapshotReferred(JOB, n(8), ()), LocalSnapshotCompleted(JOB, n(8))) == [
        DeleteCopies(JOB, ("chk-7/a", "chk-6/a"))
    ]


def test_of_a_job_that_is_not_known_nothing_is_said() -> None:
    """Messages may come after its end."""
    retention = LocalStateRetention()

    for event in (
        LocalSnapshotCompleted(JOB, n(1)),
        SnapshotAborted(JOB, n(1)),
        SnapshotReferred(JOB, n(1), ("a",)),
        JobGone(JOB),
    ):
        assert told(retention, event) == []
    assert retention.jobs == ()
