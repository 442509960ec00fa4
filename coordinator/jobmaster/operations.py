"""What a client may ask of a job, and the answers: the vocabulary between the client service, Dispatcher and JobMaster.

An operation travels with a request id drawn by the shell. The answer is one `Reply` with that id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID, JobID, JobVertexID, ResourceID

RequestID = NewType("RequestID", str)
"""One request of one client."""


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancel all tasks. Answered `Acknowledged` at once; the status CANCELED follows. A job that is over: refused."""


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Trigger a checkpoint now (Flink: triggerCheckpoint of the REST API). Answered `SnapshotCompleted`."""

    full: bool = False
    """True makes a full snapshot, even if checkpoints are incremental."""


@dataclass(frozen=True, slots=True)
class TakeSavepoint:
    """Trigger a savepoint; the job goes on. Answered `SnapshotCompleted`."""

    target_directory: str = ""
    """Where the savepoint goes; empty means the configured default."""


@dataclass(frozen=True, slots=True)
class StopWithSavepoint:
    """Take a savepoint after which tasks process nothing, then finish. Answered `SnapshotCompleted` when the job is
    FINISHED and no leader would start it again; when the savepoint fails the job goes on."""

    target_directory: str = ""
    drain: bool = False
    """True: the watermark goes to its maximum first, windows and timers fire; the job can not be resumed sensibly."""


@dataclass(frozen=True, slots=True)
class RescaleJob:
    """Other parallelism for some vertices, or other TaskManagers: a fresh checkpoint, then a restart from it. Answered
    `Acknowledged` when the job is RUNNING again."""

    parallelism: Mapping[JobVertexID, int]
    leave: tuple[ResourceID, ...] = ()
    """TaskManagers whose slots the job gives back: its tasks go on in others."""


@dataclass(frozen=True, slots=True)
class TapOperator:
    """Show some of the rows that an operator puts out, or takes in, next. Answered `RowsTapped`, with none when none
    flow."""

    uid: str
    max_rows: int
    max_bytes: int
    of_input: bool = False


JobOperation = CancelJob | TakeCheckpoint | TakeSavepoint | StopWithSavepoint | RescaleJob | TapOperator


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """The graph is durable and the JobMaster is being started."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Done, or taken over for good."""


@dataclass(frozen=True, slots=True)
class SnapshotCompleted:
    """A checkpoint or savepoint is complete and lies here."""

    checkpoint_id: CheckpointID
    path: str


@dataclass(frozen=True, slots=True)
class TappedRows:
    """Rows of one subtask, as an Arrow stream."""

    subtask_index: int
    rows: bytes
    rows_taken: int
    rows_seen: int
    """How many rows flowed past, of which these are the first ones."""


@dataclass(frozen=True, slots=True)
class RowsTapped:
    """What flowed past, by subtask."""

    parts: tuple[TappedRows, ...]


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """Refused or failed; nothing changed unless the failure says so."""

    failure: SerializedFailure


Answer = JobSubmitted | Acknowledged | SnapshotCompleted | RowsTapped | OperationFailed


@dataclass(frozen=True, slots=True)
class Reply:
    """Effect: answer the client that waits under this id. Nobody waits: drop it."""

    request_id: RequestID
    answer: Answer
