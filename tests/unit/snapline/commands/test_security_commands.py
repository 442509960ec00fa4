"""The identities of a cluster, made in one step, and used by real processes as docs/security.md says."""

from __future__ import annotations

import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.client import ClusterClient, RequestRefused
from snapline.commands.security_commands import make_certificates
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.cores.credentials import Identity, Role, identify
from snapline.runtime.rpc.security import Security
from snapline.runtime.settings import from_toml, resolve
from tests.services.certificates import why_not
from tests.simulation.jobs import keyed_job

SECRET = "a secret of a cluster"
needs_openssl = pytest.mark.skipif(bool(why_not()), reason=why_not())


def run(*arguments: str) -> str:
    """A command's output; it has to succeed."""
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    return result.output.strip()


def test_a_credential_is_made_from_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a role, a job and an end; that of the command line counts instead of a file."""
    monkeypatch.setenv("SNAPLINE_CONF_security__auth__file", "/instead/of/it")
    made = run("credential", "--role", "client", "--job", "job-1", "--expires", "1 d", "--token", SECRET)

    found = identify([SECRET], made, now_s=0)
    assert (Role.CLIENT, "job-1") == (found.role, found.job)
    assert found.expires_s


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--token", "abc"], "has 3 characters: who has a credential could try all of that length"),
        (["--token", SECRET, "--expires", "0 s"], "it would have expired when it is made: say a second or more"),
        (["--token", SECRET, "--expires", "999 ms"], "it would have expired when it is made: say a second or more"),
    ],
)
def test_a_credential_that_protects_nothing_or_opens_nothing_is_refused(arguments: list[str], said: str) -> None:
    """In one line, and nothing is printed that could be taken for one."""
    with pytest.raises(SnaplineError, match=said) as raised:
        run("credential", "--role", "client", *arguments)

    assert "\n" not in str(raised.value)


@needs_openssl
def test_settings_are_read_wherever_they_lie(tmp_path: Path) -> None:
    """Below a directory with a quotation mark in its name they were no TOML, and no process started with them."""
    directory = tmp_path / 'jürgen "pki" \\n'
    run("certificates", str(directory), "--host", "127.0.0.1")

    settings = resolve(from_toml(directory / "client" / "snapline.toml"))
    assert settings["security.auth.file"] == str(directory / "client" / "token")


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


@needs_openssl
@pytest.mark.parametrize("host", ["", "a\nb", "ä.example", "10.0.0.1:6123", "10.0.0.300", "a" * 300], ids=repr)
def test_a_host_that_is_none_is_refused_before_anything_is_made(tmp_path: Path, host: str) -> None:
    """The option is named in one line, and what openssl says of its own files is not shown."""
    with pytest.raises(SnaplineError, match=r"--host '.*' is no name or address"):
        run("certificates", str(tmp_path / "cluster"), "--host", host)
    assert not (tmp_path / "cluster").exists()


@needs_openssl
def test_certificates_of_an_authority_without_its_key_are_refused(tmp_path: Path) -> None:
    """The file that is missing is named, before certificates or a directory are written."""
    run("certificates", str(tmp_path), "--host", "::1", "--host", "*.example")
    (tmp_path / "ca.key").unlink()

    with pytest.raises(SnaplineError, match=r"ca.key is not there, which renews certificates of .*: put it back"):
        run("certificates", str(tmp_path), "--host", "localhost")


@needs_openssl
def test_certificates_below_a_file_are_refused(tmp_path: Path) -> None:
    """A directory that cannot be made is one line with its name."""
    (tmp_path / "file").touch()

    with pytest.raises(SnaplineError, match=r"no certificates below .*/file/x: Not a directory"):
        run("certificates", str(tmp_path / "file" / "x"), "--host", "localhost")


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Both sides of one handshake, in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def strict_context(place: Path) -> ssl.SSLContext:
    """What Python 3.13 makes of these files by default."""
    context = ssl.create_default_context(cafile=str(place / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(place / "certificate.pem", place / "key.pem")
    return context


@needs_openssl
def test_certificates_are_what_strict_clients_ask_for(tmp_path: Path) -> None:
    """The authority did not say what its key is for, so that clients of Python 3.13 refused all that it had signed."""
    settings = make_certificates(tmp_path, ["127.0.0.1"], 1)
    server = Security.from_configuration(resolve(from_toml(settings[0])))

    shake_hands(strict_context(tmp_path / "client"), server.server_context())


@needs_openssl
def test_certificates_of_an_older_authority_go_on(tmp_path: Path) -> None:
    """Python 3.13 refuses it where nothing is said; a cluster that has it takes a newer Python all the same."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=snapline authority", "-days", "1", "-keyout", "ca.key",
         "-out", "ca.pem"], cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    settings = [resolve(from_toml(path)) for path in make_certificates(tmp_path, ["127.0.0.1"], 1)]
    server, client = (Security.from_configuration(settings[place]) for place in (0, -1))

    with pytest.raises(ssl.SSLCertVerificationError, match="key usage"):
        shake_hands(strict_context(tmp_path / "client"), server.server_context())
    shake_hands(client.client_context(), server.server_context())
