"""The file sink: formats, partitions, limits of size and age, compaction; what other tools see at any moment."""

from __future__ import annotations

import datetime as dt
import gzip
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.connectors import (
    AvroFormat,
    CsvFormat,
    FileSink,
    FileSource,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    RollingPolicy,
)
from snapline.connectors.files import file_sink, file_writer, output_files
from snapline.connectors.files.file_discovery import find_files
from snapline.connectors.files.file_writer import OPEN_PARTITIONS_MAX, FileSinkWriter
from snapline.connectors.files.output_files import LocalOutputFiles, open_output
from snapline.connectors.files.staging import SinkPlace
from snapline.connectors.formats import file_format
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

NUMBERS = pa.schema([("n", pa.int64()), ("word", pa.string())])
AVRO = {
    "type": "record", "name": "N",
    "fields": [{"name": "n", "type": ["null", "long"]}, {"name": "word", "type": ["null", "string"]}],
}  # fmt: skip


def rows(*values: int, **columns: Any) -> pa.RecordBatch:
    numbers = {"n": list(values), "word": [f"w{value}" for value in values]}
    return pa.RecordBatch.from_pydict({**numbers, **columns})


def written(sink: FileSink, *batches: pa.RecordBatch, checkpoint_id: int = 1, place: Any = Place()) -> list[Any]:  # noqa: B008
    writer = sink.create_writer(place, ())
    for batch in batches:
        writer.write(batch)
    committables = list(writer.prepare_commit(checkpoint_id))
    writer.close()
    return committables


def together(committables: Sequence[Committable], checkpoint_id: int = 1, *, again: bool = False) -> GlobalCommittable:
    return GlobalCommittable("job", "uid", checkpoint_id, tuple(committables), again)


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def read_json(path: str) -> list[Any]:
    return pl.read_ndjson(path).to_dicts()


def read_csv(path: str) -> list[Any]:
    options = pacsv.ReadOptions(column_names=["n", "word"])
    return pacsv.read_csv(path, read_options=options).to_pylist()


def ask_duckdb(query: str) -> list[Any]:
    """The rows of a query, on a connection of its own."""
    with duckdb.connect() as connection:
        found = connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def read_avro(path: str) -> list[Any]:
    with Path(path).open("rb") as file:
        return list(fastavro.reader(file))


@pytest.mark.parametrize(
    ("form", "compression", "suffix", "read"),
    [
        ("parquet", "gzip", ".parquet", lambda path: pq.read_table(path).to_pylist()),
        (ParquetFormat(), None, ".parquet", lambda path: ask_duckdb(f"from read_parquet('{path}')")),
        ("orc", "zlib", ".orc", lambda path: orc.read_table(path).to_pylist()),
        (OrcFormat(), None, ".orc", lambda path: orc.read_table(path).to_pylist()),
        (JsonFormat(NUMBERS), None, ".jsonl", read_json),
        (JsonFormat(NUMBERS), "gzip", ".jsonl.gz", read_json),
        (JsonFormat(NUMBERS), "zstd", ".jsonl.zst", read_json),
        (CsvFormat(NUMBERS), "gzip", ".csv.gz", read_csv),
        (AvroFormat(AVRO), None, ".avro", read_avro),
        (AvroFormat(AVRO), "gzip", ".avro", read_avro),
    ],
)
@pytest.mark.parametrize("compacts", [False, True])
def test_every_format_is_read_by_others(tmp_path, form, compression, suffix, read, compacts):
    """Of each file, and of one that was put together from several."""
    sink = FileSink(tmp_path, form, compression=compression, compact_below=1 << 20 if compacts else None)
    sink.validate()
    committables = written(sink, rows(1, 2), rows(3))
    other = written(sink, rows(4), place=Place(1, 2))
    expected = [{"n": n, "word": f"w{n}"} for n in (1, 2, 3, 4)]
    if compacts:
        merging = sink.create_global_committer(Place())
        for again in (False, True):
            merging.commit(together([*committables, *other], again=again))
        merging.close()
    else:
        renaming = sink.create_committer(Place())
        renaming.commit([*committables, *other])
        renaming.close()

    found = files(tmp_path)
    assert len(found) == (1 if compacts else 2) and all(name.endswith(suffix) for name in found)
    assert sorted((row for name in found for row in read(f"{tmp_path}/{name}")), key=lambda row: row["n"]) == expected


@pytest.mark.parametrize(
    ("form", "suffix", "count"),
    [
        ("parquet", ".parquet", lambda path: pl.read_parquet(path).height),
        ("orc", ".orc", lambda path: ds.dataset(path, format="orc").count_rows()),
        (AvroFormat(AVRO), ".avro", lambda path: sum(len(read_avro(str(file))) for file in path.glob("*.avro"))),
        (JsonFormat(NUMBERS), ".jsonl", lambda path: len(ask_duckdb(f"from read_json('{path}/*.jsonl')"))),
        (CsvFormat(NUMBERS, header=True), ".csv", lambda path: pl.read_csv(path / "*.csv").height),
    ],
)
def test_a_sink_without_rows_can_be_read(tmp_path, form, suffix, count):
    """One file of one subtask, also by a job that goes on from there; and none beside rows of before."""
    sink = FileSink(tmp_path, form, schema=NUMBERS if isinstance(form, str) else None)
    committer = sink.create_committer(Place())
    for place in (Place(), Place(1, 2), Place(attempt_number=1, execution_attempt="graph_vertex_0_1")):
        committer.commit(written(sink, place=place))
    committer.close()

    assert [name.endswith(suffix) for name in files(tmp_path)] == [True]
    assert count(tmp_path) == 0


def test_times_of_day_that_differ_by_nanoseconds_are_partitions_of_their_own(tmp_path: Path) -> None:
    """They were one directory, whose name was none of them."""
    times = pa.array([1, 2], pa.time64("ns"))
    writer = FileSink(tmp_path, partition_by=["at"]).create_writer(Place(), ())
    assert isinstance(writer, FileSinkWriter)
    found = [name for name, _ in writer.split(pa.record_batch({"n": [1, 2], "at": times}))]

    assert ["at=00:00:00.000000001", "at=00:00:00.000000002"] == found


@pytest.mark.parametrize(
    ("column", "kind"),
    [(pa.array([1], pa.timestamp("us")), pa.date32()), (pa.array([2]), pa.bool_()), (pa.array([1e300]), pa.float32())],
    ids=["day", "truth", "float32"],
)
def test_values_that_a_schema_would_change_are_refused(tmp_path: Path, column: pa.Array, kind: pa.DataType) -> None:
    """A time was cut to its day, two was true, and a large number was infinite in the files."""
    wanted = pa.schema([("v", kind)])
    for sink in (FileSink(tmp_path, schema=wanted), FileSink(tmp_path, JsonFormat(wanted))):
        with pytest.raises(ConnectorError, match=r"does not fit the schema: column 'v': some values of .* are not the"):
            written(sink, pa.record_batch({"v": column}))


def test_lines_have_the_columns_of_the_stream(tmp_path):
    """A name is enough where they are known; where they are not, the job is not built."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    orders = env.from_collection([{"n": 1, "word": "w", "day": 7}])
    orders.sink_to(FileSink(tmp_path / "json", "json", partition_by=["day"]), uid="json")
    orders.sink_to(FileSink(tmp_path / "csv", "csv", compression="gzip"), uid="csv")
    env.execute("lines", local=True)

    assert [read_json(str(path)) for path in (tmp_path / "json").rglob("day=7/*.jsonl")] == [[{"n": 1, "word": "w"}]]
    assert [gzip.decompress(path.read_bytes()) for path in (tmp_path / "csv").glob("*.csv.gz")] == [
        b'n,word,day\n1,"w",7\n'
    ]
    with pytest.raises(ConnectorError, match="the columns of the stream are not known here; give schema="):
        orders.map(lambda row: row).sink_to(FileSink(tmp_path, "json"), uid="unknown")


def test_the_stream_tells_the_columns_of_a_sink_without_rows(tmp_path):
    """A filter that lets nothing through; polars and DuckDB read what it wrote."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    nothing = env.from_collection([{"n": 1, "word": "w"}]).filter(sl.col("n") > 1)
    nothing.sink_to(FileSink(tmp_path), uid="sink")
    env.execute("nothing", local=True)

    assert pl.read_parquet(tmp_path).schema == {"n": pl.Int64, "word": pl.String}
    assert ask_duckdb(f"from read_parquet('{tmp_path}/*.parquet')") == []


def test_a_sink_with_partitions_and_without_rows_can_be_read(tmp_path):
    """In the partition of nulls lies a file without rows, once; rows that come later have their types."""
    sink = FileSink(tmp_path, partition_by=["n"], schema=NUMBERS)
    committer = sink.create_committer(Place())
    committer.commit(written(sink))
    assert pl.read_parquet(tmp_path).height == 0
    assert [Path(name).parent.name for name in files(tmp_path)] == ["n=__HIVE_DEFAULT_PARTITION__"]

    again = Place(attempt_number=1, execution_attempt="graph_vertex_0_1")
    committer.commit([*written(sink, rows(7)), *written(sink, place=again)])
    committer.close()
    assert pl.read_parquet(tmp_path).rows() == [("w7", 7)]
    assert len(files(tmp_path)) == 2


def test_partitions_are_directories_that_every_tool_reads(tmp_path):
    """Their columns are in the path alone, with nulls, times and signs that a path cannot have."""
    sink = FileSink(tmp_path, partition_by=["day", "shop"])
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None, dt.date(2024, 1, 1)]
    shops = ["a/b", "ü=%", None, "a/b"]
    committables = written(sink, rows(1, 2, 3, 4, day=days, shop=shops))
    sink.create_committer(Place()).commit(committables)

    names = files(tmp_path)
    assert {str(Path(name).parent) for name in names} == {
        "day=2024-01-01/shop=a%2Fb",
        "day=2024-01-02/shop=ü%3D%25",
        "day=__HIVE_DEFAULT_PARTITION__/shop=__HIVE_DEFAULT_PARTITION__",
    }
    expected = sorted((n, day and str(day), shop) for n, day, shop in zip((1, 2, 3, 4), days, shops, strict=True))
    arrow = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    glob = f"{tmp_path}/**/*.parquet"
    duck = ask_duckdb(f"from read_parquet('{glob}', hive_partitioning=true, hive_types_autocast=false)")
    polars = pl.read_parquet(glob, hive_partitioning=True, try_parse_hive_dates=False).to_dicts()
    for table in (arrow, duck, polars):
        assert sorted((row["n"], row["day"], row["shop"]) for row in table) == expected
    assert pq.read_schema(tmp_path / names[0]).names == ["n", "word"]


@pytest.mark.parametrize("value", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_partition_that_a_directory_cannot_say_is_refused(tmp_path, value):
    """Spark reads nothing of what has a directory `shop=`, and the text that stands for null was null to all."""
    writer = FileSink(tmp_path, partition_by=["shop"]).create_writer(Place(), ())
    with pytest.raises(ConnectorError, match=rf"column 'shop' is '{value}' in a row, which a directory cannot say"):
        writer.write(rows(1, shop=[value]))
    writer.close()


def test_a_partition_may_be_called_as_its_column_is(tmp_path):
    """Letters stay as they are, because readers look for the column by its name, and Spark takes each byte
    of one that is escaped for a letter of its own; signs of paths are escaped."""
    names = ["größe €", "a/b", "c=d"]
    sink = FileSink(tmp_path, partition_by=names)
    sink.create_committer(Place()).commit(written(sink, rows(1, **{name: [f"in {name}"] for name in names})))
    assert str(Path(files(tmp_path)[0]).parent) == "größe €=in größe €/a%2Fb=in a%2Fb/c%3Dd=in c%3Dd"
    glob = f"{tmp_path}/**/*.parquet"
    duck = ask_duckdb(f"from read_parquet('{glob}', hive_partitioning=true)")
    polars = pl.read_parquet(glob, hive_partitioning=True).to_dicts()
    assert duck[0]["größe €"] == polars[0]["größe €"] == "in größe €"


def test_names_tell_job_sink_subtask_and_checkpoint(tmp_path):
    """Also of files that were put together."""
    sink = FileSink(tmp_path)
    sink.create_committer(Place()).commit(written(sink, rows(1), checkpoint_id=12, place=Place(3, 4)))
    assert files(tmp_path)[0].startswith(f"part-{Place().job_id}-{Place().operator_uid}-0003-000012-")


def test_nothing_is_seen_before_the_commit(tmp_path):
    """Whatever the tool takes for files of the table, in partitions or not."""
    sink = FileSink(tmp_path, partition_by=["word"], compact_below=1 << 20)
    first = written(sink, rows(1, 2))
    glob = f"{tmp_path}/**/*.parquet"
    assert ask_duckdb(f"select count(*) as n from glob('{glob}')") == [{"n": 0}]
    assert ds.dataset(tmp_path, partitioning="hive").files == []
    committer = sink.create_global_committer(Place())
    committer.commit(together(first))
    written(sink, rows(3), checkpoint_id=2)
    assert pl.scan_parquet(glob).collect()["n"].sort().to_list() == [1, 2]
    assert ds.dataset(tmp_path, partitioning="hive").count_rows() == 2
    committer.close()


def test_only_values_that_come_again_have_a_dictionary(tmp_path):
    """Next to each other, or far apart, as the first rows of a file say; a file without rows is one as well."""
    numbers = range(10_000)
    columns = {"n": numbers, "word": [f"w{n % 5_000}" for n in numbers], "twice": [n // 2 for n in numbers]}
    empty_or_new = {"seldom": [n if n % 3 == 0 else None for n in numbers], "bare": pa.nulls(len(numbers))}
    sink = FileSink(tmp_path, schema=None)
    (committed,) = written(sink, pa.RecordBatch.from_pydict({**columns, **empty_or_new}), checkpoint_id=1)[:1]
    group = pq.read_metadata(committed.data["staged"]).row_group(0)
    have = [group.column(place).path_in_schema for place in range(5) if group.column(place).has_dictionary_page]
    assert have == ["word", "twice", "bare"]

    nested = pa.RecordBatch.from_pydict({"n": [1], "list": [[1, 2]]})
    (committed,) = written(FileSink(tmp_path / "nested"), nested)[:1]
    group = pq.read_metadata(committed.data["staged"]).row_group(0)
    assert [group.column(place).has_dictionary_page for place in range(2)] == [True, True]


def test_a_format_that_closes_the_stream_is_named(tmp_path):
    """Nobody could say how large the file is, by which small ones are put together."""

    class Closing(ParquetFormat):
        def open(self, stream: Any, schema: pa.Schema) -> Any:
            return SimpleNamespace(write=lambda table: None, close=stream.close)

    with pytest.raises(ConnectorError, match=r"Closing: close\(\) of what open\(\) returned has closed the stream"):
        written(FileSink(tmp_path, Closing()), rows(1))


def test_a_record_is_null_whose_parts_never_are(tmp_path: Path) -> None:
    """As an outer join makes of rows of Spark's files: Parquet takes no null part, and the job failed for ever."""
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    batch = pa.record_batch({"n": [1, 2], "s": pa.array([{"a": 7}], kind).take(pa.array([0, None]))})
    waiting = written(FileSink(tmp_path), batch)
    FileSink(tmp_path).create_committer(Place()).commit(waiting)

    (name,) = files(tmp_path)
    assert batch.to_pylist() == pq.read_table(tmp_path / name).to_pylist()


def test_files_are_closed_beyond_a_size_and_an_age(tmp_path):
    """Sizes are looked at when a row group is full, ages when rows come."""
    small = ParquetFormat(row_group_rows=2)
    by_size = FileSink(tmp_path / "size", small, rolling=RollingPolicy(max_bytes=1))
    assert len(written(by_size, rows(1, 2), rows(3, 4), rows(5))) == 3 + 1

    by_age = FileSink(tmp_path / "age", small, rolling=RollingPolicy(max_age_ms=10))
    out, location = open_output(by_age.path, {})
    now = [0]
    place = SinkPlace.of(location.path, Place())
    writer = FileSinkWriter(by_age, out, place, is_local=True, clock_ms=lambda: now[0])
    for now[0] in (0, 5, 10, 11, 30):
        writer.write(rows(now[0]))
    assert [one.data["rows"] for one in writer.prepare_commit(1) if "rows" in one.data] == [3, 2]
    writer.close()


def test_files_that_s3_cannot_publish_are_refused_before_any_is_written() -> None:
    """It copies 5 GB at most, and a checkpoint with such a file failed after each restart."""
    large = RollingPolicy(max_bytes=6 << 30)
    with pytest.raises(ConnectorError, match=r"no file of more than 5 GB, .* give RollingPolicy max_bytes=4294967296"):
        FileSink("s3://bucket/out", rolling=large)
    assert FileSink("gs://bucket/out", rolling=large).rolling is large


def test_files_of_many_partitions_are_closed_beyond_a_size(tmp_path, monkeypatch):
    """Where rows were encoded because those of all partitions together were many, files grew until the barrier."""
    monkeypatch.setattr(file_writer, "BUFFERED_BYTES_MAX", 1_000)
    sink = FileSink(tmp_path, partition_by=["p"], rolling=RollingPolicy(max_bytes=1))
    batch = pa.RecordBatch.from_pydict({"p": range(10), "word": ["x" * 50] * 10})

    found = [one.data["rows"] for one in written(sink, *[batch] * 20) if "rows" in one.data]

    assert sum(found) == 200
    assert max(found) < 20
    assert len(found) > 10


def test_partitions_without_end_have_a_bounded_number_of_open_files(tmp_path):
    """The one that was written least recently is closed for a new one, and every row is there."""
    sink = FileSink(tmp_path, partition_by=["word"])
    many = OPEN_PARTITIONS_MAX + 50
    writer = sink.create_writer(Place(), ())
    assert isinstance(writer, FileSinkWriter)
    writer.write(rows(*range(many)))
    assert len(writer._open) == OPEN_PARTITIONS_MAX
    sink.create_committer(Place()).commit(writer.prepare_commit(1))
    writer.close()
    assert ds.dataset(tmp_path, partitioning="hive").count_rows() == many


class Death(Exception):
    """The process ends here."""


def test_a_compaction_that_dies_at_any_step_is_finished_by_its_successor(tmp_path, monkeypatch):
    """Every row is visible once, whatever was done before, and nothing is left in the staging directory."""
    steps = [0]

    def mortal(name):
        original = getattr(LocalOutputFiles, name)

        def step(self, *arguments):
            steps[0] -= 1
            if steps[0] == 0:
                raise Death
            answer = original(self, *arguments)
            steps[0] -= 1
            if steps[0] == 0:
                raise Death
            return answer

        monkeypatch.setattr(LocalOutputFiles, name, step)

    for name in ("open", "seal", "publish", "delete", "exists"):
        mortal(name)
    deaths, dies = 0, True
    while dies:
        deaths, dies = deaths + 1, False
        directory = tmp_path / str(deaths)
        sink = FileSink(directory, compact_below=2_000)
        large = rows(*range(100, 1_100))
        committables = [
            *written(sink, rows(1)),
            *written(sink, rows(2), place=Place(1, 2)),
            *written(sink, large, place=Place(2, 4)),
        ]
        more = written(sink, rows(3), rows(4), checkpoint_id=2, place=Place(3, 4))
        committer = sink.create_global_committer(Place())
        steps[0] = deaths
        try:
            committer.commit(together(committables))
        except Death:
            dies = True
        steps[0] = -1
        committer.close()
        successor = sink.create_global_committer(Place(attempt_number=1, execution_attempt="b"))
        # It died before the next checkpoint was complete, or after it: then both come as one.
        successor.commit(together([*committables, *(more if deaths % 2 else [])], 2, again=True))
        successor.close()
        found = sorted(row["n"] for name in files(directory) if "_staging" not in name
                       for row in pq.read_table(directory / name).to_pylist())  # fmt: skip
        assert found == [1, 2, *([3, 4] if deaths % 2 else []), *range(100, 1_100)]
        pending = [os.path.relpath(one.data["staged"], directory) for one in more if "staged" in one.data]
        left = [name for name in files(directory) if name.startswith("_staging")]
        assert left == ([] if deaths % 2 else pending)
    assert deaths > 10


@pytest.mark.parametrize("later", [100_000, 1], ids=["more", "less"])
def test_what_is_merged_does_not_depend_on_the_limit_of_whoever_goes_on(tmp_path, monkeypatch, later):
    """The process ends when small files are merged and large ones not yet visible; the next one has another limit."""
    sink = FileSink(tmp_path, compact_below=4_000)
    committables = [*written(sink, rows(1)), *written(sink, rows(2), place=Place(1, 2)),
                    *written(sink, rows(*range(100, 2_100)), place=Place(2, 4))]  # fmt: skip
    assert [one.data["bytes"] >= 4_000 for one in committables if "bytes" in one.data] == [False, False, True]
    committer = sink.create_global_committer(Place())
    with monkeypatch.context() as patched, pytest.raises(Death):
        patched.setattr("snapline.connectors.files.file_sink.publish", raises_death)
        committer.commit(together(committables))
    committer.close()
    other = FileSink(tmp_path, compact_below=later)
    successor = other.create_global_committer(Place(attempt_number=1, execution_attempt="b"))
    successor.commit(together(committables, again=True))
    successor.close()
    found = [row["n"] for name in files(tmp_path) for row in pq.read_table(tmp_path / name).to_pylist()]
    assert sorted(found) == [1, 2, *range(100, 2_100)]


def raises_death(*arguments: Any) -> None:
    raise Death


FAR = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([FAR], pa.timestamp("s")),
        pa.array([{"t": [FAR]}], pa.struct([("t", pa.list_(pa.timestamp("us", "UTC")))])),
        pa.array([FAR.date()], pa.date64()),
        pa.array([FAR], pa.timestamp("us", "UTC")).dictionary_encode(),
    ],
    ids=["time", "nested", "day", "category"],
)
def test_a_moment_with_which_files_of_orc_cannot_be_compacted_is_refused(tmp_path: Path, column: pa.Array) -> None:
    """It was written, and each commit of its checkpoint failed from then on."""
    batch = pa.RecordBatch.from_arrays([column], ["v"])

    with pytest.raises(ConnectorError, match=r"column 'v' has a moment outside .*; leave out compact_below="):
        written(FileSink(tmp_path, "orc", compact_below=1 << 20), batch)
    assert written(FileSink(tmp_path, "orc"), batch)


@pytest.mark.parametrize("day", ["1", "1" * 250])
def test_partitions_within_partitions_are_compacted_apart(tmp_path: Path, day: str) -> None:
    """Those whose last directories are called the same were put together in one file, several at a time; a long name
    made one that was too long."""
    sink = FileSink(tmp_path, partition_by=["n", "day"], compact_below=1 << 20)
    numbers = range(100)
    batch = pa.RecordBatch.from_pydict({"n": numbers, "day": [day] * 100, "value": numbers})
    places = [Place(subtask_index=number, parallelism=2, execution_attempt=f"attempt_{number}") for number in (0, 1)]
    committables = [each for place in places for each in written(sink, batch, place=place)]

    committer = sink.create_global_committer(Place())
    committer.commit(together(committables))
    committer.close()

    found = {
        path.parts[-3]: pq.ParquetFile(path).read().column("value").to_pylist() for path in tmp_path.rglob("part-*")
    }
    assert {f"n={number}": [number, number] for number in numbers} == found


def test_what_lost_attempts_staged_is_removed_when_the_next_one_commits(tmp_path):
    """By the committer of all, for every subtask, and not while it recovers: then the writers have just begun."""
    sink = FileSink(tmp_path, compact_below=1)
    lost = [*written(sink, rows(1)), *written(sink, rows(2), place=Place(1, 2))]
    context = Place(attempt_number=1, execution_attempt="b")
    committer = sink.create_global_committer(context)
    now = [written(sink, rows(number), place=Place(number, 2, 1, execution_attempt=f"b{number}")) for number in (0, 1)]

    def due(committables, checkpoint_id=1, *, again=False):
        return GlobalCommittable(Place().job_id, Place().operator_uid, checkpoint_id, tuple(committables), again)

    committer.commit(due(now[0], again=True))
    assert len([name for name in files(tmp_path) if "_staging" in name]) == 3
    committer.commit(due([*now[0], *now[1]], 2))
    committer.close()
    assert len(lost) == 4 and len(files(tmp_path)) == 2 and not (tmp_path / "_staging").exists()


@pytest.mark.parametrize("limit", [None, 1], ids=["each", "together"])
@pytest.mark.parametrize(("graph", "number"), [("graph", 10), ("of-another-leader", 0)])
def test_an_attempt_that_hears_late_of_its_first_checkpoint(
    tmp_path: Path, limit: int | None, graph: str, number: int
) -> None:
    """Its process stood still, and another attempt has taken its place: what that one has staged stays."""
    sink = FileSink(tmp_path, compact_below=limit)
    make: Any = sink.create_committer if limit is None else sink.create_global_committer
    held = []
    for value, attempt, of in ((1, 9, "graph"), (2, number, graph)):
        place = Place(attempt_number=attempt, execution_attempt=f"{of}_vertex_0_{attempt}")
        held.append((make(place), written(sink, rows(value), checkpoint_id=value, place=place)))

    for checkpoint_id, (committer, committables) in enumerate(held, 1):
        committer.commit(committables if limit is None else together(committables, checkpoint_id))
        committer.close()

    assert [1, 2] == sorted(pl.read_parquet(f"{tmp_path}/*.parquet")["n"].to_list())


def test_what_an_older_version_had_in_flight_is_committed(tmp_path: Path) -> None:
    """An unaligned checkpoint holds what writers hand out, in which the number of an attempt was not said."""
    sink = FileSink(tmp_path, compact_below=1)
    held = [each for each in written(sink, rows(1)) if "staged" in each.data]
    old = Committable({"sweep": "a1b2c3d4e5f6", "subtask": 0, "parallelism": 1})
    committer = sink.create_global_committer(Place(attempt_number=1))
    committer.commit(together([*held, old]))
    committer.close()

    assert [1] == pl.read_parquet(f"{tmp_path}/*.parquet")["n"].to_list()


class Backwards:
    """An executor that begins with what came last, once somebody asks for a result."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._waiting: list[tuple[Future[Any], Any, Any]] = []

    def submit(self, call: Any, *arguments: Any) -> SimpleNamespace:
        future: Future[Any] = Future()
        self._waiting.append((future, call, arguments))
        return SimpleNamespace(result=lambda: self._ended(future))

    def shutdown(self) -> None:
        while self._waiting:
            future, call, arguments = self._waiting.pop()
            future.set_result(call(*arguments))

    def _ended(self, future: Future[Any]) -> Any:
        self.shutdown()
        return future.result()


def test_files_of_a_checkpoint_are_put_together_before_those_of_the_next(tmp_path, monkeypatch):
    """Whoever reads committed files goes by that order, and passed over an older file that appeared later."""
    monkeypatch.setattr("snapline.connectors.files.file_sink.ThreadPoolExecutor", Backwards)
    published: list[str] = []
    publish = LocalOutputFiles.publish

    def noted(self: Any, moves: Any) -> Any:
        published.extend(Path(target).name for _, target in moves)
        return publish(self, moves)

    monkeypatch.setattr(LocalOutputFiles, "publish", noted)
    sink = FileSink(tmp_path, compact_below=1 << 20)
    waiting: list[Committable] = []
    for number, subtask in itertools.product((5, 6), (0, 1)):
        place = Place(subtask, 2, execution_attempt=f"{number}-{subtask}")
        waiting += written(sink, rows(number), checkpoint_id=number, place=place)
    committer = sink.create_global_committer(Place())
    committer.commit(together(waiting, 6))
    committer.close()

    assert published == ["part-job-uid-all-000005.parquet", "part-job-uid-all-000006.parquet"]


def test_large_rows_are_put_together_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a group were in memory at once, because fewer than a row group has by number can be gigabytes."""
    monkeypatch.setattr(file_format, "ROW_GROUP_BYTES", 1_000)
    sink = FileSink(tmp_path, compact_below=1 << 20)
    waiting = [each for n in range(10) for each in written(sink, rows(n, word=["x" * 400]), place=Place(n, 10))]
    committer = sink.create_global_committer(Place())
    committer.commit(together(waiting))
    committer.close()

    (name,) = files(tmp_path)
    footer = pq.read_metadata(tmp_path / name)
    assert [3, 3, 3, 1] == [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def test_no_file_is_put_together_that_is_too_large_to_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In S3 the commit of one with more than 5 GB failed for ever; what does not fit stays as it is."""
    sink = FileSink(tmp_path, compact_below=1 << 20)
    waiting = [each for number in range(5) for each in written(sink, rows(number), place=Place(number, 5))]
    monkeypatch.setattr(file_sink, "MERGED_BYTES_MAX", sum(each.data.get("bytes", 0) for each in waiting[:6]))
    committer = sink.create_global_committer(Place())
    for again in (False, True):
        committer.commit(together(waiting, again=again))
    committer.close()

    assert sorted(pq.read_table(tmp_path / name)["n"].to_pylist() for name in files(tmp_path)) == [[0, 1, 2], [3], [4]]


def test_rows_of_a_subtask_keep_their_order_in_files_that_are_put_together(tmp_path):
    """Its tenth file came before its second one, because names were compared as texts."""
    sink = FileSink(tmp_path, compact_below=1 << 20, rolling=RollingPolicy(max_bytes=1))
    sink.format.batch_rows = 1
    waiting = written(sink, *(rows(number) for number in range(12)))
    committer = sink.create_global_committer(Place())
    committer.commit(together(waiting))
    committer.close()

    (name,) = files(tmp_path)
    assert pq.read_table(tmp_path / name)["n"].to_pylist() == list(range(12))


@pytest.mark.parametrize("dies", [False, True])
def test_a_job_goes_on_from_a_snapshot_with_another_compression(tmp_path, dies):
    """What the snapshot holds was looked for under the new name, so that a job which had committed it did not start."""
    form = JsonFormat(NUMBERS)
    sink = FileSink(tmp_path, form, compression="gzip", compact_below=1 << 20)
    waiting = [each for number in (0, 1) for each in written(sink, rows(number), place=Place(number, 2))]
    if not dies:
        committer = sink.create_global_committer(Place())
        committer.commit(together(waiting))
        committer.close()
    successor = FileSink(tmp_path, form, compression="zstd", compact_below=1 << 20).create_global_committer(Place())
    successor.commit(together(waiting, again=True))
    successor.close()

    found = [row["n"] for name in files(tmp_path) for row in read_json(str(tmp_path / name))]
    assert sorted(found) == [0, 1]


def test_a_job_goes_on_from_a_snapshot_with_other_columns(tmp_path: Path) -> None:
    """A part of the old header became a row of the file that was put together."""
    sink, less = (FileSink(tmp_path, CsvFormat(columns, header=True), compact_below=1 << 20)
                  for columns in (NUMBERS, pa.schema([NUMBERS.field("n")])))  # fmt: skip
    waiting = [each for number in (0, 1) for each in written(sink, rows(number), place=Place(number, 2))]
    for again in (False, True):
        committer = less.create_global_committer(Place(attempt_number=1))
        committer.commit(together(waiting, again=again))
        committer.close()

    found = [row for name in files(tmp_path) for row in pl.read_csv(tmp_path / name).rows()]
    assert [(0, "w0"), (1, "w1")] == sorted(found)


def test_a_job_goes_on_from_a_snapshot_with_a_header(tmp_path: Path) -> None:
    """So much of each file that was put together was left out as a header has, although it had none."""
    sink, named = (FileSink(tmp_path, CsvFormat(NUMBERS, header=header), compact_below=1 << 20)
                   for header in (False, True))  # fmt: skip
    waiting = [each for number in (0, 1) for each in written(sink, rows(number), place=Place(number, 2))]
    committer = named.create_global_committer(Place(attempt_number=1))
    committer.commit(together(waiting, again=True))
    committer.close()

    assert ['0,"w0"\n', '1,"w1"\n'] == [(tmp_path / name).read_text() for name in files(tmp_path)]


def test_a_job_goes_on_from_a_snapshot_with_symbols_in_another_order(tmp_path: Path) -> None:
    """Blocks of Avro have the places of symbols, which were taken for other ones in the file that was put together."""
    sink, other = (FileSink(tmp_path, AvroFormat({"type": "record", "name": "N", "fields": [
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": symbols}}]}), compact_below=1 << 20)
        for symbols in (["small", "large"], ["large", "small"]))  # fmt: skip
    batches = [pa.RecordBatch.from_pydict({"size": [size]}) for size in ("small", "large")]
    waiting = [each for number in (0, 1) for each in written(sink, batches[number], place=Place(number, 2))]
    committer = other.create_global_committer(Place(attempt_number=1))
    committer.commit(together(waiting, again=True))
    committer.close()

    (name,) = files(tmp_path)
    with (tmp_path / name).open("rb") as file:
        assert [{"size": "small"}, {"size": "large"}] == list(fastavro.reader(file))


def test_files_with_other_columns_stay_as_they_are(tmp_path):
    """Each subtask takes the columns of its first rows, where a text may be null: no commit of such files ended, so
    that the job could not start any more."""
    sink = FileSink(tmp_path, compact_below=1 << 20)
    batches = [rows(1), rows(2, word=pa.nulls(1)), rows(3), rows(4, word=pa.array(["w"], pa.large_string()))]
    waiting = [each for number, batch in enumerate(batches) for each in written(sink, batch, place=Place(number, 4))]
    committer = sink.create_global_committer(Place())
    for again in (False, True):
        committer.commit(together(waiting, again=again))
    committer.close()

    found = [pq.read_table(tmp_path / name)["n"].to_pylist() for name in files(tmp_path)]
    assert sorted(found) == [[1, 3], [2], [4]]


def test_rows_of_a_partition_by_a_column_with_an_underscore_are_read(tmp_path):
    """Its directory counted as hidden, which it is not for Spark, so that nothing of it was read back."""
    sink = FileSink(tmp_path, partition_by=["_day"])
    sink.create_committer(Place()).commit(written(sink, rows(1, 2, _day=["x", "y"])))
    source = FileSource(tmp_path)

    assert len(find_files(source)) == 2
    with pytest.raises(ConnectorError, match="has partition directories"):
        sl.ParquetSource(tmp_path).schema()


def as_any(value: object) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda path: FileSink(path, "xml"),
            "'xml' is no format of files: give 'parquet', 'orc', 'json', 'csv', JsonFormat",
        ),
        (lambda path: FileSink(path, compression="rar"), "ParquetFormat: unknown compression 'rar'; there are zstd"),
        (lambda path: FileSink(path, OrcFormat(), compression="zstd"), "say compression='zstd' to OrcFormat"),
        (lambda path: FileSink(path, JsonFormat(NUMBERS), partition_by=["n"]), "column 'n' is in partition_by"),
        (lambda path: FileSink(path, compact_below=0), "FileSink: compact_below must be at least 1, got 0"),
        (lambda path: FileSink(path, rolling=as_any(5)), "rolling is a RollingPolicy, not 5; write RollingPolicy(max_"),
        (lambda path: FileSink(path, shuffle=True), "shuffle=True needs partition_by"),
        (lambda path: RollingPolicy(max_bytes=0), "RollingPolicy: max_bytes must be at least 1, got 0"),
        (lambda path: written(FileSink(path, partition_by=["x"]), rows(1)), "partition_by names 'x', and the rows"),
        (lambda path: written(FileSink(path, partition_by=["n", "word"]), rows(1)), "none is left for the files"),
        (
            lambda path: written(FileSink(path, partition_by=["x"]), rows(1, x=["ü" * 130])),
            "partition_by: a value of column 'x' that begins with 'üüü",
        ),
        (lambda path: written(FileSink(path, partition_by=["x"]), rows(1, x=[b"a"])), "'x', which is bytes; make it a"),
        (
            lambda path: written(FileSink(path, partition_by=["x"]), rows(1, x=[{"a": 1}])),
            "'x', which is struct<a: int",
        ),
        (lambda path: written(FileSink(path, JsonFormat(NUMBERS)), rows(1, x=[1])), "a batch has the column 'x'"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(tmp_path, make, says):
    """The line names the culprit and the way out."""
    with pytest.raises(ConnectorError) as refusal:
        make(tmp_path)
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_file_where_others_are_to_be_staged_is_refused_at_submission(tmp_path):
    """It was found at the first barrier, when the job had run for a while."""
    (tmp_path / "_staging").write_text("")
    with pytest.raises(ConnectorError, match=r"FileSink .*: _staging there is a file, and what is not committed"):
        FileSink(tmp_path, "json").validate()
    (tmp_path / "_staging").unlink()
    (tmp_path / "_staging").mkdir()
    FileSink(tmp_path, "json").validate()


def test_a_path_that_is_a_file_or_may_not_be_written_is_refused_at_submission(tmp_path):
    """Before the job starts, with what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConnectorError, match="something on the way is a file, not a directory"):
        FileSink(tmp_path / "file").validate()


def test_a_directory_that_goes_while_those_below_it_are_made_is_made_again(tmp_path, monkeypatch):
    """The committer of another subtask, which has ended, removes what is empty."""
    made = []

    def make_after_another_has_removed_it(directory):
        made.append(directory)
        if len(made) == 1:
            raise FileNotFoundError(2, "No such file or directory", str(directory))
        directory.mkdir(parents=True)

    monkeypatch.setattr(output_files, "_make_directory", make_after_another_has_removed_it)
    with LocalOutputFiles().open(str(tmp_path / "_staging" / "job" / "part")) as file:
        file.write(b"row")
    assert (tmp_path / "_staging" / "job" / "part").read_bytes() == b"row" and len(made) == 2
