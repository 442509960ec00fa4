"""What a job is after translation: vertices (chains of operators) and edges, plain values that go on the wire.

The user API builds a StreamGraph, `snapline.dataflow.graph.translation` chains it into this. The coordinator expands it
by parallelism; it never looks into an operator's payload. Mirrors Flink's JobGraph, JobVertex, JobEdge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from snapline.dataflow.config import is_secret
from snapline.dataflow.ids import JobID, JobVertexID, OperatorID
from snapline.dataflow.partitioning import Partitioning

DECLARED = b"snapline declared 1\n"
"""What the payload of an operator of a declared job begins with; no pickle does."""
DEFAULT_GROUP = "default"


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """One operator of a chain.

    `payload` is a pickled specification (`snapline.dataflow.graph.operator_specs`), or a declaration
    (`snapline.dataflow.graph.declared_payload`); TaskManagers build the runtime operator from it. To the coordinator it
    is opaque.
    """

    operator_id: OperatorID
    uid: str
    name: str
    payload: bytes
    stateful: bool = False
    is_source: bool = False
    commits: bool = False
    """Whether it needs NotifyCheckpointComplete to make results visible."""
    chained_input: int = -1
    chained_side_output_tag: str = ""
    chained_input_index: int = 0
    uid_given: bool = True
    """False: the uid was derived from the position in the graph."""
    state_schema: bytes = b""
    """An Arrow schema message: key and states as the job declares them, marked as in a file of keyed state, as far as
    they are known before it runs (see `snapline.dataflow.snapshot.declared_states`). Empty: nothing is."""
    external_task: str = ""
    """The external task whose programs its rows go to or come from; empty: none."""


@dataclass(frozen=True, slots=True)
class JobVertex:
    """A chain of operators that runs as one task per subtask; `operators[0]` is its head."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorNode, ...]
    slot_sharing_group: str = DEFAULT_GROUP
    max_parallelism_explicit: bool = False
    submitted_parallelism: int = 0
    """Once the job was rescaled; 0: it was not."""
    is_external: bool = False
    """Whether the subtasks are programs outside, which register for the vertex by its name (protos/external.proto)."""

    @property
    def pickled_operators(self) -> tuple[str, ...]:
        """Uids of the operators whose payload is a pickle, which runs code when it is read."""
        return tuple(each.uid for each in self.operators if each.payload and not each.payload.startswith(DECLARED))

    @property
    def is_source(self) -> bool:
        """Whether the head has no inputs."""
        return self.operators[0].is_source


@dataclass(frozen=True, slots=True)
class JobEdge:
    """Data from one vertex to another."""

    edge_id: str
    source: JobVertexID
    source_operator: OperatorID
    """The operator of the source's chain whose output goes out here."""
    target: JobVertexID
    target_input: int
    """Logical input of the target's head operator: 0, or 1 for the second input of a two-input operator."""
    partitioning: Partitioning
    key_columns: tuple[str, ...] = ()
    side_output_tag: str = ""
    combiner: bytes = b""
    """Pickled CombinerSpec: which rows need not be sent. Empty: all are."""
    row_wise: bool = False
    """Whether the target takes what comes in one row at a time, so that larger batches do not make it faster."""
    columns: tuple[str, ...] = ()
    """What the target reads, if it is known: the other columns are not sent. Empty: all are."""


@dataclass(frozen=True, slots=True)
class SavepointRestoreSettings:
    """Which snapshot a job starts from (Flink: same name)."""

    path: str = ""
    allow_non_restored_state: bool = False
    claim: bool = False
    """True: the job owns the snapshot from now on and may delete it (CLAIM); False: NO_CLAIM."""


@dataclass(frozen=True, slots=True)
class JobGraph:
    """One job, ready to submit. Vertices stand in topological order, sources first."""

    job_id: JobID
    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    configuration: Mapping[str, str] = field(default_factory=dict)
    """Keys and spelling of `snapline.dataflow.config`: checkpointing, restart strategy, buffer timeout."""
    savepoint_restore: SavepointRestoreSettings = SavepointRestoreSettings()
    modules: Mapping[str, bytes] = field(default_factory=dict)
    """Reserved for code shipped with the job: file name to content, put on the import path of the tasks."""
    master_hooks: tuple[bytes, ...] = ()
    """cloudpickled functions that bring a master hook (`snapline.dataflow.api.master_hooks`); the coordinator creates
    the hooks, and looks into nothing else."""
    staged_directories: tuple[str, ...] = ()
    """Paths or URLs of rows that were computed once for this job; they go when it has ended and no snapshot of it is
    kept (see `snapline.dataflow.staged`)."""
    configuration_origins: Mapping[str, str] = field(default_factory=dict)
    """Where the settings are from, by their keys, as far as the client has said it; for people."""
    submission_digest: str = ""
    """The digest of the graph as it was submitted, by which a submission that comes again is known, also when the job
    was rescaled meanwhile; empty: not known (see `with_submission_digest`)."""

    @property
    def operator_uids(self) -> tuple[str, ...]:
        """Uids of all operators, in the order of the vertices and their chains."""
        return tuple(operator.uid for vertex in self.vertices for operator in vertex.operators)

    @property
    def declared_operators(self) -> tuple[str, ...]:
        """Uids of the operators whose payload is a declaration."""
        found = (operator for vertex in self.vertices for operator in vertex.operators)
        return tuple(each.uid for each in found if each.payload.startswith(DECLARED))

    def without_secrets(self) -> JobGraph:
        """The same job without credentials in its configuration: it is stored, listed and shown to tasks, and none of
        them needs any."""
        kept = {key: value for key, value in self.configuration.items() if not is_secret(key)}
        origins = {key: origin for key, origin in self.configuration_origins.items() if key in kept}
        if len(kept) == len(self.configuration):
            return self
        return replace(self, configuration=kept, configuration_origins=origins)
