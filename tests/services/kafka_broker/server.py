"""The nodes: sockets on loopback, one event loop in a thread of its own, and what goes wrong on purpose."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.services.kafka_broker.cluster import Cluster
from tests.services.kafka_broker.groups import Groups
from tests.services.kafka_broker.requests import REQUESTS, VERSIONS, Requests, message, place_of

TICK_SECONDS = 0.05
WITHOUT_NAME = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
T = TypeVar("T")


@dataclass
class Fault:
    """Something that goes wrong when a request comes."""

    api: str
    """Name of the request, `EndTxn` for example."""
    action: str
    """`disconnect`, `crash` (all nodes at once, until `restart`), or `error`."""
    when: str = "before"
    """It is done, or `after` it was done: then nobody hears the answer."""
    skip: int = 0
    """So many requests go well first."""
    count: int = 1
    """So often."""
    code: int = 0
    """With `error`."""
    restart: bool = False
    """After a crash the cluster starts again at once."""


class Crash(Exception):
    """The nodes are gone."""


class KafkaBroker:
    """A cluster of one or several nodes on loopback; a context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 1,
        users: Mapping[str, str] | None = None,
        auto_create_partitions: int = 0,
        transaction_max_timeout_ms: int = 900_000,
    ) -> None:
        """`directory` keeps the journal. With `users`, clients need SASL PLAIN. With `auto_create_partitions`, a topic
        that is written to is made."""
        self.journal = directory / "kafka.journal"
        self.users = users
        self.auto_create_partitions = auto_create_partitions
        self.transaction_max_timeout_ms = transaction_max_timeout_ms
        self._reserved = [_reserved_port() for _ in range(nodes)]
        self.ports: list[int] = [int(reserved.getsockname()[1]) for reserved in self._reserved]
        self.live: list[int] = list(range(nodes))
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        """Names of the requests that came, in order."""
        self._later_ms = 0
        self._servers: dict[int, asyncio.Server] = {}
        self._connections: dict[asyncio.StreamWriter, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka-broker", daemon=True)
        self._thread.start()
        self._up: bool = False
        self.restart()

    # --- from other threads -----------------------------------------------------------------------------------------

    def __enter__(self) -> KafkaBroker:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.close()

    @property
    def bootstrap(self) -> str:
        """For clients."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def call(self, function: Callable[[], T]) -> T:
        """Run it where the state lives."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def restart(self) -> None:
        """After a crash: the journal is read, and what was decided is finished."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def crash(self) -> None:
        """All nodes at once; nothing is written or answered any more."""
        self.call(self._crash)

    def stop_node(self, node: int) -> None:
        """One node is gone; others lead its partitions."""
        self.call(lambda: self._stop_node(node))

    def fail(self, api: str, action: str, **more: Any) -> Fault:
        """Plan a fault."""
        fault = Fault(api, action, **more)
        self.faults.append(fault)
        return fault

    def crash_after(self, fact: str, count: int = 1) -> None:
        """Crash when so many more facts of a kind are in the journal (`append`, `transaction`, `offset`,
        `end_offsets`), and start again at once."""
        self.call(lambda: self.cluster.crash_after(fact, count))

    def advance(self, ms: int) -> None:
        """So much time passes."""
        self.call(lambda: self._advance(ms))

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """With `max.message.bytes` for example."""
        self.call(lambda: self.cluster.create_topic(name, partitions, config))

    def open_transactions(self) -> list[str]:
        """Transactional ids with one that is neither committed nor aborted."""
        return self.call(
            lambda: [
                name
                for name, known in self.cluster.transactions.items()
                if known.state in {"Ongoing", "PrepareCommit", "PrepareAbort"}
            ]
        )

    def close(self) -> None:
        """Stop everything; the journal stays."""
        self.call(self._crash)

        async def settle() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(settle(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
        for reserved in self._reserved:
            reserved.close()

    # --- on the loop ------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The clock of the cluster."""
        return int(time.time() * 1000) + self._later_ms

    def _advance(self, ms: int) -> None:
        self._later_ms += ms
        self._tick()

    async def _start(self) -> None:
        if self._up:
            return
        self.cluster = Cluster(self.journal, self.now_ms)
        self.cluster.on_crash = Crash()
        self.groups = Groups(self.now_ms)
        self._changed = asyncio.Event()
        self.live = list(range(len(self.ports)))
        for node in self.live:
            self._servers[node] = await asyncio.start_server(
                partial(self._serve, node), "127.0.0.1", self.ports[node], reuse_port=True
            )
        self._up = True
        ticking = asyncio.ensure_future(self._ticks())
        self._tasks.add(ticking)
        ticking.add_done_callback(self._tasks.discard)

    def _crash(self) -> None:
        if not self._up:
            return
        self._up = False
        for server in self._servers.values():
            server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        self._servers.clear()
        self.wake()
        self.cluster.close()

    def _stop_node(self, node: int) -> None:
        self.live.remove(node)
        self._servers.pop(node).close()
        for writer, of in list(self._connections.items()):
            if of == node:
                writer.transport.abort()
        self.wake()

    async def _ticks(self) -> None:
        while self._up:
            self._tick()
            await asyncio.sleep(TICK_SECONDS)

    def _tick(self) -> None:
        try:
            self.groups.tick()
            if self.cluster.abort_timed_out():
                self.wake()
        except Crash:
            self._crash()

    def wake(self) -> None:
        """Who waits for records looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, seconds: float) -> None:
        """Wait for something new."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            pass
        if not self._up:
            raise ConnectionError("the cluster is down")

    def leader(self, topic: str, partition: int) -> int:
        """Node that leads a partition."""
        return self.live[(place_of(topic, len(self.ports)) + partition) % len(self.live)]

    def coordinator(self, key: str) -> int:
        """Node of a group or of a transactional id."""
        return self.live[place_of(key, len(self.live))]

    async def _serve(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = node
        requests = Requests(self, node)
        allowed = self.users is None
        try:
            while self._up:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                frame = await reader.readexactly(size)
                key, version, correlation = struct.unpack_from(">hhi", frame)
                name, kind = REQUESTS[key]
                if not allowed and name not in WITHOUT_NAME:
                    break
                self.seen.append(name)
                too_new = name == "ApiVersions" and version > VERSIONS[name][1]
                request = None if too_new else kind.decode(frame, version=version, header=True)
                if (fault := self._fault(name)) is not None and fault.when == "before":
                    if not self._break(fault, writer):
                        break
                    response = _error_response(name, fault.code)
                else:
                    response = await requests.answer(name, request, version)
                    if fault is not None and not self._break(fault, writer):
                        break
                if response is None:
                    continue
                if name == "SaslAuthenticate":
                    allowed = response.error_code == 0
                response.API_VERSION = 0 if too_new else version
                response.with_header(correlation_id=correlation)
                writer.write(bytes(response.encode(header=True, framed=True)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Crash:
            self._crash()
            await self._start()
        finally:
            self._connections.pop(writer, None)
            writer.close()

    def _fault(self, name: str) -> Fault | None:
        for fault in self.faults:
            if fault.api != name:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.count -= 1
            if not fault.count:
                self.faults.remove(fault)
            return fault
        return None

    def _break(self, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection lives."""
        if fault.action == "error":
            return True
        if fault.action == "crash":
            self._crash()
            if fault.restart:
                restarting = asyncio.ensure_future(self._start())
                self._tasks.add(restarting)
                restarting.add_done_callback(self._tasks.discard)
        writer.transport.abort()
        return False


def _error_response(name: str, code: int) -> Any:
    return message(f"{name}Response")(error_code=code)


def _reserved_port() -> socket.socket:
    """A port that nobody else on this machine gets as long as the socket is open, also while no server listens on
    it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
