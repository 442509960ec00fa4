"""What processes cost that have little to do: CPU, wake-ups and memory of an idle TaskManager and coordinator, and at
few rows.

CPU is what the kernel has scheduled (`/proc/PID/task/*/schedstat`), wake-ups are voluntary context switches of all
threads, memory is what is resident at the end: all of it, and without pages of files (`/proc/PID/status`). The job is a
window of a second over so many rows a second, with checkpoints every second.

    python -m benchmarks.quiet --rate 1000 --seconds 15
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import snapline as sl
from snapline.client import ClusterClient
from snapline.connectors import DiscardingSink
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.config import Configuration
from snapline.runtime.rpc.security import Security

SETTLE_SECONDS = 3.0
POLL_SECONDS = 0.1


def usage_of(pid: int) -> dict[str, tuple[float, int]]:
    """Seconds of CPU and wake-ups so far, by thread of a process."""
    usage = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            seconds = int((thread / "schedstat").read_text().split()[0]) / 1e9
            lines = (thread / "status").read_text().splitlines()
            wake_ups = sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
            usage[thread.name] = (seconds, wake_ups)
    return usage


def resident_of(pid: int) -> dict[str, float]:
    """MiB that a process has resident, pages of files included, and of its own."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmRSS:", "RssAnon:")}
    return {"resident_mib": round(kib["VmRSS:"] / 1024), "own_mib": round(kib["RssAnon:"] / 1024)}


def measure(pids: dict[str, int], seconds: float) -> dict[str, dict[str, float]]:
    """Percent of a core and wake-ups a second of each process, over so many seconds: of threads that have not ended;
    and what it has resident then."""
    before = {name: usage_of(pid) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(seconds)
    lasted = time.monotonic() - began
    found = {}
    for name, pid in pids.items():
        pairs = [(usage, before[name].get(thread, (0.0, 0))) for thread, usage in usage_of(pid).items()]
        share = 100 * sum(now[0] - then[0] for now, then in pairs) / lasted
        wake_ups = sum(now[1] - then[1] for now, then in pairs)
        found[name] = {"cpu_percent": round(share, 2), "wake_ups": round(wake_ups / lasted), **resident_of(pid)}
    return found


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print and return all figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quiet", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        settings = {"execution.checkpointing.dir": f"{directory}/checkpoints"}
        coordinator = CoordinatorProcess.start(settings=settings, log_to=Path(directory) / "log")
        task_manager = subprocess.Popen(
            [sys.executable, "-m", "snapline.taskmanager", "--coordinator", coordinator.address, "--slots", "1"],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        pids = {"TaskManager": task_manager.pid, "coordinator": coordinator.pid}
        try:
            with ClusterClient(coordinator.address, Security.from_configuration(Configuration({}))) as client:
                while not client.list_task_managers():
                    time.sleep(POLL_SECONDS)
                time.sleep(SETTLE_SECONDS)
                found["idle"] = measure(pids, options.seconds)
                job_id = client.submit(job(settings, options.rate).translate("quiet").job_graph)
                while not client.list_checkpoints(job_id).counts.completed:
                    time.sleep(POLL_SECONDS)
                time.sleep(SETTLE_SECONDS)
                found[f"{options.rate:g} rows/s"] = measure(pids, options.seconds)
        finally:
            task_manager.terminate()
            task_manager.wait()
            coordinator.stop()
    print(json.dumps(found, indent=2))
    return found


def job(settings: dict[str, str], rate: float) -> sl.StreamExecutionEnvironment:
    """A tumbling window of a second over the rows of a generator."""
    values = {**settings, "execution.checkpointing.interval": "1 s"}
    environment = sl.StreamExecutionEnvironment.get_execution_environment(values)
    source = sl.GeneratorSource(
        keys=100, rows_per_second=rate, event_time_column="at", event_interval_us=round(1e6 / rate)
    )
    rows = environment.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="rows")
    windows = rows.key_by("key").window(sl.TumblingEventTimeWindows(1000))
    windows.aggregate(uid="windows", n=sl.count()).sink_to(DiscardingSink(), uid="nowhere")
    return environment


if __name__ == "__main__":
    main()
