"""A soak: standalone Spark, three ZooKeeper servers, two coordinators, and something killed every few seconds.

Kills, in turn and on a fixed beat, whether or not the fault before is over: the leading coordinator, a TaskManager's
process, the executor that hosts one, the leader of the ZooKeeper ensemble. After each, a checkpoint that was triggered
later must complete. At the end the job is stopped with a savepoint and every row of its output is checked: each key has
counted 1, 2, 3, ... without a hole or a repetition. Resident memory and open files of the processes are sampled by
role; their growth from the first third of the time to the last is printed, and too much of it is a failure.

    python -m tests.soak --minutes 30
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from deploy.zookeeper_ensemble import ZooKeeperEnsemble
from snapline.client import ClusterClient
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import wait_until
from tests.services.ha_cluster import HighAvailabilityCluster
from tests.services.spark_java import ensure_quick_java

WATCH_SECONDS = 0.5
SAMPLE_SECONDS = 2.0
RECOVERY_SECONDS = 120.0
TASK_MANAGERS = 2
GROWTH_MAX = 1.15
RSS_SLACK_MIB = 30
FILES_SLACK = 15
"""From the first third of the time to the last, beyond GROWTH_MAX. The first third is warm-up in short soaks."""


@dataclass(frozen=True)
class _Fault:
    """Something was killed."""

    name: str
    at: float
    """time.monotonic()"""
    at_ms: int
    """Since the epoch."""


class Soak:
    """The cluster, its job, and what is done to it. One thread kills, another watches: neither waits for the other."""

    def __init__(self, cluster: HighAvailabilityCluster, ensemble: ZooKeeperEnsemble, job_id: str) -> None:
        self._cluster = cluster
        self._ensemble = ensemble
        self._job_id = job_id
        self._task_managers: list[int] = []
        """Processes, as the leader said last."""
        self._completed_ms = 0
        """When the latest completed checkpoint was triggered."""
        self._open: list[_Fault] = []
        """No checkpoint that was triggered later has completed yet."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._problem: BaseException | None = None
        self.faults: dict[str, int] = {}
        self.recovery_s: dict[str, list[float]] = {}
        self.samples: dict[str, list[tuple[float, int]]] = {}
        """By role: largest resident memory (MiB) and number of open files of its processes."""

    def run(self, seconds: float, every_seconds: float) -> None:
        """A fault every so often, in turn, whether or not the one before is over. Raises AssertionError when the job
        does not come back."""
        watcher = threading.Thread(target=self._watch, name="soak-watcher", daemon=True)
        watcher.start()
        try:
            wait_until(lambda: self._is_fine() and self._completed_ms > 0, "the first checkpoint", RECOVERY_SECONDS)
            began = time.monotonic()
            for number in range(1, int(seconds // every_seconds) + 1):
                self._strike(number)
                while time.monotonic() < began + number * every_seconds and self._is_fine():
                    time.sleep(0.1)
            wait_until(
                lambda: self._is_fine() and not self._open, "a checkpoint after the last fault", RECOVERY_SECONDS
            )
        finally:
            self._over.set()
            watcher.join()

    def _strike(self, number: int) -> None:
        """The next kind of fault that finds something to kill."""
        kinds: list[tuple[str, Callable[[], bool]]] = [
            ("leader", self._kill_leader),
            ("taskmanager", self._kill_task_manager),
            ("executor", self._kill_executor),
            ("zookeeper", self._kill_zookeeper),
        ]
        for index in range(len(kinds)):
            name, kill = kinds[(number - 1 + index) % len(kinds)]
            fault = _Fault(name, time.monotonic(), round(time.time() * 1000))
            if kill():
                self.faults[name] = self.faults.get(name, 0) + 1
                with self._lock:
                    self._open.append(fault)
                return
            print(f"no {name} to kill", flush=True)

    def _is_fine(self) -> bool:
        """Raises what the watcher found out."""
        if self._problem is not None:
            raise self._problem
        return True

    # --- faults -------------------------------------------------------------------------------------------------------

    def _kill_leader(self) -> bool:
        try:
            self._cluster.kill_leader()
        except (RuntimeError, SnaplineError):
            return False
        self._cluster.start_coordinator()
        return True

    def _kill_task_manager(self) -> bool:
        return any(_killed(pid) for pid in self._task_managers)

    def _kill_executor(self) -> bool:
        executors = (_parent_matching(pid, "CoarseGrainedExecutorBackend") for pid in self._task_managers)
        return any(_killed(pid) for pid in executors)

    def _kill_zookeeper(self) -> bool:
        try:
            killed = self._ensemble.kill_leader()
        except RuntimeError:
            return False
        killed.start()
        return True

    # --- watching -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """The other thread."""
        sampled = 0.0
        try:
            while not self._over.wait(WATCH_SECONDS):
                self._look()
                if time.monotonic() > sampled + SAMPLE_SECONDS:
                    sampled = time.monotonic()
                    self._sample()
        except BaseException as problem:
            self._problem = problem

    def _look(self) -> None:
        """Which faults are over."""
        try:
            with self._cluster.client() as client:
                history = list(client.list_checkpoints(self._job_id).history)
                self._task_managers = [manager.pid for manager in client.list_task_managers()]
        except SnaplineError:
            history = []
        done = [c.trigger_timestamp_ms for c in history if c.status == pb.CHECKPOINT_STATUS_COMPLETED]
        self._completed_ms = max([*done, self._completed_ms])
        with self._lock:
            for fault in [each for each in self._open if each.at_ms < self._completed_ms]:
                self._open.remove(fault)
                seconds = time.monotonic() - fault.at
                self.recovery_s.setdefault(fault.name, []).append(seconds)
                print(f"{fault.name} killed; a new checkpoint after {seconds:.1f} s", flush=True)
            late = [each for each in self._open if time.monotonic() > each.at + RECOVERY_SECONDS]
        assert not late, f"{late[0].name} was killed {RECOVERY_SECONDS} s ago, and no checkpoint has completed since"

    def _sample(self) -> None:
        by_role = {"coordinator": [c.pid for c in tuple(self._cluster.coordinators) if c.is_alive]}
        by_role["taskmanager"] = self._task_managers
        by_role["driver"] = [p.pid for p in self._cluster.task_managers if p.poll() is None]
        by_role["daemon"] = [_parent_of(pid) for pid in by_role["taskmanager"] if _parent_of(pid) > 1]
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
    """The nearest ancestor with the text in its command line; 0: there is none (any more)."""
    while pid > 1:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return 0
        if text in command:
            return pid
        pid = _parent_of(pid)
    return 0


def _killed(pid: int) -> bool:
    """Whether there was such a process."""
    if pid <= 1:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


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
    ensure_quick_java()
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
