"""A coordinator that stands by is alive: what probes, Prometheus, people and programs get from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from snapline.client import ClusterClient, CoordinatorUnreachable
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.rpc.refused_calls import SERVICES
from snapline.coordinator.standby import Standby
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.rpc_server import try_to_listen
from snapline.runtime.rpc.security import Security
from tests.services.cluster import wait_until
from tests.services.zookeeper import ZooKeeperEnsemble, start_ensemble

pytestmark = pytest.mark.zookeeper
TOKEN = "the-token"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The ensemble is up before anything counts what a test leaves behind."""
    metafunc.fixturenames.insert(0, "ensemble")


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One server, for both coordinators."""
    ensemble = start_ensemble(tmp_path_factory.mktemp("zookeeper"), nodes=1)
    yield ensemble
    ensemble.stop()


class Service:
    """A coordinator as a service manager starts it."""

    def __init__(self, log: Path, settings: dict[str, str]) -> None:
        self._log = log
        command = [sys.executable, "-m", "snapline.coordinator", "--bind", "127.0.0.1:0", "--metrics-port", "0"]
        for key, value in settings.items():
            command += ["-D", f"{key}={value}"]
        environment = {**os.environ, "SNAPLINE_CONF_security__auth__token": TOKEN}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, env=environment
            )

    def said(self, message: str) -> dict[str, Any]:
        """What the log says with this message, once it does."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
            found[:] = [line["context"] for line in lines if line["msg"] == message]
            return bool(found)

        wait_until(look, message)
        return found[-1]

    def stop(self) -> None:
        """End it as a service manager does."""
        self.process.terminate()
        self.process.wait(30)


def health_of(address: str, service: str, token: str = TOKEN) -> int:
    """The status that the server gives to a service."""
    security = Security(token)
    with open_channel(address, security) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(channel).Check(request, metadata=security.metadata, timeout=20).status


def is_leader(port: int) -> bool:
    """What Prometheus is told."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)
    (line,) = [line for line in lines if line.startswith("snapline_jobmanager_isLeader ")]
    return float(line.split()[1]) == 1.0


def test_a_standby_is_live_and_says_who_leads_until_it_leads_itself(
    tmp_path: Path, ensemble: ZooKeeperEnsemble
) -> None:
    """Two processes as a service manager runs them: the second stands by, and leads when the first is stopped."""
    settings = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": ensemble.quorum,
        "high-availability.cluster-id": uuid.uuid4().hex,
        "high-availability.storageDir": str(tmp_path / "ha"),
        "web.port": "0",
    }
    services = [Service(tmp_path / "first.log", settings)]
    try:
        leader = services[0].said("coordinator listens")["address"]
        services.append(Service(tmp_path / "second.log", settings))
        said = services[1].said("standby answers")
        standby = said["address"]
        assert [health_of(standby, name) for name in ("live", "")] == [SERVING, SERVING]
        assert health_of(standby, "live", "") == SERVING, "probes have no token"
        assert {health_of(standby, name) for name in SERVICES} == {NOT_SERVING}
        assert not is_leader(said["metrics_port"])
        with ClusterClient(standby, Security("another")) as client, pytest.raises(Exception, match="token"):
            client.overview()
        with ClusterClient(standby, Security(TOKEN)) as client:
            assert client.overview().task_managers == 0
            assert client.address == leader, "the client goes where it is told"
        page = services[1].said("the page is served")["address"]
        request = urllib.request.Request(f"{page}/api/overview", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.load(answer)["leader"] == leader
        services[0].stop()
        now = services[1].said("coordinator listens")["address"]
        assert {health_of(now, name) for name in ("live", "", *SERVICES)} == {SERVING}
        assert is_leader(services[1].said("metrics are served")["port"])
    finally:
        for service in services:
            service.stop()


def test_a_refusal_without_a_leader_is_one_line() -> None:
    """Nobody leads yet, or it cannot be found out: the caller is told to ask again."""

    def nobody() -> str:
        raise SnaplineError("no coordinator has led yet")

    standby = Standby(CoordinatorConfig("127.0.0.1:0"), nobody, silent_logger())
    address = standby.start()
    try:
        assert standby.start() == address
        with ClusterClient(address, Security()) as client, pytest.raises(CoordinatorUnreachable) as refused:
            client.list_jobs()
        assert str(refused.value) == f"{address}: this coordinator stands by, and nobody leads yet: ask again"
    finally:
        standby.stop()
    try_to_listen("127.0.0.1", int(address.rpartition(":")[2]))
