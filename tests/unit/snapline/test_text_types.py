"""Texts are large_string in files of polars and string in those of others: one stream has both, and nobody notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl

ROWS = [{"k": f"k{n % 2}", "v": n} for n in range(6)]


def both_streams(tmp_path: Path) -> tuple[sl.DataStream, sl.DataStream]:
    """Of a file of polars, and of a collection."""
    pl.DataFrame(ROWS).write_parquet(tmp_path / "polars.parquet")
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    polars = env.from_source(sl.ParquetSource(tmp_path / "polars.parquet"), uid="polars")
    assert polars.schema is not None
    assert polars.schema.field("k").type == pa.large_string()
    return polars, env.from_collection(ROWS, uid="plain")


def table_of(stream: sl.DataStream) -> pa.Table:
    return stream.execute_and_collect(local=True).to_arrow()


def test_a_union_has_texts_of_one_type(tmp_path: Path) -> None:
    """That of the first stream, which all that follows can rely on."""
    polars, plain = both_streams(tmp_path)
    for stream, text in ((polars.union(plain), pa.large_string()), (plain.union(polars), pa.string())):
        assert stream.schema == pa.schema([("k", text), ("v", pa.int64())])
        reduced = stream.key_by("k").reduce(lambda one, other: {**one, "v": one["v"] + other["v"]}, uid="sums")
        assert table_of(stream).num_rows == 2 * len(ROWS)
        assert max(table_of(reduced)["v"].to_pylist()) == 2 * (1 + 3 + 5)


@pytest.mark.parametrize("is_plain_first", [True, False])
def test_a_stream_whose_columns_nobody_declared_is_collected_and_written(tmp_path: Path, is_plain_first: bool) -> None:
    """The sink and the table have the type that came first."""
    polars, _ = both_streams(tmp_path)
    by_row = polars.map(lambda row: row, uid="rows")
    stream = by_row.union(polars) if is_plain_first else polars.union(by_row)
    assert stream.schema is None
    assert table_of(stream).num_rows == 2 * len(ROWS)
    stream.sink_to(sl.ParquetSink(tmp_path / "out"), uid="out")
    stream.environment.execute("written", local=True)
    assert pq.read_table(tmp_path / "out").num_rows == 2 * len(ROWS)


@pytest.mark.parametrize("is_plain_first", [True, False])
def test_texts_of_both_are_aggregated(tmp_path: Path, is_plain_first: bool) -> None:
    """Aggregates that hold values refused whatever came second, where nobody had declared the columns."""
    polars, _ = both_streams(tmp_path)
    polars = polars.select("k", "v", text=sl.col("k"))
    by_row = polars.map(lambda row: row, uid="rows")
    keyed = (by_row.union(polars) if is_plain_first else polars.union(by_row)).key_by("v")
    aggregates: dict[str, Any] = {
        "first": sl.first("text"), "all": sl.collect_list("text"), "different": sl.count_distinct("text"),
        "about": sl.approx_count_distinct("text"),
    }  # fmt: skip
    found = table_of(keyed.count_window(2).aggregate(uid="twos", **aggregates)).to_pylist()
    expected = [
        {"v": row["v"], "first": row["k"], "all": [row["k"], row["k"]], "different": 1, "about": 1} for row in ROWS
    ]
    assert sorted(found, key=lambda row: row["v"]) == expected


def test_one_source_reads_files_of_both(tmp_path: Path) -> None:
    """Its columns are those of the first file."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    pl.DataFrame(ROWS).write_parquet(tmp_path / "b.parquet")
    stream = sl.StreamExecutionEnvironment.get_execution_environment().from_source(
        sl.ParquetSource(tmp_path, columns=["v", "k"]), uid="both"
    )
    table = table_of(stream)
    assert table.schema == stream.schema == pa.schema([("v", pa.int64()), ("k", pa.string())])
    assert table.num_rows == 2 * len(ROWS)


def test_rows_that_make_no_table_are_refused_in_one_line() -> None:
    """They can still be taken as rows."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    other: list[dict[str, Any]] = [{"k": 1}]
    stream = env.from_collection(ROWS, uid="a").union(env.from_collection(other, uid="b"))
    assert len(list(stream.execute_and_collect(local=True))) == len(ROWS) + 1
    said = "rows of this stream have different columns, which make no table: k string, v int64 and k int64; take them as rows"
    with pytest.raises(sl.JobDefinitionError, match=said):
        table_of(stream)
