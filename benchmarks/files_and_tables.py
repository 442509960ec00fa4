"""Files, tables and databases beside what the bare library does in a loop, and beside Spark's readers and writers.

Figures are rows a second of processor time. In: `FileSource`'s reader, and the library's own batches. Out: a sink's
writer with a pre-commit and a commit at the end, and the library's writer, or a loop over rows where it has none. Spark
is one more process with one core (`local[1]`); the processor time of its Java machine is counted, after a first run
that nobody counts. Pairs are interleaved; the figures are medians.

    python -m benchmarks.files_and_tables --rows 500000 [--spark]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from benchmarks.cluster import BOTH_COMPILERS
from benchmarks.connectors import SCHEMA, Place, compare, measured, rows_of
from snapline.connectors import DeltaSink, FileSink, FileSource, PostgresSink
from snapline.connectors.formats import CsvFormat, JsonFormat
from snapline.dataflow.api.connector_api import GlobalCommittable, InputStatus, Sink
from tests.services.postgres import PostgresServer, programs

BATCH = 8_192
BLOCK_BYTES = 1 << 20
FORMATS: dict[str, Any] = {"parquet": "parquet", "json": JsonFormat(SCHEMA), "csv": CsvFormat(SCHEMA)}


def batches_of(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows as a task gets them."""
    return [rows.slice(start, BATCH) for start in range(0, rows.num_rows, BATCH)]


def read_with_us(path: Path, kind: str) -> int:
    """Read a file through FileSource, and return the number of rows."""
    source = FileSource(path, FORMATS[kind])
    found = source.create_enumerator([]).discover({})
    reader = source.create_reader(Place())
    reader.add_splits(found.splits)
    rows = 0
    while not (polled := reader.poll_next(0)).finished_splits and polled.status is InputStatus.MORE_AVAILABLE:
        rows += polled.batch.num_rows if polled.batch is not None else 0
    reader.close()
    return rows


def read_in_a_loop(path: Path, kind: str) -> int:
    """Read a file with pyarrow, on one thread, and return the number of rows."""
    if kind == "parquet":
        return sum(batch.num_rows for batch in pq.ParquetFile(path).iter_batches(BATCH, use_threads=False))
    if kind == "csv":
        named = pacsv.ReadOptions(use_threads=False, column_names=SCHEMA.names, block_size=BLOCK_BYTES)
        types = pacsv.ConvertOptions(column_types=SCHEMA)
        return sum(batch.num_rows for batch in pacsv.open_csv(path, named, convert_options=types))
    options = pajson.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    return sum(batch.num_rows for batch in pajson.open_json(path, options, pajson.ParseOptions(explicit_schema=SCHEMA)))


def write_with_us(sink: Sink, rows: pa.RecordBatch) -> None:
    """As a task does between two checkpoints."""
    place = Place(execution_attempt=uuid.uuid4().hex, job_id=uuid.uuid4().hex)
    writer = sink.create_writer(place, [])
    for batch in batches_of(rows):
        writer.write(batch)
    committables = tuple(writer.prepare_commit(1))
    if sink.commits_together:
        together = sink.create_global_committer(place)
        together.commit(GlobalCommittable(place.job_id, place.operator_uid, 1, committables))
        together.close()
    elif (committer := sink.create_committer(place)) is not None:
        committer.commit(committables)
        committer.close()
    writer.close()


def convert_with_us(parquet: Path, sink: Sink, rows: pa.RecordBatch) -> None:
    """Read the rows from a Parquet file, as Spark does, and write them."""
    read_with_us(parquet, "parquet")
    write_with_us(sink, rows)


def write_in_a_loop(directory: Path, kind: str, rows: pa.RecordBatch) -> None:
    """Write a file with the bare library; durable in the end, as a sink's is."""
    path = directory / f"{uuid.uuid4().hex}.{kind}"
    if kind == "parquet":
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            writer.write_batch(rows)
    elif kind == "csv":
        with pacsv.CSVWriter(path, SCHEMA, write_options=pacsv.WriteOptions(include_header=False)) as lines:
            for batch in batches_of(rows):
                lines.write_batch(batch)
    else:
        with path.open("w") as file:
            for batch in batches_of(rows):
                file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def copy_in_a_loop(dsn: str, rows: pa.RecordBatch) -> None:
    """What psycopg's manual says: COPY, a row at a time."""
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY log (id, name, price, paid) FROM STDIN") as copy,
    ):
        for batch in batches_of(rows):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                copy.write_row(row)


def upsert_in_a_loop(dsn: str, rows: pa.RecordBatch) -> None:
    """What psycopg has for rows that replace others: many statements, sent together."""
    statement = (
        "INSERT INTO totals (id, name, price, paid) VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
        "name = EXCLUDED.name, price = EXCLUDED.price, paid = EXCLUDED.paid"
    )
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        for batch in batches_of(rows):
            cursor.executemany(statement, list(zip(*(column.to_pylist() for column in batch.columns), strict=True)))


def of_postgres(directory: Path, rows: pa.RecordBatch, options: argparse.Namespace) -> None:
    """The client's processor time only; the server has its own."""
    server = PostgresServer(directory / "postgres")
    try:
        columns = "id bigint{}, name text, price double precision, paid boolean"
        with server.connect() as connection:
            connection.execute(f"CREATE TABLE log ({columns.format('')})")
            connection.execute(f"CREATE TABLE totals ({columns.format(' PRIMARY KEY')})")
        copied = PostgresSink("log", dsn=server.dsn, guarantee="exactly_once")
        compare(
            "PostgreSQL out, exactly once",
            options,
            partial(write_with_us, copied, rows),
            partial(copy_in_a_loop, server.dsn, rows),
        )
        few = argparse.Namespace(**{**vars(options), "rows": min(options.rows, 50_000)})
        upserted = PostgresSink("totals", dsn=server.dsn, key=["id"])
        some = rows.slice(0, few.rows)
        compare(
            "PostgreSQL out, by key",
            few,
            partial(write_with_us, upserted, some),
            partial(upsert_in_a_loop, server.dsn, some),
        )
    finally:
        server.close()


class SparkBeside:
    """Spark with one core, whose processor time is that of its Java machine."""

    def __init__(self) -> None:
        from snapline.sidecar import open_spark

        conf = {"spark.master": "local[1]", "spark.ui.enabled": "false", **BOTH_COMPILERS}
        self._spark: Any = open_spark("benchmark", conf).session
        machine: Any = self._spark._jvm  # noqa: SLF001 - Spark has no other way
        self._pid = int(machine.java.lang.ProcessHandle.current().pid())

    def seconds(self, run: Callable[[], Any]) -> float:
        """Processor time of all threads of the machine meanwhile."""
        before = self._cpu()
        run()
        return self._cpu() - before

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read(self, path: Path, kind: str) -> None:
        """Read all columns, and throw the rows away."""
        reader = self._spark.read.schema("id bigint, name string, price double, paid boolean")
        getattr(reader, kind)(str(path)).write.format("noop").mode("overwrite").save()

    def write(self, source: Path, directory: Path, kind: str) -> None:
        """Write what lies in a Parquet file in this format; reading it is part of it."""
        getattr(self._spark.read.parquet(str(source)).write, kind)(str(directory / uuid.uuid4().hex))


def beside_spark(
    name: str, options: argparse.Namespace, ours: Callable[[], Any], spark: SparkBeside, theirs: Callable[[], Any]
) -> None:
    """Print one line: both ways in pairs."""
    theirs()
    pairs = [(measured(ours), spark.seconds(theirs)) for _ in range(options.pairs)]
    mine, other = (options.rows / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = sorted(second / first for first, second in pairs)
    print(
        f"{name:34}{mine:12,.0f}{other:18,.0f}{statistics.median(ratios):8.2f}{ratios[0]:7.2f}{ratios[-1]:7.2f}",
        flush=True,
    )


def main() -> int:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="beside Spark, too")
    options = parser.parse_args()
    rows = rows_of("json", options.rows)
    load = os.getloadavg()[0]
    print(
        f"Python {sys.version.split()[0]}, pyarrow {pa.__version__}, deltalake {deltalake.__version__}, {options.rows} rows, load {load:.0f}"
    )
    print(f"{'':28}{'ours, rows/CPU s':>18}{'other, rows/CPU s':>18}{'ratio':>8}{'from':>7}{'to':>7}")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spark = SparkBeside() if options.spark else None
        for kind, form in FORMATS.items():
            (target := directory / kind).mkdir()
            sink = FileSink(target, form)
            sink.validate()
            write_with_us(sink, rows)
            (path,) = [each for each in target.iterdir() if each.is_file()]
            compare(
                f"files in, {kind}", options, partial(read_with_us, path, kind), partial(read_in_a_loop, path, kind)
            )
            compare(
                f"files out, {kind}",
                options,
                partial(write_with_us, sink, rows),
                partial(write_in_a_loop, directory, kind, rows),
            )
            if spark is not None:
                parquet = next(each for each in (directory / "parquet").iterdir() if each.is_file())
                read = partial(read_with_us, path, kind)
                beside_spark(f"files in, {kind}, Spark", options, read, spark, partial(spark.read, path, kind))
                convert = partial(convert_with_us, parquet, sink, rows)
                theirs = partial(spark.write, parquet, directory, kind)
                beside_spark(f"files out, {kind}, Spark", options, convert, spark, theirs)
        table = pa.Table.from_batches([rows])
        as_ours = deltalake.WriterProperties(compression="ZSTD", compression_level=1)
        compare(
            "Delta out", options, lambda: write_with_us(DeltaSink(directory / f"d{time.time_ns()}"), rows),
            lambda: deltalake.write_deltalake(str(directory / f"l{time.time_ns()}"), table, writer_properties=as_ours),
        )  # fmt: skip
        if programs() is not None:
            of_postgres(directory, rows, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
