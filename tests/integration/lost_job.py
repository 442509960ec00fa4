"""A job with a sink of every kind that has two phases, which is lost at its first commit: no process but one that was
told so may commit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.connectors import DeltaSink, FileSink, GeneratorSource, IcebergSink

MAY_COMMIT = "SNAPLINE_TEST_MAY_COMMIT"


def lost(commit: Callable[[Any], None]) -> Callable[[Any], None]:
    """The commit, where it is allowed."""

    def committed(what: Any) -> None:
        if MAY_COMMIT not in os.environ:
            raise RuntimeError("the process that commits is lost")
        commit(what)

    return committed


class LostFiles(FileSink):
    """Files of which none is ever published."""

    def create_committer(self, context: Any) -> Any:
        committer: Any = super().create_committer(context)
        committer.commit = lost(committer.commit)
        return committer


class LostDelta(DeltaSink):
    """A table that never gets a version."""

    def create_global_committer(self, context: Any) -> Any:
        committer: Any = super().create_global_committer(context)
        committer.commit = lost(committer.commit)
        return committer


class LostIceberg(IcebergSink):
    """A table that never gets a snapshot."""

    def create_global_committer(self, context: Any) -> Any:
        committer: Any = super().create_global_committer(context)
        committer.commit = lost(committer.commit)
        return committer


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


def build(environment: sl.StreamExecutionEnvironment, directory: Path) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    source = GeneratorSource(rows_per_second=500, splits=4, event_time_column="at", event_interval_us=1)
    rows = environment.from_source(source, uid="rows")
    rows.sink_to(LostFiles(directory / "files"), uid="files")
    rows.sink_to(LostDelta(directory / "delta"), uid="delta")
    rows.sink_to(LostIceberg("lost.rows", catalog=catalog_in(directory)), uid="iceberg")
    rows.add_sink(LostLines(directory / "lines"), uid="lines")
    return environment


if __name__ == "__main__":
    build(sl.StreamExecutionEnvironment.get_execution_environment(), Path(sys.argv[1])).execute("lost")
