"""What a gRPC server takes from somebody who is not let in: next to nothing."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from snapline.runtime.logs import make_logger, silent_logger
from snapline.runtime.rpc import rpc_server, sender_limits
from snapline.runtime.rpc.grpc_channels import SERVER_OPTIONS, open_channel
from snapline.runtime.rpc.rpc_server import RpcServer, parse_address
from snapline.runtime.rpc.security import Security
from snapline.runtime.rpc.sender_limits import ConnectionLimits

TOKEN = "the-token"
LARGE = 64 << 20


class CountingProxy:
    """A TCP proxy on loopback that counts the bytes which clients send."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.received = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._target)
            self._sockets += [client, upstream]
            for source, sink, counted in ((client, upstream, True), (upstream, client, False)):
                thread = threading.Thread(target=self._pump, args=(source, sink, counted))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.received += len(data) if counted else 0
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


def add_echo(server: grpc.aio.Server) -> list[str]:
    """A service that answers with the number of bytes that it got."""

    async def answer(request: bytes, _context: Any) -> bytes:
        return str(len(request)).encode()

    async def stream(request: bytes, _context: Any) -> Any:
        yield str(len(request)).encode()

    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "Echo",
                {
                    "Unary": grpc.unary_unary_rpc_method_handler(answer),
                    "Streaming": grpc.unary_stream_rpc_method_handler(stream),
                },
            )
        ]
    )
    return []


@pytest.fixture
def proxy() -> Iterator[CountingProxy]:
    """A server that asks for a token, behind a proxy that counts."""
    server = RpcServer(Security(TOKEN), silent_logger())
    address = server.start("127.0.0.1:0", add_echo)
    proxy = CountingProxy(address)
    yield proxy
    proxy.close()
    server.stop()


@pytest.mark.parametrize("method", ["Unary", "Streaming"])
def test_a_message_without_the_token_is_not_read(proxy: CountingProxy, method: str) -> None:
    """The call is refused by its headers; with the token the same message arrives."""
    message = b"x" * LARGE

    def call(security: Security) -> bytes:
        channel: Any
        with open_channel(proxy.address, security) as channel:
            if method == "Unary":
                return bytes(channel.unary_unary("/Echo/Unary")(message, metadata=security.metadata))
            return bytes(next(channel.unary_stream("/Echo/Streaming")(message, metadata=security.metadata)))

    with pytest.raises(grpc.RpcError) as refused:
        call(Security("another"))
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert proxy.received < LARGE // 8

    assert call(Security(TOKEN)) == str(LARGE).encode()


def test_a_request_that_is_too_large_is_not_decoded() -> None:
    """A megabyte of it can become thirty in memory: it was decoded first, with as many bytes as a job may have, also of
    somebody whose credential submits none."""
    decoded: list[int] = []

    def decode(data: bytes) -> bytes:
        decoded.append(len(data))
        return data

    async def answer(request: bytes, _context: Any) -> bytes:
        return str(len(request)).encode()

    def add(server: grpc.aio.Server) -> list[str]:
        names = ("Ask", "SubmitJob")
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(answer, request_deserializer=decode) for name in names
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("snapline.v1.ClientService", methods)])
        return []

    server = RpcServer(Security(TOKEN), silent_logger())
    address = server.start("127.0.0.1:0", add)
    for_one_job = sign_credential(TOKEN, Identity(Role.CLIENT, job="j"))
    for secret, name in ((TOKEN, "Ask"), (for_one_job, "SubmitJob"), (TOKEN, "SubmitJob")):
        security = Security(secret)
        channel: Any
        with open_channel(address, security) as channel:
            call = channel.unary_unary(f"/snapline.v1.ClientService/{name}").with_call
            with contextlib.suppress(grpc.RpcError):
                assert b"2097152" == call(b"x" * (2 << 20), metadata=security.metadata, timeout=20)[0]
    server.stop()

    assert [2 << 20] == decoded


def test_health_is_told_to_whoever_asks_without_reading_what_they_say(proxy: CountingProxy) -> None:
    """Probes have no token, so a health check is the one call that anybody can make: a large one is not read either."""
    with open_channel(proxy.address, Security()) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        assert check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        large = check(health_pb2.HealthCheckRequest(service="x" * LARGE))

    assert large.status == health_pb2.HealthCheckResponse.SERVING
    assert proxy.received < LARGE // 8


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent connections do not use up the files of a coordinator; the time that they have is shortened here."""
    shortened = {**dict(SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": 100}
    assert dict(SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] <= 10_000
    monkeypatch.setattr(rpc_server, "SERVER_OPTIONS", tuple(shortened.items()))
    server = RpcServer(Security(), silent_logger())
    host, port = server.start("127.0.0.1:0", add_echo).rsplit(":", 1)

    with socket.create_connection((host, int(port))) as silent:
        while silent.recv(1 << 10):
            pass
    server.stop()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a connection of gRPC begins: who says this has ended its handshake."""


def connected(host: str, port: str, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """So many connections that say nothing more, each with the server's first answer."""
    found = [socket.create_connection((host, int(port)), source_address=(source, 0)) for _ in range(count)]
    for each in found:
        each.sendall(PREFACE)
        each.settimeout(20)
    return found


def is_open(connection: socket.socket) -> bool:
    """Whether the server has answered, and not closed it."""
    try:
        return bool(connection.recv(1))
    except ConnectionError:
        return False


def test_all_together_have_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some files of the process are left for its storage."""
    assert rpc_server.max_connections() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4
    monkeypatch.setattr(rpc_server, "max_connections", lambda: 4)
    server = RpcServer(Security(), silent_logger())
    host, port = server.start("127.0.0.1:0", add_echo).rsplit(":", 1)

    connections = connected(host, port, 6)
    assert 4 == sum(map(is_open, connections))
    for each in connections:
        each.close()
    server.stop()


def test_one_host_has_so_many_connections_and_others_have_theirs() -> None:
    """The newest are closed, with one line that names the host; a client of another host is answered."""
    log = io.StringIO()
    server = RpcServer(Security(), silent_logger())
    host, port = server.start("127.0.0.1:0", add_echo).rsplit(":", 1)
    limits = ConnectionLimits(int(port), make_logger("", stream=log), most=3)
    before = connected(host, port, 2)
    assert all(map(is_open, before))
    limits.close_surplus()
    greedy, other = connected(host, port, 5), connected(host, port, 2, source="127.0.0.2")
    assert all(map(is_open, [*greedy, *other]))

    limits.close_surplus()
    for each in greedy:
        each.settimeout(0.2)
    closed = 0
    for each in greedy:
        with contextlib.suppress(TimeoutError):
            while is_open(each):
                pass
            closed += 1
    assert 4 == closed
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert (["127.0.0.1"], 4) == (line["context"]["hosts"], line["context"]["closed"])
    with open_channel(f"{host}:{port}", Security()) as channel:
        unary: Any = channel
        assert b"1" == unary.unary_unary("/Echo/Unary")(b"x", timeout=20)
    for each in [*before, *greedy, *other]:
        each.close()
    server.stop()


def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file was left for it, or a connection ended while it was looked at, its thread was gone, and hosts had
    as many connections as they liked from then on."""
    tries = iter([OSError(errno.EMFILE, "Too many open files")])
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=20) as client,
        listener.accept()[0] as served,
        socket.socket() as ended,
    ):

        def connections(_port: int) -> Iterator[socket.socket]:
            for error in tries:
                raise error
            yield from (ended, served)

        monkeypatch.setattr(sender_limits, "connections", connections)
        limits = ConnectionLimits(0, silent_logger(), most=0, look_s=0.01)
        limits.start()
        try:
            assert b"" == client.recv(1)
        finally:
            limits.stop()


def test_what_is_refused_is_one_line_a_second_with_who_sent_it() -> None:
    """A hundred calls without the token: each caller hears one line, and the log has one about them."""
    log = io.StringIO()
    server = RpcServer(Security(TOKEN), make_logger("", stream=log))
    address = server.start("127.0.0.1:0", add_echo)
    said = set()
    channel: Any
    with open_channel(address, Security()) as channel:
        for _ in range(100):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary("/Echo/Unary")(b"x", timeout=20)
            error: Any = refused.value
            said.add((error.code(), error.details()))
    server.stop()

    assert 1 == len(said), said
    ((code, line),) = said
    lines = [json.loads(each) for each in log.getvalue().splitlines()]
    seconds = {each["ts"][:19] for each in lines}
    assert code is grpc.StatusCode.UNAUTHENTICATED and "\n" not in line
    assert {("refused", "127.0.0.1", line)} == {
        (each["msg"], each["context"]["who"], each["context"]["reason"]) for each in lines
    }
    assert len(lines) <= len(seconds) + 1


def test_a_refused_call_is_gone_with_its_end() -> None:
    """Each stayed in memory until a look for circles: where such looks are seldom, older versions of gRPC counted it
    among the connection's calls, of which they took no more."""
    server = RpcServer(Security(TOKEN), silent_logger())
    address = server.start("127.0.0.1:0", add_echo)
    channel: Any
    gc.collect()
    gc.disable()
    try:
        with open_channel(address, Security()) as channel:
            for _ in range(100):
                with pytest.raises(grpc.RpcError, match="the call carries no or another token"):
                    channel.unary_unary("/Echo/Unary")(b"x", timeout=20)
        left = [each for each in gc.get_objects() if issubclass(type(each), grpc.aio.AbortError)]  # no proxy is asked
    finally:
        gc.enable()
        server.stop()

    assert [] == left


@pytest.mark.parametrize("bind_host", ["*", "::", "[::]", "0.0.0.0"])
def test_every_address_is_listened_on_however_that_is_written(bind_host: str) -> None:
    """What says that nobody can connect to `*` names it as the host to listen on, which failed."""
    if ":" in bind_host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = RpcServer(Security(), silent_logger())
    try:
        _, port = parse_address(server.start("localhost:0", lambda _: [], bind_host))
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
    finally:
        server.stop()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_told_to_others_in_brackets() -> None:
    """A pod has its address without them, and nobody could connect to what it told others then."""
    server = RpcServer(Security(), silent_logger())
    try:
        told = server.start("::1:0", lambda _: [])
        assert told == f"[::1]:{parse_address(told)[1]}"
        with open_channel(told, Security()) as channel:
            request = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        server.stop()
