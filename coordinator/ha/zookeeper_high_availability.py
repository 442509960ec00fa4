"""High availability on ZooKeeper: several coordinators, one of which leads; small things in nodes, large ones in a
storage.

Every write is one transaction that begins with the check that our candidate node exists (`Leadership.fence`): what a
coordinator sends after it lost its session is refused by the ensemble, whatever that coordinator believes. A connection
that breaks makes a call wait and be sent again; where the first one may have worked, that is found out from what is
there, since only the leader writes. Below `<root>/<cluster id>`:

    identity                    the storage directory of the cluster: another cluster with this id is refused
    leader/candidates/<n>       ephemeral; the oldest leads leader/table                where the leaders are
    (snapline.runtime.leaders.leader_election, snapline.runtime.leaders.zookeeper_leader_retrieval) jobs/<job>
    time of submission, and path of the graph in the storage counters/<job>              the next checkpoint id
    pointers/<job>/<id>         where a completed checkpoint lies statistics/<job>            path of its checkpoint
    statistics in the storage

Pointers are not held by anybody besides: whoever was leader before has lost its session, hence everything it had open,
before another one leads. Mirrors Flink's ZooKeeperLeaderElectionHaServices, ZooKeeperStateHandleStore,
ZooKeeperCheckpointIDCounter and DefaultCompletedCheckpointStore; fencing by transaction is ours.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from snapline.coordinator.checkpoint.id_counter import INITIAL_CHECKPOINT_ID, CheckpointIDCounterError
from snapline.coordinator.ha.high_availability import JobGraphStore, JobStores, LeadershipLost, PointerExists
from snapline.coordinator.ha.signed_pointers import SignedPointers
from snapline.coordinator.ha.stored_job_graphs import (
    MAX_GRAPH_BYTES,
    JobGraphTurns,
    StoredFile,
    StoredJobGraphs,
    read_job_graphs,
    seal_job_graph,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.leaders.leader_election import TABLE, Leadership
from snapline.runtime.leaders.zookeeper_session import Answer, SessionOver, ZooKeeperSession
from snapline.runtime.signing import UNSIGNED, Signer
from snapline.runtime.storage.bounded_reads import get_or_why
from snapline.runtime.storage.storage_port import Storage, StorageError, StorageNotFound

_SUBMITTED = struct.Struct(">q")
NS_PER_MS = 1_000_000
IDENTITY = "identity"


class ClusterIdTaken(SnaplineError):
    """Another cluster uses this cluster id."""


class FencedNodes:
    """The nodes below one cluster's, written by its leader only."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._session = leadership.session
        self._base = self._session.settings.base

    def path(self, name: str) -> str:
        """Return the path of a node below this one's root."""
        return f"{self._base}/{name}"

    def write(self, build: Callable[[Any], None]) -> Answer:
        """Perform the operations that `build` adds, all or none. Raises LeadershipLost, ZooKeeperError."""

        def fenced(transaction: Any) -> None:
            self._leadership.fence(transaction)
            build(transaction)

        try:
            answer = self._session.transact(fenced)
        except SessionOver as error:
            raise LeadershipLost(f"this coordinator does not lead any more: {error}") from error
        if answer.error is not None and answer.error is _result(answer, 0):
            leader = self._leadership.current_leader()
            now = f"{leader} leads now" if leader else "its candidate node is gone"
            raise LeadershipLost(f"this coordinator does not lead any more: {now}")
        return answer

    def get(self, name: str) -> tuple[bytes, int] | None:
        """Value and version; None: there is no such node."""
        return self._reading(lambda: self._session.get(self.path(name)))

    def children(self, name: str) -> Sequence[str]:
        """Sorted names of the nodes below."""
        return self._reading(lambda: self._session.children(self.path(name)))

    def put(self, name: str, value: bytes) -> bool:
        """Create the node, and those above it, or replace its value. True."""
        while not self.set(name, value):
            answer = self.create(name, value)
            if answer.error is None:
                return True
            if not isinstance(answer.error, NodeExistsError):
                raise answer.error
        return True

    def set(self, name: str, value: bytes) -> bool:
        """Replace the value of the node; False: there is none."""
        path = self.path(name)
        answer = self.write(lambda transaction: transaction.set_data(path, value))
        if answer.error is None:
            return True
        if not isinstance(answer.error, NoNodeError):
            raise answer.error
        return False

    def create(self, name: str, value: bytes) -> Answer:
        """Create the node, and those above it; the answer's error is NodeExistsError when it is there."""
        path = self.path(name)
        while True:
            answer = self.write(lambda transaction: transaction.create(path, value))
            if not isinstance(answer.error, NoNodeError):
                return answer
            parent = name.rpartition("/")[0]
            above = self.create(parent, b"")
            if above.error is not None and not isinstance(above.error, NodeExistsError):
                return above

    def delete(self, name: str) -> None:
        """The node and everything below. No error when there is none."""
        for child in self.children(name):
            self.delete(f"{name}/{child}")
        answer = self.write(lambda transaction: transaction.delete(self.path(name)))
        if answer.error is not None and not isinstance(answer.error, NoNodeError | NotEmptyError):
            raise answer.error

    def _reading(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except SessionOver as error:
            raise LeadershipLost(f"this coordinator does not lead any more: {error}") from error


class ZooKeeperCheckpointIDCounter:
    """`counters/<job>`: a number whose version decides who draws it (CheckpointIDCounter). A draw whose answer was lost
    costs an id, which is never used then."""

    def __init__(self, nodes: FencedNodes, job_id: JobID, is_forgotten: Callable[[], bool]) -> None:
        """`is_forgotten`: the job is over for good, and its counter is being removed."""
        self._nodes = nodes
        self._name = f"counters/{job_id}"
        self._is_forgotten = is_forgotten

    def start(self) -> None:
        """Go on where the predecessor stopped."""
        answer = self._nodes.create(self._name, b"%d" % INITIAL_CHECKPOINT_ID)
        if answer.error is not None and not isinstance(answer.error, NodeExistsError):
            raise CheckpointIDCounterError(f"{self._place} cannot be created: {answer.error!r}") from answer.error

    def get_and_increment(self) -> CheckpointID:
        """The next id; tried again while others are faster. A draw that was overtaken by the end of its job leaves
        nothing."""
        path = self._nodes.path(self._name)
        while True:
            drawn, version = self._read()
            following = b"%d" % (drawn + 1)
            if version < 0:
                answer = self._nodes.create(self._name, following)
            else:
                answer = self._nodes.write(_setting(path, following, version))
            if answer.error is None:
                if self._is_forgotten():
                    self._nodes.delete(self._name)
                return CheckpointID(drawn)
            if not isinstance(answer.error, BadVersionError | NodeExistsError | NoNodeError):
                raise CheckpointIDCounterError(f"{self._place} cannot be moved: {answer.error!r}") from answer.error

    def get(self) -> CheckpointID:
        """The id that `get_and_increment` would return."""
        return CheckpointID(self._read()[0])

    def set_count(self, next_id: CheckpointID) -> None:
        """Make this the next id."""
        self._nodes.put(self._name, b"%d" % next_id)

    def shutdown(self, status: JobStatus) -> None:
        """Remove what is stored, when the job is over for good."""
        if status.is_globally_terminal:
            self._nodes.delete(self._name)

    def _read(self) -> tuple[int, int]:
        found = self._nodes.get(self._name)
        if found is None:
            return int(INITIAL_CHECKPOINT_ID), -1
        try:
            return int(found[0]), found[1]
        except ValueError as error:
            raise CheckpointIDCounterError(f"{self._place} holds no number: {found[0]!r}") from error

    @property
    def _place(self) -> str:
        return f"the checkpoint id counter {self._nodes.path(self._name)}"


class ZooKeeperPointers:
    """Pointers to a job's checkpoints in the nodes `pointers/<job>/` (PointerStore)."""

    def __init__(self, nodes: FencedNodes, job_id: JobID) -> None:
        self._nodes = nodes
        self._directory = f"pointers/{job_id}"

    def add(self, checkpoint_id: CheckpointID, pointer: bytes) -> None:
        """Raises PointerExists when there is one with this id that is not this very one, of which the answer was
        lost."""
        answer = self._nodes.create(self._name(checkpoint_id), pointer)
        if isinstance(answer.error, NodeExistsError):
            if answer.repeated and self.contains(checkpoint_id, pointer):
                return
            raise PointerExists(f"checkpoint {checkpoint_id} was completed by another coordinator already")
        if answer.error is not None:
            raise answer.error

    def contains(self, checkpoint_id: CheckpointID, pointer: bytes) -> bool:
        """Whether exactly this pointer is there."""
        found = self._nodes.get(self._name(checkpoint_id))
        return found is not None and found[0] == pointer

    def remove(self, checkpoint_id: CheckpointID) -> bool:
        """True: it is gone. No error when there is none."""
        self._nodes.delete(self._name(checkpoint_id))
        return True

    def load(self) -> Sequence[bytes]:
        """All of them, by id."""
        found = (self._nodes.get(f"{self._directory}/{name}") for name in self._nodes.children(self._directory))
        return [node[0] for node in found if node is not None]

    def release(self) -> None:
        """Do nothing, because ZooKeeper's pointers are not held between calls."""

    @property
    def checkpoint_ids(self) -> list[CheckpointID]:
        """Checkpoints that a successor would find."""
        return [CheckpointID(int(name)) for name in self._nodes.children(self._directory) if name.isdecimal()]

    def _name(self, checkpoint_id: CheckpointID) -> str:
        return f"{self._directory}/{checkpoint_id:020d}"


class FilesByNode:
    """Values too large for nodes: each is a file in the storage, and a node says which one. The node decides: a file
    that no node names is rubbish, left by somebody who ended between the two writes."""

    def __init__(self, nodes: FencedNodes, storage: Storage, directory: str) -> None:
        self._nodes = nodes
        self._storage = storage
        self._directory = directory
        self._rubbish: dict[tuple[str, str], None] = {}
        """Name and path of files that are to be deleted, or could not be yet. Several threads add and delete at the
        same time."""

    def put(self, name: str, prefix: bytes, data: bytes) -> str:
        """Durable when it returns: the path of the file. `prefix` is kept in the node."""
        node = f"{self._directory}/{name}"
        before = self._nodes.get(node)
        path, _ = self._write(name, data, lambda path: self._nodes.put(node, prefix + path))
        if before is not None:
            self._delete_file(name, before[0][len(prefix) :].decode())
        return path

    def take_back(self, name: str, path: str) -> None:
        """Undo `put`. Somebody who removed the name meanwhile may not have seen the file."""
        self.remove(name, 0)
        self._delete_file(name, path)

    def replace(self, name: str, prefix_length: int, data: bytes) -> None:
        """As `put`, with the prefix that is there; nothing when there is none (any more)."""
        node = f"{self._directory}/{name}"
        before = self._nodes.get(node)
        if before is None:
            return
        prefix, old = before[0][:prefix_length], before[0][prefix_length:].decode()
        _, written = self._write(name, data, lambda path: self._nodes.set(node, prefix + path))
        if written:
            self._delete_file(name, old)

    def _write(self, name: str, data: bytes, point_to: Callable[[bytes], bool]) -> tuple[str, bool]:
        """A new file; then the node says so. False: there is no such node, hence no such file."""
        path = f"{self._directory}/{name}-{uuid.uuid4().hex}"
        self._storage.put(path, data)
        try:
            found = point_to(path.encode())
        except LeadershipLost:
            if (value := self._nodes_value(f"{self._directory}/{name}")) is not None and not value.endswith(
                path.encode()
            ):
                self._storage.delete(path)
            raise
        if not found:
            self._delete_file(name, path)
        return path, found

    def _delete_file(self, name: str, path: str) -> None:
        """A file that no node names. What cannot be deleted is tried again with the next."""
        self._rubbish[name, path] = None
        self._delete_rubbish(name)

    def _delete_rubbish(self, name: str) -> None:
        for of, path in tuple(self._rubbish):
            if of == name:
                self._storage.delete(path)
                self._rubbish.pop((of, path), None)

    def _nodes_value(self, node: str) -> bytes | None:
        """What the node says now; None when that cannot be found out."""
        try:
            found = self._nodes.get(node)
        except SnaplineError:
            return None
        return b"" if found is None else found[0]

    def prefix(self, name: str, length: int) -> bytes | None:
        """What the node keeps besides; None: there is none."""
        found = self._nodes.get(f"{self._directory}/{name}")
        return None if found is None else bytes(found[0][:length])

    def get(self, name: str, prefix_length: int) -> tuple[bytes, bytes | str] | None:
        """Prefix and data, or why that cannot be read; None: there is none. One that was replaced while it was read is
        read again."""
        while (found := self._nodes.get(f"{self._directory}/{name}")) is not None:
            value, version = found
            try:
                path = value[prefix_length:].decode()
                return value[:prefix_length], get_or_why(self._storage, path, MAX_GRAPH_BYTES)
            except StorageNotFound:
                again = self._nodes.get(f"{self._directory}/{name}")
                if again is not None and again[1] == version:
                    raise
        return None

    def remove(self, name: str, prefix_length: int) -> None:
        """No error when there is none. After a failure once more: the node may be gone, and the file not."""
        found = self._nodes.get(f"{self._directory}/{name}")
        if found is not None:
            self._rubbish[name, found[0][prefix_length:].decode()] = None
        self._nodes.delete(f"{self._directory}/{name}")
        self._delete_rubbish(name)

    @property
    def names(self) -> Sequence[str]:
        """Return the sorted names of all files."""
        return self._nodes.children(self._directory)


class ZooKeeperStatistics:
    """Statistics of one job in the node `statistics/<job>` (StatisticsStore)."""

    def __init__(self, files: FilesByNode, job_id: JobID, is_forgotten: Callable[[], bool] = lambda: False) -> None:
        """`is_forgotten`: the job is over for good, and its statistics are being removed."""
        self._files = files
        self._job_id = job_id
        self._is_forgotten = is_forgotten

    def write(self, data: bytes) -> None:
        """Replace what is there. A write that was overtaken by the end of its job leaves nothing."""
        path = self._files.put(self._job_id, b"", data)
        if self._is_forgotten():
            self._files.take_back(self._job_id, path)

    def read(self) -> bytes | None:
        """Return what was written last, None when nothing was."""
        found = self._files.get(self._job_id, 0)
        data = None if found is None else found[1]
        if isinstance(data, str):
            raise StorageError(data)
        return data


class ZooKeeperJobGraphs:
    """Graphs of submitted jobs in the nodes `jobs/` (JobGraphStore)."""

    def __init__(self, files: FilesByNode, signer: Signer) -> None:
        self._files = files
        self._signer = signer
        self._turns = JobGraphTurns()

    def put(self, job_graph: JobGraph) -> None:
        """Durable when it returns. A graph that is put again keeps its place in the order."""
        with self._turns.of(job_graph.job_id):
            found = self._files.prefix(job_graph.job_id, _SUBMITTED.size)
            submitted = _SUBMITTED.pack(time.time_ns()) if found is None else found
            self._files.put(job_graph.job_id, submitted, seal_job_graph(self._signer, job_graph))

    def replace(self, job_graph: JobGraph) -> None:
        """Durable when it returns. One that was removed stays removed."""
        with self._turns.of(job_graph.job_id):
            self._files.replace(job_graph.job_id, _SUBMITTED.size, seal_job_graph(self._signer, job_graph))

    def remove(self, job_id: JobID) -> None:
        """No error when there is none."""
        with self._turns.of(job_id):
            self._files.remove(job_id, _SUBMITTED.size)

    def submitted_ms(self, job_id: JobID) -> int | None:
        """None: there is no such job."""
        prefix = self._files.prefix(job_id, _SUBMITTED.size)
        return None if prefix is None else int(_SUBMITTED.unpack(prefix)[0]) // NS_PER_MS

    def load(self) -> StoredJobGraphs:
        """All of them, and what cannot be read."""
        return read_job_graphs(self._found(), _SUBMITTED.size, self._signer)

    def _found(self) -> Iterator[StoredFile]:
        """One after the other, so that no more than one is in memory."""
        for name in self._files.names:
            place = f"jobs/{name}"
            try:
                found = self._files.get(name, _SUBMITTED.size)
            except (StorageNotFound, UnicodeDecodeError):
                yield StoredFile(name, place)
                continue
            if found is not None:
                submitted, data = found
                if isinstance(data, str):
                    yield StoredFile(name, place, unreadable=data)
                else:
                    yield StoredFile(name, place, submitted, data)


class ZooKeeperHighAvailability:
    """All of it, for one leadership (HighAvailability)."""

    def __init__(self, leadership: Leadership, storage: Storage, signer: Signer = UNSIGNED) -> None:
        self._signer = signer
        self._nodes = FencedNodes(leadership)
        self._storage = storage
        self._statistics = FilesByNode(self._nodes, storage, "statistics")
        self._graphs = ZooKeeperJobGraphs(FilesByNode(self._nodes, storage, "jobs"), signer)
        self._forgotten: set[JobID] = set()

    @property
    def job_graphs(self) -> JobGraphStore:
        """The graphs of all jobs."""
        return self._graphs

    @property
    def storage(self) -> Storage:
        """The place of files that nobody needs to agree on."""
        return self._storage

    def open_job(self, job_id: JobID) -> JobStores:
        """The stores of one job."""
        self._forgotten.discard(job_id)
        counter = ZooKeeperCheckpointIDCounter(self._nodes, job_id, lambda: job_id in self._forgotten)
        counter.start()
        statistics = ZooKeeperStatistics(self._statistics, job_id, lambda: job_id in self._forgotten)
        pointers = SignedPointers(ZooKeeperPointers(self._nodes, job_id), job_id, self._signer)
        submitted_ms = self._graphs.submitted_ms(job_id)
        return JobStores(counter, pointers, statistics, survives_suspension=True, submitted_ms=submitted_ms)

    def forget_job(self, job_id: JobID) -> None:
        """The job is over for good."""
        self._forgotten.add(job_id)
        self._statistics.remove(job_id, 0)
        self._nodes.delete(f"counters/{job_id}")
        self._nodes.delete(f"pointers/{job_id}")

    def published_leaders(self) -> bytes | None:
        """Return the table of leaders that is there now, None where there is none."""
        found = self._nodes.get(TABLE)
        return None if found is None else found[0]

    def publish_leaders(self, table: bytes) -> None:
        """Where the leaders are, for whoever looks in ZooKeeper."""
        self._nodes.put(TABLE, table)


def claim_cluster_id(session: ZooKeeperSession, storage_url: str) -> None:
    """The first coordinator of a cluster writes down its storage; one with another storage is of another cluster, and
    must not stand by for this one. Raises ClusterIdTaken."""
    settings = session.settings
    path = f"{settings.base}/{IDENTITY}"
    answer = session.call(lambda client: client.create_async(path, storage_url.encode(), makepath=True))
    if isinstance(answer.error, NodeExistsError):
        found = session.get(path)
        if found is not None and found[0] != storage_url.encode():
            raise ClusterIdTaken(
                f"the cluster id {settings.cluster_id!r} below {settings.root} is used by a cluster with the storage "
                f"{found[0].decode(errors='replace')}; this one has {storage_url}: give it a high-availability.cluster-id of its "
                f"own, or the same high-availability.storageDir (or delete {path} when that cluster is no more)"
            )
    elif answer.error is not None:
        raise answer.error


def _setting(path: str, value: bytes, version: int) -> Callable[[Any], None]:
    return lambda transaction: transaction.set_data(path, value, version)


def _result(answer: Answer, index: int) -> Any:
    return answer.value[index] if isinstance(answer.value, Sequence) and len(answer.value) > index else None
