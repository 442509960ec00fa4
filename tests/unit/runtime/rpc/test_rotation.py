"""Certificates and tokens are changed while a server runs: who comes next uses the new ones, and nobody is cut off."""

from __future__ import annotations

import errno
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from snapline.coordinator.web.page_server import PageServer
from snapline.dataflow.config import Configuration
from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.rpc_server import RpcServer
from snapline.runtime.rpc.security import Security, SecurityError, check_secret
from tests.services.certificates import Authority, LiveFiles, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def files(tmp_path: Path) -> LiveFiles:
    """The first authority's, and the old token."""
    return LiveFiles(tmp_path)


@pytest.fixture
def address(files: LiveFiles) -> Iterator[str]:
    """A server that reads them."""

    async def answer(request: bytes, _context: Any) -> bytes:
        return request

    async def stream(requests: Any, _context: Any) -> Any:
        async for request in requests:
            yield request

    def add(server: grpc.aio.Server) -> list[str]:
        methods: dict[str, Any] = {
            "Unary": grpc.unary_unary_rpc_method_handler(answer),
            "Stream": grpc.stream_stream_rpc_method_handler(stream),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Echo", methods)])
        return []

    server = RpcServer(Security.from_configuration(files.configuration), silent_logger())
    yield server.start("127.0.0.1:0", add)
    server.stop()


def call(address: str, security: Security) -> bytes:
    """A call on a connection of its own."""
    channel: Any
    with open_channel(address, security) as channel:
        return bytes(channel.unary_unary("/Echo/Unary")(b"?", metadata=security.metadata, timeout=20))


def test_everything_is_changed_while_a_stream_goes_on(files: LiveFiles, address: str) -> None:
    """In the order of docs/security.md: trust and accept the new, show the new, forget the old. One client lives
    through all of it, its stream is never cut; one that has only the old ends outside."""
    living = Security.from_configuration(files.configuration)
    old = Security("old", *(getattr(living, name) for name in ("ca", "certificate", "key")))
    said: list[bytes] = []
    channel: Any
    with open_channel(address, living) as channel:

        def messages() -> Iterator[bytes]:
            for step in range(3):
                files.change(step)
                said.append(call(address, living))
                yield b"!"

        assert [b"!"] * 3 == list(channel.stream_stream("/Echo/Stream")(messages(), metadata=living.metadata))

    assert [b"?"] * 3 == said
    assert "new" == living.current().token
    with pytest.raises(grpc.RpcError):
        call(address, old)


def test_the_page_shows_the_new_certificate_without_a_restart(files: LiveFiles) -> None:
    """From the next connection on; who trusts the old authority alone, or shows its certificate, ends outside then."""
    pytest.importorskip("uvicorn", reason="the page needs the extra web")

    def shown(trusted: Authority, own: Authority) -> bytes:
        context = ssl.create_default_context(cafile=str(trusted.directory / "ca.pem"))
        context.load_cert_chain(trusted_file(own, "node.pem"), trusted_file(own, "node.key"))
        with (
            socket.create_connection(address, timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(b"GET /none HTTP/1.0\r\n\r\n")
            if not connection.recv(1):
                raise ConnectionError("closed, without an answer")
            return connection.getpeercert(binary_form=True) or b""

    def trusted_file(authority: Authority, name: str) -> str:
        return str(authority.directory / name)

    first, second = files.authorities
    server = PageServer(files.configuration, lambda: "127.0.0.1:1")
    try:
        url = urlsplit(server.start("127.0.0.1", 0))
        address = (str(url.hostname), int(url.port or 0))
        before = shown(first, first)
        for step in range(3):
            files.change(step)
        assert before != shown(second, second)
        for trusted, own in ((first, first), (second, first)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                shown(trusted, own)
    finally:
        server.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has files in memory")
def test_a_full_disk_keeps_nobody_from_meeting(files: LiveFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could read the metrics of a coordinator then, and TaskManagers of one host did not find each other."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    security = Security.from_configuration(files.configuration)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    for context in (security.server_context(), security.client_context()):
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_files_in_the_middle_of_a_change_are_read_again_later(files: LiveFiles) -> None:
    """A certificate without its key yet, an empty token file: what was there before stays in use."""
    living = Security.from_configuration(files.configuration)
    before = living.current()
    shutil.copy(files.authorities[1].directory / "node.pem", files.live / "node.pem")
    files.say("new")
    assert before == living.current()

    shutil.copy(files.authorities[1].directory / "node.key", files.live / "node.key")
    assert "new" == living.current().token
    files.say()
    assert "new" == living.current().token


def test_a_secret_that_can_be_guessed_does_not_come_by_rotation(files: LiveFiles) -> None:
    """A coordinator that others reach does not start with one, and took it when it was put into the file later; new
    certificates that come with it count."""
    long = "a secret of more than 16 characters"
    files.say(long)
    living = Security.from_configuration(files.configuration)
    first, second = files.authorities
    files.show(second, [first, second])
    files.say("short", long)

    assert long == living.current().token
    assert living.current().certificate == (second.directory / "node.pem").read_bytes()
    files.say("another one of more than 16 characters", long)
    assert living.current().secrets == ("another one of more than 16 characters", long)


@pytest.mark.parametrize("said", ["", "no certificate\n"], ids=["empty", "another file"])
def test_an_authority_that_is_none_does_not_switch_tls_off(files: LiveFiles, said: str) -> None:
    """An empty file, as one has that is being written, did: the token went in the clear, and a coordinator for
    everybody, which TLS alone protected, let everybody in."""
    living = Security.from_configuration(files.configuration)
    before = living.current()
    (files.live / "ca.pem").write_text(said)

    assert before == living.current()
    with pytest.raises(SecurityError, match=r"security\.ssl\.ca-file: .*ca\.pem has no certificate of an authority"):
        Security.from_configuration(files.configuration)


def test_what_stands_between_certificates_may_be_anything(files: LiveFiles) -> None:
    """A file of authorities with names in other letters is taken by gRPC; the page, /metrics and the sockets of a host
    broke at each connection."""
    file = files.live / "ca.pem"
    file.write_bytes("# Autorité\n".encode() + file.read_bytes() + "# größer\n".encode("latin-1"))

    security = Security.from_configuration(files.configuration)
    assert 1 == len(security.server_context().get_ca_certs())


def test_nobody_is_asked_for_the_passphrase_of_a_key(files: LiveFiles) -> None:
    """OpenSSL asked on the terminal for it, for as long as nobody answered, and gRPC could not use the key then."""
    key, plain = files.live / "node.key", files.authorities[0].directory / "node.key"
    command = ["openssl", "pkey", "-in", str(plain), "-aes128", "-passout", "pass:open sesame", "-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)

    with pytest.raises(SecurityError, match=r"security\.ssl\.key-file: .*node\.key is encrypted"):
        Security.from_configuration(files.configuration)


def test_files_that_change_while_they_are_read_are_read_again(files: LiveFiles) -> None:
    """The new certificate was taken with the key of the old one, since the key came just before both were compared: who
    connected in that moment was cut off. A busy machine found it, as a stream that ended."""
    living, new = Security.from_configuration(files.configuration), files.authorities[1].directory
    source = living.files
    assert source is not None
    check_pair = source._check_pair

    def the_key_comes() -> None:
        if (files.live / "node.key").read_bytes() != (new / "node.key").read_bytes():
            shutil.copy(new / "node.key", files.live / "node.key")
        check_pair()

    source._check_pair = the_key_comes  # type: ignore[method-assign]
    shutil.copy(new / "node.pem", files.live / "node.pem")
    now = living.current()

    assert (now.certificate, now.key) == ((new / "node.pem").read_bytes(), (new / "node.key").read_bytes())


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"security.auth.token": "two"}, "are both set: leave one out"),
        ({"security.auth.file": "/none"}, r"security\.auth\.file: cannot read /none: No such file"),
        ({"security.ssl.key-file": "ca"}, "is not the key of"),
    ],
)
def test_what_cannot_be_used_at_the_start_is_refused(files: LiveFiles, changed: dict[str, str], line: str) -> None:
    """In one line, with the setting."""
    given = {
        key: value.replace("ca", str(files.live / "ca.pem")) if value == "ca" else value
        for key, value in changed.items()
    }

    with pytest.raises(SecurityError, match=line):
        Security.from_configuration(files.configuration.with_values(given))


def test_a_coordinator_with_a_credential_is_refused() -> None:
    """It could not tell who calls."""
    with pytest.raises(SecurityError, match="coordinators and relays need the cluster's secret itself"):
        check_secret(Security(sign_credential("secret", Identity(Role.CLIENT))))
    check_secret(Security())
    with pytest.raises(SecurityError, match="was it cut short"):
        Security.from_configuration(Configuration({"security.auth.token": "snapline:2:client"}))


@pytest.mark.parametrize("secret", ["geheimnis-für-alle-prozesse", "the-secret\tof-the-cluster", "fine,not\x00fine"])
def test_a_secret_that_no_call_can_carry_is_refused(secret: str, tmp_path: Path) -> None:
    """A coordinator took it, and who wanted to show it got a line of gRPC's about metadata; also from a file."""
    (tmp_path / "token").write_text(secret)
    for settings in ({"security.auth.token": secret}, {"security.auth.file": str(tmp_path / "token")}):
        with pytest.raises(SecurityError, match="has a sign that no call can carry"):
            Security.from_configuration(Configuration(settings))
