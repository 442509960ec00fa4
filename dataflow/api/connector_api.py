"""The contracts of sources and sinks.

A source enumerates splits on the driver and is read by one reader per subtask, whose splits with their positions are
the snapshot. A source whose splits appear while the job runs has an enumerator as well: one task discovers splits and
hands each to the reader that asks for one, so that barriers pass between what was handed out and what was not
(decision 92). A sink writes, hands out committables at the barrier, and commits them once the checkpoint is complete:
each subtask its own, or one committer those of all, together (decision 95). Mirrors Flink's Source/SourceReader
(FLIP-27), Sink/SinkWriter/Committer (FLIP-143) and SupportsPreCommitTopology (FLIP-191); unlike Flink, splits that are
known at the start are assigned by index (split i to subtask i mod parallelism) and redistributed with the snapshot, and
no enumerator runs in the coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real
from typing import Any, Protocol

import pyarrow as pa

from snapline.dataflow.api.bad_rows import BadRow
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import ConnectorError


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
    """The times, by name of a column, before which no row of the split lies there, in milliseconds, as far as it is
    known without reading. Lets the watermark rise while splits still wait."""


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
    bad_rows: Sequence[BadRow] = ()
    """Rows that could not be read, for `DataStream.bad_rows()`. The position lies behind them, too."""

    def __post_init__(self) -> None:
        """Raises ConnectorError for a status that is none: a source would never end with it, nor with one text for
        splits that have ended, such as ("a"), whose letters are no splits."""
        if not isinstance(self.status, InputStatus):
            raise ConnectorError(f"Polled: status must be one such as InputStatus.END_OF_INPUT, got {self.status!r}")
        if self.batch is not None and not isinstance(self.batch, pa.RecordBatch):
            raise ConnectorError(f"Polled: batch must be a pyarrow.RecordBatch, not a {type(self.batch).__name__}")
        finished: object = self.finished_splits
        if isinstance(finished, str):
            raise ConnectorError(f"Polled: finished_splits must be ids of splits, got one text: {finished!r}")
        wake_at_ms: object = self.wake_at_ms
        if wake_at_ms is not None and not isinstance(wake_at_ms, Real):
            raise ConnectorError(f"Polled: wake_at_ms must be milliseconds, got {wake_at_ms!r}")


class SourceContextInfo(Protocol):
    """What a reader or writer may know of its subtask.

    >>> def name_of_a_file(context: sl.SourceContextInfo) -> str:
    ...     place = f"{context.job_id}-{context.operator_uid}-{context.subtask_index}-of-{context.parallelism}"
    ...     context.metrics.counter("files").inc()
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

    @property
    def metrics(self) -> MetricGroup:
        """Return what makes counters and gauges of the source or sink, which are shown as those of functions are."""
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
        """Take over splits, new or restored with their positions. Called once, before the first poll; with an
        enumerator, or as a phase of a HybridSource, again and again, for each split that is handed out."""

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


@dataclass(frozen=True, slots=True)
class Discovery:
    """What one look for splits has found.

    >>> sl.Discovery([sl.SourceSplit("a.csv")], {"seen": ["a.csv"]}).finished
    False
    """

    splits: Sequence[SourceSplit] = ()
    """Splits that are new; they are read in this order, or in that of their least event time where all have one."""
    state: dict[str, Any] = field(default_factory=dict)
    """JSON-like: what the next look is told. It is in each checkpoint, so it has to stay small."""
    finished: bool = False
    """No more splits will ever come: the source ends when all were read."""
    again_after_ms: int = 10_000
    """The next look begins so long after this one."""
    after_all_read: bool = False
    """Look again only when all splits that were handed out have been read to their end."""
    at_once: int | None = None
    """So many unfinished splits a reader has at most from now on, where that is less than the source's
    `splits_at_once`."""


class SplitEnumerator(ABC):
    """Discovers the splits of a source while the job runs. One task of the source has it, whatever its parallelism.

    `discover` is a function of the state that the look before returned: it keeps nothing else that matters, so that a
    restore only has to ask again. It runs beside the task, so it may wait for a slow listing.

    >>> class NewFiles(sl.SplitEnumerator):
    ...     def discover(self, state):
    ...         seen = state.get("seen", [])
    ...         new = [path for path in ("a.csv", "b.csv") if path not in seen]
    ...         return sl.Discovery([sl.SourceSplit(path) for path in new], {"seen": seen + new})
    ...     def close(self):
    ...         pass
    >>> first = NewFiles().discover({})
    >>> len(first.splits), len(NewFiles().discover(first.state).splits)
    (2, 0)
    """

    @abstractmethod
    def discover(self, state: dict[str, Any]) -> Discovery:
        """Look for splits that `state` does not know; it is empty at first, and must not be changed. An exception
        fails the task, and the job looks again when it has restarted."""

    def close(self) -> None:
        """Release what the enumerator holds; no look is under way."""


class Source(ABC):
    """A source as the user constructs it; pickled into the job. Its reader does the reading, in the task.

    >>> class Ones(sl.Source):
    ...     bounded = True
    ...     def schema(self):
    ...         return pa.schema([("n", pa.int64())])
    ...     def enumerate_splits(self):
    ...         return [sl.SourceSplit("all")]
    ...     splits_at_once = 1
    ...     sets_bad_rows_aside = False
    ...     def create_enumerator(self, splits):
    ...         return None
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

    staged_directory = ""
    """Where rows lie that were computed for this job alone and go with it; empty: there are none."""

    @property
    def bounded(self) -> bool:
        """Return whether the input has an end."""
        return True

    def schema(self) -> pa.Schema | None:
        """Schema of the batches, if known on the driver; used to check columns before the job starts."""
        return None

    @property
    def sets_bad_rows_aside(self) -> bool:
        """Return whether the readers hand out rows that they could not read (`Polled.bad_rows`)."""
        return False

    @abstractmethod
    def enumerate_splits(self) -> Sequence[SourceSplit]:
        """All splits. Called on the driver at submission; raises with a clear message when the input is missing."""

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator | None:
        """Create what discovers splits in the cluster; None, as here: `enumerate_splits` has named all there are.
        `splits` are those, which are handed out first."""
        return None

    @property
    def splits_at_once(self) -> int | None:
        """How many unfinished splits a reader has at most; None: as many as there are. With an enumerator only. Few
        give faster readers more splits, and keep the order of splits over all readers."""
        return None

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

    gathers_rows = False
    """Whether rows may wait in the writer until `prepare_commit` is called."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch of the subtask's rows."""

    @abstractmethod
    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        """Pre-commit: flush what was written since the last call so that it survives anything; called at the barrier
        and at the end of the input, and of a writer that gathers rows and has no second phase also a second after they
        came, with the same number again, in a job without checkpoints."""

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
    ...     def restored_from(self, checkpoint_id):
    ...         pass
    ...     def clean_up(self, committed_and_pending):
    ...         pass
    ...     def abort(self, committables):
    ...         for one in committables:
    ...             print("deleted:", one.data["path"])
    ...     def close(self):
    ...         pass
    >>> Publish().commit([sl.Committable({"path": "part-0"})])
    visible: part-0
    >>> Publish().abort([sl.Committable({"path": "part-1"})])
    deleted: part-1
    """

    @abstractmethod
    def commit(self, committables: Sequence[Committable]) -> None:
        """Make visible. An exception fails the task, and the commit is tried again after the restore."""

    def restored_from(self, checkpoint_id: int) -> None:
        """Called first, in an attempt that follows another or starts from a snapshot: the checkpoint that it goes on
        from, 0 for none. What earlier attempts of the subtask pre-committed for later ones is in no snapshot. Subtasks
        that no data connects with it may run on, and hold what they pre-committed."""

    def clean_up(self, committed_and_pending: Sequence[Committable]) -> None:
        """Called once after a restore, before the first write: remove what lost attempts of this subtask left behind,
        except what is in the argument."""

    def abort(self, committables: Sequence[Committable]) -> bool | None:
        """Give up what was pre-committed: it never becomes visible, and what it holds outside is freed. Called by
        `snapline transactions abort` alone, for a job that is lost; what is committed already must stay. Returns False
        when there was nothing left to give up, where that can be told."""
        raise NotImplementedError(f"{type(self).__name__} cannot abort what was pre-committed")

    def close(self) -> None:
        """Release what the committer holds."""


@dataclass(frozen=True, slots=True)
class GlobalCommittable:
    """What all subtasks of a sink pre-committed for one checkpoint, to become visible in one transaction. The first
    three fields name the transaction: no two ever share them.

    >>> sl.GlobalCommittable("job", "orders", 7, (sl.Committable({"path": "part-0"}),)).checkpoint_id
    7
    """

    job_id: str
    sink_uid: str
    checkpoint_id: int
    committables: tuple[Committable, ...]
    """The committables of all subtasks, in no order; also those of earlier checkpoints that were never committed by
    themselves."""
    may_repeat: bool = False
    """A restored checkpoint held it, so that it may be committed already, in part or whole."""


class GlobalCommitter(ABC):
    """The one committer of a sink that commits together: it makes what a checkpoint holds visible in one transaction of
    the outside system, and notes the checkpoint in that same transaction (Flink: GlobalCommitter).

    >>> class Publish(sl.GlobalCommitter):
    ...     table, notes = [], {}
    ...     def last_committed(self, job_id, sink_uid):
    ...         return self.notes.get((job_id, sink_uid))
    ...     def commit(self, together):
    ...         self.table += [one.data["path"] for one in together.committables]
    ...         self.notes[together.job_id, together.sink_uid] = together.checkpoint_id
    ...     def clean_up(self):
    ...         pass
    ...     def abort(self, together):
    ...         print("deleted:", together.committables[0].data["path"])
    ...     def close(self):
    ...         pass
    >>> Publish().commit(sl.GlobalCommittable("job", "orders", 7, (sl.Committable({"path": "part-0"}),)))
    >>> Publish().last_committed("job", "orders")
    7
    """

    @abstractmethod
    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        """The checkpoint id that the outside system noted last for this job and sink; None: it knows of none. Asked
        after a restore, so that what was committed before is not committed again."""

    @abstractmethod
    def commit(self, together: GlobalCommittable) -> None:
        """Make everything visible at once, and note the checkpoint id with it. Ids of a job and sink only rise; an id
        that is noted already, or a higher one, is no error and changes nothing: a process that is thought dead may
        still commit. An exception fails the task, and the commit is tried again after the restore."""

    def clean_up(self) -> None:
        """Called once in an attempt that follows another, when its first checkpoint has been committed: whatever
        earlier attempts staged and is not visible by now never will be, and may be removed."""

    def abort(self, together: GlobalCommittable) -> bool | None:
        """Give up what was pre-committed and is not committed: it never becomes visible, and what it holds outside is
        freed. Called by `snapline transactions abort` alone, for a job that is lost. Returns False when there was
        nothing left to give up, where that can be told."""
        raise NotImplementedError(f"{type(self).__name__} cannot abort what was pre-committed")

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
    >>> Counting().commits_together, Counting().before_writing(orders) is Counting().before_committing(orders)
    (False, True)
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

    @property
    def commits_together(self) -> bool:
        """Whether one committer serves all subtasks, so that a checkpoint is one transaction outside: then
        `create_global_committer` is called in place of `create_committer`."""
        return False

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        """Called in the task of the committer, of which there is one; only for a sink that commits together.

        >>> class Table(sl.Sink):
        ...     commits_together = True
        ...     def create_writer(self, context, restored):
        ...         return TableWriter()
        ...     def create_global_committer(self, context):
        ...         return TableCommitter()
        >>> orders.sink_to(Table(), uid="table").committer.node.name
        'Table: Committer'
        """
        raise NotImplementedError(f"{type(self).__name__} commits together and has no create_global_committer")

    def before_writing(self, stream: Any) -> Any:
        """What comes between the stream and the writers, on the driver: the DataStream that is written, or a
        KeyedStream whose rows are to meet by key (Flink: SupportsPreWriteTopology)."""
        return stream

    def before_committing(self, committables: Any) -> Any:
        """What comes between writers and the committer of a sink that commits together: a DataStream with the columns
        of `committables`, whose rows it may put together or replace (Flink: SupportsPreCommitTopology). Operators must
        not keep rows beyond a barrier, or have them in their state."""
        return committables
