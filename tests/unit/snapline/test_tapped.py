"""`snapline tap` goes on while there is a job: what it shows, and when it ends."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.client import RequestRefused
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.wire.statuses import JobStatus, encode_job_status
from snapline.protos import client_pb2 as pb
from snapline.tapped import follow

RESTARTS = "no subtask of 'out' runs: the job is RESTARTING"


class Job:
    """Stands for a client of a job whose taps are answered so: with rows, or with why there are none and its status."""

    def __init__(self, *answers: list[int] | pa.Array | tuple[str, JobStatus, bool]) -> None:
        self._answers = list(answers)
        self._status = JobStatus.RUNNING

    def get_job(self, job_id: str) -> pb.JobDetails:
        return pb.JobDetails(overview=pb.JobOverview(status=encode_job_status(self._status)))

    def tap(self, job_id: str, uid: str, *, rows: int, max_bytes: int) -> list[pb.TappedRows]:
        answer = self._answers.pop(0)
        if isinstance(answer, tuple):
            refusal = RequestRefused(answer[0])
            _, self._status, refusal.retryable = answer
            raise refusal
        sink = pa.BufferOutputStream()
        batch = pa.record_batch({"n": answer})
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return [pb.TappedRows(rows=sink.getvalue().to_pybytes(), rows_taken=len(answer), rows_seen=max(1, len(answer)))]


def shown(job: Job, limit: int) -> list[int]:
    """What a tap shows of it."""
    rows = follow(job, "a", "out", rows_per_second=2, bytes_per_second=99, limit=limit, sleep=lambda _: None)  # type: ignore[arg-type]
    return [row["n"] for row in rows]


def test_a_tap_goes_on_when_the_job_has_restarted() -> None:
    """It ended with an error of usage at the first failure of a task."""
    restarting = (RESTARTS, JobStatus.RESTARTING, True)
    again = (RESTARTS, JobStatus.RUNNING, True)
    assert shown(Job([1], restarting, restarting, again, [2], again, [3]), 3) == [1, 2, 3]


@pytest.mark.parametrize(
    "answers",
    [
        [("the job is FAILED", JobStatus.FAILED, False)],
        [("no operator 'out': there are in", JobStatus.RUNNING, False)],
        [("no subtask of 'out' runs: the job is RUNNING", JobStatus.RUNNING, True)] * 2,
    ],
)
def test_a_tap_of_what_will_not_run_ends(answers: list[tuple[str, JobStatus, bool]]) -> None:
    """A job that is over, an operator that there is not, and one that has finished in a job that runs."""
    with pytest.raises(RequestRefused, match=answers[0][0]):
        shown(Job([1], *answers), 3)


def test_rows_that_are_too_large_are_named() -> None:
    """A tap that shows nothing, second for second, looks as if nothing flows. One that has shown rows goes on."""
    with pytest.raises(SnaplineError, match="a row of 'out' has more bytes than a subtask may show: 99 "):
        shown(Job([]), 1)
    assert shown(Job([1], [], [2]), 2) == [1, 2]


def test_rows_with_a_time_that_python_has_not_are_one_line() -> None:
    """The operator and the type are named, instead of a traceback."""
    times = pa.array([-(1 << 63)], pa.timestamp("us"))
    with pytest.raises(SnaplineError, match=r"the rows of 'out' cannot be shown: a timestamp\[us\] lies beyond"):
        shown(Job(times), 1)


def test_subtasks_may_have_categories_that_do_not_go_together() -> None:
    """Eight bits number the categories of each subtask, but not those of both."""

    class TwoSubtasks(Job):
        def tap(self, job_id: str, uid: str, *, rows: int, max_bytes: int) -> list[pb.TappedRows]:
            parts = [super(TwoSubtasks, self).tap(job_id, uid, rows=rows, max_bytes=max_bytes) for _ in range(2)]
            return [part for of_subtask in parts for part in of_subtask]

    kind = pa.dictionary(pa.int8(), pa.string())
    names = [[str(first + number) for number in range(100)] for first in (0, 100)]
    job = TwoSubtasks(*(pa.array(each).dictionary_encode().cast(kind) for each in names))
    followed = follow(job, "a", "out", rows_per_second=200, bytes_per_second=1 << 20, limit=200, sleep=lambda _: None)  # type: ignore[arg-type]
    assert [row["n"] for row in followed] == [*names[0], *names[1]]
