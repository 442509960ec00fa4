"""A process that has a credential of its own and says anything: each message that anybody has sent, at any time, again,
with any field changed, for the tasks and resources of others, or as bytes that were damaged on the way.

The stranger hears everything. It dials the ResourceManager and the JobMasters as a TaskManager does, and what it says
goes through the boundary of a real coordinator: the bytes are decoded with their bounds, and the role of its credential
is looked at. It offers slots of its own to each JobMaster, and tasks come to it only in such as a ResourceManager has
given it: that is an oracle here. What it may say for these it does not say, because it would be believed. A
snapshot that the user's next job claims names files of others, which must still be there in the end. The other oracles
are those of honest runs: no lie ends a coordinator, completes a checkpoint, deletes a file or changes what a job puts
out. Only runs that ask for the fault `STRANGER` have one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from google.protobuf.message import DecodeError

from snapline.coordinator.checkpoint.metadata import METADATA_FILE_NAME, build_metadata, parse_metadata
from snapline.dataflow.ids import AllocationID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.snapshot.handles import SegmentStateHandle, StreamStateHandle
from snapline.dataflow.wire.codec import WireError, decode_envelope
from snapline.dataflow.wire.envelope_bytes import serialize_envelope
from snapline.dataflow.wire.messages import (
    Fenced,
    OfferSlots,
    RegisterTaskExecutorAtJobMaster,
    RequestSlot,
    SlotOffer,
    SubmitTasks,
)
from snapline.protos import cluster_pb2
from snapline.runtime.cores.connections import (
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
    Peer,
    PeerKind,
)
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.cores.message_permissions import refuse_messages
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.testing.simulated.world import Process, Violation, World
from tests.simulation.electing_cluster import ElectingCluster

STRANGER = "stranger"
"""The fault."""
NAME = ResourceID("stranger")
PAUSE_MS_MAX = 20
"""Between two things that it says of itself, which may be several messages."""
ANSWERING = 0.4
"""How often it says what it has just heard, changed, at once: perhaps it comes before what it heard."""
OFFERING = 0.2
"""How often it offers a slot to a JobMaster, of those times at which it speaks of itself."""
CONNECTIONS = 6
HEARD_MAX = 40
"""Messages of each kind, and values of each field, that it remembers."""
NUMBERS = (-1, 0, 1, 2, 3, 1 << 31, 1 << 40)


class Stranger:
    """The one of a run."""

    def __init__(self, world: World, cluster: ElectingCluster, say: Callable[[str], None]) -> None:
        self._rng = world.random("stranger")
        self._cluster = cluster
        self._say = say
        self._process = Process(world, NAME)
        self._identity = Identity(Role.TASK_MANAGER, name=NAME)
        self._heard: dict[type, deque[Any]] = defaultdict(lambda: deque(maxlen=HEARD_MAX))
        self._values: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=HEARD_MAX))
        self._sessions: deque[LeaderSessionID] = deque(maxlen=HEARD_MAX)
        self._open: dict[ConnectionID, Peer] = {}
        self._own: set[Any] = set()
        """Attempts that were deployed on it."""
        self._given: set[AllocationID] = set()
        """The slots that a ResourceManager has asked it for."""
        self._active = False
        self.said = 0
        self.refused = 0

    def start(self) -> None:
        """Hear and speak from now on."""
        self._active = True
        lies = self._cluster.lies

        def lies_of(process: str, envelope: Fenced[Any]) -> list[Any]:
            self.hear(envelope)
            return lies(process, envelope)

        self._cluster.lies = lies_of
        self._process.later(1, self._go_on)

    def stop(self) -> None:
        """Be gone."""
        if self._active:
            self._active = False
            self._say(f"the stranger has said {self.said} things, {self.refused} of them were refused at the boundary")
            self._open.clear()
            self._process.world.network.crash(NAME)

    def hear(self, envelope: Fenced[Any]) -> None:
        """Remember what anybody has sent."""
        self._sessions.append(envelope.leader_session_id)
        self._heard[type(envelope.message)].append(envelope.message)
        self._remember(envelope.message)
        if self._active and self._rng.random() < ANSWERING:
            self._process.later(0, lambda: self._answer(envelope.message))

    def _answer(self, message: Any) -> None:
        """Say something else than somebody has just said, wherever that was."""
        for connection in list(self._open):
            changed = self._changed(message)
            if connection in self._open and changed != message:
                self._speak(connection, changed)

    def _remember(self, message: Any) -> None:
        for each in fields(message):
            value = getattr(message, each.name)
            self._values[each.name].append(value)
            if is_dataclass(value):
                self._remember(value)

    # --- what it does -------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self._active:
            return
        if len(self._open) < CONNECTIONS:
            self._dial()
        for connection, peer in list(self._open.items()):
            if peer.kind is PeerKind.JOB_MASTER and self._rng.random() < OFFERING:
                self._offer(connection, peer.job_id)
            for _ in range(self._rng.choice((0, 0, 1, 1, 5))):
                if self._heard and connection in self._open:
                    self._speak(connection, self._anything())
        self._process.later(self._rng.randint(1, PAUSE_MS_MAX), self._go_on)

    def _dial(self) -> None:
        jobs = [job_id for job_id in self._values["job_id"] if job_id]
        coordinators = [host.name for host in self._cluster.hosts.values()] or ["coordinator"]
        address = f"{self._rng.choice(coordinators)}:6123"
        peer = Peer(PeerKind.RESOURCE_MANAGER, address)
        if jobs and self._rng.random() < 0.7:
            peer = Peer(PeerKind.JOB_MASTER, address, JobID(self._rng.choice(jobs)))
        connection = ConnectionID(f"lie-{self._process.world.number('lying connection')}")
        self._cluster.dial(self._process, OpenConnection(connection, peer), lambda event: self._told(peer, event))

    def _told(self, peer: Peer, event: Any) -> None:
        match event:
            case ConnectionOpened(connection) if self._active:
                self._open[connection] = peer
                first = self._heard.get(RegisterTaskExecutorAtJobMaster)
                if peer.kind is PeerKind.JOB_MASTER and first:
                    message = self._rng.choice(first)
                    self._speak(connection, replace(message, info=replace(message.info, resource_id=NAME)))
                    self._offer(connection, message.job_id)
            case ConnectionLost(connection, _):
                self._open.pop(connection, None)
            case MessageReceived(_, envelope):
                self._own.update(_attempts(envelope.message))
                self._asked(envelope.message)

    def _offer(self, connection: ConnectionID, job_id: JobID) -> None:
        """Offer slots that nobody has given it: invented ones, those of others, and its own in another spelling."""
        number = self._process.world.number("invented slot")
        known = [each for each in self._values["allocation_id"] if each not in self._given]
        spelled = [AllocationID(each.upper()) for each in sorted(self._given)[-1:]]
        allocation_id = self._rng.choice([AllocationID(f"lie-{number}"), *known[-3:], *spelled])
        self._speak(connection, OfferSlots(job_id, NAME, (SlotOffer(allocation_id, 0),)))

    def _asked(self, message: Any) -> None:
        match message:
            case RequestSlot():
                self._given.add(message.allocation_id)
            case SubmitTasks(tasks):
                for task in tasks:
                    self._own.add(task.attempt_id)
                    if task.allocation_id not in self._given:
                        raise Violation(f"{task.attempt_id} was deployed on a stranger, in a slot that nobody gave it")

    def _anything(self) -> Any:
        message = self._rng.choice(self._heard[self._rng.choice(list(self._heard))])
        if hasattr(message, "info") and self._rng.random() < 0.7:
            message = replace(message, info=replace(message.info, resource_id=NAME))
        for _ in range(self._rng.choice((0, 0, 1, 1, 2, 4))):
            message = self._changed(message)
        return message

    def _changed(self, value: Any) -> Any:
        """The same with one thing changed, of a type that could be sent."""
        rng = self._rng
        if is_dataclass(value) and fields(value):
            name = rng.choice(fields(value)).name
            old = getattr(value, name)
            heard = [each for each in self._values[name] if type(each) is type(old) or each is None or old is None]
            new = rng.choice(heard) if heard and rng.random() < 0.6 else self._changed(old)
            try:
                return replace(value, **{name: new})  # type: ignore[type-var]
            except ValueError:  # there is no such value here; as bytes, the fuzzer sends it
                return value
        match value:
            case bool():
                return not value
            case Enum():
                return rng.choice(list(type(value)))
            case int():
                return rng.choice((*NUMBERS, value - 1, value + 1))
            case str():
                return rng.choice(("", value[::-1], f"{value}x", "/etc/hostname", "../../x"))
            case bytes():
                return rng.choice((b"", value[:-1], value + b"\0"))
            case tuple() if value:
                place = rng.randrange(len(value))
                changed = rng.choice(((), (self._changed(value[place]),), (value[place], value[place])))
                return value[:place] + changed + value[place + 1 :]
            case Mapping() if value:
                key = rng.choice(sorted(value, key=str))
                others = {each: value[each] for each in value if each != key}
                return others if rng.random() < 0.5 else {**others, key: self._changed(value[key])}
        return value

    def _speak(self, connection: ConnectionID, message: Any) -> None:
        """As bytes, which a coordinator decodes and looks at before anybody is told."""
        if _attempts(message) & self._own:
            return
        session = self._rng.choice(self._sessions) if self._rng.random() < 0.95 else LeaderSessionID("lie")
        self.said += 1
        try:
            said = cluster_pb2.Envelope.FromString(serialize_envelope(session, [message]))
            data = bytearray(said.SerializeToString(deterministic=True))  # maps have no order of their own
            if self._rng.random() < 0.1 and data:
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            decoded_session, decoded = decode_envelope(cluster_pb2.Envelope.FromString(bytes(data)))
        except (WireError, DecodeError, ValueError, TypeError, AttributeError):
            # the last three: a value of the wrong type, which has no bytes
            self._end(connection)
            return
        for each in decoded:
            if refuse_messages(self._identity, [each]) or _attempts(each) & self._own:
                self._end(connection)
                return
            self._process.world.network.send(NAME, connection, Fenced(decoded_session, each))

    def _end(self, connection: ConnectionID) -> None:
        """A stream that was refused ends."""
        self.refused += 1
        self._open.pop(connection, None)
        self._process.world.network.close(NAME, connection)


def name_precious_files(files: MemoryStorage, location: str) -> dict[str, bytes]:
    """Change a snapshot so that its state lies in files of somebody else, with names that no task gives, and return
    these. The snapshot can be restored as before; a job that claims it may not delete them."""
    directory = location.strip("/")
    precious: dict[str, bytes] = {}

    def moved(handle: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(handle, SegmentStateHandle):
            return handle
        name = f"precious/{handle.path.strip('/').replace('/', '-')}"
        precious[name] = files.get(handle.path.strip("/"))
        files.put(name, precious[name])
        return replace(handle, path=f"/{name}")

    metadata = parse_metadata(files.get(f"{directory}/{METADATA_FILE_NAME}"), location)
    operators = tuple(
        replace(each, subtasks={index: state.with_handles(moved) for index, state in each.subtasks.items()})
        for each in metadata.operators
    )
    files.put(f"{directory}/{METADATA_FILE_NAME}", build_metadata(replace(metadata, operators=operators), location))
    return precious


def _attempts(message: Any) -> set[Any]:
    """The attempts that a message names."""
    found = getattr(message, "attempt_id", None)
    return set() if found is None else {found}
