"""A job that ends every leader which starts it, and how that is noticed."""

from __future__ import annotations

from functools import partial

from snapline.coordinator.ha.start_marks import StartMarks
from snapline.dataflow.ids import JobID
from snapline.runtime.storage.memory_storage import MemoryStorage

JOB, OTHER, THIRD = JobID("poison"), JobID("other"), JobID("third")


def test_two_leaders_in_a_row_are_enough() -> None:
    """The third does not start it, and says what to do; the mark of another job does not count."""
    storage = MemoryStorage()
    for _leader in range(2):
        assert "" == StartMarks(storage).why_parked(JOB, "p")
        StartMarks(storage).begin(JOB)
    marks = StartMarks(storage)
    marks.begin(OTHER)

    assert "is parked: 2 leaders in a row" in marks.why_parked(JOB, "p")
    assert "starting/poison" in marks.why_parked(JOB, "p")
    assert "" == marks.why_parked(OTHER, "o")


def test_a_start_that_succeeds_takes_the_mark_away() -> None:
    """A leader that somebody killed in that moment is no sign of poison, and a damaged mark is none either."""
    storage = MemoryStorage()
    marks = StartMarks(storage)
    marks.begin(JOB)
    marks.end(JOB)
    marks.end(JOB)
    assert 0 == marks.count(JOB)
    for damaged in (b"", b"x", b"9" * 5_000):
        storage.put("starting/poison", damaged)
        assert 0 == marks.count(JOB)


def test_jobs_that_were_found_marked_are_started_one_after_the_other() -> None:
    """Beside each other they would be marked a second time by the one that ends its leaders, and all be parked."""
    storage = MemoryStorage()
    former = StartMarks(storage)
    former.begin(JOB)
    former.begin(OTHER)
    marks = StartMarks(storage)
    started: list[str] = []
    assert ["", ""] == [marks.why_parked(JOB, "p"), marks.why_parked(OTHER, "o")]

    for job_id in (OTHER, JOB, THIRD):
        marks.start_in_turn(job_id, partial(started.append, job_id))
    assert [OTHER, THIRD] == started
    marks.end_turn(OTHER, started=False)  # its stores are away
    marks.start_in_turn(OTHER, partial(started.append, OTHER))
    assert [OTHER, THIRD, JOB] == started
    marks.end_turn(JOB, started=True)
    marks.end_turn(JOB, started=True)
    assert [OTHER, THIRD, JOB, OTHER] == started
    marks.end_turn(OTHER, started=True)
    marks.start_in_turn(JOB, partial(started.append, JOB))
    assert JOB == started[-1]
