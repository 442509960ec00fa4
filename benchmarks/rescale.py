"""How long output stands still when a running job is rescaled, 2 -> 4 -> 2, with a million keys; and what it waits for.

Processes on this machine: a coordinator and four TaskManagers of one slot; no Spark. The job is a keyed running sum;
before the first rescale every key has been seen. Every sink subtask notes when each batch arrives. The parts of the
pause come from the times at which the coordinator saw the job and its tasks change:

* `slots_ms`, `checkpoint_ms`: before the pause, while the job runs: the new slots, and the checkpoint that it restarts
  from.
* `cancel_ms`: from the first task that is told to end until all have.
* `plan_ms`: what the new subtasks start from, and which slots they get.
* `deploy_ms`: until the last task is built on its TaskManager.
* `restore_ms`: until the last task has read its state.
* `first_output_ms`: until the first batch reaches a sink after that; rows since the checkpoint come again.
* `pause_ms`: from the last batch before to the first after.

    python -m benchmarks.rescale --keys 1000000 --json
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import snapline as sl
from benchmarks.cluster import fail, report, spread, versions
from benchmarks.failover import ArrivalSink
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.errors import SnaplineError
from snapline.protos import client_pb2 as pb
from tests.services.cluster import LocalCluster, wait_until

PATIENCE_S = 180.0


def arrivals_ms(directory: Path) -> list[float]:
    """Times of all batches at all sinks, sorted."""
    found: list[float] = []
    for path in directory.iterdir():
        data = path.read_bytes()
        found += [int.from_bytes(data[at : at + 8], "little") / 1e6 for at in range(0, len(data) // 8 * 8, 8)]
    return sorted(found)


def rescale(cluster: LocalCluster, job_id: str, output: Path, parallelism: int) -> dict[str, float]:
    """Once; the parts of the pause."""
    asked_ms = time.time() * 1000
    cluster.client.rescale(job_id, parallelism)
    running_ms = time.time() * 1000
    wait_until(lambda: any(at > running_ms for at in arrivals_ms(output)), "output after the rescale", PATIENCE_S)
    details = cluster.client.get_job(job_id)
    tasks = [subtask.state_timestamps_ms for vertex in details.vertices for subtask in vertex.subtasks]
    if len(tasks) != parallelism * len(details.vertices):
        raise RuntimeError(f"the job has {len(tasks)} tasks after a rescale to {parallelism}")
    history = cluster.client.list_checkpoints(job_id).history
    restarting_ms = details.status_timestamps_ms["RESTARTING"]
    snapshot = next(
        c
        for c in history
        if c.status == pb.CHECKPOINT_STATUS_COMPLETED
        and asked_ms - 1 <= c.trigger_timestamp_ms <= restarting_ms
        and c.trigger_timestamp_ms + c.end_to_end_duration_ms <= restarting_ms + 1
    )
    created_ms = max(task["CREATED"] for task in tasks)
    deploying_ms = max(task["DEPLOYING"] for task in tasks)
    built_ms = max(task["INITIALIZING"] for task in tasks)
    restored_ms = max(task["RUNNING"] for task in tasks)
    times = arrivals_ms(output)
    first_ms = next(at for at in times if at >= restored_ms - 1)
    last_ms = max((at for at in times if at <= created_ms), default=restarting_ms)
    return {
        "pause_ms": first_ms - last_ms,
        "slots_ms": snapshot.trigger_timestamp_ms - asked_ms,
        "checkpoint_ms": float(snapshot.end_to_end_duration_ms),
        "cancel_ms": float(created_ms - restarting_ms),
        "plan_ms": float(deploying_ms - created_ms),
        "deploy_ms": float(built_ms - deploying_ms),
        "restore_ms": float(restored_ms - built_ms),
        "first_output_ms": max(0.0, first_ms - restored_ms),
        "state_bytes": float(snapshot.state_size_bytes),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--keys", type=int, default=1_000_000)
    cli.add_argument("--rate", type=int, default=1_000_000, help="events per second")
    cli.add_argument("--trials", type=int, default=3, help="of 2 -> 4 -> 2")
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="snapline-rescale-"))
    try:
        with LocalCluster(directory, slots=(1, 1, 1, 1), settings={"web.checkpoints.history": "100"}) as cluster:
            figures = measure(cluster, directory / "arrivals", options)
    except (SnaplineError, RuntimeError, AssertionError) as error:
        return fail(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report("rescale", {**figures, "keys": options.keys, "versions": versions()}, as_json=options.json)
    return 0


def measure(cluster: LocalCluster, output: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All trials on one job."""
    output.mkdir()
    environment = cluster.environment(parallelism=2, interval="2 s")
    source = GeneratorSource(keys=options.keys, rows_per_second=options.rate, splits=8)
    (
        environment.from_source(source, uid="generator")
        .key_by("key")
        .running_aggregate(uid="sums", name="sums", total=sl.sum("value"), n=sl.count())
        .sink_to(ArrivalSink(str(output)), uid="sink")
    )
    job_id = cluster.submit(environment, "rescale")
    rows = 3 * options.keys
    wait_until(lambda: rows_of(cluster.client.get_job(job_id)) >= rows, f"{rows:,} rows", PATIENCE_S)
    seen: dict[str, list[dict[str, float]]] = {"2_to_4": [], "4_to_2": []}
    for _ in range(options.trials):
        for name, parallelism in (("2_to_4", 4), ("4_to_2", 2)):
            cluster.wait_for_checkpoints(job_id, cluster.client.list_checkpoints(job_id).counts.completed + 1)
            seen[name].append(rescale(cluster, job_id, output, parallelism))
    cluster.cancel(job_id)
    return {
        name: {part: spread([round(trial[part], 1) for trial in trials]) for part in trials[0]}
        for name, trials in seen.items()
    }


def rows_of(details: pb.JobDetails) -> int:
    """Rows that the sums have taken in."""
    return sum(s.records_in for vertex in details.vertices if "sums" in vertex.name for s in vertex.subtasks)


if __name__ == "__main__":
    sys.exit(main())
