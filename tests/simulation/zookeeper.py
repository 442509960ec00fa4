"""A ZooKeeper ensemble and kazoo's client, simulated: nodes, sessions, transactions, watches, and connections that
break.

The product's own `ZooKeeperSession`, `LeaderElection`, `Candidacy`, `ZooKeeperHighAvailability`, `LeaderTableWriter`
and `ZooKeeperLeaderRetrieval` run on it. The ensemble is one that never fails, at the other end of a network that does:
a request may not arrive, or only its answer may get lost; a session whose client was not heard of for its timeout is
over, and its ephemeral nodes are gone, whatever that client believes. Errors are kazoo's.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from snapline.testing.simulated.world import Process, World
from tests.simulation.threads import Worker

ENSEMBLE = "zookeeper"
"""Its name on the network."""
EXPIRE_EVERY_MS = 50
RECONNECT_MS = 40
HELD_BACK_MS = 10


@dataclass(slots=True)
class Node:
    """One node."""

    data: bytes
    version: int = 0
    owner: int = 0
    """Session of an ephemeral one."""
    created: int = 0
    """How many nodes were created before it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change, or a check."""

    kind: str
    """create, set, delete, check."""
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequence: bool = False


@dataclass(slots=True)
class ServerSession:
    """What the ensemble knows of a client."""

    timeout_ms: int
    heard_ms: int


@dataclass
class SimulatedEnsemble:
    """All nodes and sessions."""

    world: World
    nodes: dict[str, Node] = field(default_factory=lambda: {"/": Node(b"")})
    sessions: dict[int, ServerSession] = field(default_factory=dict)
    on_write: Callable[[int, Operation], None] = lambda session, operation: None
    """Oracle: told of every change."""
    lose_answer: Callable[[], bool] = lambda: False
    """Fault: the connection breaks when a request has been served and before it is answered."""
    _watches: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    _created: int = 0

    def start(self) -> None:
        self._expire()

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open_session(self, timeout_ms: int) -> int:
        number = self.world.number("zookeeper session")
        self.sessions[number] = ServerSession(timeout_ms, self.world.clock.now_ms)
        return number

    def heard_of(self, session: int) -> bool:
        """False: it is over."""
        known = self.sessions.get(session)
        if known is None:
            return False
        known.heard_ms = self.world.clock.now_ms
        return True

    def end_session(self, session: int) -> None:
        if self.sessions.pop(session, None) is not None:
            for path in [path for path, node in self.nodes.items() if node.owner == session]:
                self.remove(path)

    def remove(self, path: str) -> None:
        """By somebody else."""
        del self.nodes[path]
        self._changed(path)

    def _expire(self) -> None:
        now_ms = self.world.clock.now_ms
        for number, session in list(self.sessions.items()):
            if now_ms - session.heard_ms > session.timeout_ms:
                self.world.story.say(ENSEMBLE, f"session {number} expires")
                self.end_session(number)
        self.world.clock.after(EXPIRE_EVERY_MS, self._expire)

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> tuple[bytes, Node]:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(path)
        return node.data, Node(node.data, node.version, node.owner, node.created)

    def children(self, path: str) -> list[str]:
        if path not in self.nodes:
            raise NoNodeError(path)
        prefix = "/" if path == "/" else f"{path}/"
        return [
            name[len(prefix) :] for name in self.nodes if name.startswith(prefix) and "/" not in name[len(prefix) :]
        ]

    def watch(self, path: str, fire: Callable[[], None]) -> None:
        self._watches.setdefault(path, []).append(fire)

    # --- writing ------------------------------------------------------------------------------------------------------

    def apply(self, session: int, operations: Sequence[Operation]) -> list[Any]:
        """All or none: the results of all, or what kazoo shows for a transaction that was rolled back."""
        kept = dict(self.nodes)
        results: list[Any] = []
        changed: list[Operation] = []
        for position, operation in enumerate(operations):
            try:
                results.append(self._apply(session, operation, changed))
            except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError) as error:
                self.nodes = kept
                after = len(operations) - position - 1
                return [
                    *(RolledBackError() for _ in range(position)),
                    error,
                    *(RuntimeInconsistency() for _ in range(after)),
                ]
        for change in changed:
            self.on_write(session, change)
            self._changed(change.path)
        return results

    def _apply(self, session: int, operation: Operation, changed: list[Operation]) -> Any:
        path, node = operation.path, self.nodes.get(operation.path)
        if operation.kind == "create":
            return self._create(session, operation, changed)
        if node is None:
            raise NoNodeError(path)
        if operation.version not in (-1, node.version):
            raise BadVersionError(path)
        if operation.kind == "check":
            return True
        changed.append(operation)
        if operation.kind == "delete":
            if self.children(path):
                raise NotEmptyError(path)
            del self.nodes[path]
            return True
        self.nodes[path] = Node(operation.data, node.version + 1, node.owner, node.created)
        return self.nodes[path]

    def _create(self, session: int, operation: Operation, changed: list[Operation]) -> str:
        path = operation.path
        parent = path.rpartition("/")[0] or "/"
        if parent not in self.nodes:
            raise NoNodeError(parent)
        self._created += 1
        if operation.sequence:
            path = f"{path}{self._created:010d}"
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = Node(operation.data, 0, session if operation.ephemeral else 0, self._created)
        changed.append(Operation("create", path, operation.data))
        return path

    def _changed(self, path: str) -> None:
        for fire in self._watches.pop(path, ()):
            fire()


class SimulatedResult:
    """kazoo's asynchronous result."""

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._ready = False
        self._wakers: list[Callable[[], None]] = []

    def ready(self) -> bool:
        return self._ready

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Once."""
        if not self._ready:
            self._value, self._error, self._ready = value, error, True
            wakers, self._wakers = self._wakers, []
            for wake in wakers:
                wake()

    def wait(self, timeout: float | None = None) -> None:
        if not self._ready:
            worker = Worker.running
            assert worker is not None, "a process waits for ZooKeeper on no thread of its own"
            self._wakers.append(worker.wait(None if timeout is None else round(timeout * 1000)))
            worker.park()

    def get(self) -> Any:
        while not self._ready:
            self.wait()
        if self._error is not None:
            raise self._error
        return self._value


class SimulatedClient:
    """kazoo.client.KazooClient, as far as the product uses it."""

    def __init__(self, ensemble: SimulatedEnsemble, process: Process, timeout_ms: int) -> None:
        self._ensemble = ensemble
        self._process = process
        self._timeout_ms = timeout_ms
        self._rng: random.Random = process.world.random(f"zookeeper client of {process.name}")
        self._listeners: list[Callable[[str], Any]] = []
        self._session = 0
        self._state = ""
        """CONNECTED, SUSPENDED, LOST; empty: not started, or stopped."""
        self._answered_ms = 0
        self._connection = 0
        """Counts connections: what belongs to an earlier one gets lost."""
        self._pending: dict[SimulatedResult, None] = {}
        self._queued: list[tuple[SimulatedResult, Callable[[], Any]]] = []
        self._next_free_ms = [0, 0]
        self._travelling: list[deque[tuple[int, Callable[[], None]]]] = [deque(), deque()]
        """Requests and answers, each in order."""
        self._watches: list[Callable[[Any], Any]] = []

    # --- the connection -----------------------------------------------------------------------------------------------

    def add_listener(self, listener: Callable[[str], Any]) -> None:
        self._listeners.append(listener)

    def start(self, timeout: float) -> None:
        worker, clock = Worker.running, self._process.world.clock
        assert worker is not None
        deadline_ms = clock.now_ms + round(timeout * 1000)
        worker.sleep(self._delay_ms())
        while not (self._reaches() and self._hears()):
            if clock.now_ms >= deadline_ms:
                raise KazooTimeoutError("Connection time-out")
            worker.sleep(RECONNECT_MS)
        self._session = self._ensemble.open_session(self._timeout_ms)
        self._answered_ms = clock.now_ms
        self._enter(KazooState.CONNECTED)
        self._process.later(self._timeout_ms // 3, self._ping)

    def stop(self) -> None:
        """In order: the ensemble is told, if it can be."""
        if self._state and self._process.alive:
            if self._state == KazooState.CONNECTED and self._reaches():
                session, ensemble = self._session, self._ensemble
                self._process.world.clock.after(self._delay_ms(), lambda: ensemble.end_session(session))
            self._state = ""
            self._connection += 1
            self._fail_all(ConnectionClosedError())

    def close(self) -> None: ...

    def break_connection(self) -> None:
        """The client notices, and connects again as soon as it can."""
        if self._state == KazooState.CONNECTED:
            self._suspend()

    def _ping(self) -> None:
        if self._state not in (KazooState.CONNECTED, KazooState.SUSPENDED):
            return
        now_ms = self._process.world.clock.now_ms
        lives = not self._reaches() or self._ensemble.heard_of(self._session)
        if self._reaches() and self._hears():
            self._answered_ms = now_ms
            if not lives:
                self._enter(KazooState.LOST)
                self._fail_all(SessionExpiredError())
                self._process.later(RECONNECT_MS, self._another_session)
                return
            if self._state == KazooState.SUSPENDED:
                self._connected_again()
        elif self._state == KazooState.CONNECTED and now_ms - self._answered_ms >= self._timeout_ms * 2 // 3:
            self._suspend()
        pause_ms = self._timeout_ms // 3 if self._state == KazooState.CONNECTED else RECONNECT_MS
        self._process.later(pause_ms, self._ping)

    def _another_session(self) -> None:
        """Kazoo goes on with a new session, unless it was stopped."""
        if self._state == KazooState.LOST:
            self._session = self._ensemble.open_session(self._timeout_ms)
            self._answered_ms = self._process.world.clock.now_ms
            self._enter(KazooState.CONNECTED)
            self._ping()

    def _suspend(self) -> None:
        self._connection += 1
        self._enter(KazooState.SUSPENDED)
        pending, self._pending = self._pending, {}
        for result in pending:
            result.settle(None, ConnectionLoss())

    def _connected_again(self) -> None:
        self._enter(KazooState.CONNECTED)
        queued, self._queued = self._queued, []
        for result, serve in queued:
            self._transmit(result, serve)
        watches, self._watches = self._watches, []
        for watch in watches:  # something may have changed meanwhile
            watch(None)

    def _enter(self, state: str) -> None:
        self._state = state
        for listener in list(self._listeners):
            listener(state)

    def _fail_all(self, error: Exception) -> None:
        results = [*self._pending, *(result for result, _ in self._queued)]
        self._pending, self._queued = {}, []
        for result in results:
            result.settle(None, error)

    def _reaches(self) -> bool:
        return not self._process.world.network.is_cut(self._process.name, ENSEMBLE)

    def _hears(self) -> bool:
        return not self._process.world.network.is_cut(ENSEMBLE, self._process.name)

    def _delay_ms(self) -> int:
        return self._rng.randint(0, 3)

    # --- requests -----------------------------------------------------------------------------------------------------

    def create_async(
        self, path: str, value: bytes, ephemeral: bool = False, sequence: bool = False, makepath: bool = False
    ) -> SimulatedResult:
        def serve() -> Any:
            if makepath:
                self._make_path(path.rpartition("/")[0])
            [result] = self._apply([Operation("create", path, value, ephemeral=ephemeral, sequence=sequence)])
            if isinstance(result, Exception):
                raise result
            return result

        return self._send(serve)

    def get_async(self, path: str, watch: Callable[[Any], Any] | None = None) -> SimulatedResult:
        return self._send(lambda: self._watching(path, watch, lambda: self._ensemble.get(path)))

    def exists_async(self, path: str, watch: Callable[[Any], Any] | None = None) -> SimulatedResult:
        return self._send(lambda: self._watching(path, watch, lambda: self._ensemble.nodes.get(path)))

    def get_children_async(self, path: str) -> SimulatedResult:
        return self._send(lambda: self._ensemble.children(path))

    def transaction(self) -> SimulatedTransaction:
        return SimulatedTransaction(lambda operations: self._send(lambda: self._apply(operations)))

    def _apply(self, operations: Sequence[Operation]) -> list[Any]:
        return self._ensemble.apply(self._session, operations)

    def _make_path(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for length in range(1, len(parts) + 1):
            self._apply([Operation("create", "/" + "/".join(parts[:length]))])

    def _watching(self, path: str, watch: Callable[[Any], Any] | None, read: Callable[[], Any]) -> Any:
        if watch is not None:
            self._watches.append(watch)
            self._ensemble.watch(path, lambda: self._fire(watch))
        return read()

    def _fire(self, watch: Callable[[Any], Any]) -> None:
        connection = self._connection

        def arrive() -> None:
            if connection != self._connection or watch not in self._watches:
                return
            if not self._hears():  # it is sent again for as long as the connection is thought to live
                self._process.later(RECONNECT_MS, arrive)
                return
            self._watches.remove(watch)
            watch(None)

        self._process.later(self._delay_ms(), arrive)

    def _send(self, serve: Callable[[], Any]) -> SimulatedResult:
        result = SimulatedResult()
        if not self._process.alive:
            self._process.kill_here()
        if self._state == KazooState.CONNECTED:
            self._transmit(result, serve)
        elif self._state == KazooState.SUSPENDED:
            self._queued.append((result, serve))
        else:
            result.settle(None, SessionExpiredError() if self._state == KazooState.LOST else ConnectionClosedError())
        return result

    def _transmit(self, result: SimulatedResult, serve: Callable[[], Any]) -> None:
        """In the order in which they were sent; one that does not arrive is given up with its connection."""
        self._pending[result] = None
        connection = self._connection

        def arrive() -> None:
            if not self._ensemble.heard_of(self._session):
                self._answer(connection, result, None, SessionExpiredError())
                return
            try:
                value, error = serve(), None
            except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError) as problem:
                value, error = None, problem
            if self._ensemble.lose_answer():
                self._process.world.story.say(ENSEMBLE, f"an answer to {self._process.name} gets lost")
                self._process.run(self.break_connection)
            else:
                self._answer(connection, result, value, error)

        self._in_order(0, connection, self._reaches, arrive)

    def _answer(self, connection: int, result: SimulatedResult, value: Any, error: Exception | None) -> None:
        def deliver() -> None:
            if connection == self._connection and result in self._pending:
                del self._pending[result]
                result.settle(value, error)

        self._in_order(1, connection, self._hears, lambda: self._process.run(deliver))

    def _in_order(self, way: int, connection: int, is_open: Callable[[], bool], action: Callable[[], None]) -> None:
        """What is on its way while the two are cut off waits, for as long as the connection lasts."""
        clock, travelling = self._process.world.clock, self._travelling[way]
        travelling.append((connection, action))

        def arrive() -> None:
            connection, action = travelling[0]
            if is_open():
                travelling.popleft()
                action()
            elif connection == self._connection:
                clock.after(HELD_BACK_MS, arrive)
            else:
                travelling.popleft()

        at_ms = max(clock.now_ms + self._delay_ms(), self._next_free_ms[way])
        self._next_free_ms[way] = at_ms
        clock.at(at_ms, arrive)


class SimulatedTransaction:
    """kazoo's TransactionRequest."""

    def __init__(self, commit: Callable[[list[Operation]], SimulatedResult]) -> None:
        self._commit = commit
        self._operations: list[Operation] = []

    def check(self, path: str, version: int) -> None:
        self._operations.append(Operation("check", path, version=version))

    def create(self, path: str, value: bytes) -> None:
        self._operations.append(Operation("create", path, value))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._operations.append(Operation("set", path, value, version))

    def delete(self, path: str, version: int = -1) -> None:
        self._operations.append(Operation("delete", path, version=version))

    def commit_async(self) -> SimulatedResult:
        return self._commit(self._operations)
