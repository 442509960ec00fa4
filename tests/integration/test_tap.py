"""Looking into a job that runs on TaskManagers of their own: its rows, its metrics, its latencies, through the
coordinator."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import snapline as sl
from snapline.cli import cli
from snapline.client import RequestRefused
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.coordinator.leading_keys import table_of
from snapline.job_metrics import metrics_of
from tests.services.cluster import LocalCluster, wait_until


class Counted(sl.Function):
    """Counts the rows that come by, and the batches by their size."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.rows = context.metrics.counter("rows")
        self.sizes = context.metrics.histogram("sizes")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows.inc(batch.num_rows)
        self.sizes.update(batch.num_rows)
        return batch.append_column("counted", pa.array([True] * batch.num_rows))


@pytest.fixture
def cluster(tmp_path):
    with LocalCluster(tmp_path, slots=(1, 1)) as cluster:
        yield cluster


def test_rows_metrics_and_latencies_of_a_running_job_are_seen_from_outside(cluster):
    """`snapline tap` takes no more rows than it was told; metrics and markers come with the heartbeats."""
    env = cluster.environment(metrics__latency__interval="20 ms")
    env.set_parallelism(2)
    stream = env.from_source(sl.GeneratorSource(keys=4, rows_per_second=2_000, batch_rows=50), uid="numbers")
    stream.key_by("key").process_batches(Passing(), uid="passing").map_batches(Counted(), uid="counted").sink_to(
        DiscardingSink(), uid="out"
    )
    job_id = cluster.submit(env, "looked into")
    cluster.wait_for_checkpoints(job_id, 1)

    parts = cluster.client.tap(job_id, "numbers", rows=3)
    assert {part.rows_taken for part in parts} == {3}
    assert table_of(parts, 5).column_names == ["key", "value"]
    assert 0 < table_of(cluster.client.tap(job_id, "out", rows=2), 2).num_rows <= 2  # what a sink takes in
    for of_input, columns in ((True, ["key", "value"]), (False, ["key", "value", "counted"])):
        shown_rows = table_of(cluster.client.tap(job_id, "counted", rows=2, of_input=of_input), 2)
        assert shown_rows.column_names == columns
    with pytest.raises(RequestRefused, match="no operator 'number': did you mean 'numbers'"):
        cluster.client.tap(job_id, "number")
    options = ["--coordinator", cluster.address]
    shown = CliRunner().invoke(cli, ["tap", "looked into", "numbers", "--limit", "4", "--rows", "4", *options])
    assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 4), shown.output
    assert set(json.loads(shown.stdout.splitlines()[0])) == {"key", "value"}

    def has_all() -> bool:
        operators = metrics_of(cluster.client.get_job(job_id)).operators
        return "latency from numbers" in operators.get("out", {}) and operators["counted"]["rows"] > 0

    wait_until(has_all, "metrics and latencies have come with a heartbeat")
    operators = metrics_of(cluster.client.get_job(job_id)).operators
    assert set(operators["counted"]) == {"rows", "sizes", "latency from numbers"}
    assert operators["out"]["latency from numbers"]["p99"] >= 0
    cluster.cancel(job_id)


class Passing(sl.KeyedBatchProcessFunction):
    """Passes rows on, behind an exchange between processes."""

    def process_batch(self, keys, batch, state):
        return batch
