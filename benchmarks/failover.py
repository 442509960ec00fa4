"""How long output stands still when something dies: a TaskManager, the leading coordinator, or the link to a
TaskManager.

Processes on this machine: a ZooKeeper server, two coordinators, three TaskManagers of which one is spare; no Spark. The
job is a keyed running sum with checkpoints every second. Every sink subtask notes when each batch arrives; the gap is
the longest time without one, in any subtask, around the fault. Settings are the defaults, and printed; only the spare
TaskManager is kept however long it is idle.

* `taskmanager_kill`: SIGKILL to a TaskManager that runs tasks.
* `leader_kill`: SIGKILL to the leading coordinator; `next_checkpoint_ms`: from the kill to the next completed
  checkpoint.
* `cut_off`: a TaskManager is stopped (SIGSTOP): it holds its connections, and says nothing. Takes `heartbeat.timeout`.

    python -m benchmarks.failover --trials 5 --json
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl
from benchmarks.cluster import fail, report, spread, versions
from deploy.zookeeper_ensemble import ZooKeeperEnsemble
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.api.connector_api import Committable, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.config import OPTIONS, is_secret
from snapline.dataflow.errors import SnaplineError
from snapline.protos import client_pb2 as pb
from snapline.runtime.settings import default_layers, resolve
from tests.services.cluster import wait_until
from tests.services.ha_cluster import HighAvailabilityCluster

DEFAULTS = (
    "high-availability.zookeeper.client.session-timeout",
    "heartbeat.interval",
    "heartbeat.timeout",
    "cluster.registration.error-delay",
    "jobmanager.reconciliation.timeout",
    "restart-strategy.type",
)
PARALLELISM = 2
STEADY_S = 2.0


class ArrivalSink(Sink):
    """Notes when batches arrive, and throws them away."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @property
    def two_phase(self) -> bool:
        return False

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return ArrivalWriter(Path(self.directory) / f"{context.subtask_index}-{uuid.uuid4().hex}")


class ArrivalWriter(SinkWriter):
    """A writer of one file for each attempt, with the times at which rows came."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("ab", buffering=0)

    def write(self, batch: pa.RecordBatch) -> None:
        self.file.write(time.time_ns().to_bytes(8, "little"))

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        return ()


def arrivals(directory: Path, subtask: int, since_ns: int) -> list[int]:
    """Times of all attempts of the subtask, from a moment on, and the last one before it."""
    found: list[int] = []
    for path in directory.glob(f"{subtask}-*"):
        data = path.read_bytes()
        found += [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) // 8 * 8, 8)]
    found.sort()
    first = next((i for i, when in enumerate(found) if when >= since_ns), len(found))
    return found[max(0, first - 1) :]


def longest_gap_ms(directory: Path, since_ns: int) -> float:
    """Between two batches of one subtask, over all subtasks."""
    gaps = [0.0]
    for subtask in range(PARALLELISM):
        times = arrivals(directory, subtask, since_ns)
        gaps += [(later - earlier) / 1e6 for earlier, later in pairwise(times)]
    return max(gaps)


def all_go_on(directory: Path, since_ns: int) -> bool:
    """Every subtask has had two batches since."""
    return all(
        len([when for when in arrivals(directory, subtask, since_ns) if when >= since_ns]) >= 2
        for subtask in range(PARALLELISM)
    )


class Trial:
    """The job and what is done to it."""

    def __init__(self, cluster: HighAvailabilityCluster, job_id: str, directory: Path, patience_s: float) -> None:
        self._cluster = cluster
        self._job_id = job_id
        self._directory = directory
        self._patience_s = patience_s
        self._fault_ms = 0

    def run(self, fault: Callable[[], None], is_over: Callable[[], bool]) -> dict[str, float]:
        """The fault, then the time until `is_over` and every subtask has output again."""
        self.settle()
        started = self._tasks_started()
        begin_ns = time.time_ns()
        fault()
        fault_ns = time.time_ns()
        self._fault_ms = fault_ns // 1_000_000
        wait_until(is_over, "the cluster to notice", self._patience_s)
        noticed_ms = (time.time_ns() - fault_ns) / 1e6
        since_ns = time.time_ns()
        wait_until(lambda: all_go_on(self._directory, since_ns), "output to go on", self._patience_s)
        time.sleep(STEADY_S)
        return {
            "output_gap_ms": round(longest_gap_ms(self._directory, begin_ns), 1),
            "noticed_ms": round(noticed_ms, 1),
            "tasks_restarted": self._tasks_started() - started,
        }

    def settle(self) -> None:
        """Wait until checkpoints complete again."""
        before = self.newest_checkpoint()
        wait_until(lambda: self.newest_checkpoint() > before + 1, "checkpoints", self._patience_s)

    def next_checkpoint(self) -> bool:
        """Whether one has completed that was triggered after the fault."""
        return self.newest_checkpoint(triggered_after_ms=self._fault_ms) > 0

    def newest_checkpoint(self, triggered_after_ms: int = 0) -> int:
        """Greatest id that has completed; 0 for none, and while nobody answers."""
        try:
            with self._cluster.client() as client:
                history = client.list_checkpoints(self._job_id).history
        except SnaplineError:
            return 0
        completed = [c for c in history if c.status == pb.CHECKPOINT_STATUS_COMPLETED]
        return max((c.checkpoint_id for c in completed if c.trigger_timestamp_ms > triggered_after_ms), default=0)

    def busy_task_manager(self) -> subprocess.Popen[bytes]:
        """Return a TaskManager that runs tasks."""
        with self._cluster.client() as client:
            details = client.get_job(self._job_id)
            pids = {manager.resource_id: manager.pid for manager in client.list_task_managers()}
        resource = next(task.resource_id for vertex in details.vertices for task in vertex.subtasks if task.resource_id)
        return next(process for process in self._cluster.task_managers if process.pid == pids[resource])

    def restarted(self, count_before: int) -> Callable[[], bool]:
        """Whether all tasks were started again."""
        return lambda: self._tasks_started() >= count_before + 2 * PARALLELISM

    def _tasks_started(self) -> int:
        logs = self._cluster.logs.glob("tm-*.log")
        return sum(log.read_text(errors="replace").count('"msg":"task started"') for log in logs)

    @property
    def tasks_started(self) -> int:
        """Return how many tasks all TaskManagers have started, ever."""
        return self._tasks_started()


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--trials", type=int, default=3, help="of each kind but cut_off")
    cli.add_argument("--cut-off-trials", type=int, default=1, help="each takes heartbeat.timeout")
    cli.add_argument("--rate", type=int, default=5_000, help="events per second")
    cli.add_argument("--interval", default="1 s", help="between checkpoints")
    cli.add_argument("--patience", type=float, default=180, help="seconds after which a trial has failed")
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="snapline-failover-"))
    settings = {key: OPTIONS[key].default for key in DEFAULTS}
    settings["resourcemanager.taskmanager-timeout"] = (
        "1 h"  # Spark's pool would start another one; here a spare one has to wait
    )
    configured = resolve(default_layers(os.environ))
    settings |= {key: value for key, value in configured.items() if key.startswith("security.")}
    try:
        with (
            ZooKeeperEnsemble(directory / "zookeeper", nodes=1) as ensemble,
            HighAvailabilityCluster(directory, ensemble, 2, (1, 1, 1), settings) as cluster,
        ):
            figures = measure(cluster, directory, options)
    except (SnaplineError, RuntimeError, AssertionError) as error:
        return fail(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    shown = {key: value for key, value in settings.items() if not is_secret(key)}
    report("failover", {**figures, "settings": shown, "versions": versions()}, as_json=options.json)
    return 0


def measure(cluster: HighAvailabilityCluster, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All kinds of fault, one after the other, on one job."""
    output = directory / "arrivals"
    output.mkdir()
    environment = cluster.environment(PARALLELISM, options.interval)
    source = GeneratorSource(keys=1000, rows_per_second=options.rate, batch_rows=500)
    (
        environment.from_source(source, uid="generator")
        .key_by("key")
        .running_aggregate(uid="sums", name="sums", total=sl.sum("value"), n=sl.count())
        .sink_to(ArrivalSink(str(output)), uid="sink")
    )
    with cluster.client() as client:
        job_id = client.submit(environment.translate("failover").job_graph)
    trial = Trial(cluster, job_id, output, options.patience)
    leader_kills = []
    for _ in range(options.trials):
        leader_kills.append(trial.run(cluster.kill_leader, trial.next_checkpoint))
        cluster.start_coordinator()
    kills = [_end_task_manager(cluster, trial, signal.SIGKILL) for _ in range(options.trials)]
    cuts = [_end_task_manager(cluster, trial, signal.SIGSTOP) for _ in range(options.cut_off_trials)]
    return {
        "leader_kill": {
            **_figures(leader_kills),
            "next_checkpoint_ms": spread([t["noticed_ms"] for t in leader_kills]),
        },
        "taskmanager_kill": _figures(kills),
        "cut_off": _figures(cuts),
    }


def _end_task_manager(cluster: HighAvailabilityCluster, trial: Trial, how: signal.Signals) -> dict[str, float]:
    trial.settle()
    victim = trial.busy_task_manager()
    figures = trial.run(lambda: victim.send_signal(how), trial.restarted(trial.tasks_started))
    victim.kill()
    victim.wait()
    cluster.start_task_manager(1)
    return figures


def _figures(trials: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {
        "output_gap_ms": spread([trial["output_gap_ms"] for trial in trials]),
        "tasks_restarted": max((int(trial["tasks_restarted"]) for trial in trials), default=0),
    }


if __name__ == "__main__":
    sys.exit(main())
