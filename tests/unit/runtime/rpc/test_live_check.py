"""The probe of a server with TLS, against a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from snapline.dataflow.config import Configuration
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.live_check import main, why_not_alive
from snapline.runtime.rpc.rpc_server import RpcServer
from snapline.runtime.rpc.security import Security
from tests.services.certificates import Authority

POD = "night-coordinator-1.night-coordinator.streams.svc.cluster.local"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The server is up before anything counts what a test leaves behind."""
    if "address" in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, "address")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """With one certificate for all coordinators of a chart, as its issuer makes it."""
    return Authority(tmp_path_factory.mktemp("pki"), f"IP:127.0.0.1,DNS:*.{POD.partition('.')[2]}")


@pytest.fixture(scope="module")
def address(authority: Authority) -> Iterator[str]:
    """A server that stands by, with TLS and a token."""
    settings = {**authority.settings, "security.auth.token": "the-token"}
    server = RpcServer(Security.from_configuration(Configuration(settings)), silent_logger())
    yield server.start("127.0.0.1:0", lambda _: [], leads=False)
    server.stop()


def test_a_server_with_tls_is_alive_for_who_has_a_certificate(
    address: str, authority: Authority, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings come as those of the process beside which the probe runs; no token is shown."""
    for key, value in authority.settings.items():
        monkeypatch.setenv("SNAPLINE_CONF_" + key.replace(".", "__").replace("-", "_"), value)
    assert (main([address]), capsys.readouterr().err) == (0, "")
    assert main(["127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("snapline: 127.0.0.1:1 does not answer: ")
    assert (main([]), capsys.readouterr().err.startswith("say one address")) == (2, True)


def test_nobody_without_a_certificate_is_told(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A probe of Kubernetes' own would not be, either; a file that is not there is named."""
    assert why_not_alive(address, Security()).startswith(f"{address} does not answer: ")
    monkeypatch.setenv("SNAPLINE_CONF_security__ssl__ca_file", str(tmp_path / "ca.crt"))
    assert main([address]) == 1
    assert "security.ssl.certificate-file is not set" in capsys.readouterr().err


def test_one_certificate_is_that_of_every_pod(address: str, authority: Authority) -> None:
    """With a star in the place of the pod's name, which gRPC lets stand for one label."""
    security = Security.from_configuration(Configuration(authority.settings))
    with open_channel(address, security, POD) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=8)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
