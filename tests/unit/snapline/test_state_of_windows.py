"""`snapline state read` on windows that have not fired."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import snapline as sl
from snapline.cli import cli
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.config import Configuration


def test_a_window_that_never_fired_is_shown_with_null(tmp_path: Path) -> None:
    """Inside, the lowest number there is stands for it, which says nothing to people."""
    settings = {"execution.checkpointing.interval": "10 ms", "execution.checkpointing.dir": str(tmp_path)}
    env = sl.StreamExecutionEnvironment(Configuration(settings))
    strategy = sl.WatermarkStrategy.for_bounded_out_of_orderness("value", 0)
    source = sl.GeneratorSource(keys=2, rows_per_second=5_000, batch_rows=50)
    windows = env.from_source(source, strategy, uid="rows").key_by("key").window(sl.TumblingEventTimeWindows(10**12))
    windows.aggregate(uid="windows", n=sl.count()).sink_to(DiscardingSink(), uid="out")
    with env.execute_async("windows", local=True) as job:
        while not any(task["records_in"] for task in job.metrics().tasks.values()) or not job.checkpoints:
            assert not job.has_ended
        path = job.savepoint(str(tmp_path / "savepoints"))
    read = CliRunner().invoke(cli, ["state", "read", path, "windows", "-o", "json"])
    assert read.exit_code == 0, read.output
    assert '"fired": null' in read.output and str(-(2**63)) not in read.output
    assert len(json.loads(read.output)) == 2
