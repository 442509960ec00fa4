"""Two sources of one group on real processes: the fast one keeps step with the slow one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from snapline import ParquetSink, WatermarkStrategy
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.scripted import AwaitCheckpoint, End, ScriptedSource, Stall
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster, wait_until

STEP_MS, DRIFT_MS, INTERVAL_MS = 10, 500, 20
FAST_ROWS, BATCH_ROWS = 40_000, 5
SCHEMA = pa.schema([("t", pa.timestamp("ms"))])
ROW = {"t": 0}


def time_only(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of both sources have one column."""
    return pa.record_batch({"t": pc.cast(batch.column("t"), pa.timestamp("ms"))})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,)) as cluster:
        yield cluster


def start(cluster, output, *script):
    """A fast source of two splits, and a slow one that plays the script."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_watermark_alignment("both", DRIFT_MS, INTERVAL_MS)
    environment = cluster.environment(parallelism=1)
    generator = GeneratorSource(
        keys=1, rows=FAST_ROWS, splits=2, batch_rows=BATCH_ROWS, event_time_column="t", event_interval_us=STEP_MS * 1000
    )
    fast = environment.from_source(generator, strategy, uid="fast")
    slow = environment.from_source(ScriptedSource(script, schema=SCHEMA), strategy, uid="slow")
    both = [
        one.map_batches(time_only, uid=f"time-{name}", schema=SCHEMA) for one, name in ((slow, "slow"), (fast, "fast"))
    ]
    both[0].union(both[1]).sink_to(ParquetSink(str(output)), uid="sink")
    return cluster.submit(environment, f"aligned {output.name}")


def times(output):
    """Event times of all committed rows, in milliseconds."""
    dataset = ds.dataset(output, format="parquet")
    return pc.cast(dataset.to_table().column("t"), pa.int64()).to_pylist() if dataset.files else []


def test_the_fast_source_waits_for_the_slow_one(cluster, tmp_path):
    """The slow one stops at its first row: the fast one comes as far as it may, and no further however long it has.
    Before the slow one has said anything, the fast one goes on from where it is."""
    output = tmp_path / "waits"
    job_id = start(cluster, output, ROW, Stall())
    cluster.wait_for_checkpoints(job_id, 1)
    wait_until(lambda: output.exists() and max(times(output), default=0) >= DRIFT_MS - STEP_MS * BATCH_ROWS * 2, "rows")
    reached = []
    for _ in range(2):
        completed = cluster.client.list_checkpoints(job_id).history[0].checkpoint_id
        cluster.wait_for_checkpoints(job_id, completed + 3)
        reached.append(max(times(output)))
    cluster.cancel(job_id)
    assert reached[0] == reached[1]
    assert reached[1] <= 2 * (DRIFT_MS + STEP_MS * BATCH_ROWS)  # a batch of a split is half of the rows


def test_it_goes_on_when_the_slow_one_has_ended(cluster, tmp_path):
    """All rows of both arrive."""
    output = tmp_path / "goes on"
    job_id = start(cluster, output, ROW, AwaitCheckpoint(), End())
    cluster.wait_for(job_id, JobStatus.FINISHED)
    assert len(times(output)) == FAST_ROWS + 1
