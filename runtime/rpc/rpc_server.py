"""The gRPC server of a coordinator or a relay: one asyncio loop on one thread, however many streams there are.

Starts and stops; what is served is handed in by the composition root, which builds the servicers once the loop is
there. The address is tried with a plain socket first, because the error of a taken port should be one clear line.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from snapline.dataflow.config import COORDINATOR_ADDRESS, COORDINATOR_BIND_HOST, RELAY_ADDRESS, RELAY_BIND_HOST
from snapline.dataflow.errors import SnaplineError
from snapline.protos.message_classes import POOL
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.grpc_channels import SERVER_OPTIONS, RoleInterceptor, add_port
from snapline.runtime.rpc.security import Security
from snapline.runtime.rpc.sender_limits import ConnectionLimits, RefusalLog
from snapline.runtime.rpc.tcp_connections import family_of

STOP_GRACE_SECONDS = 0.5
"""How long streams may take to end by themselves when the server stops."""

ENDING_SECONDS = 10.0
"""How long cancelled calls may take to end; they take milliseconds unless the machine is overloaded."""

START_TIMEOUT_SECONDS = 30.0

LIVE = "live"
"""Health checks of this name ask whether the process is well, whether or not it leads."""

_ANY_HOST = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 (refused as an address to tell others)

ResultT = TypeVar("ResultT")

AddServicers = Callable[[grpc.aio.Server], list[str]]
"""Adds the servicers to the server; returns the full names of their services."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens, for errors that say what to change."""

    what: str
    address_setting: str
    bind_host_setting: str


COORDINATOR = Listener("coordinator", COORDINATOR_ADDRESS.key, COORDINATOR_BIND_HOST.key)
RELAY = Listener("relay", RELAY_ADDRESS.key, RELAY_BIND_HOST.key)


class CannotListen(SnaplineError):
    """The address cannot be listened on; says why and what to change."""


class RpcServer:
    """A gRPC server with an event loop and a thread of its own."""

    def __init__(self, security: Security, logger: Logger, listener: Listener = COORDINATOR) -> None:
        self._security = security
        self._listener = listener
        self._logger = logger
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="snapline-rpc", daemon=True)
        self._server: grpc.aio.Server | None = None
        self.refusals = RefusalLog(logger)
        self._limits: ConnectionLimits | None = None
        self._health: Any = None
        self.address = ""
        """host:port that the server listens on, once it does."""

    def start(self, address: str, add_servicers: AddServicers, bind_host: str = "", *, leads: bool = True) -> str:
        """Listen and serve; returns the address, which is what others are told. `bind_host`: listen there instead of on
        the address's host. `leads`: whether the servicers do what they are there for. Raises CannotListen."""
        host, port = parse_address(address)
        if host.strip("[]") in _ANY_HOST:
            raise CannotListen(
                f"nobody can connect to {host}: give the address under which this {self._listener.what} is reached, "
                f"and {self._listener.bind_host_setting}={host} to listen on all of them"
            )
        bind_host = before_a_port(bind_host or host)
        try_to_listen(bind_host, port, self._listener)
        self._thread.start()
        try:
            self.address = self.run(self._start(f"{bind_host}:{port}", host, add_servicers, leads))
        except BaseException:
            self.stop()
            raise
        self._limits = ConnectionLimits(int(self.address.rpartition(":")[2]), self._logger)
        self._limits.start()
        return self.address

    def run(self, coroutine: Coroutine[Any, Any, ResultT], timeout: float = START_TIMEOUT_SECONDS) -> ResultT:
        """Run on the loop and wait; from another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def stop(self) -> None:
        """Stop serving, end the thread. Idempotent."""
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.stop()
        if self._thread.is_alive():
            if self._server is not None:
                self.run(self._stop(self._server))
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        if not self.loop.is_closed():
            self.loop.close()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _start(self, bind: str, host: str, add_servicers: AddServicers, leads: bool) -> str:
        self._health = health.aio.HealthServicer()
        roles = RoleInterceptor(self._security, answer_health_of_all(self._health), self.refusals.write)
        connections = ("grpc.max_allowed_incoming_connections", max_connections())
        server = grpc.aio.server(options=(*SERVER_OPTIONS, connections), interceptors=[roles])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        ours = add_servicers(server)
        names = [health.SERVICE_NAME, reflection.SERVICE_NAME, *ours]
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):  # those of ours are there
            POOL.AddSerializedFile(file.serialized_pb)
        reflection.enable_server_reflection(names, server, POOL)
        try:
            port = add_port(server, bind, self._security)
        except (RuntimeError, OSError) as error:
            raise CannotListen(f"cannot listen on {bind}: {error}") from error
        await server.start()
        self._server = server
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", LIVE, *names):
            await self._health.set(name, not_serving if name in ours and not leads else serving)
        return f"{before_a_port(host)}:{port}"

    async def _stop(self, server: grpc.aio.Server) -> None:
        await self._health.enter_graceful_shutdown()
        await server.stop(STOP_GRACE_SECONDS)
        # gRPC cancels its calls itself and returns while they are ending. One that is cancelled a second time in that
        # moment is logged by gRPC as an error with a traceback: they are given time, and only what does not end is
        # cancelled here.
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        if remaining:
            _, remaining = await asyncio.wait(remaining, timeout=ENDING_SECONDS)
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()


def max_connections() -> int:
    """How many connections the server takes: three quarters of the files that this process may open, so that some are
    left for storage."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4


def answer_health_of_all(servicer: Any) -> Any:
    """Return the handler of health checks that carry no token: it answers for the whole server, whatever service they
    ask for. Like a refusal it never reads a request, which could be as large as the largest message."""

    async def answer(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        yield await servicer.Check(health_pb2.HealthCheckRequest(), context)

    return grpc.stream_stream_rpc_method_handler(
        answer, response_serializer=health_pb2.HealthCheckResponse.SerializeToString
    )


def retrieve_exception(reading: asyncio.Task[None]) -> None:
    """For the done callback of a stream's reader: a stream that is gone fails it, too, and that is no news."""
    if not reading.cancelled():
        reading.exception()


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises CannotListen for anything else."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65_535:
        raise CannotListen(f"not an address: {address!r}; give host:port, for example 127.0.0.1:6123 (port 0: any)")
    return host, int(port)


def before_a_port(host: str) -> str:
    """The host to listen on as it stands before a port.

    >>> before_a_port("::"), before_a_port("*"), before_a_port("10.0.0.7")
    ('[::]', '0.0.0.0', '10.0.0.7')
    """
    if host == "*":
        return "0.0.0.0"  # noqa: S104 - which is what it means
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def try_to_listen(host: str, port: int, listener: Listener = COORDINATOR) -> None:
    """Raises CannotListen with one clear line when nobody could listen there."""
    with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
            probe.listen(1)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}; is another {listener.what} running there? "
                f"Choose another address with --bind or {listener.address_setting}"
            ) from error
