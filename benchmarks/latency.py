"""Latency from the creation of an event to the sink, at 10,000 events/s with checkpoints every second, on Spark.

Events carry the time at which they were due by an even clock, so that a stalled source counts as latency. The sink
keeps a histogram with buckets of 10 microseconds, and hands it over in a file once a second. Who asks for a buffer
timeout of 0 wants no waiting at all: the source then emits what is due every millisecond, and every five otherwise.

    python -m benchmarks.latency --rate 10000 --seconds 15 --buffer-timeout 10ms --json
"""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import snapline as sl
from benchmarks.cluster import (
    benchmark_environment,
    checkpoint_directory,
    checkpoint_figures,
    fail,
    parser,
    report,
    running_job,
    versions,
)
from snapline.connectors.builtin.generator import EMIT_INTERVAL_MS, GeneratorSource
from snapline.dataflow.api.connector_api import Committable, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.config import parse_duration_ms
from snapline.dataflow.errors import SnaplineError

BUCKET_US = 10
BUCKETS = 1_000_000


class LatencySink(Sink):
    """A sink that measures the age of rows and throws them away."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @property
    def two_phase(self) -> bool:
        return False

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return LatencyWriter(Path(self.directory))


class LatencyWriter(SinkWriter):
    """A writer that keeps one histogram for each subtask."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / f"latency-{uuid.uuid4().hex}.npy"
        self.histogram = np.zeros(BUCKETS, dtype=np.int64)
        self.used = 0
        """Buckets from here on are empty, and are not saved: writing all of them would stall the rows for 4 ms."""
        self.saved_s = time.time()

    def write(self, batch: pa.RecordBatch) -> None:
        now_us = time.time_ns() // 1000
        created = batch.column("created_at").to_numpy()
        buckets = np.minimum(np.maximum((now_us - created) // BUCKET_US, 0), BUCKETS - 1)
        np.add.at(self.histogram, buckets, 1)
        self.used = max(self.used, int(buckets.max()) + 1)
        if time.time() - self.saved_s >= 1.0:
            self.save()

    def save(self) -> None:
        partial = self.file.with_suffix(".partial")
        with partial.open("wb") as out:
            np.save(out, self.histogram[: self.used])
        partial.replace(self.file)
        self.saved_s = time.time()

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        return ()


def read_histogram(directory: Path) -> Any:
    """Add up the histograms of all subtasks."""
    total = np.zeros(BUCKETS, dtype=np.int64)
    for file in directory.glob("latency-*.npy"):
        histogram = np.load(file)
        total[: len(histogram)] += histogram
    return total


def percentiles(histogram: Any) -> dict[str, float]:
    """p50, p99, p99.9 and maximum in milliseconds."""
    cumulative = np.cumsum(histogram)
    figures = {}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        bucket = int(np.searchsorted(cumulative, share * cumulative[-1]))
        figures[name] = round((bucket + 1) * BUCKET_US / 1000, 2)
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = parser(__doc__)
    cli.add_argument("--rate", type=int, default=10_000, help="events per second")
    cli.add_argument("--keys", type=int, default=1000)
    cli.add_argument("--buffer-timeout", default="10ms")
    options = cli.parse_args(arguments)
    directory = Path(checkpoint_directory())
    try:
        environment = benchmark_environment(
            options.parallelism, options.checkpoint_interval, str(directory / "checkpoints")
        )
        environment.configure("execution.buffer-timeout", options.buffer_timeout)
        source = GeneratorSource(
            keys=options.keys,
            rows_per_second=options.rate,
            created_at_column="created_at",
            emit_interval_ms=EMIT_INTERVAL_MS if parse_duration_ms(options.buffer_timeout) else 1,
        )
        (
            environment.from_source(source, uid="generator")
            .key_by("key")
            .running_aggregate(uid="sums", name="sums", passthrough=["created_at"], total=sl.sum("value"), n=sl.count())
            .sink_to(LatencySink(str(directory)), uid="sink")
        )
        with running_job(environment, "latency", options.master) as (client, graph):
            time.sleep(options.warm_up)
            before = read_histogram(directory)
            time.sleep(options.seconds)
            measured = read_histogram(directory) - before
            checkpoints = checkpoint_figures(client, graph)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    figures = {
        "latency_ms": percentiles(measured),
        "events": int(measured.sum()),
        **checkpoints,
        "versions": versions(),
    }
    report(
        f"latency at {options.rate:,} events/s, buffer timeout {options.buffer_timeout}", figures, as_json=options.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
