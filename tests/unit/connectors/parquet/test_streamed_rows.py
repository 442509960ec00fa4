"""Micro-batches that a query stages for a job, without Spark: each counts once, in order, and is freed when it may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.connectors.parquet.streamed_rows import (
    BATCHES_AT_ONCE,
    ROWS,
    Claim,
    StreamedBatches,
    StreamedRowsSource,
)
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.staged import is_staged_directory, is_staged_file
from snapline.spark import streaming_frames
from snapline.spark.streaming_frames import StreamedFrame

SCHEMA = pa.schema([("n", pa.int64())])


class Query:
    """Stages as Spark's query does: rows first, then the entry."""

    def __init__(self, tmp_path: Path, job_id: str = "job-1", **more: Any) -> None:
        options = {"bounded": False, "restored": "", "retained": 1, **more}
        self.source = StreamedRowsSource(str(tmp_path), "q", SCHEMA, {}, **options)
        self.directory = Path(self.source.place(job_id))
        self.batches = StreamedBatches(self.source.storage())
        self.claim = self.batches.claim(job_id)

    def stage(self, batch_id: int, values: list[int], name: str = "", group: int = 2) -> None:
        """Write one micro-batch of one file, with row groups of two rows."""
        name = name or f"part-{batch_id}.parquet"
        (self.directory / ROWS).mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": values}, SCHEMA), self.directory / ROWS / name, row_group_size=group)
        groups = [len(values[start : start + group]) for start in range(0, len(values), group)]
        self.batches.add(batch_id, [(name, groups)])

    def reader(self, job_id: str = "job-1") -> Any:
        """A reader of one subtask."""
        return self.source.create_reader(SimpleNamespace(job_id=job_id, parallelism=1, metrics=MetricGroup("q")))

    def left(self) -> list[str]:
        """Rows and entries that are not freed."""
        return sorted(path.name for kind in (ROWS, "batches") for path in (self.directory / kind).glob("*"))


def drained(reader: Any) -> list[int]:
    """Everything that the reader gives now."""
    values: list[int] = []
    while (polled := reader.poll_next(0)).status is InputStatus.MORE_AVAILABLE:
        values += [] if polled.batch is None else polled.batch["n"].to_pylist()
    return values


def test_micro_batches_are_found_in_order_and_once(tmp_path: Path) -> None:
    """A look goes on where the one before it was; an empty micro-batch has an entry, too."""
    query = Query(tmp_path)
    looks = query.source.create_enumerator(())
    assert looks is not None
    first = looks.discover({})
    assert (list(first.splits), first.state["after"], first.finished) == ([], -1, False)
    query.stage(0, [1, 2, 3])
    query.batches.add(1, [])
    query.stage(2, [4])
    second = looks.discover(first.state)
    reader = query.reader()
    reader.add_splits(second.splits)
    assert drained(reader) == [1, 2, 3, 4]
    assert list(looks.discover(second.state).splits) == []
    assert second.state == {"directory": str(query.directory), "after": 2, "entries": []}


def test_the_first_entry_of_a_number_counts(tmp_path: Path) -> None:
    """A query that was thought dead comes late with other rows, which nobody reads."""
    query = Query(tmp_path)
    query.stage(0, [1])
    query.stage(0, [7], "part-other.parquet")
    looks = query.source.create_enumerator(())
    reader = query.reader()
    reader.add_splits(looks.discover({}).splits)
    assert drained(reader) == [1]


def test_a_position_in_the_middle_of_a_file_is_gone_on_from(tmp_path: Path) -> None:
    """By another reader, at every row group."""
    query = Query(tmp_path)
    query.stage(0, list(range(7)))
    splits = query.source.create_enumerator(()).discover({}).splits
    for polls in range(5):
        before = query.reader()
        before.add_splits(splits)
        seen = [value for _ in range(polls) if (batch := before.poll_next(0).batch) for value in batch["n"].to_pylist()]
        after = query.reader()
        after.add_splits([split for split in before.snapshot_splits(1) if not split.finished])
        assert seen + drained(after) == list(range(7))


def test_rows_are_freed_when_no_restart_needs_them(tmp_path: Path) -> None:
    """With two checkpoints that are kept: when the second one that lies behind them is complete; not by one that was
    aborted, nor by one before they were read."""
    query = Query(tmp_path, retained=2)
    query.stage(0, [1])
    query.stage(1, [2])
    splits = query.source.create_enumerator(()).discover({}).splits
    reader = query.reader()
    reader.snapshot_splits(1)
    reader.add_splits(splits[:1])
    drained(reader)
    for checkpoint_id in (2, 3):
        reader.snapshot_splits(checkpoint_id)
    reader.notify_checkpoint_complete(1)
    reader.notify_checkpoint_aborted(2)
    reader.notify_checkpoint_complete(3)
    everything = ["000000000000.json", "000000000001.json", "part-0.parquet", "part-1.parquet"]
    assert query.left() == everything
    reader.snapshot_splits(4)
    reader.notify_checkpoint_complete(4)
    assert query.left() == ["000000000001.json", "part-1.parquet"]


def test_rows_that_were_freed_are_not_skipped(tmp_path: Path) -> None:
    """A snapshot that is older than what is left fails for good, with a line, at the enumerator and at a reader."""
    query = Query(tmp_path)
    query.stage(0, [1])
    query.stage(1, [2])
    looks = query.source.create_enumerator(())
    assert looks is not None
    splits = looks.discover({}).splits
    reader = query.reader()
    reader.add_splits(splits[:1])
    drained(reader)
    reader.snapshot_splits(1)
    reader.notify_checkpoint_complete(1)
    with pytest.raises(JobDefinitionError, match="rows of micro-batches 0 to 0 were freed by a job that has gone on"):
        looks.discover({})
    late = query.reader()
    late.add_splits(splits[:1])
    with pytest.raises(JobDefinitionError, match=r"the staged rows .*part-0\.parquet are gone"):
        late.poll_next(0)


def test_the_latest_claim_owns_the_rows(tmp_path: Path) -> None:
    """A job from a snapshot of this one has claimed them: this one fails, and frees nothing."""
    query = Query(tmp_path)
    query.stage(0, [1])
    reader = query.reader()
    reader.add_splits(query.source.create_enumerator(()).discover({}).splits)
    drained(reader)
    reader.snapshot_splits(1)
    assert (query.claim, query.batches.claim("job-2")) == (Claim(1, "job-1"), Claim(2, "job-2"))
    with pytest.raises(JobDefinitionError, match="job job-2 was started from a snapshot of this job"):
        reader.notify_checkpoint_complete(1)
    assert len(query.left()) == 2


def test_the_end_of_a_query_is_the_end_of_the_source(tmp_path: Path) -> None:
    """Once all is handed out, and only of the query that is claimed; a failure is the job's."""
    query = Query(tmp_path, bounded=True)
    query.stage(0, [1])
    query.batches.end(query.claim, "")
    looks = query.source.create_enumerator(())
    assert looks is not None
    first = looks.discover({})
    assert (len(first.splits), first.finished) == (1, False)
    assert looks.discover(first.state).finished
    again = query.batches.claim("job-1")
    assert not looks.discover(first.state).finished
    query.batches.end(again, "no such topic")
    with pytest.raises(
        JobDefinitionError, match=r"from_streaming_dataframe\('q'\): the query has failed: no such topic"
    ):
        looks.discover(first.state)


def test_empty_micro_batches_are_not_the_end_of_the_source(tmp_path: Path) -> None:
    """A look finds a hundred at once: where all of them were empty and the query had ended, what came after them was
    never read, and the job was FINISHED without those rows."""
    query = Query(tmp_path, bounded=True)
    for batch_id in range(BATCHES_AT_ONCE):
        query.batches.add(batch_id, [])
    query.stage(BATCHES_AT_ONCE, [1])
    query.batches.end(query.claim, "")
    looks = query.source.create_enumerator(())
    assert looks is not None
    first = looks.discover({})
    assert (list(first.splits), first.finished) == ([], False)
    second = looks.discover(first.state)
    assert (len(second.splits), second.finished) == (1, False)
    assert looks.discover(second.state).finished


def test_what_lies_there_is_known_as_staged(tmp_path: Path) -> None:
    """So that the coordinator deletes it with the job."""
    query = Query(tmp_path)
    query.stage(0, [1])
    query.batches.end(query.claim, "")
    assert is_staged_directory(str(query.directory))
    files = [str(path.relative_to(query.directory)) for path in query.directory.rglob("*") if path.is_file()]
    assert [name for name in files if not is_staged_file(name)] == []
    assert query.source.staged_directory == str(query.directory)
    assert StreamedRowsSource("b", "q", SCHEMA, {}, bounded=True, restored="d", retained=1).place("job-2") == "d"


def test_rows_are_collected_here_while_the_query_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query was not started for `execute_and_collect(local=True)` and `show`, which waited for ever."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    source = StreamedRowsSource(str(tmp_path), "q", SCHEMA, {}, bounded=True, restored="", retained=1)
    env.streamed_frames.append(StreamedFrame(SimpleNamespace(), source, "append", {}, "q"))  # type: ignore[arg-type]

    @contextmanager
    def queries(streamed: Sequence[StreamedFrame], job_id: str) -> Iterator[None]:
        query = Query(tmp_path, job_id)
        query.stage(0, [1, 2])
        query.batches.end(query.claim, "")
        try:
            yield
        finally:
            ended.append(job_id)

    ended: list[str] = []
    monkeypatch.setattr(streaming_frames, "running_queries", queries)
    rows = env.from_source(source, uid="q").execute_and_collect(local=True, limit=2)

    assert list(rows) == [{"n": 1}, {"n": 2}]
    assert len(ended) == 1


def test_micro_batches_without_rows_are_freed_as_well(tmp_path: Path) -> None:
    """Of a query that puts out rows once a day each checkpoint had the numbers of all since, and a look all entries."""
    query = Query(tmp_path)
    looks = query.source.create_enumerator(())
    assert looks is not None
    reader, state = query.reader(), dict[str, Any]()
    for batch_id in range(5 * BATCHES_AT_ONCE):
        query.batches.add(batch_id, [])
    for checkpoint_id in range(1, 6):
        found = looks.discover(state)
        state = found.state
        reader.add_splits(found.splits)
        assert drained(reader) == []
        reader.snapshot_splits(checkpoint_id)
        reader.notify_checkpoint_complete(checkpoint_id)
        assert len(state["entries"]) <= BATCHES_AT_ONCE
    assert len(query.left()) <= BATCHES_AT_ONCE
    query.stage(5 * BATCHES_AT_ONCE, [7])
    reader.add_splits(looks.discover(state).splits)
    assert drained(reader) == [7]
