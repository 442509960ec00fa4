"""A soak: standalone Spark, three ZooKeeper servers, two coordinators, and something killed every few seconds.

Kills, in turn: the leading coordinator, a TaskManager's process, the executor that hosts one, the leader of the ZooKeeper ensemble.
After each, a checkpoint that was triggered later must complete. At the end the job is stopped with a savepoint and every row of its
output is checked: each key has counted 1, 2, 3, ... without a hole or a repetition. Resident memory and open files of the processes
are sampled by role; their growth from the first third of the time to the last is printed, and too much of it is a failure.

    python -m tests.soak --minutes 30
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from dataflow.errors import SnaplineError
from dataflow.messages import JobStatus
from dataflow.wire import decode_job_status
from deploy.zookeeper_ensemble import ZooKeeperEnsemble
from protos import client_pb2 as pb
from snapline.client import ClusterClient
from snapline.spark.java import ensure_java
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.ha_cluster import HighAvailabilityCluster, wait_until

SAMPLE_SECONDS = 2.0
RECOVERY_SECONDS = 120.0
TASK_MANAGERS = 2
GROWTH_MAX = 1.15
RSS_SLACK_MIB = 30
FILES_SLACK = 15
"""From the first third of the time to the last, beyond GROWTH_MAX. The first third is warm-up in short soaks."""


class Soak:
    """The cluster, its job, and what is done to it."""

    def __init__(self, cluster: HighAvailabilityCluster, ensemble: ZooKeeperEnsemble, job_id: str) -> None:
        self._cluster = cluster
        self._ensemble = ensemble
        self._job_id = job_id
        self.faults: dict[str, int] = {}
        self.recovery_s: dict[str, list[float]] = {}
        self.samples: dict[str, list[tuple[float, int]]] = {}
        """By role: largest resident memory (MiB) and number of open files of its processes."""

    def run(self, seconds: float, every_seconds: float) -> None:
        """Faults in turn. Raises AssertionError when the job does not come back."""
        deadline = time.monotonic() + seconds
        kinds: Iterator[tuple[str, Callable[[], None]]] = itertools.cycle(
            [
                ("leader", self._kill_leader),
                ("taskmanager", self._kill_task_manager),
                ("executor", self._kill_executor),
                ("zookeeper", self._kill_zookeeper),
            ]
        )
        self._await_checkpoint(0)
        while time.monotonic() < deadline:
            name, kill = next(kinds)
            began = time.monotonic()
            kill()
            self._await_checkpoint(round(time.time() * 1000))
            self.faults[name] = self.faults.get(name, 0) + 1
            self.recovery_s.setdefault(name, []).append(time.monotonic() - began)
            print(f"{name} killed; a new checkpoint after {time.monotonic() - began:.1f} s", flush=True)
            while time.monotonic() < min(deadline, began + every_seconds):
                self._sample()
                time.sleep(SAMPLE_SECONDS)

    def _await_checkpoint(self, triggered_after_ms: int) -> None:
        def completed() -> bool:
            try:
                with self._cluster.client() as client:
                    history = client.list_checkpoints(self._job_id).history
            except SnaplineError:
                return False
            done = [c for c in history if c.status == pb.CHECKPOINT_STATUS_COMPLETED]
            return any(c.trigger_timestamp_ms > triggered_after_ms for c in done)

        wait_until(completed, "a checkpoint after the fault", RECOVERY_SECONDS)

    # --- faults -------------------------------------------------------------------------------------------------------

    def _kill_leader(self) -> None:
        self._cluster.kill_leader()
        self._cluster.start_coordinator()

    def _kill_task_manager(self) -> None:
        self._signal(self._task_manager_pids()[0])

    def _kill_executor(self) -> None:
        self._signal(_parent_matching(self._task_manager_pids()[0], "CoarseGrainedExecutorBackend"))

    def _kill_zookeeper(self) -> None:
        killed = self._ensemble.kill_leader()
        killed.start()

    def _task_manager_pids(self) -> list[int]:
        pids: list[int] = []

        def found() -> bool:
            nonlocal pids
            try:
                with self._cluster.client() as client:
                    pids = [m.pid for m in client.list_task_managers() if Path(f"/proc/{m.pid}").exists()]
            except SnaplineError:
                return False
            return bool(pids)

        wait_until(found, "TaskManagers", RECOVERY_SECONDS)
        return pids

    @staticmethod
    def _signal(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    # --- watching -----------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        by_role = {"coordinator": [c.pid for c in self._cluster.coordinators if c.is_alive]}
        try:
            with self._cluster.client() as client:
                by_role["taskmanager"] = [m.pid for m in client.list_task_managers()]
        except SnaplineError:
            pass
        by_role["driver"] = [p.pid for p in self._cluster.task_managers if p.poll() is None]
        by_role["daemon"] = [_parent_of(pid) for pid in by_role.get("taskmanager", []) if _parent_of(pid) > 1]
        for role, pids in by_role.items():
            seen = [_resources(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
            if seen:
                largest = (max(mib for mib, _ in seen), max(files for _, files in seen))
                self.samples.setdefault(role, []).append(largest)

    def growth(self) -> dict[str, dict[str, float]]:
        """Medians over the first and the last third, by role."""
        found = {}
        for role, samples in self.samples.items():
            third = max(1, len(samples) // 3)
            first, last = samples[:third], samples[-third:]
            found[role] = {
                "rss_mib_first": round(statistics.median(mib for mib, _ in first), 1),
                "rss_mib_last": round(statistics.median(mib for mib, _ in last), 1),
                "files_first": statistics.median(files for _, files in first),
                "files_last": statistics.median(files for _, files in last),
            }
        return found


def not_flat(growth: dict[str, dict[str, float]]) -> list[str]:
    """What has grown by more than processes that are killed and start anew explain: a line for each."""
    found = []
    for role, figures in growth.items():
        for what, unit, slack in (("rss_mib", "MiB resident", RSS_SLACK_MIB), ("files", "open files", FILES_SLACK)):
            first, last = figures[f"{what}_first"], figures[f"{what}_last"]
            if last > first * GROWTH_MAX + slack:
                found.append(f"{role}: from {first:.0f} to {last:.0f} {unit}")
    return found


def _resources(pid: int) -> tuple[float, int]:
    """Resident MiB and open files; zeros for a process that ends meanwhile."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0.0, 0
    kib = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)
    return kib / 1024, files


def _parent_of(pid: int) -> int:
    """0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _parent_matching(pid: int, text: str) -> int:
    """The nearest ancestor with the text in its command line."""
    while pid > 1:
        if text in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise RuntimeError(f"no process with {text} above it")


@contextmanager
def standalone_spark(directory: Path, cores: int) -> Iterator[str]:
    """Spark's own cluster manager; yields spark://host:port."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "SNAPLINE_"))}
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    variables = {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(directory), "PYTHONPATH": paths}
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        command = [
            spark_class,
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        with (directory / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=directory))

    def said(name: str, pattern: str) -> str:
        found: list[str] = []

        def look() -> bool:
            found[:] = re.findall(pattern, (directory / f"{name}.log").read_text(errors="replace"))
            return bool(found)

        wait_until(look, f"{name} to start", RECOVERY_SECONDS)
        return found[0]

    try:
        start("master.Master", "--port", "0")
        master = said("master.Master", r"spark://127\.0\.0\.1:\d+")
        work = str(directory / "work")
        start("worker.Worker", "--cores", str(cores), "--memory", "4g", "--work-dir", work, master)
        said("worker.Worker", "Successfully registered with master")
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def bring_task_managers(cluster: HighAvailabilityCluster, master: str) -> None:
    """`snapline taskmanagers` on that Spark; the cluster stops it at its end."""
    settings = cluster.directory / "snapline.toml"
    settings.write_text("".join(f'"{key}" = {json.dumps(value)}\n' for key, value in cluster.settings.items()))
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    variables = {**os.environ, "SNAPLINE_CONFIG": str(settings), "MASTER": master, "PYTHONPATH": paths}
    arguments = ["taskmanagers", "--instances", str(TASK_MANAGERS), "--slots", "1"]
    program = "from snapline.cli import cli; cli()"
    with (cluster.logs / "taskmanagers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], env=variables, stdout=log, stderr=log, cwd=cluster.directory
        )
    cluster.task_managers.append(process)


def main() -> int:
    """Run; prints what was run, for how long, and what grew."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--minutes", type=float, default=30)
    cli.add_argument("--every", type=float, default=20, help="seconds between faults")
    cli.add_argument("--rate", type=float, default=2_000, help="events per second")
    options = cli.parse_args()
    ensure_java()
    directory = Path(tempfile.mkdtemp(prefix="snapline-soak-"))
    output = directory / "out"
    settings = {"restart-strategy.fixed-delay.attempts": "1000000", "parallelism.default": str(TASK_MANAGERS)}
    (directory / "spark").mkdir()
    began = time.monotonic()
    with (
        ZooKeeperEnsemble(directory / "zookeeper") as ensemble,
        standalone_spark(directory / "spark", TASK_MANAGERS + 1) as master,
        HighAvailabilityCluster(directory, ensemble, 2, (), settings) as cluster,
    ):
        bring_task_managers(cluster, master)
        environment = cluster.environment(TASK_MANAGERS, "1 s")
        build(environment, ["--output", str(output), "--rate", str(options.rate), "--parallelism", str(TASK_MANAGERS)])
        with cluster.client() as client:
            job_id = client.submit(environment.translate("soak").job_graph)
        soak = Soak(cluster, ensemble, job_id)
        soak.run(options.minutes * 60, options.every)
        with cluster.client() as client:
            client.stop_with_savepoint(job_id, str(directory / "savepoints"))
            ended(client, job_id)
    rows = assert_exactly_once(output)
    faults = ", ".join(f"{count} x {name}" for name, count in soak.faults.items())
    print(f"soak: {(time.monotonic() - began) / 60:.1f} minutes, {rows:,} rows exactly once; killed: {faults}")
    for name, seconds in soak.recovery_s.items():
        print(f"  {name}: new checkpoint after {statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s (max)")
    growth = soak.growth()
    for role, figures in growth.items():
        print(f"  {role}: {figures}")
    shutil.rmtree(directory, ignore_errors=True)
    grown = not_flat(growth)
    for line in grown:
        print(f"  NOT FLAT {line}")
    return 1 if grown else 0


def ended(client: ClusterClient, job_id: str) -> None:
    """Wait for the end. Raises AssertionError unless the job has finished."""
    details = client.wait(job_id)
    status = decode_job_status(details.overview.status)
    assert status is JobStatus.FINISHED, status


if __name__ == "__main__":
    sys.exit(main())
