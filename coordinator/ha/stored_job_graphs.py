"""Job graphs as they lie in high availability storage, and those among them that cannot be read.

Decides that a file which is no job graph, is cut short, or holds another job than its name says is set aside: it stays
where it is, is named to whoever looks, and keeps no other job from starting. A storage that does not answer is no such
file. Flink gives up all jobs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import WireError, decode_job_graph, encode_job_graph
from snapline.protos import job_pb2
from snapline.runtime.signing import Signer

MAX_GRAPH_BYTES = 1 << 28
"""As a message that submits one."""


@dataclass(frozen=True, slots=True)
class JobGraphSetAside:
    """One that cannot be read."""

    name: str
    """The name of the file, or of the node that names it: the id of the job, if it ever was one."""
    reason: str
    """What is wrong, with the place and the way out."""


@dataclass(frozen=True, slots=True)
class StoredJobGraphs:
    """What a new leader finds."""

    graphs: tuple[JobGraph, ...] = ()
    """In the order of their submission."""
    set_aside: tuple[JobGraphSetAside, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file, or what stands in its place."""

    name: str
    place: str
    """Where the file lies, in words for people."""
    submitted: bytes = b""
    data: bytes | None = None
    """None: there is nothing to read."""
    unreadable: str = ""
    """Why the file cannot be read; empty: it was."""


class JobGraphTurns:
    """Who writes or removes the graph of a job waits for all that have begun before. A write that hangs, and was given
    up, would otherwise arrive behind the end of its job, which the next leader would run once more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[JobID, deque[threading.Event]] = {}
        """Whoever has begun, the one whose turn it is first."""

    @contextmanager
    def of(self, job_id: JobID) -> Iterator[None]:
        """Within, nobody else writes or removes the graph of this job."""
        turn = threading.Event()
        with self._lock:
            waiting = self._waiting.setdefault(job_id, deque())
            waiting.append(turn)
            waiting[0].set()
        turn.wait()
        try:
            yield
        finally:
            with self._lock:
                waiting.popleft()
                if waiting:
                    waiting[0].set()
                else:
                    del self._waiting[job_id]


def seal_job_graph(signer: Signer, job_graph: JobGraph) -> bytes:
    """Return the bytes of a graph as they are stored, signed for this job."""
    return signer.seal(f"jobs/{job_graph.job_id}", encode_job_graph(job_graph).SerializeToString())


def open_job_graph(signer: Signer, job_id: JobID, data: bytes) -> bytes:
    """Return the bytes of a graph that were sealed for this job. Raises NotSigned."""
    return signer.open(f"jobs/{job_id}", data)


def read_job_graphs(files: Iterable[StoredFile], submitted_size: int, signer: Signer) -> StoredJobGraphs:
    """Sort the readable ones by submission. `submitted_size`: bytes of a time of submission that is whole. Nothing of a
    graph that `signer` does not know is decoded, let alone unpickled."""
    found: list[tuple[bytes, JobGraph]] = []
    set_aside: list[JobGraphSetAside] = []
    for file in files:
        try:
            found.append((file.submitted, _read(file, submitted_size, signer)))
        except (DecodeError, WireError, ValueError) as error:
            way_out = "put it back from a copy and restart the coordinator, or remove it and submit the job again from its last checkpoint"
            set_aside.append(JobGraphSetAside(file.name, f"{file.place} {error}; {way_out}"))
    found.sort(key=lambda each: each[0])
    return StoredJobGraphs(tuple(graph for _, graph in found), tuple(set_aside))


def _read(file: StoredFile, submitted_size: int, signer: Signer) -> JobGraph:
    if file.unreadable:
        raise ValueError(f"cannot be read: {file.unreadable}")
    if file.data is None:
        raise ValueError("names a file that is not there")
    if len(file.submitted) < submitted_size or not file.data:
        raise ValueError("is cut short")
    data = open_job_graph(signer, JobID(file.name), file.data)
    try:
        graph = decode_job_graph(job_pb2.JobGraph.FromString(data))
    except (DecodeError, WireError) as error:
        raise ValueError(f"is no job graph, or is cut short ({error})") from error
    if graph.job_id != file.name:
        raise ValueError(f"holds job {graph.job_id}, whose name is another one")
    return graph
