"""Which process is killed, and when, must not matter: the job of the demo, again and again, each time against polars.

Source, window and sink side run in slots of their own, so that a victim is a side of the job. A victim is a process
that holds such a TaskManager, all of them at once, an executor's Java process, or Spark's Python daemon; `decommission`
tells an executor to go, as a cluster manager does that takes its machine back, and Spark kills it a second later. Kills
come at random moments after the first task ran: between checkpoints, inside them, during a restart. One Spark
application carries many runs; a run has a coordinator and TaskManagers of its own.

    python -m tests.e2e.kill_matrix --runs 20                    # 20 runs of each victim, aligned barriers
    python -m tests.e2e.kill_matrix --runs 20 --both --victims source,all --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from examples.demo import FLIGHTS
from examples.flights import build
from examples.flights_answer import compare_outputs
from examples.recovery_times import CommittedFiles, recoveries
from snapline import SnaplineError, StreamExecutionEnvironment
from snapline.client import ClusterClient
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.execution import run_in
from snapline.protos import client_pb2 as pb
from snapline.runtime.logs import make_logger
from snapline.session import EmbeddedCluster, SparkHandle, open_spark, slots_required

SIDES = ("source", "window", "sink")
VICTIMS = (*SIDES, "all", "executor", "daemon", "decommission")
MASTER = "local-cluster[2,3,1024]"
MEMORY = {"spark.executor.memory": "512m"}
DECOMMISSIONING = {"spark.decommission.enabled": "true", "spark.executor.decommission.forceKillTimeout": "1s"}
POLL_SECONDS = 0.02
RESTARTS_MAX = 40
"""In a row, without a calm time between: then something is wrong, and the run ends."""


@dataclass
class Run:
    """What happened in one run."""

    victim: str
    seed: int
    unaligned: bool
    kills: int = 0
    restarts: int = 0
    checkpoints: int = 0
    seconds: float = 0.0
    equal: bool = False
    recovery_s: list[float] = field(default_factory=list)
    """Per kill that was not overtaken by the next one: until the first file that was committed after the restart."""
    differences: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    """Of the restarts."""


class Watcher:
    """What the job reports, and which files became visible when."""

    def __init__(self, output: Path) -> None:
        self.details: pb.JobDetails | None = None
        self.finished = threading.Event()
        self.first_running_s: float | None = None
        self.restarts = 0
        self.running_since_s: float | None = None
        """Since when the job has been RUNNING; None while it is not."""
        self.files = CommittedFiles(output, self.finished)
        self.causes: dict[int, str] = {}
        """Why the job restarted, by the time of the failure."""

    def note(self, details: pb.JobDetails) -> None:
        """The job has changed."""
        self.details = details
        status = decode_job_status(details.overview.status)
        if status is not JobStatus.RUNNING or details.overview.restarts > self.restarts:
            self.running_since_s = None
        if status is JobStatus.RUNNING and self.running_since_s is None:
            self.running_since_s = time.monotonic()
            self.first_running_s = self.first_running_s or self.running_since_s
        self.restarts = max(self.restarts, details.overview.restarts)
        for failure in details.failures:
            self.causes[failure.timestamp_ms] = failure.failure.summary

    def side(self, side: str) -> set[str]:
        """Resource ids of the TaskManagers that run this side of the job."""
        if self.details is None:
            return set()
        return {
            subtask.resource_id
            for vertex in self.details.vertices
            if side_of(vertex.name) == side or side not in SIDES
            for subtask in vertex.subtasks
            if subtask.resource_id
        }


def side_of(name: str) -> str:
    """Of a vertex or operator."""
    if name.endswith("sink"):
        return "sink"
    return "window" if name.endswith(("daily", "third time late")) else "source"


def parent_of(pid: int) -> int:
    """The parent process. Raises OSError when it is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def kill(victim: str, pids: Sequence[int], chance: random.Random) -> int:
    """Kill what `victim` means for TaskManagers with these pids; how many processes."""
    if not pids:
        return 0
    targets = list(pids) if victim == "all" else [chance.choice(sorted(pids))]
    try:
        if victim in {"executor", "daemon", "decommission"}:
            targets = [parent_of(targets[0])]
        if victim in {"executor", "decommission"}:
            targets = [parent_of(targets[0])]
    except OSError:
        return 0
    killed = 0
    for pid in targets:
        try:
            os.kill(pid, signal.SIGPWR if victim == "decommission" else signal.SIGKILL)
            killed += 1
        except ProcessLookupError:
            continue
    return killed


def kill_often(run: Run, kills: int, client: ClusterClient, watcher: Watcher, moments: list[float]) -> None:
    """Kill `kills` times, at moments that have nothing to do with what the job is at."""
    chance = random.Random(run.seed)
    while watcher.first_running_s is None:
        if watcher.finished.wait(POLL_SECONDS):
            return
    while len(moments) < kills:
        if watcher.finished.wait(chance.uniform(0.0, 1.5) if not moments else chance.uniform(0.5, 9.0)):
            return
        while not watcher.finished.is_set():
            try:
                managers = client.list_task_managers()
            except SnaplineError:
                managers = []
            holders = watcher.side(run.victim)
            if kill(run.victim, [m.pid for m in managers if m.resource_id in holders and m.pid], chance):
                moments.append(time.monotonic())
                break
            watcher.finished.wait(POLL_SECONDS)


def run_once(spark: SparkHandle, run: Run, options: argparse.Namespace, flights: Path, output: Path) -> Run:
    """One job from start to comparison."""
    environment = StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.unaligned.enabled": run.unaligned,
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "100 ms",
            "restart-strategy.exponential-delay.max-backoff": "2 s",
            "restart-strategy.exponential-delay.attempts-before-reset-backoff": RESTARTS_MAX,
            "taskmanager.numberOfTaskSlots": 1,
        }
    )
    environment.set_parallelism(2).enable_checkpointing(options.checkpoint_interval)
    environment.set_checkpoint_dir(str(output / "_checkpoints"))
    build(environment, str(flights), str(output), options.rows_per_second)
    for node in environment.graph.nodes:
        node.slot_sharing_group = side_of(node.name)
    graph = environment.translate(f"{run.victim} {run.seed}").job_graph
    watcher = Watcher(output)
    moments: list[float] = []
    runnings: list[float] = []

    def note(details: pb.JobDetails) -> None:
        before = watcher.running_since_s
        watcher.note(details)
        if watcher.running_since_s is not None and watcher.running_since_s != before:
            runnings.append(watcher.running_since_s)

    log = make_logger("kill-matrix", "debug" if options.verbose else "error")
    begun = time.monotonic()
    with EmbeddedCluster(spark, environment.configuration, slots_required(graph), log) as cluster:
        if cluster.client is None:
            raise RuntimeError("the cluster has no client")
        threads = [
            threading.Thread(target=watcher.files.watch, name="output-scan"),
            threading.Thread(
                target=kill_often, args=(run, options.kills, cluster.client, watcher, moments), name="killer"
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            result = run_in(cluster, graph, note)
        finally:
            run.causes = [watcher.causes[when] for when in sorted(watcher.causes)]
            watcher.finished.set()
            for thread in threads:
                thread.join()
    run.seconds = round(time.monotonic() - begun, 1)
    run.kills, run.restarts, run.checkpoints = len(moments), result.restarts, result.checkpoints_completed
    run.recovery_s = [round(seconds, 2) for _, seconds in recoveries(moments, runnings, watcher.files.seen)]
    comparisons = compare_outputs(flights, output)
    run.equal = all(comparison.equal for comparison in comparisons)
    run.differences = [line for comparison in comparisons for line in comparison.differences]
    return run


def some_flights(rows: int, target: Path) -> Path:
    """The first flights of the year, in row groups of their own, so that there are splits for every subtask."""
    table = pq.read_table(FLIGHTS).slice(0, rows)
    pq.write_table(table, target, row_group_size=max(1, rows // 12))
    return target


def table_of(runs: Sequence[Run]) -> str:
    """Markdown, one line per victim and kind of checkpoint."""
    lines = [
        "| victim | barriers | runs | equal | kills | restarts | first new output after a kill, median (max), s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for victim in VICTIMS:
        for unaligned in (False, True):
            mine = [run for run in runs if run.victim == victim and run.unaligned == unaligned]
            if not mine:
                continue
            times = [s for run in mine for s in run.recovery_s]
            took = f"{statistics.median(times):.1f} ({max(times):.1f})" if times else "-"
            lines.append(
                f"| {victim} | {'unaligned' if unaligned else 'aligned'} | {len(mine)} | {sum(r.equal for r in mine)} | "
                f"{sum(r.kills for r in mine)} | {sum(r.restarts for r in mine)} | {took} |"
            )
    return "\n".join(lines)


def kinds_of_runs(options: argparse.Namespace, number: int) -> Iterator[tuple[str, bool]]:
    """Victim, and whether barriers are unaligned, of each run of round `number`."""
    for turn, victim in enumerate(options.victims, number):
        for unaligned in (turn % 2 == 1,) if options.in_turn else options.modes:
            yield victim, unaligned


def run_all(options: argparse.Namespace) -> list[Run]:
    """All runs, the victims in turn; stops at nothing but a defect of Spark."""
    runs: list[Run] = []
    directory = Path(tempfile.mkdtemp(prefix="snapline-kill-matrix-"))
    flights = some_flights(options.rows, directory / "flights.parquet")
    extra = DECOMMISSIONING if "decommission" in options.victims else {}
    spark = open_spark("snapline-kill-matrix", {"spark.master": options.master, **MEMORY, **extra})
    shared = SparkHandle(spark.session, ours=False)
    try:
        for number in range(options.runs):
            for victim, unaligned in kinds_of_runs(options, number):
                run = Run(victim, options.seed + number, unaligned)
                output = directory / f"{victim}-{run.seed}-{unaligned}"
                try:
                    run_once(shared, run, options, flights, output)
                except SnaplineError as error:
                    run.differences = [f"{type(error).__name__}: {error}"]
                runs.append(run)
                word = "EQUAL" if run.equal else "NOT EQUAL"
                print(
                    f"{len(runs):>4}  {victim:<9} {'unaligned' if unaligned else 'aligned':<9} seed {run.seed:<5} {word:<9} {run.seconds:6.1f} s  {run.kills} kills  "
                    f"{run.restarts} restarts  {run.checkpoints} checkpoints  new output after {run.recovery_s} s",
                    flush=True,
                )
                for line in [*run.causes, *run.differences]:
                    print(f"      {line}", flush=True)
                if options.json:
                    options.json.write_text(json.dumps([asdict(r) for r in runs], indent=1))
                if run.equal:
                    shutil.rmtree(output, ignore_errors=True)
                else:
                    print(f"      kept: {output}", flush=True)
    finally:
        spark.session.stop()
        if all(run.equal for run in runs):
            shutil.rmtree(directory, ignore_errors=True)
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; 0 when every run was equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="of each victim")
    parser.add_argument(
        "--victims", type=lambda text: tuple(text.split(",")), default=VICTIMS, help=f"of {','.join(VICTIMS)}"
    )
    parser.add_argument("--kills", type=int, default=2, help="in each run")
    parser.add_argument("--unaligned", dest="modes", action="store_const", const=(True,), default=(False,))
    parser.add_argument(
        "--both", dest="modes", action="store_const", const=(False, True), help="kinds of barriers, of each victim"
    )
    parser.add_argument("--in-turn", action="store_true", help="aligned and unaligned barriers from victim to victim")
    parser.add_argument("--rows", type=int, default=120_000, help="the first flights of the year")
    parser.add_argument("--rows-per-second", type=int, default=20_000)
    parser.add_argument("--checkpoint-interval", type=int, default=300, help="milliseconds")
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next has the next")
    parser.add_argument("--json", type=Path, default=None, help="results go here too")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    unknown = set(options.victims) - set(VICTIMS)
    if unknown:
        parser.error(f"unknown victim {', '.join(sorted(unknown))}: one of {', '.join(VICTIMS)}")
    runs = run_all(options)
    print(table_of(runs))
    equal = sum(run.equal for run in runs)
    print(f"{equal} of {len(runs)} runs ended with equal output")
    return 0 if equal == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
