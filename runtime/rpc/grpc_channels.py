"""How gRPC is used everywhere: options of channels and servers, the shared secret, optional TLS.

gRPC objects must not exist before a fork, and its fork handlers must be off, because PySpark starts the JVM with a
plain fork: import this module before anything else of gRPC, in shells only, and never at the top of a module that
Spark's daemon imports.

The shared secret travels as metadata of every call; `security.auth.token` without TLS is for loopback and trusted
networks. It is compared in constant time and never logged.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc._common
import grpc.aio

from snapline.dataflow.config import (
    SECURITY_SSL_CA,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_KEY,
    SECURITY_TOKEN,
    Configuration,
)
from snapline.dataflow.errors import SnaplineError

LONGEST_SLEEP_SECONDS = 5.0
"""How long a thread that waits for a message sleeps before it looks by itself. It is woken when one comes; gRPC for
Python lets each such thread look ten times a second, for the sake of Python 2, so that a process with four streams
never rests."""

if hasattr(grpc._common, "MAXIMUM_WAIT_TIMEOUT"):  # noqa: SLF001 - there is no option for it; without it more is woken
    grpc._common.MAXIMUM_WAIT_TIMEOUT = LONGEST_SLEEP_SECONDS  # noqa: SLF001

MAX_MESSAGE_BYTES = 256 << 20
"""Largest envelope: inline state below the threshold of thousands of subtasks fits, a runaway message does not."""

KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 20_000

CONNECT_TIMEOUT_MS = 10_000
"""How long one attempt to connect may take; gRPC takes it from the least back-off. Hundreds of TaskManagers that dial
at once are slow to get through, and must not give up before."""

TOKEN_METADATA_KEY = "snapline-token"  # noqa: S105 - the name of a header

STREAM_IS_OPEN: tuple[tuple[str, str], ...] = (("snapline-stream", "open"),)
"""Initial metadata of a stream that was let in. A refused one may have initial metadata as well, and its status may
come later: without a sign of its own, the dialing side would now and then take a refusal for an open stream."""

COORDINATOR_METADATA_KEY = "snapline-coordinator"
"""Names, to a relay, the coordinator that a stream is for: host:port."""

LEADER_METADATA_KEY = "snapline-leader"
"""Trailing metadata of a call that a coordinator refuses because it stands by: host:port of the one that leads."""

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
    *FLOW_CONTROL,
)


class SecurityError(SnaplineError):
    """A certificate or key cannot be used; names the file and the setting."""


@dataclass(frozen=True)
class Security:
    """What both ends of a channel have to agree on."""

    token: str = ""
    """Shared secret; empty: none is asked for."""
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    @property
    def tls(self) -> bool:
        """Whether channels are encrypted; then both sides show a certificate."""
        return bool(self.ca)

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> Security:
        """Reads the files. Raises SecurityError naming the one that cannot be read, or the one that is missing."""
        options = (SECURITY_SSL_CA, SECURITY_SSL_CERTIFICATE, SECURITY_SSL_KEY)
        paths = [configuration.get_option(option) for option in options]
        token = configuration.get_option(SECURITY_TOKEN)
        if not any(paths):
            return cls(token)
        contents = []
        for option, path in zip(options, paths, strict=True):
            if not path:
                raise SecurityError(f"{option.key} is not set; TLS needs {', '.join(o.key for o in options)}")
            try:
                contents.append(Path(path).read_bytes())
            except OSError as error:
                raise SecurityError(f"{option.key}: cannot read {path}: {error.strerror}") from error
        return cls(token, *contents)

    def __repr__(self) -> str:
        """Says what is on, not what it is."""
        return f"Security(token={'set' if self.token else 'none'}, tls={self.tls})"

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a client sends with each call."""
        return ((TOKEN_METADATA_KEY, self.token),) if self.token else ()


def open_channel(address: str, security: Security) -> grpc.Channel:
    """A channel of threads (not asyncio); connects when it is used. Pass `security.metadata` with each call."""
    if "," in address:  # several coordinators, of which one listens; gRPC tries them in turn
        address = "ipv4:" + ",".join(part.strip() for part in address.split(","))
    if security.tls:
        credentials = grpc.ssl_channel_credentials(security.ca, security.key, security.certificate)
        return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def open_aio_channel(address: str, security: Security) -> grpc.aio.Channel:
    """The same on a running asyncio loop, to one address."""
    if security.tls:
        credentials = grpc.ssl_channel_credentials(security.ca, security.key, security.certificate)
        return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def add_port(server: grpc.aio.Server, address: str, security: Security) -> int:
    """Listen; returns the port. Raises RuntimeError or OSError from gRPC when that is not possible."""
    if security.tls:
        credentials = grpc.ssl_server_credentials([(security.key, security.certificate)], security.ca, True)
        return server.add_secure_port(address, credentials)
    return server.add_insecure_port(address)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the shared secret, before their request is read.

    `health` answers health checks that carry no secret; it is told nothing of their request.
    """

    def __init__(self, token: str, health: Any = None) -> None:
        self._token = token.encode()
        self._health = health

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        for key, value in handler_call_details.invocation_metadata:
            if key == TOKEN_METADATA_KEY and hmac.compare_digest(str(value).encode(), self._token):
                return handler
        is_health_check = handler_call_details.method.startswith(HEALTH_SERVICE)
        return self._health if is_health_check and self._health is not None else REFUSAL


async def _refuse(_requests: Any, context: Any) -> Any:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the call carries no or another token: set security.auth.token to the cluster's",
    )
    yield None  # never reached: makes this a stream


REFUSAL: Any = grpc.stream_stream_rpc_method_handler(_refuse)
"""Ends any call by its headers. A handler of a single request would read the request first, up to the largest message;
one of a stream reads nothing that it does not ask for, and the answer is the same on the wire."""


def reason_of(error: grpc.RpcError | Exception) -> str:
    """One line about a failed call."""
    if isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details() or 'no details'}"
    return f"{type(error).__name__}: {error}"
