"""How gRPC is used everywhere: options of channels and servers, the shared secret, optional TLS.

gRPC objects must not exist before Spark's daemon forks: import this module in shells only, and never at the top of a
module that the daemon imports. gRPC's own fork handlers are off (`snapline/__init__.py`).

The secret or credential travels as metadata of every call; without TLS that is for loopback and trusted networks. It is
compared in constant time and never logged. Who may call what is decided by `snapline.runtime.cores.permissions`.
"""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc._common
import grpc.aio
from google.protobuf.message import DecodeError, Message

from snapline.dataflow.wire.field_counts import refuse_many_fields
from snapline.runtime.cores.credentials import ADMINISTRATOR, CredentialRefused, Identity
from snapline.runtime.cores.permissions import refuse_call, refuse_request
from snapline.runtime.cores.request_bounds import MAX_REQUEST_BYTES, refuse_bytes, refuse_size
from snapline.runtime.cores.senders import MAX_CALLS_OF_A_CONNECTION, host_of
from snapline.runtime.rpc.security import Security

LONGEST_SLEEP_SECONDS = 5.0
"""How long a thread that waits for a message sleeps before it looks by itself. It is woken when one comes; gRPC for
Python lets each such thread look ten times a second, for the sake of Python 2, so that a process with four streams
never rests."""

if hasattr(grpc._common, "MAXIMUM_WAIT_TIMEOUT"):  # noqa: SLF001 - there is no option for it; without it more is woken
    grpc._common.MAXIMUM_WAIT_TIMEOUT = LONGEST_SLEEP_SECONDS  # noqa: SLF001

PROBE_SECONDS = 2.0
"""So long each of several coordinators may take to accept a connection."""

MAX_MESSAGE_BYTES = 256 << 20
"""Largest envelope: inline state below the threshold of thousands of subtasks fits, a runaway message does not."""

KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 20_000

CONNECT_TIMEOUT_MS = 10_000
"""How long one attempt to connect may take; gRPC takes it from the least back-off. Hundreds of TaskManagers that dial
at once are slow to get through, and must not give up before."""

STREAM_IS_OPEN: tuple[tuple[str, str], ...] = (("snapline-stream", "open"),)
"""Initial metadata of a stream that was let in. A refused one may have initial metadata as well, and its status may
come later: without a sign of its own, the dialing side would now and then take a refusal for an open stream."""

COORDINATOR_METADATA_KEY = "snapline-coordinator"
"""Names, to a relay, the coordinator that a stream is for: host:port."""

LEADER_METADATA_KEY = "snapline-leader"
"""Trailing metadata of a call that a coordinator refuses because it stands by: host:port of the one that leads."""

OLDER_COORDINATOR = "the coordinator is of an older Snapline, which does not know this call: upgrade it first"
"""What is said of a call that is not there."""
STANDS_BY = "this coordinator stands by"
"""How the refusal of such a call begins."""

HEALTH_SERVICE = "/grpc.health.v1.Health/"
"""Health checks carry no secret: probes of Kubernetes and load balancers have none."""

FLOW_CONTROL: tuple[tuple[str, Any], ...] = (
    # to guess the bandwidth, gRPC answers nearly every message with a ping, which its sender has to answer: a quarter
    # of the CPU of a coordinator with hundreds of connections. A window of fixed size does for messages that are small
    # or rare.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)

HANDSHAKE_TIMEOUT_MS = 10_000
"""How long a connection may say nothing before it is closed. gRPC's own two minutes let a thousand silent ones use up
the files that a process may open."""

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    *FLOW_CONTROL,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

IDLE_MS = 300_000
"""How long a connection without a call is kept; who calls again connects again."""

SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # the constant in gRPC's sources is called MIN_RECV_PING_INTERVAL; under that name nothing happens, and after three
    # pings of a silent stream gRPC closes the connection: too_many_pings
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 4),
    (
        "grpc.http2.max_ping_strikes",
        0,
    ),  # pings that pile up on a busy machine are no attack: it would end good connections
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
    ("grpc.max_concurrent_streams", MAX_CALLS_OF_A_CONNECTION),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    *FLOW_CONTROL,
)


def open_channel(address: str, security: Security, hostname: str = "", *, pings: bool = True) -> grpc.Channel:
    """A channel of threads (not asyncio) with a connection of its own, which begins when it is used. Pass
    `security.metadata` with each call. `hostname`: the name that the other side's certificate carries, where that is
    not its address. `pings`: whether a silent connection is looked at; Arrow's servers end one at the fourth ping."""
    security = security.current()
    if "," in address:
        address = one_that_listens(address) if security.tls else _all_of(address)
    options = CHANNEL_OPTIONS if pings else tuple(each for each in CHANNEL_OPTIONS if "keepalive" not in each[0])
    if security.tls:
        credentials = grpc.ssl_channel_credentials(security.ca, security.key, security.certificate)
        name = [("grpc.ssl_target_name_override", hostname)] if hostname else []
        return grpc.secure_channel(address, credentials, options=[*options, *name])
    return grpc.insecure_channel(address, options=options)


def _all_of(addresses: str) -> str:
    """The target of several coordinators, of which one listens: gRPC tries them in turn, and takes numbers in place of
    names. A name that nobody knows is left out, as long as there are others."""
    found: dict[str, list[str]] = {"ipv4": [], "ipv6": []}
    parts = [part.strip() for part in addresses.split(",")]
    for part in parts:
        host, _, port = part.rpartition(":")
        with suppress(OSError, ValueError):
            for family, _, _, _, there in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
                is_old = family == socket.AF_INET
                found["ipv4" if is_old else "ipv6"].append(f"{there[0]}:{port}" if is_old else f"[{there[0]}]:{port}")
    kind = "ipv4" if found["ipv4"] else "ipv6"
    return f"{kind}:{','.join(found[kind])}" if found[kind] else parts[0]


def one_that_listens(addresses: str) -> str:
    """The coordinator that listens now, of several; the first one where none does. For TLS, to which the certificate
    that one of several shows would have to be for all of their addresses together."""
    parts = [part.strip() for part in addresses.split(",")]
    for part in parts:
        host, _, port = part.rpartition(":")
        with suppress(OSError, ValueError):
            socket.create_connection((host.strip("[]"), port), PROBE_SECONDS).close()
            return part
    return parts[0]


class _SharedChannel:
    """A channel, and how many use it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.users = 0


USERS_OF_A_CHANNEL = MAX_CALLS_OF_A_CONNECTION // 2
"""A user has a stream that stays, and makes a call beside it."""
_shared: dict[tuple[str, Security], list[_SharedChannel]] = {}
_shared_lock = threading.Lock()


@contextmanager
def shared_channel(address: str, security: Security) -> Iterator[grpc.Channel]:
    """A channel to the address that long streams of this process share, as many as a connection may have: gRPC has a
    thread for each channel, which wakes five times a second. Closed when nobody uses it; whoever leaves before ends its
    own calls."""
    key = (address, security.current())
    with _shared_lock:
        channels = _shared.setdefault(key, [])
        shared = next((each for each in channels if each.users < USERS_OF_A_CHANNEL), None)
        if shared is None:
            shared = _SharedChannel(open_channel(address, security))
            channels.append(shared)
        shared.users += 1
    try:
        yield shared.channel
    finally:
        with _shared_lock:
            shared.users -= 1
            is_last = not shared.users
            if is_last:
                channels.remove(shared)
            if not channels:
                _shared.pop(key, None)
        if is_last:
            shared.channel.close()


def open_aio_channel(address: str, security: Security) -> grpc.aio.Channel:
    """The same on a running asyncio loop, to one address."""
    security = security.current()
    if security.tls:
        credentials = grpc.ssl_channel_credentials(security.ca, security.key, security.certificate)
        return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def add_port(server: grpc.aio.Server, address: str, security: Security) -> int:
    """Listen; returns the port. Each connection is shown the certificate that lies in the file then. Raises
    RuntimeError or OSError from gRPC when that is not possible."""
    if not security.tls:
        return server.add_insecure_port(address)
    shown = [security.current()]

    def configuration_of(now: Security) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(now.key, now.certificate)], now.ca)

    def fetch() -> Any:
        now = security.current()
        if now == shown[0]:
            return None
        shown[0] = now
        return configuration_of(now)

    credentials = grpc.dynamic_ssl_server_credentials(configuration_of(shown[0]), fetch, True)
    return server.add_secure_port(address, credentials)


class RoleInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls that carry no credential, or one of a role that may not make them, before their request is read;
    and requests about another job than the credential is for.

    `health` answers health checks that carry no credential; it is told nothing of their request.
    """

    def __init__(
        self, security: Security, health: Any = None, refused: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        """`refused` is told of each refusal: who has sent what was refused, and why."""
        self._security = security
        self._health = health
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        try:
            identity = self._security.identify(handler_call_details.invocation_metadata)
        except CredentialRefused as error:
            if method.startswith(HEALTH_SERVICE) and self._health is not None:
                return self._health
            return refusal(grpc.StatusCode.UNAUTHENTICATED, str(error), self._refused)
        line = refuse_call(identity, method)
        if line:
            return refusal(grpc.StatusCode.PERMISSION_DENIED, line, self._refused)
        if handler.request_streaming:
            return _decoded(handler, identity, self._refused)
        return _limited(handler, method, identity, self._refused)


_CALLER: ContextVar[Identity] = ContextVar("caller", default=ADMINISTRATOR)


def caller() -> Identity:
    """Return who has made the call that is being answered, within the handler of a single request."""
    return _CALLER.get()


REFUSALS = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED})
"""How a call ends of which the log should say who has sent it."""


def _limited(handler: Any, method: str, identity: Identity, refused: Callable[[str, str], None]) -> Any:
    """The handler of a call with one request, for somebody who may not send every one, and nobody one of any size; what
    is refused is told."""
    decode = handler.request_deserializer

    def read(data: bytes) -> Any:
        if decode is None:
            return data
        if too_large := refuse_bytes(method, len(data), may_submit=not identity.job):
            return _NotRead(too_large)
        try:
            return _parsed(decode, data)
        except DecodeError as error:
            return _NotRead(_no_message(error))

    async def check(request: Any, context: Any) -> None:
        if isinstance(request, _NotRead):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.line)
        if too_large := refuse_size(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, too_large)
        line = refuse_request(identity, request)
        if line:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, line)

    async def answer(request: Any, context: Any) -> Any:
        try:
            await check(request, context)
            _CALLER.set(identity)
            return await handler.unary_unary(request, context)
        except grpc.aio.AbortError:
            if context.code() in REFUSALS:
                refused(f"{identity} at {host_of(context.peer())}", context.details())
            raise

    async def stream(request: Any, context: Any) -> Any:
        try:
            await check(request, context)
        except grpc.aio.AbortError:
            refused(f"{identity} at {host_of(context.peer())}", context.details())
            raise
        async for answered in handler.unary_stream(request, context):
            yield answered

    if handler.response_streaming:
        make, behavior = grpc.unary_stream_rpc_method_handler, stream
    else:
        make, behavior = grpc.unary_unary_rpc_method_handler, answer
    return make(behavior, read, handler.response_serializer)


@dataclass(frozen=True, slots=True)
class _NotRead:
    """Stands for bytes that are too many, or no message, of which gRPC itself would write a traceback for each."""

    line: str


def _parsed(decode: Callable[[bytes], Any] | None, data: bytes) -> Any:
    """The request, unless its fields would take far more memory than its bytes; None: these are it."""
    kind = getattr(decode, "__self__", None)  # of a message's FromString
    if isinstance(kind, type) and issubclass(kind, Message):
        refuse_many_fields(data, kind)
    return data if decode is None else decode(data)


def _no_message(error: DecodeError) -> str:
    return f"what was sent is no message: {str(error).splitlines()[0]}"


def _decoded(handler: Any, identity: Identity, refused: Callable[[str, str], None]) -> Any:
    """The handler of a stream of requests, which ends in one line at bytes that are no message."""

    async def end(context: Any, error: DecodeError) -> None:
        line = _no_message(error)
        refused(f"{identity} at {host_of(context.peer())}", line)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, line)

    async def converse(requests: Any, context: Any) -> None:
        try:
            await handler.stream_stream(requests, context)
        except DecodeError as error:
            await end(context, error)

    async def answer_each(requests: Any, context: Any) -> Any:
        try:
            async for answer in handler.stream_stream(requests, context):
                yield answer
        except DecodeError as error:
            await end(context, error)

    def read(data: bytes) -> Any:
        if len(data) > MAX_REQUEST_BYTES:
            raise DecodeError(f"it has {len(data)} bytes; {MAX_REQUEST_BYTES} are the most")
        return handler.request_deserializer(data)

    if inspect.iscoroutinefunction(handler.stream_stream):
        return grpc.stream_stream_rpc_method_handler(
            converse, partial(_parsed, handler.request_deserializer), handler.response_serializer
        )
    if handler.request_deserializer is None:  # a refusal, which reads nothing
        return handler
    # reflection, which is gRPC's own and says back what it hears
    return grpc.stream_stream_rpc_method_handler(answer_each, read, handler.response_serializer)


def refusal(code: grpc.StatusCode, line: str, refused: Callable[[str, str], None] = lambda *_: None) -> Any:
    """Return the handler that ends any call by its headers. A handler of a single request would read the request first,
    up to the largest message; one of a stream reads nothing that it does not ask for, and the answer is the same on the
    wire."""

    async def refuse(_requests: Any, context: Any) -> None:
        refused(host_of(context.peer()), line)
        context.set_code(code)  # an abort would keep the call in a circle of its own exception
        context.set_details(line)

    return grpc.stream_stream_rpc_method_handler(refuse)


def reason_of(error: grpc.RpcError | Exception) -> str:
    """One line about a failed call."""
    if isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details() or 'no details'}"
    return f"{type(error).__name__}: {error}"
