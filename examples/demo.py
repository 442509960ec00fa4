"""`make demo`: a year of real flights through TaskManagers in Spark executors, some of which are killed with signal 9.

Shows progress while the job runs, and compares every row of the output with an answer computed without Snapline. Exits
0 when all are equal, 1 when one is lost, doubled or different.

    python -m examples.demo [--kills 3] [--rows-per-second 15000] [--unaligned] [--seed 7]
    python -m examples.demo --local           # in this process, without Spark, where nothing is killed
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import snapline as sl
from examples.flights import build
from examples.flights_answer import Comparison, compare_outputs
from examples.recovery_times import CommittedFiles, recoveries
from snapline.client import ClusterClient, JobDetails, job_status
from snapline.sidecar import EmbeddedCluster, RowsRead, open_spark, run_in, silent_logger, slots_required

FLIGHTS = Path(sys.prefix) / "data" / "flights.parquet"
MASTER = "local-cluster[2,1,1024]"
LOOK_SECONDS = 0.2
MEMORY = {"spark.executor.memory": "512m"}


@dataclass
class Progress:
    """What the job's watcher saw last."""

    details: JobDetails | None = None
    rows: RowsRead = field(default_factory=RowsRead)
    kills: list[str] = field(default_factory=list)
    finished: threading.Event = field(default_factory=threading.Event)
    failure_seen_ms: int = 0
    killed_at: list[float] = field(default_factory=list)
    running_since: list[float] = field(default_factory=list)
    """Whenever the job entered RUNNING."""
    recovery_s: list[float] = field(default_factory=list)
    """At the end: from each kill to the first new output."""
    told: int = 0
    """Kills whose recovery was printed."""

    @property
    def checkpoints(self) -> int:
        """Return how many checkpoints have been completed so far."""
        return self.details.checkpoint_counts.completed if self.details else 0

    @property
    def running(self) -> bool:
        """Whether every task of the job runs."""
        return self.details is not None and job_status(self.details) == "RUNNING"

    def line(self, elapsed_s: float) -> str:
        """One line for the terminal."""
        if self.details is None:
            return f"{elapsed_s:6.1f} s  waiting for TaskManagers"
        overview = self.details.overview
        return (
            f"{elapsed_s:6.1f} s  {job_status(self.details):<10} {self.rows.total:>9,} rows read  "
            f"{self.checkpoints:>3} checkpoints  {overview.restarts:>2} restarts  {len(self.kills):>2} kills"
        )


def kill_task_managers(client: ClusterClient, progress: Progress, kills: int, chance: random.Random) -> None:
    """Kill a process that holds a TaskManager, `kills` times, each after at least one more checkpoint has completed."""
    seen = 0
    while len(progress.kills) < kills and not progress.finished.wait(0.1):
        if not progress.running or progress.checkpoints <= seen:
            continue
        if progress.finished.wait(chance.uniform(0.2, 1.5)):
            return
        try:
            holders = [manager for manager in client.list_task_managers() if manager.free_slots < manager.slots]
        except sl.SnaplineError:
            continue
        if not holders or not progress.running:
            continue
        victim = chance.choice(sorted(holders, key=lambda manager: manager.resource_id))
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        seen = progress.checkpoints + 1
        progress.killed_at.append(time.monotonic())
        progress.kills.append(victim.resource_id)
        print(f"          kill -9 {victim.pid}: the Python process that holds {victim.resource_id}", flush=True)


def run(options: argparse.Namespace, output: Path) -> tuple[sl.JobExecutionResult, Progress]:
    """Run the job, and kill what holds it."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment(
        {
            "execution.checkpointing.unaligned.enabled": options.unaligned,
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "100 ms",
            "restart-strategy.exponential-delay.max-backoff": "2 s",
        }
    )
    environment.set_parallelism(2).enable_checkpointing(options.checkpoint_interval)
    environment.set_checkpoint_dir(str(output / "_checkpoints"))
    build(environment, str(options.input), str(output), options.rows_per_second or None)
    return run_job(environment, "flights", output, options)


Beside = Callable[[Callable[[], object], Progress], Iterable[Callable[[], object]]]
"""What is done beside a job, each on a thread: given how it is stopped with a savepoint and drained."""


def run_job(
    environment: sl.StreamExecutionEnvironment,
    name: str,
    output: Path,
    options: argparse.Namespace,
    beside: Beside = lambda *_: (),
) -> tuple[sl.JobExecutionResult, Progress]:
    """Run a job to its end, on Spark while what holds it is killed, or with `--local` in this process."""
    progress = Progress()
    run_it = run_here if options.local else run_on_spark
    return run_it(environment, name, output, options, beside, progress), progress


def run_here(
    environment: sl.StreamExecutionEnvironment,
    name: str,
    output: Path,
    options: argparse.Namespace,
    beside: Beside,
    progress: Progress,
) -> sl.JobExecutionResult:
    """Run it in this process."""
    options.kills = 0
    print("in this process: there is nothing to kill", flush=True)
    job = environment.execute_async(name, local=True, threads=2)
    with job, narrated(progress, output, beside(lambda: job.stop(drain=True), progress)) as note:
        while True:
            note(job.details)
            tell_failures(job.details, progress)
            try:
                return job.wait(LOOK_SECONDS)
            except TimeoutError:
                continue


def tell_failures(details: JobDetails, progress: Progress) -> None:
    """Say why the job restarts, which a job that was started in the background does not say itself."""
    for failure in reversed(details.failures):
        if failure.timestamp_ms > progress.failure_seen_ms:
            progress.failure_seen_ms = failure.timestamp_ms
            print(f"          restart because: {failure.failure.summary}", flush=True)


def run_on_spark(
    environment: sl.StreamExecutionEnvironment,
    name: str,
    output: Path,
    options: argparse.Namespace,
    beside: Beside,
    progress: Progress,
) -> sl.JobExecutionResult:
    """Run it on Spark, and kill what holds it."""
    environment.translate(name)
    print(f"starting Spark {options.master} ...", flush=True)
    spark = open_spark(f"snapline-{name}", {"spark.master": options.master, **MEMORY}, for_cluster=True)
    graph = environment.translate(name, configuration=environment.configuration_with(spark.settings)).job_graph
    slots, log = slots_required(graph), silent_logger()
    with EmbeddedCluster(spark, environment.configuration, slots, log, failures_are_told=True) as cluster:
        client = cluster.client
        if client is None:
            raise RuntimeError("the cluster has no client")
        chance = random.Random(options.seed)

        def stop() -> object:
            return client.stop_with_savepoint(graph.job_id, drain=True)

        def kill() -> None:
            kill_task_managers(client, progress, options.kills, chance)

        with narrated(progress, output, [kill, *beside(stop, progress)]) as note:
            result = run_in(cluster, graph, note)
    return result


@contextmanager
def narrated(
    progress: Progress, output: Path, beside: Iterable[Callable[[], object]]
) -> Iterator[Callable[[JobDetails], None]]:
    """Within, say how the job goes and do `beside`, each on a thread; gives whom to tell of the job."""
    begun = time.monotonic()
    files = CommittedFiles(output, progress.finished)

    def tell_recoveries() -> None:
        found = recoveries(progress.killed_at, progress.running_since, files.seen)
        for _, seconds in found[progress.told :]:
            print(f"          first new output {seconds:.1f} s after the kill", flush=True)
        progress.told = len(found)

    def narrate() -> None:
        while not progress.finished.wait(1.0):
            tell_recoveries()
            print(progress.line(time.monotonic() - begun), flush=True)

    def note(details: JobDetails) -> None:
        was_running = progress.running
        progress.details = details
        if progress.running and not was_running:
            progress.running_since.append(time.monotonic())
        progress.rows.note(details)

    threads = [threading.Thread(target=work) for work in (narrate, files.watch, *beside)]
    for thread in threads:
        thread.start()
    try:
        yield note
    finally:
        progress.finished.set()
        for thread in threads:
            thread.join()
    tell_recoveries()
    print(progress.line(time.monotonic() - begun), flush=True)
    progress.recovery_s = [seconds for _, seconds in recoveries(progress.killed_at, progress.running_since, files.seen)]


def add_local(parser: argparse.ArgumentParser) -> None:
    """Add the option that runs an example without Spark, which `snapline run --local` chooses, too."""
    here = bool(os.environ.get("SNAPLINE_LOCAL"))
    parser.add_argument("--local", action="store_true", default=here, help="in this process, without Spark")


def judge(comparisons: list[Comparison]) -> bool:
    """Print what was compared; True when all is equal."""
    for comparison in comparisons:
        verdict = "equal" if comparison.equal else "DIFFERENT"
        print(
            f"{comparison.output:>8}: {comparison.actual_rows:,} rows, {comparison.expected_rows:,} expected: {verdict}"
        )
        for difference in comparison.differences:
            print(f"          {difference}")
    return all(comparison.equal for comparison in comparisons)


def main(arguments: list[str] | None = None) -> int:
    """Run the example, compare its rows, and say the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", type=Path, default=FLIGHTS)
    parser.add_argument("--output", type=Path, default=None, help="kept when given, else temporary")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--rows-per-second", type=int, default=15_000, help="0: as fast as possible")
    add_local(parser)
    parser.add_argument("--checkpoint-interval", type=int, default=1000, help="milliseconds")
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--seed", type=int, default=None, help="of which process is killed when")
    options = parser.parse_args(arguments)
    output = options.output or Path(tempfile.mkdtemp(prefix="snapline-demo-"))
    try:
        result, progress = run(options, output)
        print(f"job {result.summary}, {len(progress.kills)} processes killed with signal 9")
        if progress.recovery_s:
            times = ", ".join(f"{seconds:.1f}" for seconds in progress.recovery_s)
            print(f"first new output after the kills: {times} s")
        print("comparing every row with polars over the same file ...")
        comparisons = compare_outputs(options.input, output)
        equal = judge(comparisons)
        if len(progress.kills) < options.kills:
            print(f"only {len(progress.kills)} of {options.kills} kills happened before the job was done")
            return 1
        print("EQUAL: nothing lost, nothing doubled" if equal else "NOT EQUAL")
        return 0 if equal else 1
    except sl.SnaplineError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        if options.output is None:
            shutil.rmtree(output, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
