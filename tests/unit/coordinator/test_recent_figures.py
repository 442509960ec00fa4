"""What the page keeps for its plots: by seconds for an hour, by minutes for a day, and no more."""

from __future__ import annotations

import gc
import tracemalloc

from snapline.coordinator.web.recent_figures import MAX_JOBS, MINUTES, POINTS, RecentFigures
from snapline.protos import client_pb2 as pb

BEGIN_S = 1_800_000_000
MAX_BYTES = 8_000_000
"""What docs/security.md and docs/operations.md say."""


def details(job_id: str = "a", rows: int = 0, busy_ms: int = 0) -> pb.JobDetails:
    subtask = pb.SubtaskDetails(records_in_per_second=rows, busy_ms_per_second=busy_ms)
    return pb.JobDetails(
        overview=pb.JobOverview(job_id=job_id), vertices=[pb.VertexDetails(vertex_id="v", subtasks=[subtask])]
    )


def test_the_last_hour_is_fine_and_the_last_day_by_minutes() -> None:
    """A burst of five seconds is still to be seen at night; rows a second are those of the whole minute."""
    figures = RecentFigures()
    for second in [*range(0, 24 * 3_600, 10), *range(24 * 3_600, 25 * 3_600, 5)]:
        burst = second == 10 * 3_600 + 30
        figures.add(details(rows=6 if burst else 0, busy_ms=990 if burst else 100), None, 1000 * (BEGIN_S + second))
    hour, half_a_day, day, always = (figures.columns_of("a", hours) for hours in (1, 12, 24, 1_000))
    last = BEGIN_S + 25 * 3_600 - 5
    assert (len(hour["time"]), hour["time"][-1], hour["time"][0]) == (POINTS, last, last - 3_600 + 5)
    assert (len(half_a_day["time"]), max(half_a_day["busy"])) == (12 * 60, 10.0)
    assert (len(day["time"]), day["time"][-1]) == (MINUTES, last)
    minute = day["busy"].index(99.0)
    assert (day["rows_in"][minute], day["time"][minute]) == (1.0, BEGIN_S + 10 * 3_600 + 50)
    assert len(always["time"]) == MINUTES + 1, "what is older is gone"


def test_points_of_seldom_looks_are_minutes_and_no_hour_is_longer_than_one() -> None:
    """While nobody looks there is one point a minute: as many as would be an hour's are twelve hours then."""
    figures = RecentFigures()
    for minute in range(600):
        figures.add(details(), None, 1000 * (BEGIN_S + 60 * minute))
    assert len(figures.columns_of("a", 1)["time"]) == 61
    assert len(figures.columns_of("a", 24)["time"]) == 600
    assert figures.columns_of("nobody", 24)["time"] == []


def test_a_job_of_the_last_minute_is_there_in_the_last_day() -> None:
    """Where no minute is over yet, its points are those of the hour: one alone would be no line."""
    figures = RecentFigures()
    for second in range(0, 60, 5):
        figures.add(details(), None, 1000 * (BEGIN_S + second))
    assert figures.columns_of("a", 24) == figures.columns_of("a", 1)
    assert len(figures.columns_of("a", 24)["time"]) == 12
    figures.add(details(), None, 1000 * (BEGIN_S + 60))
    assert len(figures.columns_of("a", 24)["time"]) == 2


def test_all_that_is_kept_has_a_bound_in_bytes() -> None:
    """Of the jobs that were seen last, whatever their number; with the memory that it takes."""
    figures, taken = RecentFigures(), []
    tracemalloc.start()
    try:
        for message in (details(), details("b")):
            for minute in range(MINUTES + 10):
                figures.add(message, None, 1000 * (BEGIN_S + 60 * minute))
            gc.collect()  # what Python keeps of tuples for the next ones is none of it
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    of_one_job = taken[1] - taken[0]
    assert len(figures.columns_of("a", 24)["time"]) == MINUTES + 1
    assert 100_000 < of_one_job < MAX_BYTES / MAX_JOBS
    for n in range(MAX_JOBS):
        figures.add(details(f"job {n}"), None, 1000 * (BEGIN_S + 60 * (MINUTES + 20)))
    assert figures.columns_of("a", 24)["time"] == []
    assert len(figures.columns_of("job 0")["time"]) == 1


def test_more_jobs_than_have_plots_take_nobody_elses() -> None:
    """With one job more than there are places each look at it took the place of the next one, so that no job of the
    cluster ever had the second point that a plot begins with."""
    figures = RecentFigures()
    jobs = [f"job {n}" for n in range(MAX_JOBS + 10)]
    for look in range(3):
        for job in jobs:
            figures.add(details(job), None, 1000 * (BEGIN_S + 60 * look))
    assert [len(figures.columns_of(job)["time"]) for job in jobs] == [3] * MAX_JOBS + [0] * 10
    for look in range(3, 10):  # the first job has ended
        for job in jobs[1:]:
            figures.add(details(job), None, 1000 * (BEGIN_S + 60 * look))
    assert figures.columns_of(jobs[0])["time"] == []
    assert len(figures.columns_of(jobs[MAX_JOBS])["time"]) > 1
