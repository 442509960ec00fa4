"""`snapline coordinator` as a service: TaskManagers come from a Spark application, everything else from the command
line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from examples.flights_answer import compare_outputs
from snapline.runtime.version import VERSION
from tests.e2e.programs import (
    PATIENCE_SECONDS,
    ROOT,
    Ended,
    environment,
    environment_settings,
    run,
    snapline,
    wait_until_gone,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
FLIGHTS_PY = ROOT / "examples" / "flights.py"
TOKEN = "a shared secret"


@dataclass(frozen=True)
class Service:
    """A coordinator, with TaskManagers of a Spark application on local[2]."""

    address: str
    directory: Path

    def call(self, *arguments: str | Path, code: int = 0) -> Ended:
        """A command against this coordinator."""
        done = run(
            snapline(*arguments),
            cwd=self.directory,
            SNAPLINE_CONF_jobmanager__rpc__address=self.address,
            SNAPLINE_CONF_security__auth__token=TOKEN,
        )
        assert done.code == code, done.out + done.err
        return done

    def jobs(self) -> dict[str, str]:
        """Status by id."""
        return {job["job_id"]: job["status"] for job in json.loads(self.call("list", "-o", "json").out)}

    def wait(self, job_id: str, status: str) -> None:
        """Until the job has this status."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (now := self.jobs()[job_id]) != f"JOB_STATUS_{status}":
            assert time.monotonic() < deadline, now


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    mark = uuid.uuid4().hex
    idle = environment_settings({"resourcemanager.taskmanager-timeout": "3 s"})
    variables = environment(mark, SNAPLINE_CONF_security__auth__token=TOKEN, MASTER="local[2]", **idle)
    address_file = directory / "address"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (directory / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [str(part) for part in snapline(name, *arguments)],
                    env=variables,
                    cwd=directory,
                    stdout=log,
                    stderr=log,
                )
            )

    def log(name: str) -> str:
        return (directory / f"{name}.log").read_text()

    def wait_for(what: object, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (what.exists() if isinstance(what, Path) else str(what) in log(name)):
            assert time.monotonic() < deadline and started[-1].poll() is None, log(name)
            time.sleep(0.1)

    try:
        start("coordinator", "--bind", "127.0.0.1:0", "--address-file", str(address_file))
        wait_for(address_file, "coordinator")
        address = address_file.read_text().strip()
        assert f"Coordinator listens at {address}" in log("coordinator")
        start("taskmanagers", "--coordinator", address, "--instances", "2", "--slots", "1", "--release-idle")
        wait_for("TaskManagers started", "taskmanagers")
        yield Service(address, directory)
    finally:
        codes = []
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            codes.append(process.wait(60))
        left = wait_until_gone(mark)
    assert codes == [0, 0], log("taskmanagers") + log("coordinator")
    assert left == {}
    assert TOKEN not in log("taskmanagers") + log("coordinator")


def test_run_list_status_checkpoints_cancel(service, flights, tmp_path):
    """A job from its submission to its cancellation, and what each command prints."""
    detached = service.call(
        "run", "-d", FLIGHTS_PY, "--", "--input", flights, "--output", tmp_path / "out", "--rows-per-second", "500"
    )
    assert re.fullmatch(r"([0-9a-f]{32})\nflights: submitted as \1\n", detached.out), detached.out
    job_id = detached.out.split()[-1]
    service.wait(job_id, "RUNNING")
    (row,) = [line for line in service.call("list").out.splitlines() if job_id in line]
    assert re.search(r"flights +RUNNING +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +0 +", row), row
    status = service.call("status", job_id).out
    assert status.startswith(f"flights ({job_id})  RUNNING  0 restarts\n")
    assert re.search(r"ParquetSource -> mark cancelled -> departed +2 +2 RUNNING", status), status
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "completed" not in (listed := service.call("checkpoints", job_id[:8]).out).split("\n", 1)[1]:
        assert time.monotonic() < deadline, listed
    assert re.search(r"\d+ triggered, [1-9]\d* completed, 0 failed, \d+ in progress, 0 restored", listed), listed
    assert re.search(r"\d+ +checkpoint +completed +6/6", listed), listed
    coordinator, *managers = service.call("cluster").out.splitlines()
    assert coordinator.startswith("coordinator: "), coordinator
    assert len(managers) == 3 and all(
        re.search(rf"tm-\d-[0-9a-f]{{12}} +\S+ +\d+ +driver +{re.escape(VERSION)} +1 +0", line) for line in managers[1:]
    )
    assert service.call("cancel", job_id).out == f"cancelling {job_id}\n"
    service.wait(job_id, "CANCELED")
    wrong = service.call("status", "fligths", code=1)
    assert re.fullmatch(
        r"snapline: there is no job with 'fligths'; jobs here: .*flights \([0-9a-f]{8}\).*\n", wrong.err
    )


def test_run_waits_for_the_end_of_the_job(service, flights, tmp_path):
    """And exits 0, with the output complete."""
    done = service.call("run", FLIGHTS_PY, "--", "--input", flights, "--output", tmp_path / "out")
    assert re.fullmatch(r"flights: FINISHED in [\d.]+ s: 40,000 rows read, \d+ checkpoints, 0 restarts\n", done.out)
    assert re.search(r"snapline: job 'flights' FINISHED in [\d.]+ s: 40,000 rows read", done.err)
    for comparison in compare_outputs(flights, tmp_path / "out"):
        assert comparison.equal, comparison.differences


def test_task_managers_that_nobody_needs_rest_until_somebody_does(service, flights, tmp_path):
    """With `--release-idle` they are released and not started again at once; the next job gets its slots."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    log = service.directory / "taskmanagers.log"
    while log.read_text().count("TaskManager is not needed") < 2:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)

    done = service.call("run", FLIGHTS_PY, "--", "--input", flights, "--output", tmp_path / "out")

    assert re.search(r"FINISHED in .* 0 restarts\n", done.out), done.out


def test_health_and_reflection_answer_any_client(service):
    """Health without the secret, for probes; reflection lists the published services to those who have it."""
    with grpc.insecure_channel(service.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "snapline.v1.ClientService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        metadata = (("snapline-token", TOKEN),)
        (answer,) = reflection.ServerReflectionInfo(asked, timeout=20, metadata=metadata)
        names = {found.name for found in answer.list_services_response.service}
    assert "grpc.health.v1.Health" in names
    assert any(name.endswith("ClientService") for name in names), names
