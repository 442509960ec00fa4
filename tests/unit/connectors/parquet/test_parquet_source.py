"""Parquet files as a source: which files, which columns, positions, rate, errors."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.connectors.files.file_discovery import FileEnumerator
from snapline.connectors.files.file_source import FileSource
from snapline.connectors.parquet import ParquetSource, footer_check
from snapline.connectors.parquet.footer_check import require_sound
from snapline.dataflow.api.connector_api import InputStatus, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

naive = dt.datetime


def write(path: Path, start: int, rows: int, row_group_rows: int = 100) -> Path:
    """Numbers from `start`, and their texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(start, start + rows)
    pq.write_table(
        pa.table({"n": pa.array(numbers, pa.int64()), "text": pa.array([str(n) for n in numbers], pa.string())}),
        path,
        row_group_size=row_group_rows,
    )
    return path


ALONE = Place()


def open_reader(source: ParquetSource, splits: Any, place: Place = ALONE) -> SourceReader:
    reader = source.create_reader(place)
    reader.add_splits(splits)
    return reader


def drain(reader: SourceReader, polls: int = 10**6, now_ms: int = 0) -> list[int]:
    """Numbers of so many polls, or of all."""
    numbers: list[int] = []
    for _ in range(polls):
        polled = reader.poll_next(now_ms)
        if polled.batch is not None:
            numbers += polled.batch["n"].to_pylist()
        if polled.status is InputStatus.END_OF_INPUT:
            break
    return numbers


def numbers_of(source: ParquetSource) -> list[int]:
    return drain(open_reader(source, source.enumerate_splits()))


def test_splits_are_row_groups_in_order(tmp_path: Path) -> None:
    """File by file, row group by row group; empty row groups and empty files give none."""
    write(tmp_path / "b.parquet", 250, 120)
    write(tmp_path / "a.parquet", 0, 250)
    write(tmp_path / "c.parquet", 0, 0)
    source = ParquetSource(tmp_path)

    splits = source.enumerate_splits()

    assert [(Path(s.description["path"]).name, s.description["row_group"], s.description["rows"]) for s in splits] == [
        ("a.parquet", 0, 100),
        ("a.parquet", 1, 100),
        ("a.parquet", 2, 50),
        ("b.parquet", 0, 100),
        ("b.parquet", 1, 20),
    ]
    assert numbers_of(source) == list(range(370))
    assert source.schema() == pa.schema([("n", pa.int64()), ("text", pa.string())])


def test_splits_say_their_least_times(tmp_path: Path) -> None:
    """In milliseconds, rounded down, of columns that are read and can be event time."""
    at = [-1_500_001, 2_000_000]
    columns = {f"t_{unit}": pa.array(at, pa.int64()).cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")}
    others = {"n": pa.array([7, 6]), "small": pa.array([1, 2], pa.int32()), "text": pa.array(["a", "b"])}
    path = tmp_path / "times.parquet"
    pq.write_table(pa.table({**columns, **others, "unsigned": pa.array([1, 2], pa.uint64())}), path, row_group_size=1)

    whole = [split.least_times_ms for split in ParquetSource(path).enumerate_splits()]
    some = ParquetSource(path, columns=["t_us", "text"]).enumerate_splits()

    assert whole == [
        {"t_s": -1_500_001_000, "t_ms": -1_500_001, "t_us": -1_501, "t_ns": -2, "n": 7},
        {"t_s": 2_000_000_000, "t_ms": 2_000_000, "t_us": 2_000, "t_ns": 2, "n": 6},
    ]
    assert [split.least_times_ms for split in some] == [{"t_us": -1_501}, {"t_us": 2_000}]


def test_batches_are_bounded_and_say_which_split_ended(tmp_path: Path) -> None:
    """A watermark per split needs to know."""
    source = ParquetSource(write(tmp_path / "a.parquet", 0, 250), batch_rows=60)
    reader = open_reader(source, source.enumerate_splits())

    polled = [reader.poll_next(0) for _ in range(6)]

    assert [p.batch.num_rows if p.batch else 0 for p in polled] == [60, 40, 60, 40, 50, 0]
    assert [len(p.finished_splits) for p in polled] == [0, 1, 0, 1, 1, 0]
    assert [p.split_id[-2:] for p in polled[:5]] == ["#0", "#0", "#1", "#1", "#2"]
    assert polled[-1].status is InputStatus.END_OF_INPUT


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """Only what was asked for, without the file's metadata."""
    source = ParquetSource(write(tmp_path / "a.parquet", 0, 3), columns=["text", "n"])
    reader = open_reader(source, source.enumerate_splits())

    batch = reader.poll_next(0).batch

    assert batch is not None and batch.schema.equals(source.schema(), check_metadata=True)
    assert batch.to_pydict() == {"text": ["0", "1", "2"], "n": [0, 1, 2]}


@pytest.mark.parametrize("polls", range(0, 14, 1))
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_after_a_restore_every_row_comes_once(tmp_path: Path, polls: int, parallelism: int) -> None:
    """Positions lie behind what was emitted, wherever the splits go, also with other batch sizes."""
    write(tmp_path / "a.parquet", 0, 250)
    write(tmp_path / "b.parquet", 250, 120)
    source = ParquetSource(tmp_path, batch_rows=33)
    splits = source.enumerate_splits()
    readers = [open_reader(source, splits[index::2], Place(index, 2)) for index in range(2)]
    before = [n for reader in readers for n in drain(reader, polls)]
    snapshot = [split for reader in readers for split in reader.snapshot_splits(7)]
    for reader in readers:
        drain(reader, 2)  # lost

    again: ParquetSource = pickle.loads(pickle.dumps(ParquetSource(tmp_path, batch_rows=50)))
    after = [
        n
        for index in range(parallelism)
        for n in drain(open_reader(again, snapshot[index::parallelism], Place(index, parallelism, 1)))
    ]

    assert sorted(before + after) == list(range(370))


def test_the_rate_is_that_of_all_subtasks_together(tmp_path: Path) -> None:
    """Two readers at 1000 rows a second: 500 each, steadily, waking exactly when told."""
    source = ParquetSource(write(tmp_path / "a.parquet", 0, 2000), rows_per_second=1000)
    splits = source.enumerate_splits()
    for index in range(2):
        reader = open_reader(source, splits[index::2], Place(index, 2))
        now, rows = 10_000, 0
        while rows < 500:
            polled = reader.poll_next(now)
            if polled.batch is None:
                assert polled.wake_at_ms is not None
                now = polled.wake_at_ms
            else:
                rows += polled.batch.num_rows
        assert now == 11_000


def test_globs_lists_and_urls_mean_files(tmp_path: Path) -> None:
    """Each file once, hidden ones never."""
    write(tmp_path / "2013" / "01.parquet", 0, 1)
    write(tmp_path / "2013" / "02.parquet", 1, 1)
    write(tmp_path / "2014" / "01.parquet", 2, 1)
    write(tmp_path / "2014" / "deep" / "er.parquet", 3, 1)
    write(tmp_path / "2014" / "_staging" / "x.parquet", 99, 1)
    write(tmp_path / "2014" / ".hidden.parquet", 99, 1)
    (tmp_path / "2014" / "_SUCCESS").touch()
    (tmp_path / "2014" / "notes.txt").write_text("x")

    assert numbers_of(ParquetSource(f"{tmp_path}/2013/*.parquet")) == [0, 1]
    assert numbers_of(ParquetSource(f"{tmp_path}/*/01.parquet")) == [0, 2]
    assert numbers_of(ParquetSource(f"{tmp_path}/**/*.parquet")) == [0, 1, 2, 3]
    assert numbers_of(ParquetSource([tmp_path / "2014", f"file://{tmp_path}/2013/02.parquet", tmp_path / "2014"])) == [
        2,
        3,
        1,
    ]


def test_a_relative_path_means_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made absolute where the job is built."""
    write(tmp_path / "a.parquet", 0, 3)
    monkeypatch.chdir(tmp_path)
    source = ParquetSource("a.parquet")
    monkeypatch.chdir("/")

    assert numbers_of(source) == [0, 1, 2]


def one_file(tmp_path: Path) -> Path:
    return write(tmp_path / "flights.parquet", 0, 3)


def test_missing_inputs_are_named(tmp_path: Path) -> None:
    """File, directory, glob: what is missing, and that every machine needs it."""
    with pytest.raises(
        ConnectorError, match=f"there is no file or directory {tmp_path}/none.parquet; it must be there on every"
    ):
        ParquetSource(tmp_path / "none.parquet").enumerate_splits()
    with pytest.raises(ConnectorError, match=r"no file matches .*/\*.parquet$"):
        ParquetSource(f"{tmp_path}/*.parquet").enumerate_splits()
    with pytest.raises(ConnectorError, match=r"no file matches .*: there is no directory .*/none$"):
        ParquetSource(f"{tmp_path}/none/*.parquet").enumerate_splits()
    with pytest.raises(ConnectorError, match="there are no Parquet files in the directory"):
        ParquetSource(tmp_path).enumerate_splits()
    with pytest.raises(ConnectorError, match="no path given"):
        ParquetSource([])
    with pytest.raises(ConnectorError, match="an empty path"):
        ParquetSource(" ")
    with pytest.raises(ConnectorError, match="cannot use foo://bucket/x"):
        ParquetSource("foo://bucket/x").enumerate_splits()


@pytest.mark.parametrize("content", [b"", b"PAR1 this is not one PAR1", b"a,b\n1,2\n"])
def test_unreadable_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    """Which file, what is wrong, and the way out."""
    (tmp_path / "broken.parquet").write_bytes(content)

    with pytest.raises(
        ConnectorError, match=r"broken.parquet is not a readable Parquet file: .*; replace it, or leave it out"
    ):
        ParquetSource(tmp_path / "broken.parquet").schema()


def test_unknown_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    """And all that there are."""
    with pytest.raises(
        ConnectorError, match=r"no column 'txt' in .*flights.parquet; did you mean 'text'\? It has: n, text"
    ):
        ParquetSource(one_file(tmp_path), columns=["n", "txt"]).enumerate_splits()
    with pytest.raises(ConnectorError, match="a column is asked for twice"):
        ParquetSource(one_file(tmp_path), columns=["n", "n"])


@pytest.mark.parametrize("make", [ParquetSource, FileSource])
def test_two_columns_of_one_name_are_refused_with_the_file(tmp_path: Path, make: Any) -> None:
    """Whatever read such rows later said that there is no such column, and did not name the file."""
    path = tmp_path / "twice.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "b"]), path)

    for columns in (None, ["a"]):
        with pytest.raises(ConnectorError, match=r"twice.parquet has two columns 'a'; write the file anew"):
            make(path, columns=columns).schema()
    assert ["b"] == make(path, columns=["b"]).schema().names


def test_files_that_differ_are_refused(tmp_path: Path) -> None:
    """Unless only what they share is read."""
    one_file(tmp_path)
    pq.write_table(pa.table({"n": [4], "text": [1.5], "more": [1]}), tmp_path / "other.parquet")

    with pytest.raises(
        ConnectorError, match=r"column 'text' is double in .*other.parquet and string in .*flights.parquet"
    ):
        ParquetSource(tmp_path).enumerate_splits()
    assert numbers_of(ParquetSource(tmp_path, columns=["n"])) == [0, 1, 2, 4]


def test_a_column_that_one_file_says_is_never_null_may_be(tmp_path: Path) -> None:
    """A null in another file ended the task with an error of Arrow's, and the promise went to rows that met these."""
    for name, values in (("a", [1]), ("b", [None, 2])):
        column = pa.field("n", pa.int64(), nullable=name == "b")
        pq.write_table(pa.table([pa.array(values, pa.int64())], pa.schema([column])), tmp_path / f"{name}.parquet")
    source = ParquetSource(tmp_path)
    assert numbers_of(source) == [1, None, 2]
    assert source.schema().field("n").nullable


@pytest.mark.parametrize("kind", [ParquetSource, FileSource])
def test_parts_of_records_that_one_file_says_are_never_null_may_be(tmp_path: Path, kind: Any) -> None:
    """Files that Spark had written from different frames were refused, or failed at a record that is null."""
    strict, other = pa.field("a", pa.int64(), nullable=False), pa.field("a", pa.int64())
    for name, part, values in (("a", strict, [{"a": 1}]), ("b", other, [{"a": 2}, None])):
        column = pa.array(values, pa.struct([part]))
        pq.write_table(
            pa.table({"s": pa.ListArray.from_arrays([0, len(values)], column)}), tmp_path / f"{name}.parquet"
        )
    source = kind([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    splits = source.enumerate_splits() or FileEnumerator(source).discover({}).splits

    reader = open_reader(source, splits)
    found = [batch for _ in range(5) if (batch := reader.poll_next(0).batch) is not None]

    assert pa.Table.from_batches(found, source.schema())["s"].to_pylist() == [[{"a": 1}], [{"a": 2}, None]]


def test_a_time_of_spark_that_has_no_nanoseconds_becomes_no_other_time(tmp_path: Path) -> None:
    """The last day of 9999, which stands for no end, was one of 1816."""
    spark = {"org.apache.spark.version": "4.1.0"}
    for name, year in (("usual", 2026), ("far", 9999)):
        column = pa.array([naive(year, 12, 31)], pa.timestamp("us"))
        rows = pa.table({"n": [year], "at": column}).replace_schema_metadata(spark)
        pq.write_table(rows, tmp_path / f"{name}.parquet", use_deprecated_int96_timestamps=True)
    assert numbers_of(ParquetSource(tmp_path / "usual.parquet")) == [2026]
    with pytest.raises(ConnectorError, match=r"far.parquet: .* out of bounds timestamp: .*; a FileSource with schema="):
        numbers_of(ParquetSource(tmp_path))
    for unit, said in (("us", ""), ("ns", "column 'at' of .* does not fit timestamp.ns.: .* say schema=")):
        schema = pa.schema([("at", pa.timestamp(unit))])
        source = FileSource(tmp_path / "far.parquet", schema=schema)
        reader = source.create_reader(ALONE)
        reader.add_splits(FileEnumerator(source).discover({}).splits)
        with pytest.raises(ConnectorError, match=said) if said else contextlib.nullcontext():
            batch = reader.poll_next(0).batch
            assert batch is not None and batch.to_pylist() == [{"at": naive(9999, 12, 31)}]


def test_partition_directories_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """Their columns are not in the files; whoever does not need them says so."""
    write(tmp_path / "origin=JFK" / "a.parquet", 0, 3)

    with pytest.raises(ConnectorError, match=r"partition directories \(origin=JFK\).*give the glob .*/\*\*/\*.parquet"):
        ParquetSource(tmp_path).enumerate_splits()
    assert numbers_of(ParquetSource(f"{tmp_path}/**/*.parquet")) == [0, 1, 2]


def test_a_file_that_changed_or_went_away_is_noticed(tmp_path: Path) -> None:
    """A restore must not read other rows than the first attempt."""
    path = one_file(tmp_path)
    source = ParquetSource(path)
    splits = source.enumerate_splits()

    write(path, 0, 4)
    with pytest.raises(
        ConnectorError, match=r"flights.parquet has changed since the job was submitted \(row group 0 no longer has 3"
    ):
        drain(open_reader(source, splits))
    path.unlink()
    with pytest.raises(ConnectorError, match=r"there is no file .*flights.parquet"):
        drain(open_reader(source, splits))


def test_a_reader_without_splits_ends_at_once(tmp_path: Path) -> None:
    """More subtasks than row groups are no error."""
    source = ParquetSource(one_file(tmp_path), rows_per_second=5)

    assert drain(open_reader(source, ())) == []
    assert open_reader(source, ()).snapshot_splits(1) == []


def test_finished_splits_stay_finished(tmp_path: Path) -> None:
    """The snapshot of a reader at its end has nothing left to read."""
    source = ParquetSource(one_file(tmp_path))
    reader = open_reader(source, source.enumerate_splits())
    drain(reader)
    snapshot: list[SourceSplit] = list(reader.snapshot_splits(1))
    reader.close()

    assert all(split.finished for split in snapshot)
    assert drain(open_reader(source, snapshot)) == []


def test_a_footer_that_contradicts_itself_is_named_and_ends_no_process(tmp_path: Path) -> None:
    """The type of one column is another one in its row group: Arrow's C++ would end the process that looks at it."""
    sound, path = write(tmp_path / "a.parquet", 0, 100), tmp_path / "b.parquet"
    pq.write_table(pa.table({"n": pa.array(range(100), pa.int64()), "text": [str(n) for n in range(100)]}), path)
    data = bytearray(path.read_bytes())
    data[data.index(bytes.fromhex("1504"), len(data) - 8 - int.from_bytes(data[-8:-4], "little") + 40) + 1] = 0x0E
    path.write_bytes(data)

    with pytest.raises(ConnectorError, match=r"b\.parquet: its footer contradicts itself \(.*so the file is damaged"):
        ParquetSource(tmp_path).enumerate_splits()
    assert len(ParquetSource(sound).enumerate_splits()) == 1


def test_a_copy_that_something_else_ends_accuses_no_footer(tmp_path: Path) -> None:
    """Threads of another library may end a process that was forked beside them."""

    def look(number: int) -> None:
        if number == 1 and not (tmp_path / "ended").exists():
            (tmp_path / "ended").touch()
            os.kill(os.getpid(), signal.SIGSEGV)

    require_sound(["a.parquet", "b.parquet"], look)
    assert (tmp_path / "ended").exists()


def test_a_copy_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been forked while another thread held a lock, and wait for that before anything wakes it: the job
    starts all the same."""
    monkeypatch.setattr(footer_check, "LONGEST_LOOK_SECONDS", 1)

    def look(_number: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            signal.sigwait({signal.SIGUSR1})

    require_sound(["a.parquet"], look)


def test_a_directory_may_have_more_files_than_a_process_may_have_open(tmp_path: Path) -> None:
    """All footers were open at once, so that no job could read a thousand files where 1,024 may be open, as in most
    shells; nor a DataFrame of as many partitions."""
    for number in range(60):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"{number}.parquet")
    before, open_files = resource.getrlimit(resource.RLIMIT_NOFILE), len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 40, before[1]))
    try:
        splits = ParquetSource(tmp_path).enumerate_splits()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert len(splits) == 60
