"""What the page costs the process that serves it, while somebody looks at it and ten jobs run.

A real coordinator, simulated TaskManagers (`benchmarks.far_side`), ten jobs of a hundred subtasks, and `snapline ui` as
a process of its own. Somebody looks at one view after the other: its data is asked for every two seconds, as the page
does. CPU is that of the process that serves, in percent of a core; that of the coordinator is with and without it.

    python -m benchmarks.page --seconds 30 --json
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
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.cluster import fail, report, versions
from benchmarks.coordinator import SETTINGS, FarSide, cpu_seconds, no_op_job
from snapline.client import ClusterClient
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.rpc.security import Security

PERIOD_SECONDS = 2.0
"""The page asks for its view so often."""


class ServedPage:
    """A process of `snapline ui`."""

    def __init__(self, coordinator: str) -> None:
        command = [sys.executable, "-m", "snapline.cli", "ui", "-m", coordinator, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = self._process.stdout.readline() if self._process.stdout is not None else ""
        self.url = said.rsplit(" ", 1)[-1].strip()

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def ask(self, path: str) -> tuple[Any, int]:
        """Return an answer, and how many bytes it had."""
        with urllib.request.urlopen(f"{self.url}/api/{path}", timeout=30) as answer:  # noqa: S310 - of a process of ours
            body = answer.read()
        return json.loads(body), len(body)

    def stop(self) -> None:
        """End the process and wait for it."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def views_of(job_id: str) -> dict[str, tuple[str, ...]]:
    """What the page asks for, view by view."""
    return {
        "jobs": ("overview", "jobs"),
        "a job": ("overview", f"jobs/{job_id}", f"jobs/{job_id}/figures", f"jobs/{job_id}/why"),
        "checkpoints": ("overview", f"jobs/{job_id}", f"jobs/{job_id}/checkpoints"),
        "TaskManagers": ("overview", "taskmanagers"),
    }


def measure(jobs: int, subtasks: int, task_managers: int, seconds: float) -> dict[str, Any]:
    """Percent of a core, by view, each for so many seconds."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="snapline-benchmark-"))
        settings = {**SETTINGS, "heartbeat.interval": "1 s", "execution.checkpointing.dir": directory}
        coordinator = CoordinatorProcess.start(settings=settings)
        stack.callback(coordinator.stop)
        far_side = FarSide(coordinator.address, task_managers, -(-jobs * subtasks // task_managers), "")
        stack.callback(far_side.stop)
        far_side.wait_until_registered()
        client = stack.enter_context(ClusterClient(coordinator.address, Security()))
        for number in range(jobs):
            client.submit(replace(no_op_job(subtasks, directory), name=f"job-{number}"))
        while (statuses := {decode_job_status(job.status) for job in client.list_jobs()}) != {JobStatus.RUNNING}:
            if any(status.is_globally_terminal for status in statuses):
                raise RuntimeError("a job has ended before all were running")
            time.sleep(0.1)
        time.sleep(PERIOD_SECONDS)
        figures: dict[str, Any] = {"coordinator alone %": _percent([coordinator.pid], seconds)}
        page = ServedPage(coordinator.address)
        stack.callback(page.stop)
        job_id = client.list_jobs()[0].job_id
        for view, paths in views_of(job_id).items():
            page.ask("overview")
            spent, sizes = [], [0]
            before, end = _cpu([page.pid, coordinator.pid]), time.monotonic() + seconds
            while time.monotonic() < end:
                began = time.monotonic()
                sizes = [page.ask(path)[1] for path in paths]
                spent.append(time.monotonic() - began)
                time.sleep(max(0.0, PERIOD_SECONDS - spent[-1]))
            served, asked = (
                (now - then) / seconds for now, then in zip(_cpu([page.pid, coordinator.pid]), before, strict=True)
            )
            figures[f"{view}: page %"] = round(100 * served, 2)
            figures[f"{view}: coordinator %"] = round(100 * asked, 2)
            figures[f"{view}: KiB"] = round(sum(sizes) / 1024, 1)
        return figures


def _cpu(pids: Sequence[int]) -> list[float]:
    return [cpu_seconds(pid) for pid in pids]


def _percent(pids: Sequence[int], seconds: float) -> float:
    before = sum(_cpu(pids))
    time.sleep(seconds)
    return round(100 * (sum(_cpu(pids)) - before) / seconds, 2)


def main() -> int:
    """Run the benchmark and print what it measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--subtasks", type=int, default=100)
    parser.add_argument("--task-managers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each view")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    os.environ.pop("SNAPLINE_CONFIG", None)
    try:
        figures = measure(chosen.jobs, chosen.subtasks, chosen.task_managers, chosen.seconds)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    report("The page", {**versions(), **figures}, as_json=chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
