"""How fast a coordinator completes checkpoints of many subtasks, and what that costs it.

A real coordinator process, and simulated TaskManagers (`benchmarks.far_side`) in one other process that speak real gRPC
on loopback. The job is one vertex of sources, so that every subtask is triggered, acknowledges, and is notified. Time
is from the client's TriggerCheckpoint to its answer, which comes when the checkpoint is durable; CPU is that of the
coordinator's process, until all notifications have left. From 100 TaskManagers on they come through relays, as
docs/guide.md advises, one for 250 of them, which are processes of their own; `--relays 0` is without.

    python -m benchmarks.coordinator --json
    python -m benchmarks.coordinator --subtasks 10000 --task-managers 10 500 --checkpoints 30 --relays 0
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks.cluster import fail, report, spread, versions
from snapline.client import ClusterClient
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode
from snapline.dataflow.ids import JobID, JobVertexID, operator_id_of
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.rpc.security import Security
from snapline.runtime.settings import default_layers, resolve

SETTINGS = {
    "heartbeat.interval": "10 s",
    "heartbeat.timeout": "60 s",
    "log.level": "WARNING",
    "slot.request.timeout": "5 min",
}
DEPLOY_SECONDS = 300.0
RELAYS_FROM = 100
TASK_MANAGERS_PER_RELAY = 250
SETTLE_SECONDS = 0.3
"""After a checkpoint: notifications leave, and the processes go quiet."""


def no_op_job(subtasks: int, directory: str) -> JobGraph:
    """One vertex that would do nothing."""
    operator_id = operator_id_of("no-op")
    operator = OperatorNode(operator_id, "no-op", "no-op", b"", stateful=True, is_source=True)
    vertex = JobVertex(JobVertexID(operator_id), "no-op", subtasks, max(128, subtasks), (operator,))
    configuration = {
        "execution.checkpointing.interval": "1 h",
        "execution.checkpointing.dir": directory,
        "restart-strategy.type": "none",
    }
    return JobGraph(JobID(uuid.uuid4().hex), f"no-op x {subtasks}", (vertex,), (), configuration)


def cpu_seconds(pid: int) -> float:
    """User and system time of a whole process, in nanoseconds' resolution (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


class FarSide:
    """The process with the TaskManagers."""

    def __init__(self, coordinator: str, task_managers: int, slots: int, relays: str) -> None:
        command = [sys.executable, "-m", "benchmarks.far_side", "--coordinator", coordinator, "--name", "a"]
        command += ["--task-managers", str(task_managers), "--slots", str(slots), "--relays", relays]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def wait_until_registered(self) -> None:
        """Wait until all TaskManagers are registered."""
        if self._process.stdout is None or self._process.stdout.readline() != b"registered\n":
            raise RuntimeError("the far side did not register")

    def stop(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class RelayBeside:
    """A process of `snapline relay`."""

    def __init__(self, address_file: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "snapline.runtime.relay.relay_process",
            "--bind",
            "127.0.0.1:0",
            "-D",
            "log.level=WARNING",
        ]
        command += ["--address-file", str(address_file)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        while not address_file.exists():
            if self._process.poll() is not None:
                raise RuntimeError("a relay did not start")
            time.sleep(0.02)
        self.address = address_file.read_text().strip()

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def stop(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()


def relays_for(task_managers: int) -> int:
    """As many as are advised."""
    return -(-task_managers // TASK_MANAGERS_PER_RELAY) if task_managers >= RELAYS_FROM else 0


def measure(subtasks: int, task_managers: int, relays: int, checkpoints: int, warm_up: int) -> dict[str, Any]:
    """One job of so many subtasks, on so many TaskManagers, through so many relays."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="snapline-benchmark-", ignore_cleanup_errors=True)
        )
        coordinator = CoordinatorProcess.start(settings={**SETTINGS, "execution.checkpointing.dir": directory})
        stack.callback(coordinator.stop)
        between = [RelayBeside(Path(directory) / f"relay-{number}") for number in range(relays)]
        for relay in between:
            stack.callback(relay.stop)
        addresses = ",".join(relay.address for relay in between)
        far_side = FarSide(coordinator.address, task_managers, -(-subtasks // task_managers), addresses)
        stack.callback(far_side.stop)
        far_side.wait_until_registered()
        security = Security.from_configuration(resolve(default_layers(os.environ)))
        client = stack.enter_context(ClusterClient(coordinator.address, security))
        pids = {
            "coordinator": [coordinator.pid],
            "relays": [relay.pid for relay in between],
            "far_side": [far_side.pid],
        }
        shape = {"subtasks": subtasks, "task_managers": task_managers, "relays": relays}
        return shape | _measure(client, pids, subtasks, checkpoints, warm_up, directory)


def _measure(
    client: ClusterClient, pids: dict[str, list[int]], subtasks: int, checkpoints: int, warm_up: int, directory: str
) -> dict[str, Any]:
    graph = no_op_job(subtasks, directory)
    begin = time.monotonic()
    client.submit(graph)
    while (status := _status(client, graph)) is not JobStatus.RUNNING:
        if status.is_globally_terminal or time.monotonic() - begin > DEPLOY_SECONDS:
            details = client.get_job(graph.job_id)
            raise RuntimeError(f"the job is {status.value}: {details.overview.failure.summary}")
        time.sleep(0.1)
    deployed_s = time.monotonic() - begin
    time.sleep(1.0)
    times_ms: list[float] = []
    cpu_us: dict[str, list[float]] = {who: [] for who in pids}
    for number in range(warm_up + checkpoints):
        before = {who: sum(map(cpu_seconds, those)) for who, those in pids.items()}
        triggered = time.monotonic()
        client.trigger_checkpoint(graph.job_id)
        took_ms = (time.monotonic() - triggered) * 1000
        time.sleep(SETTLE_SECONDS)
        if number >= warm_up:
            times_ms.append(took_ms)
            for who, those in pids.items():
                cpu_us[who].append((sum(map(cpu_seconds, those)) - before[who]) * 1e6 / subtasks)
    resident = next(
        int(line.split()[1]) // 1024
        for line in Path(f"/proc/{pids['coordinator'][0]}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
    return {
        "trigger_to_complete_ms": _rounded(times_ms),
        **{f"{who}_cpu_us_per_subtask": _rounded(figures) for who, figures in cpu_us.items()},
        "deployed_s": round(deployed_s, 2),
        "coordinator_rss_mib": resident,
    }


def _status(client: ClusterClient, graph: JobGraph) -> JobStatus:
    return next(decode_job_status(job.status) for job in client.list_jobs() if job.job_id == graph.job_id)


def _rounded(values: list[float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in spread(values).items()}


def _line(result: dict[str, Any]) -> str:
    took, cpu = result["trigger_to_complete_ms"], result["coordinator_cpu_us_per_subtask"]
    through = {0: "directly", 1: "1 relay"}.get(result["relays"], f"{result['relays']} relays")
    return (
        f"{result['subtasks']:>7,} subtasks on {result['task_managers']:>3} TaskManagers, {through:>8}: trigger to complete "
        f"{took['median']:>6.0f} ms median, {took['max']:>6.0f} ms max; coordinator CPU {cpu['median']:>5.1f} us per subtask "
        f"(min {cpu['min']:.1f}, max {cpu['max']:.1f})"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--subtasks", type=int, nargs="+", default=[1_000, 2_000, 5_000, 10_000])
    cli.add_argument("--task-managers", type=int, nargs="+", default=[10, 100, 500])
    cli.add_argument("--relays", type=int, nargs="+", help="0: without (default: as many as are advised)")
    cli.add_argument("--checkpoints", type=int, default=15)
    cli.add_argument("--warm-up", type=int, default=3)
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    results: list[dict[str, Any]] = []
    try:
        for subtasks in options.subtasks:
            for task_managers in options.task_managers:
                for relays in options.relays or [relays_for(task_managers)]:
                    results.append(measure(subtasks, task_managers, relays, options.checkpoints, options.warm_up))
                    if not options.json:
                        print(_line(results[-1]), flush=True)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    if options.json:
        report("coordinator", {"results": results, "versions": versions()}, as_json=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
