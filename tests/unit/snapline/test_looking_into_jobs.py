"""Looking into a local job: `inspect`, `job.tap` and latencies."""

from __future__ import annotations

import json

import pytest

import snapline as sl
from snapline.client import RequestRefused
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.config import Configuration
from snapline.tapped import as_json


def test_rows_of_a_running_job_are_tapped_from_its_handle() -> None:
    """What a source puts out and what a sink takes in; after its end the job says that it has ended."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    numbers = env.from_source(sl.GeneratorSource(keys=4, rows_per_second=5_000, batch_rows=50), uid="numbers")
    numbers.map_batches(lambda batch: batch.select(["key"]), uid="keys").sink_to(DiscardingSink(), uid="out")
    with env.execute_async("endless", local=True) as job:
        while not (table := wait_for_rows(job, "numbers")).num_rows:
            assert not job.has_ended
        assert (table.num_rows, table.column_names) == (3, ["key", "value"])
        assert job.tap("out", rows=2).column_names == ["key"]
        with pytest.raises(RequestRefused, match="no operator 'sink': there are numbers, keys, out"):
            job.tap("sink")
    with pytest.raises(RequestRefused, match="is CANCELED"):
        job.tap("numbers")


def wait_for_rows(job, uid):
    while job.status != "RUNNING":
        assert not job.has_ended
    return job.tap(uid, rows=3)


def test_latency_of_each_operator_is_measured_from_each_source() -> None:
    """Markers flow with the rows, over an exchange, and through a union."""
    env = sl.StreamExecutionEnvironment(Configuration({"metrics.latency.interval": "5 ms"}))
    first, second = (
        env.from_source(sl.GeneratorSource(keys=4, rows_per_second=5_000, batch_rows=50), uid=uid)
        for uid in ("one", "two")
    )
    counts = first.union(second).key_by("key").running_aggregate(uid="counts", n=sl.count()).set_parallelism(2)
    counts.sink_to(DiscardingSink(), uid="out").set_parallelism(2)
    wanted = {"latency from one", "latency from two"}
    with env.execute_async("marked", local=True) as job:
        while not all(wanted <= set(job.metrics().operators.get(uid, {})) for uid in ("counts", "out")):
            assert not job.has_ended
        latency = job.metrics().operators["out"]["latency from one"]
        assert latency["count"] > 0
        assert 0 <= latency["p50"] <= latency["p99"]
        assert "one" not in job.metrics().operators  # a source is where markers begin


def test_nothing_is_marked_unless_an_interval_is_set() -> None:
    """A job of a bounded source has no latencies by default."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    env.from_collection([{"x": 1}]).sink_to(DiscardingSink(), uid="out")
    with env.execute_async("unmarked", local=True) as job:
        job.wait()
        assert job.metrics().operators == {}


def test_inspected_rows_are_passed_on_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where nothing is given but `print`; what cannot be called is refused at once."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    stream = env.from_collection([{"x": 1}, {"x": 2}]).inspect()
    assert stream.schema is not None
    assert stream.inspect(lambda row: None).execute_and_collect(local=True).to_arrow().to_pylist() == [
        {"x": 1},
        {"x": 2},
    ]
    assert capsys.readouterr().out == "{'x': 1}\n{'x': 2}\n"
    with pytest.raises(sl.JobDefinitionError, match="inspect: 7 cannot be called with a row"):
        stream.inspect(7)  # type: ignore[arg-type]


def test_a_row_that_is_shown_steers_no_terminal() -> None:
    """And stays JSON: control characters that JSON allows were spelled out in a way that it does not."""
    row = {"word": "größe\x9b31m\u202e"}

    assert as_json(row) == '{"word": "größe\\u009b31m\\u202e"}'
    assert json.loads(as_json(row)) == row


def test_a_row_with_what_is_no_number_stays_json() -> None:
    """Python's NaN and Infinity are no JSON, and what reads a tap refused the line."""
    row = {"mean": float("nan"), "sizes": [("most", float("inf")), ("least", -0.5)]}

    assert as_json(row) == '{"mean": null, "sizes": [["most", null], ["least", -0.5]]}'
