"""High availability on a storage alone: a directory or bucket on which coordinators come one after another.

Everything that a successor needs lies in files below the storage; nothing is elected. Whoever takes over last leads: it
creates the file of the next epoch, and every write of an earlier one is refused from then on. An epoch belongs to
whoever creates its file, so that of two that take over at once one is refused, and one that slept on the way there
cannot overtake who came after it. (The check and the write are two steps, so that this stops a coordinator that was
thought dead, not two that race within one write; what must never happen twice is a conditional create besides.) On
memory the same classes are the twin for tests, and for `high-availability.type: NONE`.

    leaders/<epoch>                         session of a coordinator; that of the greatest epoch leads
    jobs/<job>                              the graph, with the time of its submission in front
    counters/<job>/<n>                      empty; the greatest n is the next checkpoint id
    pointers/<job>/<id>/pointer             where a completed checkpoint lies
    pointers/<job>/<id>/held-by-<owner>     this owner still needs it: nobody may delete its files
    statistics/<job>                        of its checkpoints

Mirrors Flink's EmbeddedHaServices, DefaultCompletedCheckpointStore with a StateHandleStore, and its checkpoint id
counters.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

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
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import CheckpointID, JobID, LeaderSessionID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.signing import UNSIGNED, Signer
from snapline.runtime.storage.bounded_reads import get_at_most, get_or_why
from snapline.runtime.storage.storage_port import Storage, StorageAlreadyExists, StorageError, StorageNotFound

_SUBMITTED = struct.Struct(">q")
NS_PER_MS = 1_000_000
WRITES_ARRIVE_WITHIN_MS = 24 * 60 * 60 * 1000
"""A day: nothing refuses a write that a coordinator had sent before it was killed."""
_POINTER = "pointer"
_HELD_BY = "held-by-"


class LeadershipFence:
    """Whether this coordinator still leads."""

    def __init__(self, storage: Storage, session: LeaderSessionID | None) -> None:
        """`session` None: nobody can take over (memory)."""
        self._storage = storage
        self._session = session
        self._epoch = 0

    def take_over(self) -> None:
        """Lead from now on. Raises LeadershipLost when another coordinator is taking over, too, and was faster."""
        if self._session is None:
            return
        epochs = self._epochs()
        self._epoch = epochs[-1] + 1 if epochs else 1
        while not self._create():
            if self._epoch in self._epochs():
                raise self._lost(self._epoch)
            self._epoch += 1  # what stands there is no file, hence no leader
        for epoch in epochs:
            if epoch <= self._epoch - _KEPT_NUMBERS:
                self._storage.delete(self._path(epoch))

    def check(self) -> None:
        """Raise LeadershipLost when another coordinator has taken over."""
        if self._session is None:
            return
        epochs = self._epochs()
        if not epochs or epochs[-1] != self._epoch:
            raise self._lost(epochs[-1] if epochs else 0)

    def _create(self) -> bool:
        """Whether the epoch is ours now."""
        try:
            self._storage.create(self._path(self._epoch), (self._session or "").encode())
        except StorageAlreadyExists:
            return False
        return True

    def _epochs(self) -> list[int]:
        """Those that leaders can have had, who come one after another: nothing behind a gap."""
        epochs = _numbers_in(self._storage, "leaders")
        gap = next((place for place, (a, b) in enumerate(pairwise([0, *epochs])) if b - a > _GREATEST_GAP), None)
        return epochs[:gap]

    def _lost(self, epoch: int) -> LeadershipLost:
        try:
            leader = get_at_most(self._storage, self._path(epoch), _MAX_SMALL_BYTES).decode()
        except (StorageError, ValueError):  # it is only for the message
            leader = "unknown"
        return LeadershipLost(
            f"another coordinator (session {leader}) has taken over in {self._storage.url}: this one ends; run one at a time on "
            "a directory, or several with high-availability.type: zookeeper"
        )

    @staticmethod
    def _path(epoch: int) -> str:
        return f"leaders/{epoch:020d}"


def _numbers_in(storage: Storage, directory: str) -> list[int]:
    """The files whose name is a number as we write it, rising; what somebody else has left there is not looked at."""
    names = (path.removeprefix(f"{directory}/") for path, _ in storage.list(directory))
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdecimal())


_DIGITS = 20
_GREATEST_GAP = 1 << 32
"""No file of an epoch is so far behind the one before it."""
_MAX_SMALL_BYTES = 1 << 16
"""What a pointer or the name of a leader has at most."""
MAX_STATISTICS_BYTES = 1 << 28
"""As a message that shows them."""
_KEPT_NUMBERS = 16
"""Files of epochs, or of a counter, that stay behind the greatest: a file is gone only when that is so much further."""


class EmbeddedCheckpointIDCounter:
    """`counters/<job>/`: an id belongs to whoever creates the file of its successor (CheckpointIDCounter).

    Threads of one process take turns. Of several processes one wins each file; one that slept while its file was
    created, and deleted again, would win it a second time, but then it finds the counter far ahead and has lost.
    """

    def __init__(
        self, storage: Storage, job_id: JobID, fence: LeadershipFence, is_forgotten: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_forgotten`: the job is over for good, and its counter is being removed."""
        self._storage = storage
        self._directory = f"counters/{job_id}"
        self._fence = fence
        self._is_forgotten = is_forgotten
        self._lock = threading.Lock()

    def start(self) -> None:
        """Go on where the predecessor stopped."""
        with self._lock:
            self._fence.check()
            if not self._numbers():
                self._create_if_missing(int(INITIAL_CHECKPOINT_ID))

    def get_and_increment(self) -> CheckpointID:
        """The next id; tried again while others are faster. A draw that was overtaken by the end of its job leaves
        nothing."""
        with self._lock:
            self._fence.check()
            while True:
                numbers = self._numbers()
                drawn = numbers[-1] if numbers else int(INITIAL_CHECKPOINT_ID)
                created = self._create_if_missing(drawn + 1)
                if not created and max(self._numbers(), default=drawn) <= drawn:
                    raise CheckpointIDCounterError(
                        f"the checkpoint id counter {self._place} cannot be moved: what is called {drawn + 1:020d} there is no file; remove it"
                    )
                if created and max(self._numbers(), default=drawn) < drawn + 1 + _KEPT_NUMBERS:
                    self._delete([number for number in numbers if number <= drawn + 1 - _KEPT_NUMBERS])
                    if self._is_forgotten():
                        self._delete([drawn + 1])
                    return CheckpointID(drawn)

    def get(self) -> CheckpointID:
        """The id that `get_and_increment` would return."""
        numbers = self._numbers()
        return CheckpointID(numbers[-1]) if numbers else INITIAL_CHECKPOINT_ID

    def set_count(self, next_id: CheckpointID) -> None:
        """Make this the next id."""
        with self._lock:
            self._fence.check()
            numbers = self._numbers()
            self._create_if_missing(int(next_id))
            self._delete([number for number in numbers if number != next_id])

    def shutdown(self, status: JobStatus) -> None:
        """Remove what is stored, when the job is over for good."""
        if status.is_globally_terminal:
            self._fence.check()
            self._storage.delete_prefix(self._directory)

    @property
    def is_persisted(self) -> bool:
        """Whether a successor would find anything."""
        return bool(self._numbers())

    def _numbers(self) -> list[int]:
        try:
            return _numbers_in(self._storage, self._directory)
        except StorageError as error:
            raise CheckpointIDCounterError(
                f"the checkpoint id counter {self._place} cannot be read: {error}"
            ) from error

    def _create_if_missing(self, number: int) -> bool:
        try:
            self._storage.create(f"{self._directory}/{number:020d}", b"")
        except StorageAlreadyExists:
            return False
        except StorageError as error:
            raise CheckpointIDCounterError(
                f"the checkpoint id counter {self._place} cannot be moved: {error}"
            ) from error
        return True

    def _delete(self, numbers: Sequence[int]) -> None:
        """What is left behind is overruled by the greatest number, and goes with a later draw."""
        for number in numbers:
            try:
                self._storage.delete(f"{self._directory}/{number:020d}")
            except StorageError:
                return

    @property
    def _place(self) -> str:
        return f"{self._storage.url}/{self._directory}"


class EmbeddedPointers:
    """`pointers/<job>/` (PointerStore): pointers to completed checkpoints, and who holds them."""

    def __init__(self, storage: Storage, job_id: JobID, fence: LeadershipFence, owner: str = "leader") -> None:
        """Leaders that follow each other share one owner name: what a dead one held, its successor holds."""
        self._storage = storage
        self._directory = f"pointers/{job_id}"
        self._fence = fence
        self._holder = f"{_HELD_BY}{owner}"

    def add(self, checkpoint_id: CheckpointID, pointer: bytes) -> None:
        """Raises PointerExists when there is one with this id."""
        self._fence.check()
        self._storage.put(self._path(checkpoint_id, self._holder), b"")
        try:
            self._storage.create(self._path(checkpoint_id, _POINTER), pointer)
        except StorageAlreadyExists as error:
            raise PointerExists(
                f"checkpoint {checkpoint_id} was completed by another coordinator already: {error}"
            ) from error

    def contains(self, checkpoint_id: CheckpointID, pointer: bytes) -> bool:
        """Whether exactly this pointer is there."""
        try:
            return get_at_most(self._storage, self._path(checkpoint_id, _POINTER), _MAX_SMALL_BYTES) == pointer
        except StorageNotFound:
            return False

    def remove(self, checkpoint_id: CheckpointID) -> bool:
        """Give up a pointer; False while somebody else holds it. No error when there is none."""
        self._fence.check()
        self._storage.delete(self._path(checkpoint_id, self._holder))
        prefix = self._path(checkpoint_id, "").rstrip("/")
        if any(path.rpartition("/")[2].startswith(_HELD_BY) for path, _ in self._storage.list(prefix)):
            return False
        self._storage.delete(self._path(checkpoint_id, _POINTER))
        return True

    def load(self) -> Sequence[bytes]:
        """All of them, held by this owner from now on; by id."""
        self._fence.check()
        found = []
        for path, _ in self._storage.list(self._directory):
            directory, _, name = path.rpartition("/")
            if name == _POINTER:
                self._storage.put(f"{directory}/{self._holder}", b"")
                found.append(get_at_most(self._storage, path, _MAX_SMALL_BYTES))
        return found

    def release(self) -> None:
        """Let go of all, delete none."""
        for path, _ in self._storage.list(self._directory):
            if path.rpartition("/")[2] == self._holder:
                self._storage.delete(path)

    @property
    def checkpoint_ids(self) -> list[CheckpointID]:
        """Checkpoints that a successor would find."""
        paths = (path for path, _ in self._storage.list(self._directory))
        checkpoints = (path.split("/")[-2] for path in paths if path.endswith(f"/{_POINTER}"))
        return [CheckpointID(int(name)) for name in checkpoints if name.isdecimal()]

    def _path(self, checkpoint_id: CheckpointID, name: str) -> str:
        return f"{self._directory}/{checkpoint_id:020d}/{name}"


class EmbeddedStatistics:
    """Statistics of one job in the file `statistics/<job>` (StatisticsStore)."""

    def __init__(
        self, storage: Storage, job_id: JobID, fence: LeadershipFence, is_forgotten: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_forgotten`: the job is over for good, and its statistics are being removed."""
        self._storage = storage
        self._path = f"statistics/{job_id}"
        self._fence = fence
        self._is_forgotten = is_forgotten

    def write(self, data: bytes) -> None:
        """Replace what is there. A write that was overtaken by the end of its job leaves nothing."""
        self._fence.check()
        self._storage.put(self._path, data)
        if self._is_forgotten():
            self._storage.delete(self._path)

    def read(self) -> bytes | None:
        """Return what was written last, None when nothing was."""
        try:
            return get_at_most(self._storage, self._path, MAX_STATISTICS_BYTES)
        except StorageNotFound:
            return None


class EmbeddedJobGraphs:
    """Graphs of submitted jobs in the directory `jobs/` (JobGraphStore)."""

    def __init__(self, storage: Storage, fence: LeadershipFence, signer: Signer) -> None:
        self._storage = storage
        self._fence = fence
        self._signer = signer
        self._turns = JobGraphTurns()

    def put(self, job_graph: JobGraph) -> None:
        """Durable when it returns. A graph that is put again keeps its place in the order."""
        self._put(job_graph, _SUBMITTED.pack(time.time_ns()))

    def replace(self, job_graph: JobGraph) -> None:
        """Durable when it returns. One that was removed stays removed."""
        self._put(job_graph, None)

    def _put(self, job_graph: JobGraph, now: bytes | None) -> None:
        """`now`: the time of a submission; None: there has to be one."""
        path = f"jobs/{job_graph.job_id}"
        with self._turns.of(job_graph.job_id):
            self._fence.check()
            try:
                submitted = self._storage.get_range(path, 0, _SUBMITTED.size)
            except StorageNotFound:
                if now is None:
                    return
                submitted = now
            self._storage.put(path, submitted + seal_job_graph(self._signer, job_graph))

    def remove(self, job_id: JobID) -> None:
        """No error when there is none."""
        with self._turns.of(job_id):
            self._fence.check()
            self._storage.delete(f"jobs/{job_id}")

    def submitted_ms(self, job_id: JobID) -> int | None:
        """None: there is no such job."""
        try:
            prefix = self._storage.get_range(f"jobs/{job_id}", 0, _SUBMITTED.size)
        except StorageNotFound:
            return None
        return int(_SUBMITTED.unpack(prefix)[0]) // NS_PER_MS

    def load(self) -> StoredJobGraphs:
        """All of them, and what cannot be read."""
        return read_job_graphs(self._files(), _SUBMITTED.size, self._signer)

    def _files(self) -> Iterator[StoredFile]:
        """One after the other, so that no more than one is in memory."""
        size = _SUBMITTED.size
        for path, _ in self._storage.list("jobs"):
            name, place = path.removeprefix("jobs/"), f"{self._storage.url}/{path}"
            try:
                data = get_or_why(self._storage, path, MAX_GRAPH_BYTES)
            except StorageNotFound:  # it was just removed
                continue
            if isinstance(data, str):
                yield StoredFile(name, place, unreadable=data)
            else:
                yield StoredFile(name, place, data[:size], data[size:])


class EmbeddedHighAvailability:
    """All of it, below one storage (HighAvailability)."""

    def __init__(
        self, storage: Storage, session: LeaderSessionID | None, *, durable: bool, signer: Signer = UNSIGNED
    ) -> None:
        """Takes over when there is a session. `durable`: what is in there outlives the process. `signer` signs it."""
        self._storage = storage
        self._durable = durable
        self._fence = LeadershipFence(storage, session)
        self._fence.take_over()
        self._signer = signer
        self._graphs = EmbeddedJobGraphs(storage, self._fence, signer)
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
        counter = EmbeddedCheckpointIDCounter(self._storage, job_id, self._fence, lambda: job_id in self._forgotten)
        counter.start()
        return JobStores(
            counter,
            SignedPointers(EmbeddedPointers(self._storage, job_id, self._fence), job_id, self._signer),
            EmbeddedStatistics(self._storage, job_id, self._fence, lambda: job_id in self._forgotten),
            survives_suspension=self._durable,
            submitted_ms=self._graphs.submitted_ms(job_id),
            writes_arrive_within_ms=WRITES_ARRIVE_WITHIN_MS,
        )

    def forget_job(self, job_id: JobID) -> None:
        """The job is over for good."""
        self._forgotten.add(job_id)
        self._fence.check()
        self._storage.delete(f"statistics/{job_id}")
        self._storage.delete_prefix(f"counters/{job_id}")
        self._storage.delete_prefix(f"pointers/{job_id}")
