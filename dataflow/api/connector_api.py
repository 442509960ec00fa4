"""The contracts of sources and sinks.

A source enumerates splits on the driver and is read by one reader per subtask, whose splits with their positions are
the snapshot. A sink writes, hands out committables at the barrier, and commits them once the checkpoint is complete.
Mirrors Flink's Source/SourceReader (FLIP-27) and Sink/SinkWriter/Committer (FLIP-143); unlike Flink, splits are
assigned by index (split i to subtask i mod parallelism) and redistributed with the snapshot, so no enumerator runs in
the coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SourceSplit:
    """A part of the input and how far it was read. `description` and `position` are JSON-like, for the snapshot.

    >>> sl.SourceSplit("part-0", {"path": "a.csv"}, position={"line": 12}).finished
    False
    """

    split_id: str
    description: dict[str, Any] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    """Empty: from the start. What it holds belongs to the reader."""
    finished: bool = False
    least_times_ms: dict[str, int] = field(default_factory=dict)
    """By name of a column: no row of the split has an earlier time there, in milliseconds, as far as it is known
    without reading. Lets the watermark rise while splits still wait. Not part of a snapshot."""


class InputStatus(Enum):
    """What a reader can say after a poll (Flink: InputStatus).

    >>> [status.name for status in sl.InputStatus]
    ['MORE_AVAILABLE', 'NOTHING_AVAILABLE', 'END_OF_INPUT']
    """

    MORE_AVAILABLE = "more_available"
    NOTHING_AVAILABLE = "nothing_available"
    END_OF_INPUT = "end_of_input"


@dataclass(frozen=True, slots=True)
class Polled:
    """Answer of `SourceReader.poll_next`.

    >>> sl.Polled(sl.InputStatus.NOTHING_AVAILABLE, wake_at_ms=1_000).batch is None
    True
    """

    status: InputStatus
    batch: pa.RecordBatch | None = None
    wake_at_ms: int | None = None
    """With NOTHING_AVAILABLE: when to ask again, for example because of a rate limit. None: soon."""
    split_id: str = ""
    """Split that the batch came from. Without it, a watermark per split is the watermark of all rows."""
    finished_splits: tuple[str, ...] = ()
    """Splits that ended with this poll; they hold the watermark back no longer."""


class SourceContextInfo(Protocol):
    """What a reader or writer may know of its subtask.

    >>> def name_of_a_file(context: sl.SourceContextInfo) -> str:
    ...     place = f"{context.job_id}-{context.operator_uid}-{context.subtask_index}-of-{context.parallelism}"
    ...     return f"{place}-{context.attempt_number}-{context.execution_attempt}"
    """

    @property
    def subtask_index(self) -> int:
        """0 .. parallelism - 1."""
        ...

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks of the source."""
        ...

    @property
    def attempt_number(self) -> int:
        """Rises with every restart of the job."""
        ...

    @property
    def job_id(self) -> str:
        """Return the id of the job that the source belongs to."""
        ...

    @property
    def operator_uid(self) -> str:
        """The uid of this source or sink."""
        ...

    @property
    def execution_attempt(self) -> str:
        """Unique over all attempts of all restarts; good for names of temporary things."""
        ...


class SourceReader(ABC):
    """Reads the splits of one subtask, on the task's own thread; never blocks for long.

    >>> class LineReader(sl.SourceReader):
    ...     def add_splits(self, splits):
    ...         self.splits = list(splits)
    ...     def poll_next(self, now_ms):
    ...         return sl.Polled(sl.InputStatus.END_OF_INPUT)
    ...     def pause_splits(self, split_ids):
    ...         self.paused = set(split_ids)
    ...     def snapshot_splits(self, checkpoint_id):
    ...         return self.splits
    ...     def notify_checkpoint_complete(self, checkpoint_id):
    ...         print("publish the positions of checkpoint", checkpoint_id)
    ...     def notify_checkpoint_aborted(self, checkpoint_id):
    ...         pass
    ...     def close(self):
    ...         self.splits = []
    """

    @abstractmethod
    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        """Take over splits, new or restored with their positions. Called once, before the first poll."""

    @abstractmethod
    def poll_next(self, now_ms: int) -> Polled:
        """The next batch. What was returned counts as emitted: the position in `snapshot_splits` lies behind it."""

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        """Return no rows of these splits until the next call, which names those that are to wait then: they are ahead
        of sources that they are aligned with. A reader that cannot choose between its splits goes on: then the whole
        source waits as soon as all of them are ahead (Flink: pauseOrResumeSplits)."""

    @abstractmethod
    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        """All splits with their positions, finished ones too."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The positions of this checkpoint are final: publish them outside, if at all."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete."""

    def close(self) -> None:
        """Release what the reader holds."""


class Source(ABC):
    """A source as the user constructs it; pickled into the job. Its reader does the reading, in the task.

    >>> class Ones(sl.Source):
    ...     bounded = True
    ...     def schema(self):
    ...         return pa.schema([("n", pa.int64())])
    ...     def enumerate_splits(self):
    ...         return [sl.SourceSplit("all")]
    ...     def create_reader(self, context):
    ...         return OnesReader()
    >>> class OnesReader(sl.SourceReader):
    ...     def add_splits(self, splits):
    ...         self.left = [split for split in splits if not split.finished]
    ...     def poll_next(self, now_ms):
    ...         if not self.left:
    ...             return sl.Polled(sl.InputStatus.END_OF_INPUT)
    ...         split = self.left.pop()
    ...         batch = pa.RecordBatch.from_pydict({"n": [1, 1, 1]})
    ...         return sl.Polled(sl.InputStatus.MORE_AVAILABLE, batch, finished_splits=(split.split_id,))
    ...     def snapshot_splits(self, checkpoint_id):
    ...         return self.left
    >>> env.from_source(Ones(), uid="ones").schema.names
    ['n']
    """

    @property
    def bounded(self) -> bool:
        """Return whether the input has an end."""
        return True

    def schema(self) -> pa.Schema | None:
        """Schema of the batches, if known on the driver; used to check columns before the job starts."""
        return None

    @abstractmethod
    def enumerate_splits(self) -> Sequence[SourceSplit]:
        """All splits. Called on the driver at submission; raises with a clear message when the input is missing."""

    @abstractmethod
    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        """Create the reader of one subtask; it is called in the task."""


@dataclass(frozen=True, slots=True)
class Committable:
    """What a writer pre-committed: JSON-like, so that it can lie in a snapshot and be committed by another process.

    >>> sl.Committable({"path": "part-0.parquet"}).data["path"]
    'part-0.parquet'
    """

    data: dict[str, Any]


class SinkWriter(ABC):
    """Writes the rows of one subtask so that nobody can see them yet.

    >>> class Lines(sl.SinkWriter):
    ...     def __init__(self):
    ...         self.rows = []
    ...     def write(self, batch):
    ...         self.rows += batch.to_pylist()
    ...     def prepare_commit(self, checkpoint_id):
    ...         rows, self.rows = self.rows, []
    ...         return [sl.Committable({"checkpoint": checkpoint_id, "rows": rows})]
    ...     def snapshot_state(self, checkpoint_id):
    ...         return []
    ...     def close(self):
    ...         self.rows = []
    >>> writer = Lines()
    >>> writer.write(pa.RecordBatch.from_pydict({"n": [1]}))
    >>> writer.prepare_commit(7)
    [Committable(data={'checkpoint': 7, 'rows': [{'n': 1}]})]
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch of the subtask's rows."""

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        """Pre-commit: flush what was written since the last call so that it survives anything; called at the barrier
        and at the end of the input."""

    def snapshot_state(self, checkpoint_id: int) -> Sequence[dict[str, Any]]:
        """State of the writer itself, JSON-like elements; given to `Sink.create_writer` on restore."""
        return ()

    def close(self) -> None:
        """Release what the writer holds; uncommitted output may stay behind, hidden."""


class Committer(ABC):
    """Makes pre-committed output visible. Must be idempotent: after a crash, the same committables come again.

    >>> class Publish(sl.Committer):
    ...     def commit(self, committables):
    ...         for one in committables:
    ...             print("visible:", one.data["path"])
    ...     def clean_up(self, committed_and_pending):
    ...         pass
    ...     def close(self):
    ...         pass
    >>> Publish().commit([sl.Committable({"path": "part-0"})])
    visible: part-0
    """

    @abstractmethod
    def commit(self, committables: Sequence[Committable]) -> None:
        """Make visible. An exception fails the task, and the commit is tried again after the restore."""

    def clean_up(self, committed_and_pending: Sequence[Committable]) -> None:
        """Called once after a restore, before the first write: remove what lost attempts of this subtask left behind,
        except what is in the argument."""

    def close(self) -> None:
        """Release what the committer holds."""


class Sink(ABC):
    """A sink as the user constructs it; pickled into the job. Its writer writes, and its committer makes visible, both
    in the task.

    >>> class Counting(sl.Sink):
    ...     two_phase = False
    ...     def validate(self):
    ...         pass
    ...     def create_writer(self, context, restored):
    ...         return CountingWriter()
    ...     def create_committer(self, context):
    ...         return None
    >>> class CountingWriter(sl.SinkWriter):
    ...     rows = 0
    ...     def write(self, batch):
    ...         self.rows += batch.num_rows
    ...     def prepare_commit(self, checkpoint_id):
    ...         return []
    >>> _ = orders.sink_to(Counting(), uid="counting")
    """

    @property
    def two_phase(self) -> bool:
        """Whether output becomes visible only through `create_committer`'s commit."""
        return True

    def validate(self) -> None:
        """Called on the driver at submission: raise with a clear message when the target cannot work."""

    @abstractmethod
    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        """Called in the task; `restored` is what `snapshot_state` returned, redistributed."""

    def create_committer(self, context: SourceContextInfo) -> Committer | None:
        """Called in the task; None for sinks without a second phase."""
        return None
