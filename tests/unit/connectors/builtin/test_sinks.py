"""Printing, counting, measuring."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from snapline.connectors.builtin.sinks import (
    DiscardingSink,
    DiscardingWriter,
    LatencyHistogram,
    PrintSink,
    latency_percentiles_ms,
)
from snapline.dataflow.errors import JobDefinitionError
from tests.unit.connectors.parquet.places import Place


def test_printing_names_the_subtask(capsys: pytest.CaptureFixture[str]) -> None:
    """As Flink prints it: one-based, and only where there are several."""
    PrintSink().create_writer(Place(1, 2), ()).write(pa.record_batch({"a": [1, 2]}))
    PrintSink("out").create_writer(Place(), ()).write(pa.record_batch({"a": [3]}))

    assert capsys.readouterr().out == "2> {'a': 1}\n2> {'a': 2}\nout> {'a': 3}\n"


def test_both_columns_of_one_name_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A dictionary has one of them only."""
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1]),
            pa.array(["x"]),
            pa.array(
                [
                    None,
                ]
            ),
        ],
        names=["a", "b'", "a"],
    )
    PrintSink().create_writer(Place(), ()).write(batch)
    PrintSink().create_writer(Place(), ()).write(batch.slice(0, 0))

    assert capsys.readouterr().out == """{'a': 1, "b'": 'x', 'a': None}\n"""


def test_a_job_whose_rows_nobody_reads_any_more_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind `| head`: with checkpoints it was, for ever, and `python job.py | head` never ended."""

    def refuse(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=refuse))
    with pytest.raises(JobDefinitionError, match="nobody reads the standard output"):
        PrintSink().create_writer(Place(), ()).write(pa.record_batch({"a": [1]}))


def test_counts_are_reported_at_every_checkpoint_and_at_the_end(tmp_path: Path) -> None:
    """One line of JSON each, in a file of the subtask."""
    writer = DiscardingSink(report_directory=tmp_path / "r").create_writer(Place(2, 3, 1, operator_uid="sink"), ())
    writer.write(pa.record_batch({"a": [1, 2, 3]}))
    assert writer.prepare_commit(7) == ()
    writer.write(pa.record_batch({"a": [4]}))
    writer.close()

    lines = [json.loads(line) for line in (tmp_path / "r" / "sink-2-1.jsonl").read_text().splitlines()]
    assert [(line.get("checkpoint_id"), line.get("closed"), line["rows"]) for line in lines] == [
        (7, None, 3),
        (None, True, 4),
    ]


def test_latencies_are_measured_from_creation(tmp_path: Path) -> None:
    """Per row, against the clock at the write of its batch."""
    writer = DiscardingWriter(tmp_path / "r.jsonl", "t", clock_us=lambda: 1_010_000)
    writer.write(pa.record_batch({"t": pa.array([1_000_000] * 999 + [10_000], pa.int64())}))
    writer.close()

    counts = json.loads((tmp_path / "r.jsonl").read_text())["latency_counts"]
    percentiles = latency_percentiles_ms([counts])
    assert percentiles["p50"] == pytest.approx(10, rel=0.03) and percentiles["p99"] == pytest.approx(10, rel=0.03)
    assert latency_percentiles_ms([counts, {}, counts]) == percentiles


@pytest.mark.parametrize("scale", [10, 10_000, 10_000_000])
def test_percentiles_are_right_within_the_buckets_width(scale: int) -> None:
    """From microseconds to seconds, against exact ones."""
    latencies = (np.random.default_rng(1).gamma(2, scale, 100_000) + 30).astype(np.int64)
    histogram = LatencyHistogram()
    for part in np.array_split(latencies, 7):
        histogram.add(part)

    found = latency_percentiles_ms([histogram.counts()])

    for name, percent in (("p50", 50), ("p99", 99), ("p999", 99.9)):
        assert found[name] == pytest.approx(float(np.percentile(latencies, percent)) / 1000, rel=0.06)


def test_no_rows_no_percentiles() -> None:
    """Rather than a made-up zero."""
    assert latency_percentiles_ms([]) == {}
