"""DataFrames go into a job and come out of it, on real Spark: what they hold, what is staged, and what is refused."""

from __future__ import annotations

import datetime as dt
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import catalog as pyiceberg_catalog
from pyiceberg.utils.concurrent import ExecutorFactory

import snapline as sl
import snapline.connectors as sl_connectors
from snapline.client import JobFailed, RequestRefused
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.api.connector_api import GlobalCommittable
from snapline.dataflow.config import CHECKPOINTS_DIRECTORY
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.session import open_spark
from snapline.spark import streaming_frames
from tests.services.cluster import LocalCluster, wait_until
from tests.unit.connectors.parquet.places import Place

pytestmark = pytest.mark.timeout(600)  # the first one pays for Spark's start, and for its first Python workers
UTC = dt.UTC
TYPES = (
    "b boolean, i1 byte, i2 short, i4 int, i8 long, f4 float, f8 double, s string, bin binary, d date, dec decimal(20,4), "
    "ts timestamp, ntz timestamp_ntz, arr array<int>, m map<string,long>, st struct<x:int,y:struct<z:array<string>>>"
)
ROW = (
    True,
    1,
    2,
    3,
    4,
    0.5,
    0.25,
    "text",
    bytearray(b"\x00\x01"),
    dt.date(2024, 2, 29),
    Decimal("12345678901.2345"),
    dt.datetime(2024, 3, 31, 1, 30, 0, 123456),  # noqa: DTZ001 - Spark's rows have no zone
    dt.datetime(2024, 3, 31, 2, 30, 0, 123456),  # noqa: DTZ001 - nor have these
    [1, None, 3],
    {"k": 7},
    (1, (["a", "b"],)),
)


def stop_when_running(job: Any, directory: Path) -> str:
    """Stop with a savepoint, as soon as all tasks run."""
    while True:
        try:
            return str(job.stop(str(directory / "savepoints")))
        except RequestRefused as error:
            if "Not all required tasks are currently running" not in str(error):
                raise


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    handle = open_spark("frames", {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
    yield sl.register_data_source(handle.session)
    handle.session.stop()


def environment(tmp_path: Path, **settings: str) -> sl.StreamExecutionEnvironment:
    """Checkpoints, and what is staged, lie in the test's directory."""
    base = {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), "execution.checkpointing.interval": "50 ms"}
    return sl.StreamExecutionEnvironment.get_execution_environment({**base, **settings})


def staged(tmp_path: Path) -> list[Path]:
    """What is left of the rows that were staged."""
    return [path for path in (tmp_path / "checkpoints").glob("snapline-staged-*") if any(path.iterdir())]


def test_every_type_comes_back(spark: Any, tmp_path: Path) -> None:
    """The table of types in docs/dataframes.md, there and back, with nulls."""
    empty = tuple(None for _ in ROW)
    frame = spark.createDataFrame([ROW, empty], TYPES)
    back = environment(tmp_path).from_dataframe(frame, uid="types").to_dataframe(spark, local=True)
    assert back.schema.simpleString() == frame.schema.simpleString()
    order = ["i8"]
    assert back.orderBy(*order).collect() == frame.orderBy(*order).collect()
    assert staged(tmp_path) == []


NARROWED = {
    "u1": (pa.uint8(), 255, "smallint", 255),
    "u2": (pa.uint16(), 65_535, "int", 65_535),
    "u4": (pa.uint32(), 2**32 - 1, "bigint", 2**32 - 1),
    "u8": (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
    "f2": (pa.float16(), 0.5, "float", 0.5),
    "lb": (pa.large_binary(), b"x", "binary", bytearray(b"x")),
    "fb": (pa.binary(2), b"xy", "binary", bytearray(b"xy")),
    "ls": (pa.large_string(), "x", "string", "x"),
    "dict": (pa.dictionary(pa.int32(), pa.string()), "x", "string", "x"),
    "ll": (pa.large_list(pa.uint8()), [1], "array<smallint>", [1]),
    "ts_s": (pa.timestamp("s", "UTC"), 3_600, "timestamp", None),
    "ts_ms": (pa.timestamp("ms"), 1_500, "timestamp_ntz", dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)),  # noqa: DTZ001
}
"""Types that Spark does not have: what they become there."""


def test_types_that_spark_does_not_have_are_widened(spark: Any, tmp_path: Path) -> None:
    """The lower half of the table of types in docs/dataframes.md."""
    schema = pa.schema([(name, kind) for name, (kind, *_) in NARROWED.items()])
    values = pa.table({name: pa.array([v, None], kind) for name, (kind, v, *_) in NARROWED.items()}, schema)
    source = CollectionSource(values.to_batches())
    back = environment(tmp_path).from_source(source, uid="rows").to_dataframe(spark, local=True)
    assert {each.name: each.dataType.simpleString() for each in back.schema.fields} == {
        name: spark_type for name, (_, _, spark_type, _) in NARROWED.items()
    }
    full, empty = sorted(back.collect(), key=lambda row: row.u1 is None)
    assert all(each is None for each in empty)
    assert {name: full[name] for name in NARROWED if name != "ts_s"} == {
        name: wanted for name, (*_, wanted) in NARROWED.items() if name != "ts_s"
    }
    assert back.selectExpr("unix_seconds(ts_s) as at").collect()[0]["at"] in (3_600, None)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("make_interval(1, 2) as v", "interval"),
        ("interval '1' day as v", "interval day"),
        ("interval '1' month as v", "interval month"),
        ("array(interval '1' day) as v", "v.element"),
        ("null as v", "void"),
        ("parse_json('1') as v", "variant"),
    ],
)
def test_types_that_no_stream_has_are_refused_by_name(spark: Any, tmp_path: Path, column: str, said: str) -> None:
    """In one line, before Spark computes anything."""
    with pytest.raises(JobDefinitionError, match=r"from_dataframe\('f'\): column 'v") as refusal:
        environment(tmp_path).from_dataframe(spark.range(1).selectExpr(column), uid="f")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "checkpoints").exists()


def test_intervals_of_a_stream_are_refused_by_name(spark: Any, tmp_path: Path) -> None:
    """The other way round."""
    source = CollectionSource.of_rows([{"a": {"took": dt.timedelta(1)}}])
    stream = environment(tmp_path).from_source(source, uid="rows")
    with pytest.raises(JobDefinitionError, match=r"column 'a\.took' is duration"):
        stream.to_dataframe(spark, local=True)


def test_wrong_frames_are_refused(spark: Any, tmp_path: Path) -> None:
    """What is no frame, a streaming one, a column that is not there or twice, and a stream without an end."""
    env = environment(tmp_path)
    with pytest.raises(JobDefinitionError, match="list is no DataFrame of Spark"):
        env.from_dataframe([1], uid="f")
    with pytest.raises(JobDefinitionError, match="give it to from_streaming_dataframe"):
        env.from_dataframe(spark.readStream.format("rate").load(), uid="f")
    with pytest.raises(JobDefinitionError, match="there is no column 'at'; columns: id"):
        env.from_dataframe(spark.range(1), event_time="at", uid="f")
    with pytest.raises(JobDefinitionError, match="two columns 'id'"):
        env.from_dataframe(spark.range(1).selectExpr("id", "id"), uid="f")
    with pytest.raises(JobDefinitionError, match=r"set execution\.checkpointing\.dir"):
        service = sl.StreamExecutionEnvironment.get_execution_environment({"jobmanager.rpc.address": "127.0.0.1:1"})
        service.from_dataframe(spark.range(1), uid="f")
    with pytest.raises(JobDefinitionError, match="never ends, so its rows cannot be handed over as a DataFrame"):
        env.from_source(sl.GeneratorSource(rows_per_second=10), uid="g").to_dataframe(spark, local=True)


def test_a_frame_is_computed_once(spark: Any, tmp_path: Path) -> None:
    """Also one that Spark would compute to something else the second time; a failure replays what is staged."""
    from pyspark.sql.functions import udf

    computed = tmp_path / "computed"
    computed.mkdir()

    @udf("long")
    def note(number: int) -> int:
        import uuid

        (computed / uuid.uuid4().hex).touch()
        return number

    frame = spark.range(0, 40, 1, 4).withColumn("noted", note("id"))
    env = environment(tmp_path, **{"restart-strategy.fixed-delay.delay": "1 ms"})
    failed = tmp_path / "failed"

    def fail_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 35 and not failed.exists():
            failed.touch()
            raise RuntimeError("planned")
        return row

    back = env.from_dataframe(frame, uid="f").map(
        fail_once, schema=pa.schema([("id", pa.int64()), ("noted", pa.int64())])
    )
    rows = back.to_dataframe(spark, local=True)
    assert sorted(row.id for row in rows.collect()) == list(range(40))
    assert failed.exists()
    assert len(list(computed.iterdir())) == 40
    assert staged(tmp_path) == []


def test_no_row_is_late_in_event_time(spark: Any, tmp_path: Path) -> None:
    """Rows of every partition are out of order; the windows are those that Spark computes."""
    frame = spark.range(0, 20_000, 1, 4).selectExpr("id % 7 as k", "(id * 7919) % 20000 as at", "id")
    stream = environment(tmp_path).set_parallelism(2).from_dataframe(frame, event_time="at", uid="f")
    sums = (
        stream.key_by("k").window(sl.TumblingEventTimeWindows(1_000)).aggregate(uid="w", n=sl.count(), s=sl.sum("id"))
    )
    found = sorted((row.k, row.n, row.s) for row in sums.to_dataframe(spark, local=True).collect())
    wanted = frame.groupBy("k", (frame["at"] / 1000).cast("int").alias("w")).agg({"*": "count", "id": "sum"}).collect()
    assert found == sorted((row.k, row["count(1)"], row["sum(id)"]) for row in wanted)


def test_an_empty_frame(spark: Any, tmp_path: Path) -> None:
    """It has its columns, and the job ends."""
    stream = environment(tmp_path).from_dataframe(spark.range(0).selectExpr("id", "string(id) as s"), uid="f")
    back = stream.to_dataframe(spark, local=True)
    assert (back.count(), back.columns) == (0, ["id", "s"])


def test_the_frame_of_a_job_that_a_killed_program_has_left(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With high availability that job goes on instead of the new one, and its rows are in the directory of the program
    that is gone: they are the frame, and go with this program."""
    env = environment(tmp_path)
    base = env.configuration.get_option(CHECKPOINTS_DIRECTORY)
    sink = sl.ParquetSink(f"{base}/snapline-frame-left")
    env.from_collection([{"n": number} for number in range(5)]).sink_to(sink, uid="to-dataframe")
    left = env.execute("left", local=True)
    removed: list[str] = []
    monkeypatch.setattr("atexit.register", lambda _, directory, *__: removed.append(directory))
    monkeypatch.setattr(sl.StreamExecutionEnvironment, "execute", lambda *_, **__: left)

    frame = environment(tmp_path).from_collection([{"n": 7}]).to_dataframe(spark, local=True)
    assert sorted(row.n for row in frame.collect()) == list(range(5))
    assert removed[1:] == [f"{base}/snapline-frame-left"]


@pytest.mark.parametrize(
    ("kind", "error", "is_removed"),
    [
        ("embedded", SnaplineError("the coordinator has ended"), False),
        ("embedded", JobFailed("job 'job' failed", None), True),
        ("NONE", SnaplineError("the coordinator has ended"), True),
    ],
)
def test_rows_of_a_job_that_the_next_program_goes_on_with_are_kept(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: Exception, is_removed: bool
) -> None:
    """A program that lost its coordinator ends in good order, and its job does not: with high availability, what the
    sink has committed in part is needed again."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    removed: list[str] = []
    monkeypatch.setattr("atexit.register", lambda _, directory, *__: removed.append(directory))
    monkeypatch.setattr(sl.StreamExecutionEnvironment, "execute", fail)
    env = environment(tmp_path, **{"high-availability.type": kind, "high-availability.storageDir": str(tmp_path)})
    with pytest.raises(type(error)):
        env.from_collection([{"n": 7}]).to_dataframe(spark)
    assert bool(removed) == is_removed


def test_a_savepoint_is_read_on_without_the_frame(spark: Any, tmp_path: Path) -> None:
    """At another parallelism, by a program that was started again: the frame is not computed, and no row is lost."""
    computed = tmp_path / "computed"
    computed.mkdir()

    def note(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import uuid

        (computed / uuid.uuid4().hex).touch()
        yield from rows

    frame = spark.range(0, 20_000, 1, 4).mapInArrow(note, "id long")

    def job(env: sl.StreamExecutionEnvironment, wait_s: float) -> None:
        import time

        def slow(row: dict[str, Any]) -> dict[str, Any]:
            if wait_s and row["id"] % 100 == 0:
                time.sleep(wait_s)
            return row

        stream = env.from_dataframe(frame, uid="f").map(slow, schema=pa.schema([("id", pa.int64())]))
        stream.sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")

    env = environment(tmp_path).set_parallelism(2)
    job(env, 0.02)
    handle = env.execute_async("first", local=True)
    path = stop_when_running(handle, tmp_path)
    handle.wait()
    assert len(staged(tmp_path)) == 1
    before = len(list(computed.iterdir()))
    again = environment(tmp_path).set_parallelism(3).restore_from(path)
    job(again, 0)
    again.execute("second", local=True)
    assert len(list(computed.iterdir())) == before == 4
    assert sorted(pq.read_table(tmp_path / "out")["id"].to_pylist()) == list(range(20_000))


def test_committed_rows_are_read_with_filters_and_columns(spark: Any, tmp_path: Path) -> None:
    """Filters skip files' rows before Spark sees them; a partition is a file."""
    env = environment(tmp_path)
    rows: list[dict[str, Any]] = [
        {"k": n % 3, "f": float("nan") if n == 5 else float(n), "s": None if n == 6 else str(n)} for n in range(30)
    ]
    env.from_collection(rows, uid="rows").sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")
    env.execute("out", local=True)
    (tmp_path / "out" / "notes.txt").write_text("not a file of the sink")
    frame = spark.read.format("snapline").load(str(tmp_path / "out"))
    assert frame.count() == 30
    assert frame.where("k = 1 and s >= '2'").count() == sum(r["k"] == 1 and (r["s"] or "") >= "2" for r in rows)
    assert frame.where("f > 20").count() == 10
    assert frame.where("k in (1, 2)").count() == 20
    one = spark.read.format("snapline").option("columns", "s").load(str(tmp_path / "out"))
    assert one.columns == ["s"]
    for options, said in (
        ({"columns": "t"}, "there is no column 't'"),
        ({"path": str(tmp_path / "nowhere")}, "there is no directory"),
        ({"path": str(tmp_path)}, "nothing is committed in"),
        ({"path": ""}, "needs the directory of a sink"),
    ):
        with pytest.raises(Exception, match=said):
            spark.read.format("snapline").options(**{"path": str(tmp_path / "out"), **options}).load()


def test_executors_on_this_machine_take_the_python_of_the_program(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session that the user has made, without saying which: PySpark would take another one that lacks pyarrow."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    stream = environment(tmp_path).from_dataframe(spark.range(3), uid="f")
    assert spark.sparkContext.pythonExec == sys.executable
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    assert stream.to_dataframe(spark, local=True).count() == 3
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    some_files(tmp_path / "in", 0, 1)
    streamed(spark, environment(tmp_path), tmp_path).sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.fixture
def no_threads_of_pyiceberg() -> Iterator[None]:
    """Ends those that a catalogue has started."""
    yield
    executor, ExecutorFactory._instance = ExecutorFactory._instance, None
    if executor is not None:
        executor.shutdown()


RARE_SINKS = ("json", "partitions", "orc", "csv", "avro", "compacted", "iceberg")
SINKS = ["delta", *(pytest.param(kind, marks=pytest.mark.rare) for kind in RARE_SINKS)]


def some_sink(kind: str, directory: Path) -> tuple[Any, str, dict[str, str]]:
    """The sink, and what Spark is told to find its rows."""
    path = str(directory / kind)
    if kind == "iceberg":
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        pyiceberg_catalog.load_catalog("default", **catalog).create_namespace_if_not_exists("shop")
        options = {f"catalog.{key}": value for key, value in catalog.items()}
        return sl_connectors.IcebergSink("shop.sales", catalog=catalog), "shop.sales", options
    if kind == "delta":
        return sl_connectors.DeltaSink(path), path, {}
    avro = sl_connectors.AvroFormat(
        {"type": "record", "name": "r", "fields": [{"name": "k", "type": "long"}, {"name": "s", "type": "string"}]}
    )
    sinks = {
        "avro": sl_connectors.FileSink(path, avro),
        "partitions": sl_connectors.FileSink(path, "parquet", partition_by=["k"]),
        "compacted": sl_connectors.FileSink(path, "parquet", compact_below=1 << 20),
    }
    return sinks.get(kind) or sl_connectors.FileSink(path, kind), path, {}


@pytest.mark.usefixtures("no_threads_of_pyiceberg")
@pytest.mark.parametrize("kind", SINKS)
def test_rows_of_every_file_or_table_sink_are_read(spark: Any, tmp_path: Path, kind: str) -> None:
    """As a whole, with filters, and as a stream that is stopped and goes on behind a limit: each row once. Jobs commit
    in between."""
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])

    def run_job(first: int) -> list[tuple[int, str]]:
        env = environment(tmp_path, **{"execution.checkpointing.interval": "100 ms"}).set_parallelism(2)
        rows = sl.GeneratorSource(rows=300, keys=3, rows_per_second=1_500)
        stream = env.from_source(rows, uid="g").map(
            lambda row: {"k": row["value"] % 3, "s": f"r{first + row['value']}"}, schema=schema
        )
        stream.sink_to(some_sink(kind, tmp_path)[0], uid="sink")
        env.execute(kind, local=True)
        return [(value % 3, f"r{first + value}") for value in range(300)]

    def rows_of(frame: Any) -> list[tuple[int, str]]:
        return sorted((int(row.k), str(row.s)) for row in frame.collect())

    def run_query() -> None:
        source = spark.readStream.format("snapline").options(**options).schema("k long, s string").load(path)
        writer = source.writeStream.option("checkpointLocation", str(tmp_path / "query")).trigger(availableNow=True)
        writer.foreachBatch(lambda batch, _: read.extend(rows_of(batch))).start().awaitTermination()

    read: list[tuple[int, str]] = []
    _, path, options = some_sink(kind, tmp_path)
    options["maxFilesPerTrigger"] = "1"
    wanted = run_job(0)
    run_query()
    assert sorted(read) == sorted(wanted)
    wanted += run_job(1_000)
    run_query()
    assert sorted(read) == sorted(wanted)
    frame = spark.read.format("snapline").options(**options).load(path)
    assert set(frame.columns) == {"k", "s"}
    assert rows_of(frame) == sorted(wanted)
    assert frame.where("k = 1 and s >= 'r5'").count() == sum(k == 1 and s >= "r5" for k, s in wanted)
    typed = spark.read.format("snapline").options(**options).schema("s string, k int").load(path)
    assert rows_of(typed.where("k > 0")) == sorted(row for row in wanted if row[0])


def committed_by(sink: sl.Sink, numbers: range, checkpoint_id: int) -> Callable[[], None]:
    """Write rows, and return what commits them."""
    place = Place(execution_attempt=f"attempt-{checkpoint_id}")
    writer = sink.create_writer(place, ())
    writer.write(pa.RecordBatch.from_pydict({"n": list(numbers), "day": [f"d{n % 2}" for n in numbers]}))
    due = tuple(writer.prepare_commit(checkpoint_id))
    writer.close()

    def commit() -> None:
        if sink.commits_together:
            together = sink.create_global_committer(place)
            together.commit(GlobalCommittable("job", "uid", checkpoint_id, due))
            together.close()
        elif (committer := sink.create_committer(place)) is not None:
            committer.commit(due)
            committer.close()

    return commit


def seen_by_spark(spark: Any, kind: str, *paths: str) -> list[tuple[int, str]]:
    """Rows as a reader of Spark's own has them."""
    reader = spark.read.schema("n long, day string").options(header="true")
    return sorted((row.n, row.day) for row in getattr(reader, kind)(*paths).collect())


def up_to(until: int) -> list[tuple[int, str]]:
    """The rows of numbers below this."""
    return [(n, f"d{n % 2}") for n in range(until)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("parquet", {"partition_by": ["day"]}),
        pytest.param("parquet", {"compact_below": 1 << 20}, marks=pytest.mark.rare),
        pytest.param("orc", {}, marks=pytest.mark.rare),
        pytest.param("json", {"compression": "gzip"}, marks=pytest.mark.rare),
        pytest.param("csv", {}, marks=pytest.mark.rare),
    ],
)
def test_readers_of_spark_see_committed_files_only(
    spark: Any, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """While others wait for their commit, too."""
    columns = pa.schema([("n", pa.int64()), ("day", pa.string())])
    lines = {"json": sl_connectors.JsonFormat(columns), "csv": sl_connectors.CsvFormat(columns, header=True)}
    sink = sl_connectors.FileSink(tmp_path, lines.get(kind, kind), **options)
    committed_by(sink, range(6), 1)()
    commit = committed_by(sink, range(6, 10), 2)
    assert seen_by_spark(spark, kind, str(tmp_path)) == up_to(6)
    commit()
    assert seen_by_spark(spark, kind, str(tmp_path)) == up_to(10)


@pytest.mark.usefixtures("no_threads_of_pyiceberg")
def test_spark_reads_every_version_of_a_table(spark: Any, tmp_path: Path) -> None:
    """By the files that it names, since Spark's readers of Delta and Iceberg are jars that no package here has."""
    delta, path, _ = some_sink("delta", tmp_path)
    iceberg, name, options = some_sink("iceberg", tmp_path)
    for checkpoint_id, numbers in enumerate((range(6), range(6, 10)), 1):
        for sink in (delta, iceberg):
            committed_by(sink, numbers, checkpoint_id)()
    for version, until in enumerate((0, 6, 10)):
        files = deltalake.DeltaTable(path, version=version).file_uris()
        assert (seen_by_spark(spark, "parquet", *files) if files else []) == up_to(until)
    catalog = pyiceberg_catalog.load_catalog(
        "default", **{key.removeprefix("catalog."): value for key, value in options.items()}
    )
    table = catalog.load_table(name)
    for snapshot, until in zip(table.snapshots(), (6, 10), strict=True):
        planned = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        assert seen_by_spark(spark, "parquet", *(each.file.file_path for each in planned)) == up_to(until)


def test_rows_of_one_of_two_sinks(spark: Any, tmp_path: Path) -> None:
    """Both write into one directory; `uid` says which one is read."""
    env, out = environment(tmp_path), str(tmp_path / "out")
    for uid in ("one", "the other"):
        env.from_collection([{"who": uid}], uid=f"rows {uid}").sink_to(sl.ParquetSink(out), uid=uid)
    env.execute("two", local=True)
    for uid in ("one", "the other"):
        frame = spark.read.format("snapline").option("uid", uid).load(out)
        assert [row.who for row in frame.collect()] == [uid]


def test_a_stream_of_committed_rows_is_exact_through_restarts_of_both_sides(spark: Any, tmp_path: Path) -> None:
    """Jobs write one after the other, each from the savepoint before; the query is stopped and started between them,
    with a limit per trigger, and has each row once."""
    out, numbers = str(tmp_path / "out"), range(3_000)

    def run_query() -> int:
        source = spark.readStream.format("snapline").option("maxFilesPerTrigger", "1").schema("n long").load(out)
        query = source.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "query"))
        running = query.trigger(availableNow=True).start(str(tmp_path / "copy"))
        running.awaitTermination()
        return len(running.recentProgress)

    path = ""
    for part in range(3):
        env = environment(tmp_path).set_parallelism(2)
        if path:
            env.restore_from(path)
        source = sl.GeneratorSource(rows=3_000, keys=1, rows_per_second=None if part == 2 else 200)
        mapped = env.from_source(source, uid="g").map(
            lambda row: {"n": row["value"]}, schema=pa.schema([("n", pa.int64())])
        )
        mapped.sink_to(sl.ParquetSink(out), uid="sink")
        if part == 2:
            env.execute("last", local=True)
        else:
            job = env.execute_async("part", local=True)
            path = stop_when_running(job, tmp_path)
            job.wait()
        assert run_query() >= 1
    found = sorted(row.n for row in spark.read.parquet(str(tmp_path / "copy")).collect())
    wanted = sorted(pq.read_table(out)["n"].to_pylist())
    assert found == wanted
    assert len(found) == len(numbers)


def test_a_query_that_was_stopped_in_a_batch_reads_all_that_is_committed(spark: Any, tmp_path: Path) -> None:
    """With `availableNow`, the next run does the batch that was planned and goes on to the end, not beyond it; without
    word from its source Spark would do that batch only."""
    out = tmp_path / "out"
    out.mkdir()

    def commit(checkpoint: int) -> None:
        pq.write_table(pa.table({"n": [checkpoint]}), out / f"part-s-0000-{checkpoint:06d}-0-ab-0000.parquet")

    def run_query(each: Any) -> None:
        source = spark.readStream.format("snapline").option("maxFilesPerTrigger", "1").schema("n long").load(str(out))
        writer = source.writeStream.option("checkpointLocation", str(tmp_path / "query")).trigger(availableNow=True)
        writer.foreachBatch(each).start().awaitTermination()

    def stop(*_: Any) -> None:
        raise RuntimeError("planned")

    def note(batch: Any, _: int) -> None:
        read.append([row.n for row in batch.collect()])
        if len(read) == 1:
            commit(9)

    read: list[list[int]] = []
    commit(1)
    with pytest.raises(Exception, match="planned"):
        run_query(stop)
    commit(2)
    commit(3)
    run_query(note)
    assert read == [[1], [2], [3]]
    run_query(note)
    assert read == [[1], [2], [3], [9]]


NUMBERS = pa.schema([("n", pa.int64())])


def some_files(directory: Path, first: int, count: int, rows: int = 100) -> None:
    """Files of numbers, for a query that reads one in each micro-batch."""
    directory.mkdir(exist_ok=True)
    for number in range(first, first + count):
        values = list(range(number * rows, (number + 1) * rows))
        pq.write_table(pa.table({"n": values}, NUMBERS), directory / f"{number:03d}.tmp")
        (directory / f"{number:03d}.tmp").rename(directory / f"{number:03d}.parquet")


def streamed(spark: Any, env: sl.StreamExecutionEnvironment, tmp_path: Path, **more: Any) -> sl.DataStream:
    """The files as a stream of Spark's."""
    frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    return env.from_streaming_dataframe(frame, uid="q", **{"trigger": {"availableNow": True}, **more})


def test_a_streaming_frame_is_read_exactly_once_through_failures_and_restarts(spark: Any, tmp_path: Path) -> None:
    """The job fails and goes on; it is stopped with a savepoint, and the next program goes on with the query at another
    parallelism; rows that were read are freed on the way."""
    some_files(tmp_path / "in", 0, 4)
    failed = tmp_path / "failed"

    def fail_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 250 and not failed.exists():
            failed.touch()
            raise RuntimeError("planned")
        return row

    def job(env: sl.StreamExecutionEnvironment, **more: Any) -> sl.StreamExecutionEnvironment:
        stream = streamed(spark, env, tmp_path, **more).map(fail_once, schema=NUMBERS)
        stream.sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")
        return env

    def rows() -> list[int]:
        return sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) if any(tmp_path.glob("out/*.parquet")) else []

    env = job(environment(tmp_path, **{"restart-strategy.fixed-delay.delay": "1 ms"}), trigger=None)
    handle = env.execute_async("first", local=True)
    wait_until(
        lambda: len(rows()) == 400 and not any(tmp_path.glob("checkpoints/snapline-staged-*/rows/*.parquet")),
        "rows that were read to be freed",
        300,  # the first micro-batch loads half of Spark
        progress=lambda: len(rows()),
    )
    path = stop_when_running(handle, tmp_path)
    handle.wait()
    assert failed.exists()
    some_files(tmp_path / "in", 4, 3)
    again = job(environment(tmp_path).set_parallelism(3).restore_from(path))
    again.execute("second", local=True)
    assert rows() == list(range(700))


def failing_frame(spark: Any, tmp_path: Path, *, for_good: bool) -> Any:
    """The files as a stream, of which the third file cannot be computed, once or ever."""
    failed = tmp_path / "failed"

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 250 in batch["n"].to_pylist() and (for_good or not failed.exists()):
                failed.touch()
                raise RuntimeError("planned")
            yield batch

    frame = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    return frame.mapInArrow(fail, "n long")


def test_a_query_that_fails_is_started_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a line; each row is read once. The job does not hear of it."""
    monkeypatch.setattr(streaming_frames, "PAUSE_S", 0.001)
    some_files(tmp_path / "in", 0, 4)
    env = environment(tmp_path)
    frame = failing_frame(spark, tmp_path, for_good=False)
    stream = env.from_streaming_dataframe(frame, uid="q", trigger={"availableNow": True})
    stream.sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")
    env.execute("streamed", local=True)
    assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == list(range(400))
    assert (
        "snapline: from_streaming_dataframe('q'): the query has failed and is started again: RuntimeError: planned\n"
        in capsys.readouterr().err
    )


def test_a_query_that_fails_for_good_ends_the_job_with_its_reason(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After four times without a micro-batch, and not after the first."""
    monkeypatch.setattr(streaming_frames, "PAUSE_S", 0.001)
    some_files(tmp_path / "in", 0, 4)
    env = environment(tmp_path)
    frame = failing_frame(spark, tmp_path, for_good=True)
    stream = env.from_streaming_dataframe(frame, uid="q", trigger={"availableNow": True})
    stream.sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")
    with pytest.raises(JobFailed, match="RuntimeError: planned"):
        env.execute("streamed", local=True)


def test_frames_go_into_a_job_at_a_service_and_out_of_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator and TaskManagers that are no part of this program, one of which is killed in between: the frame is
    not computed again, its staged rows go with the job, and a streaming one has its query here, so that it cannot be
    left behind."""
    some_files(tmp_path / "in", 0, 3)
    with LocalCluster(tmp_path / "cluster", (2, 2)) as cluster:
        slowly = cluster.environment(2).from_dataframe(spark.range(0, 2_000, 1, 4), uid="f")

        def note(row: dict[str, Any]) -> dict[str, Any]:
            import time

            time.sleep(0.0005)
            return row

        frame = slowly.map(note, schema=pa.schema([("id", pa.int64())]))
        killer = threading.Thread(target=kill_one_when_rows_flow, args=(cluster,))
        killer.start()
        assert sorted(row.id for row in frame.to_dataframe(spark).collect()) == list(range(2_000))
        killer.join()
        assert list(cluster.checkpoints.glob("snapline-staged-*")) == []
        env = cluster.environment(2)
        streamed(spark, env, tmp_path).sink_to(sl.ParquetSink(str(tmp_path / "out")), uid="sink")
        monkeypatch.setenv("SNAPLINE_DETACHED", "1")
        with pytest.raises(JobDefinitionError, match="its query runs in this program, so it cannot run detached"):
            env.execute("streamed")
        monkeypatch.delenv("SNAPLINE_DETACHED")
        env.execute("streamed")
        assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == list(range(300))


def kill_one_when_rows_flow(cluster: LocalCluster) -> None:
    """A TaskManager, once a checkpoint of the only job is complete; another one takes its place."""
    wait_until(lambda: bool(cluster.client.list_jobs()), "the job", 120)
    job_id = cluster.client.list_jobs()[0].job_id
    cluster.follow(job_id, lambda details: details.checkpoint_counts.completed >= 1)
    cluster.task_managers[0].kill()
    cluster.start_task_manager(2)


def test_wrong_streaming_frames_are_refused(spark: Any, tmp_path: Path) -> None:
    """What is no streaming frame, complete mode, a trigger without micro-batches, no uid; and what Spark refuses."""
    (tmp_path / "in").mkdir()
    env = environment(tmp_path)
    rate = spark.readStream.format("rate").load()
    for frame, more, said in (
        (spark.range(1), {}, "the DataFrame is not a streaming one; give it to from_dataframe"),
        (rate, {"output_mode": "complete"}, "output mode 'complete' gives all rows again in each micro-batch"),
        (rate, {"trigger": {"continuous": "1 second"}}, "trigger 'continuous' has no micro-batches"),
        (rate, {"trigger": "1 second"}, "trigger='1 second': write"),
        (rate, {"uid": ""}, "give a uid"),
        (rate.selectExpr("interval '1' day as v"), {}, "column 'v' is interval day"),
    ):
        with pytest.raises(JobDefinitionError, match=said) as refusal:
            env.from_streaming_dataframe(frame, **{"uid": "q", **more})  # type: ignore[arg-type]
        assert "\n" not in str(refusal.value)
    env.from_streaming_dataframe(rate.groupBy("value").count(), uid="q").print()
    with pytest.raises(
        JobDefinitionError, match=r"from_streaming_dataframe\('q'\): Spark does not start the query: .*mode"
    ) as refusal:
        env.execute("refused", local=True)
    assert "\n" not in str(refusal.value)


def test_partitions_that_aqe_has_cut_otherwise_are_found_out(spark: Any, tmp_path: Path) -> None:
    """A run that was killed goes on in the same partitions, and in others not: their digest is another one."""
    killed = tmp_path / "killed"

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > 2_900 and not killed.exists():
                killed.touch()
                raise RuntimeError("planned")
            yield batch

    def run(*, coalesces: bool) -> list[int]:
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", coalesces)
        frame = spark.range(0, 3_000, 1, 1).repartition("id")
        function = sl.resumable(once, uid="once", directory=str(tmp_path / "progress"), interval_ms=0)
        return sorted(row.id for row in frame.mapInArrow(function, "id long").collect())

    try:
        with pytest.raises(Exception, match="planned"):
            run(coalesces=True)
        with pytest.raises(
            Exception, match=r"once: partition 0: its first [\d,]+ rows are not those that were read before"
        ):
            run(coalesces=False)
        assert run(coalesces=True) == list(range(3_000))
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
