"""What every engine benchmark does: start Spark and a cluster in it, run a job for a while, measure, cancel.

Rates are taken from the counters that TaskManagers report with each heartbeat, between two moments in the steady state.
Memory is the peak of the resident sets of all processes that hold TaskManagers, from `/proc`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import snapline as sl
from snapline.client import ClusterClient
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.wire.codec import decode_job_status
from snapline.protos import client_pb2 as pb
from snapline.runtime.logs import silent_logger
from snapline.session import EmbeddedCluster, open_spark, slots_required

SAMPLE_S = 0.25
BOTH_COMPILERS = {"spark.driver.extraJavaOptions": "-XX:+TieredCompilation"}
"""For what is compared with Spark's own work: a session of ours has a Java for programs that start often."""
SETTINGS = {
    "heartbeat.interval": "500 ms",
    "web.checkpoints.history": "10000",
    "restart-strategy.type": "none",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
}


def versions() -> dict[str, str]:
    """What was measured, and on what."""
    return {
        "snapline": version("snapline"),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "machine": f"{platform.machine()}, {_processors()}",
    }


def _processors() -> str:
    model = "unknown processor"
    count = 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            count += 1
    return f"{count} x {model}"


def spread(values: list[float]) -> dict[str, float]:
    """Return the minimum, the median, the maximum and the number of the values."""
    if not values:
        return {"min": 0, "median": 0, "max": 0, "n": 0}
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "n": len(values)}


def benchmark_environment(
    parallelism: int, interval: str, directory: str, **settings: str
) -> sl.StreamExecutionEnvironment:
    """An environment with checkpoints to local disk every `interval`."""
    values: dict[str, object] = {
        **SETTINGS,
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.dir": directory,
        "parallelism.default": parallelism,
        **{key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()},
    }
    return sl.StreamExecutionEnvironment.get_execution_environment(values)


@contextmanager
def running_job(
    environment: sl.StreamExecutionEnvironment, name: str, master: str
) -> Iterator[tuple[ClusterClient, JobGraph]]:
    """The job, once all of its tasks run; it is cancelled and everything stopped at the end."""
    environment.translate(name)
    spark = open_spark(name, {"spark.master": master}, for_cluster=True)
    graph = environment.translate(name, configuration=environment.configuration_with(spark.settings)).job_graph
    with EmbeddedCluster(spark, environment.configuration, slots_required(graph), silent_logger()) as cluster:
        client = cluster.client
        if client is None:
            raise RuntimeError("the cluster has no client")
        client.submit(graph)
        while True:
            cluster.check()
            details = client.get_job(graph.job_id)
            status = decode_job_status(details.overview.status)
            if status.is_globally_terminal:
                raise RuntimeError(f"the job ended: {details.overview.failure.summary}")
            subtasks = [s for v in details.vertices for s in v.subtasks]
            if status.value == "RUNNING" and subtasks and all(s.records_out or s.records_in for s in subtasks):
                break
            time.sleep(SAMPLE_S)
        yield client, graph
        client.cancel(graph.job_id)


def rows_in(details: pb.JobDetails, vertex_name_part: str) -> int:
    """Rows that entered the vertices whose name contains the text; for sources, rows that left them."""
    total = 0
    for vertex in details.vertices:
        if vertex_name_part in vertex.name:
            total += sum(s.records_in or s.records_out for s in vertex.subtasks)
    return total


def measure_rate(
    client: ClusterClient, graph: JobGraph, vertex: str, warm_up_s: float, seconds: float
) -> dict[str, Any]:
    """Rows per second into `vertex` over `seconds`, after `warm_up_s`; what CPU time all TaskManagers spent on a row,
    which says more than the rate where others use the machine; and their memory: its peak, and its medians over the
    first and the last tenth of the time."""
    time.sleep(warm_up_s)
    begin_rows, begin = _at_change(client, graph, vertex)
    begin_cpu_s = cpu_seconds(client)
    samples: list[float] = []
    idle = time.monotonic() + seconds
    while time.monotonic() < idle:
        time.sleep(SAMPLE_S)
        samples.append(resident_mib(client))
    end_rows, end = _at_change(client, graph, vertex)
    spent_s = cpu_seconds(client) - begin_cpu_s
    tenth = max(1, len(samples) // 10)
    tenths = [samples[i : i + tenth] for i in range(0, len(samples), tenth)][:10]
    return {
        "events_per_s": (end_rows - begin_rows) / (end - begin),
        "cpu_us_per_event": 1e6 * spent_s / (end_rows - begin_rows),
        "cores_used": spent_s / (end - begin),
        "peak_rss_mib": round(max(samples), 1),
        "rss_mib": {
            "first_tenth": round(statistics.median(samples[:tenth]), 1),
            "last_tenth": round(statistics.median(samples[-tenth:]), 1),
            "by_tenth": [round(statistics.median(tenth_of), 1) for tenth_of in tenths],
        },
    }


def _at_change(client: ClusterClient, graph: JobGraph, vertex: str) -> tuple[int, float]:
    """The counter right after it changed, so that its age does not blur the rate."""
    first = rows_in(client.get_job(graph.job_id), vertex)
    while True:
        rows = rows_in(client.get_job(graph.job_id), vertex)
        if rows != first:
            return rows, time.monotonic()
        time.sleep(0.005)


def cpu_seconds(client: ClusterClient) -> float:
    """User and system time so far of all processes that hold TaskManagers."""
    total = 0
    for manager in client.list_task_managers():
        try:
            fields = Path(f"/proc/{manager.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def resident_mib(client: ClusterClient) -> float:
    """Resident memory of all processes that hold TaskManagers, MiB."""
    total_kib = 0
    for manager in client.list_task_managers():
        try:
            status = Path(f"/proc/{manager.pid}/status").read_text()
        except OSError:
            continue
        total_kib += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)
    return total_kib / 1024


def checkpoint_figures(client: ClusterClient, graph: JobGraph) -> dict[str, Any]:
    """Duration and size of the completed checkpoints that are remembered."""
    history = [
        c
        for c in client.list_checkpoints(graph.job_id).history
        if c.status == pb.CheckpointStatus.CHECKPOINT_STATUS_COMPLETED
    ]
    return {
        "checkpoint_ms": spread([float(c.end_to_end_duration_ms) for c in history]),
        "checkpoint_bytes": max((c.state_size_bytes for c in history), default=0),
        "checkpoint_parts_ms": _checkpoint_parts(client, graph, [c.checkpoint_id for c in history[:20]]),
    }


def _checkpoint_parts(client: ClusterClient, graph: JobGraph, checkpoint_ids: list[int]) -> dict[str, float]:
    """Of each checkpoint the slowest subtask's: until its first barrier, alignment, synchronous and asynchronous part;
    medians."""
    parts: dict[str, list[float]] = {"start": [], "alignment": [], "sync": [], "async": []}
    for checkpoint_id in checkpoint_ids:
        details = client.get_checkpoint(graph.job_id, checkpoint_id)
        metrics = [subtask.metrics for vertex in details.vertices for subtask in vertex.subtasks]
        if not metrics:
            continue
        parts["start"].append(max(m.checkpoint_start_delay_ms for m in metrics))
        parts["alignment"].append(max(m.alignment_duration_ms for m in metrics))
        parts["sync"].append(max(m.sync_duration_ms for m in metrics))
        parts["async"].append(max(m.async_duration_ms for m in metrics))
    return {name: statistics.median(values) for name, values in parts.items() if values}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Arguments that every engine benchmark takes."""
    arguments = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    arguments.add_argument("--parallelism", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=15)
    arguments.add_argument("--warm-up", type=float, default=5)
    arguments.add_argument("--checkpoint-interval", default="1s")
    arguments.add_argument("--master", default="local[*]")
    arguments.add_argument("--json", action="store_true", help="the last line is one JSON object")
    return arguments


def keyed_parser(doc: str | None, keys: int) -> argparse.ArgumentParser:
    """What benchmarks of keyed state take besides: how many keys, and where their state lives."""
    arguments = parser(doc)
    arguments.add_argument("--keys", type=int, default=keys)
    arguments.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap", help="state.backend.type")
    arguments.add_argument("--memory", default="256 mb", help="with rocksdb: memory of one subtask's state")
    arguments.add_argument("--incremental", action="store_true", help="checkpoints of what has changed")
    return arguments


def keyed_environment(options: argparse.Namespace, directory: str) -> sl.StreamExecutionEnvironment:
    """Of what `keyed_parser` has read; checkpoints and state beyond memory lie in the directory."""
    return benchmark_environment(
        options.parallelism,
        options.checkpoint_interval,
        directory,
        state__backend__type=options.backend,
        execution__checkpointing__incremental=str(options.incremental).lower(),
        state__backend__rocksdb__memory__fixed_per_slot=options.memory,
        state__backend__rocksdb__localdir=directory,
    )


def report(title: str, figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print for people, or one JSON object."""
    if as_json:
        print(json.dumps(figures))
        return
    print(title)
    for name, value in figures.items():
        print(f"  {name:<20} {value:,.0f}" if isinstance(value, float) else f"  {name:<20} {value}")


def checkpoint_directory() -> str:
    """A fresh directory on local disk."""
    return tempfile.mkdtemp(prefix="snapline-benchmark-")


def fail(error: Exception) -> int:
    """One line, exit code 1."""
    print(f"benchmark: {error}", file=sys.stderr)
    return 1


def measure_job(
    build: Callable[[str], sl.StreamExecutionEnvironment],
    options: argparse.Namespace,
    *,
    name: str,
    vertex: str,
    title: str,
) -> int:
    """Run the job that `build` makes, whose checkpoints lie in the directory that it is given, and report the rows into
    one vertex and the checkpoints. Returns the exit code."""
    directory = checkpoint_directory()
    try:
        with running_job(build(directory), name, options.master) as (client, graph):
            figures = measure_rate(client, graph, vertex, options.warm_up, options.seconds)
            checkpoints = checkpoint_figures(client, graph)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(title, {**figures, **checkpoints, "versions": versions()}, as_json=options.json)
    return 0
