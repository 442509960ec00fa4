"""Pictures of streams and jobs: what is in them, and that what a user wrote cannot break them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

import snapline as sl
from snapline.client import JobDetails
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.config import Configuration
from snapline.pictures import MOST_BOXES, Box, Rates, graph
from snapline.protos import client_pb2 as pb


def texts(html: str) -> str:
    """All text of a picture, which is well-formed."""
    return " ".join(text.strip() for text in ET.fromstring(html).itertext() if text.strip())


def test_a_stream_shows_its_operators_and_columns() -> None:
    """A name that looks like HTML is text."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    rows = env.from_collection([{"x": 1, "<b>": "a"}], uid="rows")
    stream = rows.filter(sl.col("x") > 0, name="<script>").uid("filter")
    shown = texts(stream._repr_html_())
    assert all(text in shown for text in ("CollectionSource", "uid rows", "<script>", "uid filter", "<b>", "string"))
    assert "not known before the job runs" in texts(rows.map(lambda row: row)._repr_html_())


def test_a_job_shows_its_status_rows_and_checkpoints() -> None:
    """As it was at its end."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    env.from_collection([{"x": 1}, {"x": 2}], uid="rows").sink_to(DiscardingSink(), uid="out")
    with env.execute_async("drawn & done", local=True) as job:
        job.wait()
        shown = texts(job._repr_html_())
    assert "drawn & done FINISHED" in shown
    assert "2 rows" in shown


def test_rates_are_those_between_two_looks_and_survive_a_restart() -> None:
    """Counters of a new attempt begin at nothing, and give no negative speed."""

    def look(rows: int, busy_ms: int, idle_ms: int) -> pb.JobDetails:
        details = JobDetails()
        vertex = details.vertices.add(vertex_id="v", name="v", parallelism=1)
        vertex.subtasks.add(records_in=rows, busy_ms=busy_ms, idle_ms=idle_ms)
        return details

    rates = Rates()
    rates.note(look(100, 10, 0), 1.0)
    rates.note(look(100, 10, 0), 1.5)  # no heartbeat has come: the same counters are no speed of nothing
    rates.note(look(300, 260, 750), 2.0)
    assert (rates.rows_in["v"], rates.busy["v"]) == (200.0, 0.25)
    rates.note(look(5, 1, 0), 3.0)
    assert rates.rows_in["v"] == 200.0


def test_arrows_go_to_the_right_and_large_graphs_are_said_in_words() -> None:
    """An operator stands behind all that it reads."""
    drawn = ET.fromstring(graph([Box(key, [key]) for key in "abc"], [("a", "c"), ("a", "b"), ("b", "c")]))
    svg = "{http://www.w3.org/2000/svg}"
    groups = drawn.iter(f"{svg}g")
    places = {group.findtext(f"{svg}title"): int(next(group.iter(f"{svg}rect")).attrib["x"]) for group in groups}
    assert places["a"] < places["b"] < places["c"]
    assert graph([Box(str(n), ["x"]) for n in range(MOST_BOXES + 1)], []) == "<p>61 operators</p>"


def test_a_job_is_a_line_of_text_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPython printed there each second what stands for a picture, until the job had ended."""
    terminal = type("InteractiveShellEmbed", (type("TerminalInteractiveShell", (), {}),), {})()
    monkeypatch.setattr("IPython.get_ipython", lambda: terminal)
    env = sl.StreamExecutionEnvironment(Configuration({}))
    env.from_collection([{"x": 1}], uid="rows").sink_to(DiscardingSink(), uid="out")
    with env.execute_async("job", local=True) as job:
        job.wait()
        job._ipython_display_()
    assert capsys.readouterr().out == f"<job 'job' ({job.job_id}) FINISHED>\n"
