"""The Parquet sink's files: names, visibility, durability, schema, errors."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from snapline.connectors.files.file_writer import FileSinkWriter
from snapline.connectors.files.staging import SinkPlace, StagedName
from snapline.connectors.parquet import ParquetSink, ParquetSource
from snapline.dataflow.api.connector_api import Committable, Committer
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def writer_of(sink: ParquetSink, place: Place = Place()) -> FileSinkWriter:  # noqa: B008 - a frozen value
    writer = sink.create_writer(place, ())
    assert isinstance(writer, FileSinkWriter)
    return writer


def committer_of(sink: ParquetSink, place: Place = Place()) -> Committer:  # noqa: B008 - a frozen value
    committer = sink.create_committer(place)
    assert committer is not None
    return committer


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def test_rows_are_hidden_until_the_commit_and_then_there_for_every_reader(tmp_path: Path) -> None:
    """Spark's and Arrow's rule (names with _ or . are not data) and plain globs see committed rows only."""
    sink = ParquetSink(tmp_path)
    writer, committer = writer_of(sink), committer_of(sink)

    def seen() -> list[list[int]]:
        glob = f"{tmp_path}/*.parquet"
        arrow = ds.dataset(tmp_path, format="parquet").to_table()
        return [
            sorted(pl.read_parquet(glob)["n"].to_list()) if files(tmp_path) else [],
            sorted(arrow["n"].to_pylist()) if arrow.num_columns else [],
        ]

    writer.write(numbers(1, 2))
    first = writer.prepare_commit(1)
    writer.write(numbers(3))
    for file in writer._open.values():
        writer._flush(file)
    assert seen() == [[], []]

    committer.commit(first)
    assert seen() == [[1, 2], [1, 2]]

    committer.commit(writer.prepare_commit(2))
    writer.close()
    committer.close()
    assert seen() == [[1, 2, 3], [1, 2, 3]]
    assert pl.read_parquet(tmp_path)["n"].sort().to_list() == [1, 2, 3], "a finished directory holds data files only"
    assert ParquetSource(tmp_path).schema() == pa.schema([("n", pa.int64())])


def test_names_tell_uid_subtask_checkpoint_and_attempt(tmp_path: Path) -> None:
    """Sorted by name they are in order of writing, subtask by subtask; attempts never share a name."""
    sink = ParquetSink(tmp_path, row_group_rows=1, roll_bytes=1)
    for place in (
        Place(3, 4, 0, operator_uid="daily-sink"),
        Place(3, 4, 1, operator_uid="daily-sink", execution_attempt="b"),
    ):
        writer, committer = writer_of(sink, place), committer_of(sink, place)
        writer.write(numbers(1))
        writer.write(numbers(2))
        committer.commit(writer.prepare_commit(12))

    names = files(tmp_path)
    assert len(names) == 4
    assert all(name.startswith("part-job-daily-sink-0003-000012-") for name in names)
    assert [name.rsplit("-", 1)[1] for name in names] == ["0000.parquet", "0001.parquet"] * 2


@pytest.mark.parametrize("uid", ["a/b", "ümläut", "x" * 100, "..", "with space", "a-1-2-3f-4"])
def test_any_uid_makes_a_file_name(tmp_path: Path, uid: str) -> None:
    """Odd ones get a digest, so that two of them never meet; orphans are recognised all the same."""
    place = SinkPlace.of(str(tmp_path), Place(operator_uid=uid))
    other = SinkPlace.of(str(tmp_path), Place(operator_uid=uid, attempt_number=1, execution_attempt="later"))
    staged = place.staged(7)

    assert "/" not in staged and not staged.startswith(".") and len(staged) < 100
    assert StagedName.parse(f"{staged}.staged") == StagedName(place.uid, 0, 0, place.attempt, 7)
    there = frozenset(map(StagedName.parse, (f"{staged}.staged", f"x{staged}.staged", "README")))
    assert other.is_orphan(f"{staged}.staged", there) and not place.is_orphan(f"{staged}.staged", there)
    assert not other.is_orphan("README", there) and not other.is_orphan(f"x{staged}.staged", there)


def test_a_commit_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    """Another process, after a crash in the middle, commits the same."""
    sink = ParquetSink(tmp_path, row_group_rows=1, roll_bytes=1)
    writer = writer_of(sink)
    for number in range(3):
        writer.write(numbers(number))
    committables = [Committable(dict(each.data)) for each in writer.prepare_commit(1)]
    committer_of(sink).commit(committables[:1])

    for attempt in range(1, 3):
        committer_of(sink, Place(attempt_number=attempt, execution_attempt=str(attempt))).commit(committables)
        assert len(files(tmp_path)) == 3
    assert sorted(pl.read_parquet(f"{tmp_path}/*.parquet")["n"].to_list()) == [0, 1, 2]


def test_a_lost_file_is_an_error_unless_it_may_be_missing(tmp_path: Path) -> None:
    """Rows that were promised are not silently dropped."""
    sink = ParquetSink(tmp_path)
    writer = writer_of(sink)
    writer.write(numbers(1))
    committables = writer.prepare_commit(1)
    committer_of(sink).commit(committables)
    (tmp_path / files(tmp_path)[0]).unlink()

    with pytest.raises(ConnectorError, match=r"1 pre-committed file\(s\) are gone.*ignore_missing=True"):
        committer_of(sink).commit(committables)
    committer_of(ParquetSink(tmp_path, ignore_missing=True)).commit(committables)


def test_a_savepoint_whose_rows_a_later_attempt_wrote_again_names_the_way_out(tmp_path: Path) -> None:
    """The job went on after the savepoint and failed before the next checkpoint: the attempt after that cleans up, and
    who starts from the savepoint then is told what happened."""
    sink = ParquetSink(tmp_path)
    writer = writer_of(sink)
    writer.write(numbers(1))
    in_savepoint = writer.prepare_commit(1)

    place = Place(attempt_number=1, execution_attempt="graph_0_1")
    again = writer_of(sink, place)
    again.write(numbers(1))
    committer_of(sink, place).commit(again.prepare_commit(2))

    with pytest.raises(ConnectorError, match=r"went on after the savepoint.*start from a later snapshot"):
        committer_of(sink, Place(job_id="later")).commit(in_savepoint)
    assert len(files(tmp_path)) == 1


def test_what_was_pre_committed_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and directory before the acknowledgement, the target directory at the commit."""
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    sink = ParquetSink(tmp_path)
    writer = writer_of(sink)
    writer.write(numbers(1))
    committables = writer.prepare_commit(1)
    assert synced[-2:] == [f"{writer._place.staged(0)}.inprogress", "job"]

    synced.clear()
    committer_of(sink).commit(committables)
    assert synced == [tmp_path.name]


def test_small_batches_become_large_row_groups(tmp_path: Path) -> None:
    """A thin stream does not make a row group per batch."""
    sink = ParquetSink(tmp_path, row_group_rows=100)
    writer = writer_of(sink)
    for number in range(250):
        writer.write(numbers(number))
    committer_of(sink).commit(writer.prepare_commit(1))

    metadata = pq.ParquetFile(tmp_path / files(tmp_path)[0]).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, 50]


def test_nothing_written_gives_no_file(tmp_path: Path) -> None:
    """Empty batches are nothing, too."""
    sink = ParquetSink(tmp_path)
    writer = writer_of(sink)
    writer.write(numbers())
    committer_of(sink).commit(writer.prepare_commit(1))
    committer_of(sink).commit(writer.prepare_commit(2))

    assert files(tmp_path) == [] and not (tmp_path / "_staging").exists()


def test_an_orderly_close_leaves_only_what_was_pre_committed(tmp_path: Path) -> None:
    """Unfinished and rolled files go; what a checkpoint may hold stays, hidden."""
    sink = ParquetSink(tmp_path, row_group_rows=1, roll_bytes=1)
    writer, committer = writer_of(sink), committer_of(sink)
    writer.write(numbers(1))
    kept = writer.prepare_commit(1)
    writer.write(numbers(2))
    writer._sink = ParquetSink(tmp_path, row_group_rows=1)
    writer.write(numbers(3))
    writer.close()
    committer.close()

    assert [path.name for path in tmp_path.rglob("*.*")] == [Path(kept[0].data["staged"]).name]


def test_clean_up_leaves_other_jobs_uids_and_subtasks_alone(tmp_path: Path) -> None:
    """Only unfinished files of earlier attempts of this very subtask are removed at the restore."""
    sink = ParquetSink(tmp_path)
    for place in (Place(), Place(1, 2), Place(operator_uid="other"), Place(job_id="other-job")):
        writer = writer_of(sink, place)
        writer.write(numbers(1))
        for file in writer._open.values():
            writer._flush(file)  # and the process dies

    committer_of(sink, Place(0, 2, 1, execution_attempt="next")).clean_up(())

    left = sorted(str(path.relative_to(tmp_path / "_staging")) for path in tmp_path.rglob("*.inprogress"))
    assert [name.split("-0-")[0] for name in left] == ["job/other", "job/uid-1", "other-job/uid"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pa.record_batch({"m": [1]}), "a batch lacks the column 'n'; every batch needs the columns n"),
        (
            pa.record_batch({"n": ["x"]}),
            "column 'n' is string in a batch and int64 before; cast it to one type, or give",
        ),
        (pa.record_batch({"n": [1], "m": [1]}), "a batch has the column 'm', which earlier ones had not"),
    ],
)
def test_batches_that_differ_are_refused(tmp_path: Path, batch: pa.RecordBatch, message: str) -> None:
    """Path, column and way out."""
    writer = writer_of(ParquetSink(tmp_path))
    writer.write(numbers(1))

    with pytest.raises(ConnectorError, match=f"ParquetSink {tmp_path}: {message}"):
        writer.write(batch)


def test_a_given_schema_casts(tmp_path: Path) -> None:
    """Columns in another order, all-null columns and narrower types fit; what does not is an error."""
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    sink = ParquetSink(tmp_path, schema=schema)
    writer = writer_of(sink)
    writer.write(pa.record_batch({"text": pa.nulls(1), "n": pa.array([1], pa.int32())}))
    writer.write(pa.record_batch({"n": pa.array([2], pa.int64()), "text": ["two"]}))
    with pytest.raises(ConnectorError, match="a batch does not fit the schema"):
        writer.write(pa.record_batch({"n": ["three"], "text": ["three"]}))
    committer_of(sink).commit(writer.prepare_commit(1))

    table = pq.read_table(tmp_path)
    assert table.schema == schema
    assert table.to_pylist() == [{"n": 1, "text": None}, {"n": 2, "text": "two"}]


def test_validate_makes_the_directory_and_leaves_it_empty(tmp_path: Path) -> None:
    """At submission, so that no task finds out later."""
    ParquetSink(tmp_path / "a" / "b").validate()

    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_targets_that_cannot_work_are_named(tmp_path: Path) -> None:
    """One line each, at submission."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConnectorError, match=r"cannot write into .*/file/out: .*choose another path"):
        ParquetSink(tmp_path / "file" / "out").validate()
    with pytest.raises(ConnectorError, match=r"cannot write into /proc/snapline-output: "):
        ParquetSink("/proc/snapline-output").validate()
    with pytest.raises(ConnectorError, match="unknown compression 'zip'"):
        ParquetSink(tmp_path, compression="zip")
    with pytest.raises(ConnectorError, match="row_group_rows must be at least 1, got 0"):
        ParquetSink(tmp_path, row_group_rows=0)
