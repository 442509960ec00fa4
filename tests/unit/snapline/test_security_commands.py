"""The identities of a cluster, made in one step, and used by real processes as docs/security.md says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.client import ClusterClient, RequestRefused
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.runtime.cores.credentials import Identity, Role, identify
from snapline.runtime.settings import from_toml, resolve
from tests.services.certificates import why_not
from tests.simulation.jobs import keyed_job

needs_openssl = pytest.mark.skipif(bool(why_not()), reason=why_not())


def run(*arguments: str) -> str:
    """A command's output; it has to succeed."""
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    return result.output.strip()


def test_a_credential_is_made_from_the_secret() -> None:
    """With a role, a job and an end."""
    made = run("credential", "--role", "client", "--job", "job-1", "--expires", "1 d", "--token", "secret")

    found = identify(["secret"], made, now_s=0)
    assert (Role.CLIENT, "job-1") == (found.role, found.job)
    assert found.expires_s


@needs_openssl
def test_five_minutes(tmp_path: Path) -> None:
    """`snapline certificates` makes everything that a coordinator and a client need to meet over TLS, each with its own
    role; said again it renews certificates and keeps authority and secrets."""
    directory = tmp_path / "cluster"
    run("certificates", str(directory), "--host", "127.0.0.1")
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in files if path.name != "ca.pem"}
    kept = {name: (directory / name).read_text() for name in ("ca.pem", "ca.key", "token")}
    before = (directory / "coordinator" / "certificate.pem").read_text()
    run("certificates", str(directory), "--host", "127.0.0.1")
    assert kept == {name: (directory / name).read_text() for name in kept}
    assert before != (directory / "coordinator" / "certificate.pem").read_text()

    settings = {
        name: resolve(from_toml(directory / name / "snapline.toml"))
        for name in ("coordinator", "client", "taskmanager")
    }
    coordinator = CoordinatorProcess.start("127.0.0.1:0", dict(settings["coordinator"]), log_to=tmp_path / "log")
    try:
        at = {"jobmanager.rpc.address": coordinator.address}
        with ClusterClient.from_configuration(settings["client"].with_values(at)) as client:
            assert [] == client.list_jobs()
        worker = ClusterClient.from_configuration(settings["taskmanager"].with_values(at))
        with worker, pytest.raises(RequestRefused, match="a taskmanager may not call ClientService/SubmitJob"):
            worker.submit(keyed_job())
    finally:
        coordinator.stop()
    token = (directory / "token").read_text().strip()
    shown = (directory / "taskmanager" / "token").read_text().strip()
    assert Identity(Role.TASK_MANAGER) == identify([token], shown, now_s=0)
    assert token not in (directory / "client" / "token").read_text()
