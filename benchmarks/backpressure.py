"""Checkpoints while the sink is too slow: aligned, unaligned, and aligned with a timeout, side by side, on Spark.

generator -> hash exchange -> running sum and count -> hash exchange -> a sink that takes 20,000 events a second, all
subtasks together. The queues before it are always full. Reported is, from the coordinator's statistics of each
completed checkpoint: time from trigger to the last acknowledgement, the longest alignment of a subtask, and the bytes
in flight that became part of the checkpoint.

    python -m benchmarks.backpressure --json
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import snapline as sl
from benchmarks.cluster import (
    benchmark_environment,
    checkpoint_directory,
    fail,
    parser,
    report,
    running_job,
    spread,
    versions,
)
from snapline.client import ClusterClient
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.api.connector_api import Committable, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.protos import client_pb2 as pb

MODES = {
    "aligned": {},
    "unaligned": {"execution__checkpointing__unaligned__enabled": "true"},
    "timeout": {
        "execution__checkpointing__unaligned__enabled": "true",
        "execution__checkpointing__aligned_checkpoint_timeout": "200 ms",
    },
}
KEYS = 10_000
POLL_S = 0.2


class SlowSink(Sink):
    """Throws rows away at a fixed rate."""

    def __init__(self, rows_per_second: float) -> None:
        """`rows_per_second`: of all subtasks together."""
        self.rows_per_second = rows_per_second

    @property
    def two_phase(self) -> bool:
        return False

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return SlowWriter(self.rows_per_second / context.parallelism)


class SlowWriter(SinkWriter):
    """One subtask: every row takes its time, whether rows come in large batches or small ones."""

    def __init__(self, rows_per_second: float) -> None:
        self._rows_per_second = rows_per_second
        self._owed_s = 0.0

    def write(self, batch: pa.RecordBatch) -> None:
        self._owed_s += batch.num_rows / self._rows_per_second
        begin = time.monotonic()
        time.sleep(max(0.0, self._owed_s))
        self._owed_s -= time.monotonic() - begin

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        return ()


def measure(mode: str, options: Any) -> dict[str, Any]:
    """One mode, in a cluster of its own."""
    directory = checkpoint_directory()
    try:
        settings = {"execution__batch__target_rows": str(options.batch_rows), **MODES[mode]}
        environment = benchmark_environment(options.parallelism, options.checkpoint_interval, directory, **settings)
        sums = (
            environment.from_source(GeneratorSource(keys=KEYS, batch_rows=options.batch_rows), uid="generator")
            .key_by("key")
            .running_aggregate(uid="sums", name="sums", total=sl.sum("value"), n=sl.count())
        )
        sums.rebalance().sink_to(SlowSink(options.sink_rate), uid="sink", name="slow sink")
        with running_job(environment, f"backpressure {mode}", options.master) as (client, graph):
            time.sleep(options.warm_up)
            return _figures(client, graph, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _figures(client: ClusterClient, graph: JobGraph, options: Any) -> dict[str, Any]:
    """Wait for the checkpoints that are triggered from now on; at least three, however long they take."""
    ignored = {c.checkpoint_id for c in client.list_checkpoints(graph.job_id).history}
    enough = time.monotonic() + options.seconds
    give_up = time.monotonic() + options.patience
    completed: list[pb.CheckpointOverview] = []
    while time.monotonic() < enough or (len(completed) < options.least and time.monotonic() < give_up):
        time.sleep(POLL_S)
        completed = [
            c
            for c in client.list_checkpoints(graph.job_id).history
            if c.status == pb.CheckpointStatus.CHECKPOINT_STATUS_COMPLETED and c.checkpoint_id not in ignored
        ]
    details = [client.get_checkpoint(graph.job_id, c.checkpoint_id) for c in completed]
    return {
        "checkpoint_ms": spread([float(c.end_to_end_duration_ms) for c in completed]),
        "alignment_ms": spread([float(max(_metrics(d, "alignment_duration_ms"), default=0)) for d in details]),
        "start_delay_ms": spread([float(max(_metrics(d, "checkpoint_start_delay_ms"), default=0)) for d in details]),
        "sync_ms": spread([float(max(_metrics(d, "sync_duration_ms"), default=0)) for d in details]),
        "async_ms": spread([float(max(_metrics(d, "async_duration_ms"), default=0)) for d in details]),
        "persisted_bytes": spread([float(c.persisted_data_bytes) for c in completed]),
        "processed_bytes": spread([float(c.processed_data_bytes) for c in completed]),
    }


def _metrics(details: pb.CheckpointDetails, name: str) -> list[int]:
    return [getattr(subtask.metrics, name) for vertex in details.vertices for subtask in vertex.subtasks]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = parser(__doc__)
    cli.set_defaults(checkpoint_interval="2 s", seconds=30.0)
    cli.add_argument("--sink-rate", type=float, default=20_000, help="rows per second of all subtasks of the sink")
    cli.add_argument(
        "--batch-rows",
        type=int,
        default=16_384,
        help="rows per batch (execution.batch.target-rows)",
    )
    cli.add_argument("--mode", action="append", choices=sorted(MODES), help="default: all")
    cli.add_argument("--least", type=int, default=3, help="checkpoints to wait for, however long they take")
    cli.add_argument("--patience", type=float, default=180, help="seconds to wait for them")
    options = cli.parse_args(arguments)
    figures: dict[str, Any] = {}
    try:
        for mode in options.mode or MODES:
            figures[mode] = measure(mode, options)
            if not options.json:
                report(f"backpressure, {mode}", figures[mode], as_json=False)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    if {"aligned", "unaligned"} <= figures.keys() and figures["unaligned"]["checkpoint_ms"]["median"]:
        figures["times_faster"] = round(
            figures["aligned"]["checkpoint_ms"]["median"] / figures["unaligned"]["checkpoint_ms"]["median"], 1
        )
    if options.json:
        report("backpressure", {**figures, "versions": versions()}, as_json=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
