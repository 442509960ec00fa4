"""Columns that keys and aggregates over expressions are computed into: their names, their order, and who sees them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.testing import AwaitCheckpoint, ScriptedSource

ROWS = [{"k": "a", "x": x, "t": x} for x in range(6)]


def test_names_of_aggregates_that_look_like_parts_of_each_other_do_not_meet():
    """A second expression of one aggregate and the first of another one are columns of their own."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    totals = (
        env.from_collection(ROWS)
        .key_by("k")
        .running_aggregate(a=sl.first("x", by=-sl.col("t")), a_1=sl.sum(sl.col("x") * 2), uid="both")
    )
    assert list(totals.execute_and_collect(local=True))[-1] == {"k": "a", "a": 5, "a_1": 30}


@pytest.mark.parametrize("known", [True, False])
def test_late_rows_have_no_columns_that_only_aggregates_read(tmp_path, known):
    """A row that comes too late leaves as it came, whatever was computed for the aggregates."""
    settings = {"pipeline.auto-watermark-interval": "1 ms", "execution.checkpointing.dir": str(tmp_path)}
    env = sl.StreamExecutionEnvironment.get_execution_environment(settings).enable_checkpointing(10)
    source = ScriptedSource([{"k": "a", "t": 0}, {"k": "a", "t": 100_000}, AwaitCheckpoint(), {"k": "a", "t": 1}])
    rows = env.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("t"), uid="rows")
    if not known:
        rows = rows.map_batches(lambda batch: batch)
    windows = rows.key_by("k").window(sl.TumblingEventTimeWindows(1_000)).side_output_late_data("late")
    late = windows.aggregate(n=sl.sum(sl.col("t") * 2), uid="sums").get_side_output("late")
    assert late.schema is None or late.schema.names == ["k", "t"]
    assert late.event_time_column == "t"
    assert list(late.execute_and_collect(local=True)) == [{"k": "a", "t": 1}]


def place_of_rows(stream):
    """Through which parallelism rows come to the last operator before the keys, and whether they are spread there."""
    nodes = stream.environment.graph.nodes
    keyed = [nodes[edge.source] for edge in nodes[stream.edges[0].source].inputs]
    return [(node.name, node.parallelism, nodes[node.inputs[0].source].parallelism) for node in keyed]


def test_what_is_computed_for_keys_and_aggregates_leaves_rows_in_order():
    """Rows of one subtask go through one subtask more, each stream of a union for itself, and so keep their order."""
    env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(4)
    one = env.from_collection(ROWS, uid="one").set_parallelism(1)
    other = env.from_collection(ROWS, uid="other").set_parallelism(2)
    upper = one.union(other).key_by(sl.col("k").str.to_uppercase())
    totals = upper.running_aggregate(n=sl.count(), uid="counts")
    assert place_of_rows(totals) == [("with_columns", 1, 1), ("with_columns", 2, 2)]
    last = one.key_by("k").running_aggregate(x=sl.last(sl.col("x") + 0), uid="last")
    assert place_of_rows(last) == [("with_columns", 1, 1)]
    assert [row["x"] for row in last.execute_and_collect(local=True)] == [0, 1, 2, 3, 4, 5]


def test_categories_are_texts_to_expressions() -> None:
    """Columns of categories, as Polars and pandas have them, were refused by is_in and by all that texts have."""
    batch = pa.record_batch({"c": pa.array(["ab", None, "cd", "ab"]).dictionary_encode()})
    column = sl.col("c")

    def values(expression: sl.Expr) -> list[object]:
        found = expression.evaluate(batch)
        assert expression.type_in(batch.schema) == found.type
        return list(found.to_pylist())

    assert values(column.is_in(["ab", "x"])) == [True, None, False, True]
    assert values(column.str.to_uppercase()) == ["AB", None, "CD", "AB"]
    assert values(column.str.len_chars()) == [2, None, 2, 2]
    assert values(column + "!") == ["ab!", None, "cd!", "ab!"]
    assert values(sl.concat_str(column, column, separator="-")) == ["ab-ab", None, "cd-cd", "ab-ab"]
    assert pa.types.is_dictionary(column.type_in(batch.schema))


def test_a_column_in_the_place_of_one_that_is_never_null_may_be_null(tmp_path: Path) -> None:
    """A file whose schema promises values would be refused by its format as soon as one is missing."""
    never_null = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("x", pa.int64(), nullable=False)])
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection(ROWS).map(lambda row: {"k": row["k"], "x": row["x"]}, schema=never_null)
    large = rows.with_columns(x=sl.when(sl.col("x") > 3).then(sl.col("x")).otherwise(None))
    assert large.schema is not None
    assert [field.nullable for field in large.schema] == [False, True]
    large.sink_to(sl.ParquetSink(tmp_path), uid="out")
    env.execute(local=True)
    assert pq.read_table(tmp_path)["x"].to_pylist() == [None, None, None, None, 4, 5]


def test_a_row_without_a_match_has_no_value_in_a_column_that_is_never_null_in_the_table(tmp_path: Path) -> None:
    """What a table promises of its own rows holds for those that have found one."""
    towns = pa.table(
        {"x": [1], "town": ["Aachen"]},
        schema=pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("town", pa.string(), nullable=False)]),
    )
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(ROWS[:2]).enrich(towns, "x").sink_to(sl.ParquetSink(tmp_path), uid="out")
    env.execute(local=True)
    assert pq.read_table(tmp_path)["town"].to_pylist() == [None, "Aachen"]


def test_rows_of_a_table_that_has_no_nulls_meet_rows_that_have_some() -> None:
    """Streams of one schema for people make one table, whatever their sources promise."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    never_null = pa.table({"x": [1]}, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    rows = env.from_collection(never_null, uid="one").union(env.from_collection(pa.table({"x": pa.array([None, 2])})))
    assert rows.schema == pa.schema([("x", pa.int64())])
    assert rows.execute_and_collect(local=True).to_arrow().to_pydict() == {"x": [1, None, 2]}


def test_rows_that_go_to_all_subtasks_are_counted_once_by_keys_that_are_computed() -> None:
    """Keys decide who gets a row, whatever was said before them: each row came as often as there are subtasks."""
    env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    everywhere = env.from_collection(ROWS).broadcast()
    for keyed in (everywhere.key_by("k"), everywhere.key_by(sl.col("k").str.to_uppercase())):
        counts = keyed.running_aggregate(n=sl.count(), x=sl.sum(sl.col("x") + 1), uid="counts")
        assert [row["n"] for row in counts.execute_and_collect(local=True)] == [1, 2, 3, 4, 5, 6]
