"""State of a snapshot as a DataFrame, and a DataFrame as state, on real Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from snapline import ParquetSink, StreamExecutionEnvironment, ValueStateDescriptor, state
from snapline.connectors.builtin.collection import CollectionSource
from snapline.session import open_spark, stop_spark
from snapline.spark.state_source import StateDataSource
from snapline.state_files import StateWriteError
from snapline.state_writer import SavepointWriter
from tests.integration.bootstrapped_job import OUTPUT, Total
from tests.unit.snapline.test_state import Writer


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    handle = open_spark("state", {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
    yield handle.session
    stop_spark(handle)


@pytest.fixture
def path(tmp_path: Path) -> str:
    writer = Writer(tmp_path)
    writer.put([(f"c{n}", n, n) for n in range(200)])
    writer.snapshot()
    writer.put([("c3", 3, None), ("c4", 4, 400)])
    return writer.snapshot()


def test_all_rows_and_one_key(spark: Any, path: str) -> None:
    """Cut by key groups; an equality on the key reads one partition."""
    frame = state.read(spark, path, "totals")
    assert 2 == frame.rdd.getNumPartitions()
    [figures] = frame.selectExpr("count(*)", "sum(total)").collect()
    assert (199, sum(range(200)) - 3 - 4 + 400) == tuple(figures)
    assert 8 == state.read(spark, path, "totals", partitions=8).rdd.getNumPartitions()

    one = frame.where("city = 'c7' and day = date '1970-01-08'")
    assert 1 == one.rdd.getNumPartitions()
    [row] = one.collect()
    assert ("c7", 7, [7]) == (row.city, row.total, row.recent)
    assert [] == frame.where("city = 'c7' and day = date '1970-01-09'").collect()
    assert 2 == frame.where("city in ('c7', 'c8')").count()
    some = frame.where("city in ('c7', 'c8') and day in (date '1970-01-08', date '1970-01-09')")
    assert (4, 2) == (some.rdd.getNumPartitions(), some.count())


def test_an_operator_that_is_not_there(spark: Any, path: str) -> None:
    """Said before Spark runs anything."""
    with pytest.raises(state.StateReadError, match="there is some of 'totals'"):
        state.read(spark, path, "sums")
    assert "snapline_state" == StateDataSource.name()


def test_a_job_starts_from_a_frame(spark: Any, tmp_path: Path) -> None:
    """History, summed up in Spark, becomes the state of a job that goes on from there, at another parallelism."""
    history = spark.range(10_000).selectExpr("id % 1000 as user", "id as amount")
    totals = history.groupBy("user").sum("amount").withColumnRenamed("sum(amount)", "total")
    expected = {row.user: row.total for row in totals.collect()}
    writer = SavepointWriter.new_savepoint().with_operator("total", totals, key="user", parallelism=3)
    path = writer.write(str(tmp_path / "savepoint"))

    back = state.read(spark, path, "total")
    assert 3 == back.rdd.getNumPartitions()
    assert {row.user: row.total for row in back.collect()} == expected
    assert sorted(state.StateReader(path).snapshot.metadata.operators[0].subtasks) == [0, 1, 2]

    environment = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).restore_from(path)
    environment.enable_checkpointing(200).set_checkpoint_dir(str(tmp_path / "checkpoints"))
    rows = CollectionSource.of_rows([{"user": user, "amount": 1} for user in range(0, 2000, 2)])
    environment.from_source(rows, uid="rows").key_by("user").process(Total(), uid="total", schema=OUTPUT).sink_to(
        ParquetSink(str(tmp_path / "out")), uid="sink"
    )
    environment.execute("goes on from history")
    found = ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist()
    assert {row["user"]: row["total"] for row in found} == {u: expected.get(u, 0) + 1 for u in range(0, 2000, 2)}


def test_a_frame_with_timestamps_becomes_state_and_comes_back(spark: Any, tmp_path: Path) -> None:
    """They have the zone of the session, and are the same instants."""
    data = spark.sql("select id as user, timestamp_seconds(id) as seen from range(3)")
    writer = SavepointWriter.new_savepoint().with_operator("seen", data, key="user", parallelism=1)
    back = state.read(spark, writer.write(str(tmp_path / "savepoint")), "seen")
    seconds = back.selectExpr("user", "unix_seconds(seen) as at").collect()
    assert {row.user: row["at"] for row in seconds} == {0: 0, 1: 1, 2: 2}


def test_executors_here_take_the_python_of_the_driver(spark: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PYSPARK_PYTHON is not set: `python3` of the PATH may not have Snapline."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    assert 199 == state.read(spark, path, "totals").count()
    assert spark.sparkContext.pythonExec == sys.executable


def test_rows_that_cannot_be_state_are_named(spark: Any, tmp_path: Path) -> None:
    """The task's refusal comes back in one line, and nothing is left of the savepoint."""
    twice = spark.createDataFrame([(1, "a"), (2, "b"), (1, "c")], "user long, name string")
    with pytest.raises(StateWriteError, match=r"^operator 'names': the key user=1 has several rows: aggregate them"):
        SavepointWriter.new_savepoint().with_operator("names", twice, key="user").write(str(tmp_path / "one"))
    wrong = [ValueStateDescriptor("name", pa.int64())]
    with pytest.raises(StateWriteError, match="column 'name' is string and the state stores int64"):
        SavepointWriter.new_savepoint().with_operator("n", twice, key="user", states=wrong).write(str(tmp_path / "two"))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
