"""What is shown while a job runs."""

from __future__ import annotations

import io

import pytest

from snapline.dataflow.graph.external_tasks import external_job
from snapline.dataflow.ids import JobID
from snapline.progress import ProgressDisplay, rows_expected
from snapline.protos import client_pb2 as pb
from snapline.protos.job_pb2 import JobEdge, Partitioning
from snapline.rows_read import RowsRead


def job(attempt: int, rows: list[int]) -> pb.JobDetails:
    source = pb.VertexDetails(
        vertex_id="source",
        subtasks=[
            pb.SubtaskDetails(subtask_index=i, attempt_number=attempt, records_in=n, records_out=2 * n)
            for i, n in enumerate(rows)
        ],
    )
    sink = pb.VertexDetails(vertex_id="sink", subtasks=[pb.SubtaskDetails(records_in=999)])
    return pb.JobDetails(vertices=[source, sink], edges=[JobEdge(source="source", target="sink")])


def test_rows_read_are_those_of_sources_over_all_attempts():
    """A row that goes to two outputs counts once; rows of an attempt that is over stay counted."""
    rows = RowsRead()
    rows.note(job(0, [100, 50]))
    rows.note(job(0, [120, 60]))
    assert rows.total == 180
    rows.note(job(1, [5, 0]))
    rows.note(job(1, [10, 7]))
    assert rows.total == 197


def test_rows_of_a_source_that_discovers_are_those_that_its_readers_emit():
    """What the enumerator hands out are splits, which nobody wants to see counted as rows."""
    vertices = [
        pb.VertexDetails(vertex_id=name, subtasks=[pb.SubtaskDetails(records_in=n)])
        for name, n in (("splits", 30), ("readers", 3_000), ("sink", 999))
    ]
    edges = [
        JobEdge(source="splits", target="readers", partitioning=Partitioning.PARTITIONING_DEMAND),
        JobEdge(source="readers", target="sink"),
    ]
    rows = RowsRead()
    rows.note(pb.JobDetails(vertices=vertices, edges=edges))
    assert rows.total == 3_000


def test_nobody_knows_how_many_rows_programs_outside_have():
    """A job that has no other tasks has no code to ask, either."""
    assert rows_expected(external_job(JobID("a"), "fleet", {"orders": 2}, {})) is None


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


def test_brackets_in_the_name_of_a_job_are_shown_as_they_are() -> None:
    """They are no markup: a name with a path in them must not end the job that waits behind the line of progress."""
    terminal = Terminal()
    with ProgressDisplay("load [/data] [red]", None, terminal) as display:
        display.show(pb.JobDetails(overview={"status": "JOB_STATUS_RUNNING", "status_detail": "for [/x]"}), 3)
    assert "load [/data] [red]" in terminal.getvalue()
    assert "for [/x]" in terminal.getvalue()


def test_what_a_program_prints_into_a_file_while_its_job_runs_goes_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of progress is on the terminal of standard error, and standard output is somebody else's."""
    terminal = Terminal()
    with ProgressDisplay("job", None, terminal):
        print("a row")
    assert capsys.readouterr().out == "a row\n"
    assert "a row" not in terminal.getvalue()
