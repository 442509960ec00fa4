"""A job with a sink of every kind that has two phases, which is lost at its first commit: no process but one that was
told so may commit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.connectors import (
    DeltaSink,
    FileSink,
    GeneratorSource,
    IcebergSink,
    JsonFormat,
    KafkaSink,
    PostgresSink,
    RedisSink,
)

MAY_COMMIT = "SNAPLINE_TEST_MAY_COMMIT"
NUMBERS = pa.schema([("n", pa.int64()), ("v", pa.int64())])


def lost(commit: Callable[[Any], None]) -> Callable[[Any], None]:
    """The commit, where it is allowed."""

    def committed(what: Any) -> None:
        if MAY_COMMIT not in os.environ:
            raise RuntimeError("the process that commits is lost")
        commit(what)

    return committed


class Lost:
    """A sink whose committer is lost."""

    def create_committer(self, context: Any) -> Any:
        committer: Any = super().create_committer(context)  # type: ignore[misc]  # the sink beside this class has it
        committer.commit = lost(committer.commit)
        return committer

    def create_global_committer(self, context: Any) -> Any:
        committer: Any = super().create_global_committer(context)  # type: ignore[misc]  # as above
        committer.commit = lost(committer.commit)
        return committer


class LostFiles(Lost, FileSink):
    """Files of which none is ever published."""


class LostDelta(Lost, DeltaSink):
    """A table that never gets a version."""


class LostIceberg(Lost, IcebergSink):
    """A table that never gets a snapshot."""


class LostTopic(Lost, KafkaSink):
    """Transactions that stay open."""


class LostRows(Lost, PostgresSink):
    """Transactions that stay prepared."""


class LostKeys(Lost, RedisSink):
    """Keys that are never set."""


class LostLines(sl.TwoPhaseCommitSinkFunction):
    """Lines in files that are renamed when they are committed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def open(self, context: Any) -> None:
        self.subtask = context.subtask_index

    def begin_transaction(self) -> str:
        return f"{self.directory}/{os.urandom(8).hex()}"

    def invoke_transaction(self, transaction: str, value: pa.RecordBatch) -> None:
        with Path(transaction).open("a") as file:
            file.writelines(f"{n}\n" for n in value.column("at").cast(pa.int64()).to_pylist())

    def pre_commit(self, transaction: str) -> None:
        Path(transaction).touch()

    def commit(self, transaction: str) -> None:
        lost(lambda each: None)(transaction)
        if Path(transaction).exists():
            Path(transaction).rename(f"{transaction}.lines")

    def abort(self, transaction: str) -> None:
        Path(transaction).unlink(missing_ok=True)


def catalog_in(directory: Path) -> dict[str, str]:
    """Properties of the catalogue."""
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as numbers."""
    numbers = batch.column("at").cast(pa.int64())
    return pa.RecordBatch.from_arrays([numbers, numbers], schema=NUMBERS)


def build(environment: sl.StreamExecutionEnvironment, directory: Path) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    source = GeneratorSource(rows_per_second=500, splits=4, event_time_column="at", event_interval_us=1)
    rows = environment.from_source(source, uid="rows")
    rows.sink_to(LostFiles(directory / "files"), uid="files")
    rows.sink_to(LostDelta(directory / "delta"), uid="delta")
    rows.sink_to(LostIceberg("lost.rows", catalog=catalog_in(directory)), uid="iceberg")
    rows.add_sink(LostLines(directory / "lines"), uid="lines")
    servers = json.loads((directory / "servers.json").read_text())
    numbers = rows.map_batches(numbered, uid="numbered", schema=NUMBERS)
    numbers.sink_to(LostFiles(directory / "compacted", compact_below=1 << 20), uid="compacted")
    topic, form = servers["topic"], JsonFormat(NUMBERS)
    to_topic = LostTopic(topic, bootstrap_servers=servers["kafka"], format=form, transactional_id_prefix=topic)
    numbers.sink_to(to_topic, uid="kafka")
    numbers.sink_to(LostKeys("n", url=servers["redis"], value="v", guarantee="exactly_once"), uid="redis")
    if servers["postgres"]:
        to_table = LostRows(servers["table"], dsn=servers["postgres"], guarantee="exactly_once")
        numbers.sink_to(to_table, uid="postgres")
    return environment


if __name__ == "__main__":
    build(sl.StreamExecutionEnvironment.get_execution_environment(), Path(sys.argv[1])).execute("lost")
