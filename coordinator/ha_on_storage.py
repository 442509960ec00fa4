"""High availability of one coordinator at a time, on any storage: what its successor needs lies in files.

On a directory or bucket (`high-availability.type: embedded`) a coordinator that comes after finds jobs, counters, pointers
and statistics; on memory (`NONE`) they live as long as the process. There is no election: whoever starts two coordinators on
one directory is stopped by conditional creates before anything is completed twice, but both would run the jobs.

    jobs/<job>           the graph, protobuf, with the time of its submission in front
    counters/<job>       the next checkpoint id
    pointers/<job>/<id>  where a completed checkpoint lies
    statistics/<job>     of its checkpoints
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence

from coordinator.checkpoint.id_counter import INITIAL_CHECKPOINT_ID, CheckpointIDCounterError
from coordinator.high_availability import JobGraphStore, JobStores, PointerExists
from dataflow.ids import CheckpointID, JobID
from dataflow.jobgraph import JobGraph
from dataflow.messages import JobStatus
from dataflow.wire import decode_job_graph, encode_job_graph
from protos import job_pb2
from runtime.storage import Storage, StorageAlreadyExists, StorageError, StorageNotFound

_SUBMITTED = struct.Struct(">q")


class StoredJobGraphs:
    """`jobs/`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def put(self, job_graph: JobGraph) -> None:
        """Durable when it returns."""
        data = _SUBMITTED.pack(time.time_ns()) + encode_job_graph(job_graph).SerializeToString()
        self._storage.put(f"jobs/{job_graph.job_id}", data)

    def remove(self, job_id: JobID) -> None:
        """No error when there is none."""
        self._storage.delete(f"jobs/{job_id}")

    def load(self) -> Sequence[JobGraph]:
        """All of them, in the order of their submission."""
        found = [self._storage.get(path) for path, _ in self._storage.list("jobs")]
        found.sort(key=lambda data: data[: _SUBMITTED.size])
        return [decode_job_graph(job_pb2.JobGraph.FromString(data[_SUBMITTED.size :])) for data in found]


class StoredCounter:
    """`counters/<job>` (CheckpointIDCounter). The file holds the next id, and is written before one is handed out."""

    def __init__(self, storage: Storage, job_id: JobID) -> None:
        self._storage = storage
        self._path = f"counters/{job_id}"
        self._lock = threading.Lock()
        self._next: int | None = None

    def start(self) -> None:
        """Go on where the predecessor stopped."""
        with self._lock:
            self._load()

    def get_and_increment(self) -> CheckpointID:
        """The next id."""
        with self._lock:
            drawn = self._load()
            self._write(drawn + 1)
            return CheckpointID(drawn)

    def get(self) -> CheckpointID:
        """The id that `get_and_increment` would return."""
        with self._lock:
            return CheckpointID(self._load())

    def set_count(self, next_id: CheckpointID) -> None:
        """Make this the next id."""
        with self._lock:
            self._write(next_id)

    def shutdown(self, status: JobStatus) -> None:
        """Remove what is stored, when the job is over for good."""
        if status.is_globally_terminal:
            with self._lock:
                self._storage.delete(self._path)

    def _load(self) -> int:
        if self._next is None:
            try:
                self._next = int(self._storage.get(self._path))
            except StorageNotFound:
                self._next = int(INITIAL_CHECKPOINT_ID)
            except (StorageError, ValueError) as error:
                raise CheckpointIDCounterError(
                    f"the checkpoint id counter {self._path} cannot be read: {error}"
                ) from error
        return self._next

    def _write(self, next_id: int) -> None:
        self._next = None  # until it is certain what is in the file
        try:
            self._storage.put(self._path, str(next_id).encode())
        except StorageError as error:
            raise CheckpointIDCounterError(
                f"the checkpoint id counter {self._path} cannot be moved: {error}"
            ) from error
        self._next = next_id


class StoredPointers:
    """`pointers/<job>/`."""

    def __init__(self, storage: Storage, job_id: JobID) -> None:
        self._storage = storage
        self._directory = f"pointers/{job_id}"

    def add(self, checkpoint_id: CheckpointID, pointer: bytes) -> None:
        """Raises PointerExists when there is one with this id."""
        try:
            self._storage.create(self._path(checkpoint_id), pointer)
        except StorageAlreadyExists as error:
            raise PointerExists(f"checkpoint {checkpoint_id} was completed already: {error}") from error

    def contains(self, checkpoint_id: CheckpointID, pointer: bytes) -> bool:
        """Whether exactly this pointer is there."""
        try:
            return self._storage.get(self._path(checkpoint_id)) == pointer
        except StorageNotFound:
            return False

    def remove(self, checkpoint_id: CheckpointID) -> None:
        """No error when there is none."""
        self._storage.delete(self._path(checkpoint_id))

    def load(self) -> Sequence[bytes]:
        """All of them."""
        return [self._storage.get(path) for path, _ in self._storage.list(self._directory)]

    def release(self) -> None:
        """Nothing is held."""

    def _path(self, checkpoint_id: CheckpointID) -> str:
        return f"{self._directory}/{checkpoint_id:020d}"


class StoredStatistics:
    """`statistics/<job>`."""

    def __init__(self, storage: Storage, job_id: JobID) -> None:
        self._storage = storage
        self._path = f"statistics/{job_id}"

    def write(self, data: bytes) -> None:
        """Replace what is there."""
        self._storage.put(self._path, data)

    def read(self) -> bytes | None:
        """None: nothing was written."""
        try:
            return self._storage.get(self._path)
        except StorageNotFound:
            return None


class HighAvailabilityOnStorage:
    """All of it, below one storage."""

    def __init__(self, storage: Storage, *, durable: bool) -> None:
        """`durable`: what is in there outlives the process."""
        self._storage = storage
        self._durable = durable
        self._graphs = StoredJobGraphs(storage)

    @property
    def job_graphs(self) -> JobGraphStore:
        """The graphs of all jobs."""
        return self._graphs

    def open_job(self, job_id: JobID) -> JobStores:
        """The stores of one job."""
        counter = StoredCounter(self._storage, job_id)
        counter.start()
        return JobStores(
            counter,
            StoredPointers(self._storage, job_id),
            StoredStatistics(self._storage, job_id),
            survives_suspension=self._durable,
        )

    def forget_job(self, job_id: JobID) -> None:
        """The job is over for good."""
        self._storage.delete(f"statistics/{job_id}")
        self._storage.delete(f"counters/{job_id}")
        self._storage.delete_prefix(f"pointers/{job_id}")
