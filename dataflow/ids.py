"""Typed identities that every message, handle and log line carries.

Decides only how identities are spelled and parsed. Random ones are drawn in shells and passed in, so that a core or the
simulator can be replayed. Mirrors Flink's JobID, OperatorID, JobVertexID, ResourceID, AllocationID, SlotID and
ExecutionAttemptID; unlike Flink they are strings, because they end up in paths, logs and protobuf anyway.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, NewType

JobID = NewType("JobID", str)
"""32 hexadecimal digits, unique per submission."""

JobVertexID = NewType("JobVertexID", str)
"""32 hexadecimal digits; the operator id of the head of the vertex's chain."""

OperatorID = NewType("OperatorID", str)
"""32 hexadecimal digits; the hash of the operator's uid (`operator_id_of`)."""

ResourceID = NewType("ResourceID", str)
"""One TaskManager incarnation. A replacement for a lost TaskManager gets a new one."""

AllocationID = NewType("AllocationID", str)
"""One assignment of a slot to a job."""

LeaderSessionID = NewType("LeaderSessionID", str)
"""Fencing token of a leader (ResourceManager or JobMaster); a message with another token is stale."""

CheckpointID = NewType("CheckpointID", int)
"""Rises over the life of a job, across restarts and leaders; the first is 1."""


class ExecutionVertexID(NamedTuple):
    """One parallel instance of a vertex, whatever attempt runs it (Flink: ExecutionVertexID)."""

    vertex_id: JobVertexID
    subtask_index: int


class ExecutionAttemptID(NamedTuple):
    """One attempt to run one subtask (Flink: ExecutionAttemptID)."""

    execution_graph_id: str
    """Drawn by the JobMaster's shell; differs between leaders of one job."""
    vertex_id: JobVertexID
    subtask_index: int
    attempt_number: int

    @property
    def execution_vertex_id(self) -> ExecutionVertexID:
        """The subtask that this is an attempt of."""
        return ExecutionVertexID(self.vertex_id, self.subtask_index)

    def __str__(self) -> str:
        """`graph_vertex_subtask_attempt`, as Flink prints it."""
        return f"{self.execution_graph_id}_{self.vertex_id}_{self.subtask_index}_{self.attempt_number}"

    @classmethod
    def parse(cls, text: str) -> ExecutionAttemptID:
        """Inverse of `str`. Raises ValueError naming the text when it has another form."""
        parts = text.rsplit("_", 3)
        if len(parts) != 4:
            raise ValueError(f"not an execution attempt id: {text!r}")
        graph, vertex, subtask, attempt = parts
        return cls(graph, JobVertexID(vertex), int(subtask), int(attempt))


class SlotID(NamedTuple):
    """One slot of one TaskManager (Flink: SlotID)."""

    resource_id: ResourceID
    slot_number: int


def operator_id_of(uid: str) -> OperatorID:
    """The operator id under which the state of the operator with this uid stands in every snapshot."""
    return OperatorID(hashlib.blake2b(uid.encode(), digest_size=16).hexdigest())
