"""Rows that a query of Spark stages for a job while it runs, a micro-batch after the other, and the source that reads
them, each once.

Decides what makes a micro-batch count: an entry under its number, which only one writer can create. A number has one
entry, whoever computes the batch again, so its rows are the same for every restart. The reader takes entries in their
order without a gap, and frees rows once a checkpoint that lies behind them is complete. The job whose query has made
the last claim owns the rows: an older query writes nothing any more, and another job that reads them fails. It does not
know Spark; see `snapline.spark.streaming_frames` for who writes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapline.connectors.parquet.parquet_source import ParquetReader, ParquetSource
from snapline.dataflow.api.connector_api import (
    Discovery,
    InputStatus,
    Polled,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import ConnectorError, JobDefinitionError
from snapline.dataflow.staged import STAGED_PREFIX
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_port import Storage, StorageAlreadyExists, StorageError, StorageNotFound

LOOK_INTERVAL_MS = 200
BATCHES_AT_ONCE = 100
"""So many micro-batches are found by one look."""
_BATCHES, _CLAIMS, _ENDS, ROWS = "batches", "claims", "ends", "rows"


def streamed_directory(base: str, job_id: str, uid: str) -> str:
    """Where the rows lie that are staged for this source of this job."""
    digest = hashlib.blake2b(f"{job_id} {uid}".encode(), digest_size=16).hexdigest()
    return f"{base.rstrip('/')}/{STAGED_PREFIX}{digest}"


@dataclass(frozen=True)
class Claim:
    """Which job's query stages the rows of a source."""

    number: int
    """The highest one counts; 0: nobody has claimed them yet."""
    job_id: str


class StreamedBatches:
    """The entries in the directory of one source."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def claim(self, job_id: str) -> Claim:
        """Become the only writer; whoever was it before is fenced."""
        while True:
            mine = Claim(self.holder().number + 1, job_id)
            try:
                self._storage.create(f"{_CLAIMS}/{mine.number:012d}.json", json.dumps({"job_id": job_id}).encode())
            except StorageAlreadyExists:
                continue
            return mine

    def holder(self) -> Claim:
        """Return the claim that was made last."""
        numbers = self._numbers(_CLAIMS)
        if not numbers:
            return Claim(0, "")
        content = json.loads(self._storage.get(f"{_CLAIMS}/{numbers[-1]:012d}.json"))
        return Claim(numbers[-1], str(content["job_id"]))

    def has(self, batch_id: int) -> bool:
        """Whether the micro-batch has an entry."""
        return self._storage.exists(self._name(batch_id))

    def add(self, batch_id: int, files: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Let a micro-batch count: its files, each with the rows of its row groups. Does nothing when it has an entry:
        that one counts."""
        content = [{"name": name, "groups": list(groups)} for name, groups in files]
        try:
            self._storage.create(self._name(batch_id), json.dumps(content).encode())
        except StorageAlreadyExists:
            return

    def end(self, claim: Claim, failure: str) -> None:
        """Say that the query of this claim has ended: it has nothing more, or `failure`."""
        self._storage.put(f"{_ENDS}/{claim.number:012d}.json", json.dumps({"failure": failure}).encode())

    def end_of(self, claim: Claim) -> str | None:
        """Why the query of this claim has ended, empty for its natural end; None while it runs."""
        try:
            return str(json.loads(self._storage.get(f"{_ENDS}/{claim.number:012d}.json"))["failure"])
        except StorageNotFound:
            return None

    def after(self, batch_id: int) -> list[tuple[int, list[dict[str, Any]]]]:
        """The micro-batches that follow, without a gap; none only where there is none. Raises JobDefinitionError when
        the next one was freed."""
        found: list[tuple[int, list[dict[str, Any]]]] = []
        later = [number for number in self._numbers(_BATCHES) if number > batch_id]
        for number in later[:BATCHES_AT_ONCE]:
            wanted = batch_id + 1 + len(found)
            if number != wanted:
                if self.has(wanted):  # a list may show a batch, and not the one before it
                    found.append((wanted, json.loads(self._storage.get(self._name(wanted)))))
                elif not found:
                    raise JobDefinitionError(
                        f"the rows of micro-batches {wanted} to {number - 1} were freed by a job that has gone on since this "
                        "snapshot was taken: start from its latest checkpoint, or from the savepoint that it was stopped with"
                    )
                break
            found.append((number, json.loads(self._storage.get(self._name(number)))))
        return found

    def _numbers(self, kind: str) -> list[int]:
        names = [path.rpartition("/")[2] for path, _ in self._storage.list(kind)]
        return sorted(int(name[:12]) for name in names if name.endswith(".json") and name[:12].isdigit())

    @staticmethod
    def _name(batch_id: int) -> str:
        return f"{_BATCHES}/{batch_id:012d}.json"


class StreamedRowsSource(Source):
    """Reads what a streaming query stages, while it does."""

    def __init__(
        self,
        base: str,
        uid: str,
        schema: pa.Schema,
        storage_options: Mapping[str, str],
        *,
        bounded: bool,
        restored: str,
        retained: int,
    ) -> None:
        """`base`: below it the rows lie. `bounded`: the query has an end. `restored`: the directory that a snapshot
        names, which the job goes on in. `retained`: from so many checkpoints the job may start again."""
        self.base, self.uid, self.restored = base, uid, restored
        self.storage_options = dict(storage_options)
        self.retained = retained
        self.directory = restored
        self._schema, self._bounded = schema, bounded

    def place(self, job_id: str) -> str:
        """Decide the directory, now that the job has an id; it belongs to the job unless a snapshot named it."""
        self.directory = self.restored or streamed_directory(self.base, job_id, self.uid)
        self.staged_directory = "" if self.restored else self.directory
        return self.directory

    @property
    def bounded(self) -> bool:
        return self._bounded

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return ()

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        return _BatchEnumerator(self)

    @property
    def splits_at_once(self) -> int:
        return 1

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return _StreamedReader(self, context)

    def storage(self) -> Storage:
        """Open the storage of the directory."""
        return open_storage(self.directory, Configuration(self.storage_options))


class _BatchEnumerator(SplitEnumerator):
    """Finds micro-batches; a file of one is a split."""

    def __init__(self, source: StreamedRowsSource) -> None:
        self._source = source
        self._batches: StreamedBatches | None = None

    def discover(self, state: dict[str, Any]) -> Discovery:
        batches = self._batches = self._batches or StreamedBatches(self._source.storage())
        after, entries = int(state.get("after", -1)), list(state.get("entries", ()))
        end = batches.end_of(batches.holder())  # asked first: nothing is added after it
        splits: list[SourceSplit] = []
        newer = batches.after(after)
        for batch_id, files in newer:
            after = batch_id
            entries.append(batch_id)
            for number, file in enumerate(files):
                path = f"{self._source.directory}/{ROWS}/{file['name']}"
                is_last = number + 1 == len(files)
                entry = {"path": path, "groups": file["groups"], "entries": entries if is_last else []}
                splits.append(SourceSplit(f"{batch_id}/{file['name']}", entry))
                if is_last:
                    entries = []
        if len(entries) > BATCHES_AT_ONCE:  # only readers free entries, and a query may put out no row for days
            splits.append(SourceSplit(f"{after}", {"path": "", "groups": [], "entries": entries}))
            entries = []
        found = {"directory": self._source.directory, "after": after, "entries": entries}
        if not newer and end:
            raise JobDefinitionError(f"from_streaming_dataframe({self._source.uid!r}): the query has failed: {end}")
        is_over = not newer and end == "" and self._source.bounded
        return Discovery(splits, found, finished=is_over, again_after_ms=LOOK_INTERVAL_MS)


class _StreamedReader(SourceReader):
    """Reads files of micro-batches one after the other, and frees those that no restart needs."""

    def __init__(self, source: StreamedRowsSource, context: SourceContextInfo) -> None:
        self._source, self._context, self._job_id = source, context, context.job_id
        self._storage: Storage | None = None
        self._rows = ParquetSource([source.directory], storage_options=source.storage_options)
        self._splits: deque[SourceSplit] = deque()
        self._open: ParquetReader | None = None
        self._read: list[str] = []
        """What can be freed once a checkpoint that lies behind it is complete."""
        self._read_before: dict[int, list[str]] = {}
        """What was read when a checkpoint was taken that is not complete yet, by the checkpoint."""
        self._complete: deque[list[str]] = deque()
        """What was read when each of the checkpoints was taken that a restart may begin from."""

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits.extend(splits)

    def poll_next(self, now_ms: int) -> Polled:
        if not self._splits:
            return Polled(InputStatus.NOTHING_AVAILABLE)
        split = self._splits[0]
        if self._open is None:
            self._open = ParquetReader(self._rows, self._context)
            self._open.add_splits(_row_groups(split))
        try:
            polled = self._open.poll_next(now_ms)
        except ConnectorError as error:
            if not self._files().exists(self._relative(split)):
                raise JobDefinitionError(
                    f"from_streaming_dataframe({self._source.uid!r}): the staged rows {split.description['path']} are gone: they were "
                    "freed by a job that has gone on since this snapshot was taken, or deleted; start from the latest checkpoint"
                ) from error
            raise
        if polled.status is not InputStatus.END_OF_INPUT:
            return Polled(polled.status, polled.batch, polled.wake_at_ms, split.split_id)
        self._splits.popleft()
        self._read += [self._relative(split)] if split.description["path"] else []
        self._read += [StreamedBatches._name(each) for each in split.description["entries"]]  # noqa: SLF001 - one file
        self.close()
        return Polled(InputStatus.MORE_AVAILABLE, split_id=split.split_id, finished_splits=(split.split_id,))

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        self._read_before[checkpoint_id] = list(self._read)
        splits = list(self._splits)
        if self._open is not None:
            done = sum(int(part.position["rows"]) for part in self._open.snapshot_splits(checkpoint_id))
            splits[0] = SourceSplit(splits[0].split_id, splits[0].description, {"rows": done})
        return splits

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Free what no restart needs. Raises JobDefinitionError when another job has taken the rows over."""
        done = self._read_before.pop(checkpoint_id, None)
        for older in [number for number in self._read_before if number < checkpoint_id]:
            del self._read_before[older]
        if done is None:
            return
        self._complete.append(done)
        if len(self._complete) < self._source.retained:
            return
        free = self._complete.popleft()
        if not free:
            return
        holder = StreamedBatches(self._files()).holder()
        if holder.number and holder.job_id != self._job_id:
            raise JobDefinitionError(
                f"from_streaming_dataframe({self._source.uid!r}): job {holder.job_id} was started from a snapshot of this job and "
                "reads its rows now; of two jobs, only the later one can go on"
            )
        gone = set(free)
        self._read = [each for each in self._read if each not in gone]
        self._complete = deque([each for each in done if each not in gone] for done in self._complete)
        self._read_before = {
            number: [each for each in done if each not in gone] for number, done in self._read_before.items()
        }
        for path in free:
            try:
                self._files().delete(path)
            except StorageError:  # it costs space until the job has ended
                continue

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._read_before.pop(checkpoint_id, None)

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _files(self) -> Storage:
        if self._storage is None:
            self._storage = self._source.storage()
        return self._storage

    @staticmethod
    def _relative(split: SourceSplit) -> str:
        return f"{ROWS}/{str(split.description['path']).rpartition('/')[2]}"


def _row_groups(split: SourceSplit) -> list[SourceSplit]:
    """The row groups of a file, where the position in the file leaves them."""
    parts, done = [], int(split.position.get("rows", 0))
    for number, rows in enumerate(split.description["groups"]):
        before = min(done, rows)
        done -= before
        description = {"path": split.description["path"], "row_group": number, "rows": rows}
        parts.append(SourceSplit(f"{split.split_id}#{number}", description, {"rows": before}, before == rows))
    return parts
