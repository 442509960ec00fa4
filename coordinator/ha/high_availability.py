"""What the shells of a coordinator need of high availability: the ports behind their durable effects.

`coordinator.ha` has the adapters. A job's stores are opened when its JobMaster starts, on the executor for slow work,
and are handed over to it; they outlive JobMasters that break. Every method may raise; all are thread-safe and may take
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from snapline.coordinator.checkpoint.id_counter import CheckpointIDCounter
from snapline.coordinator.ha.stored_job_graphs import StoredJobGraphs
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.runtime.storage.storage_port import Storage


class PointerExists(Exception):
    """The store has a pointer to a checkpoint with this id already."""


class LeadershipLost(SnaplineError):
    """The coordinator does not lead any more; nothing that it writes arrives. Whoever performs the work that raises
    this ends the leadership of the process (`snapline.coordinator.io`)."""


class PointerStore(Protocol):
    """The pointers to a job's completed checkpoints."""

    def add(self, checkpoint_id: CheckpointID, pointer: bytes) -> None:
        """Raises PointerExists when there is one with this id, and then for certain adds nothing."""
        ...

    def contains(self, checkpoint_id: CheckpointID, pointer: bytes) -> bool:
        """Whether exactly this pointer is there."""
        ...

    def remove(self, checkpoint_id: CheckpointID) -> bool:
        """Give it up. False while another holder needs it (a leader that was replaced and does not know it yet): its
        files must stay then. No error when there is none."""
        ...

    def load(self) -> Sequence[bytes]:
        """All of them, by checkpoint id; they are held from now on."""
        ...

    @property
    def checkpoint_ids(self) -> Sequence[CheckpointID]:
        """The ids of all checkpoints in the store; holds none of them."""
        ...

    def release(self) -> None:
        """Leadership is over: hold none of them any more, delete none."""
        ...


class StatisticsStore(Protocol):
    """The checkpoint statistics of a job, as bytes."""

    def write(self, data: bytes) -> None:
        """Replace the statistics that were written before."""
        ...

    def read(self) -> bytes | None:
        """Return what was written last, None when nothing was."""
        ...


@dataclass(frozen=True)
class JobStores:
    """Everything durable of one job besides its graph."""

    counter: CheckpointIDCounter
    pointers: PointerStore
    statistics: StatisticsStore
    survives_suspension: bool
    """Another leader finds what is in here."""
    submitted_ms: int | None = None
    """When the job was submitted; None: that is not known."""
    writes_arrive_within_ms: int = 0
    """So long after the end of a former leader a write of its may still arrive; 0: never, because it is refused."""


class JobGraphStore(Protocol):
    """The graphs of jobs that are not over."""

    def put(self, job_graph: JobGraph) -> None:
        """Store the graph of a job; it is durable when the call returns."""
        ...

    def replace(self, job_graph: JobGraph) -> None:
        """Durable when it returns. One that was removed stays removed."""
        ...

    def remove(self, job_id: JobID) -> None:
        """No error when there is none."""
        ...

    def load(self) -> StoredJobGraphs:
        """All of them, and what cannot be read."""
        ...


class HighAvailability(Protocol):
    """All stores of one coordinator, which its successor reads."""

    @property
    def job_graphs(self) -> JobGraphStore:
        """The graphs of all jobs."""
        ...

    @property
    def storage(self) -> Storage:
        """The place of files that nobody needs to agree on, such as the archive of jobs."""
        ...

    def open_job(self, job_id: JobID) -> JobStores:
        """The stores of one job."""
        ...

    def forget_job(self, job_id: JobID) -> None:
        """The job is over for good: remove what is left of it besides its graph."""
        ...
