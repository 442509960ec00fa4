"""Keys of types that state keeps in another form: what an aggregate says of its columns is what comes, and what is
joined by the key works on."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

import snapline as sl

KEYS = {
    "categories": pa.array(["x", "y", "x"]).dictionary_encode(),
    "uuids": pa.array([b"x" * 16, b"y" * 16, b"x" * 16], pa.binary(16)).cast(pa.uuid()),
    "small decimals": pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("1.5")], pa.decimal64(5, 1)),
}


def rows_and_counts(name: str) -> tuple[sl.DataStream, sl.DataStream]:
    """A stream by this key, and its rows counted by key."""
    table = pa.table({"k": KEYS[name], "at": pa.array([0, 1, 2])})
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    rows = env.from_collection(table, uid="rows").assign_timestamps_and_watermarks(strategy, uid="times")
    return rows, rows.key_by("k").window(sl.TumblingEventTimeWindows(10)).aggregate(uid="counts", n=sl.count())


@pytest.mark.parametrize("name", KEYS)
def test_an_aggregate_says_the_types_that_come(name: str) -> None:
    """It said that of the input, and what was built on that failed when the first row came."""
    _, counts = rows_and_counts(name)
    table = counts.execute_and_collect(local=True).to_arrow()
    assert table.schema == counts.schema
    assert sorted(table["n"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("name", KEYS)
def test_an_aggregate_is_joined_by_its_key(name: str) -> None:
    """With the rows that it comes from, and with a table."""
    rows, counts = rows_and_counts(name)
    table = pa.table({"k": KEYS[name].slice(0, 2), "z": [1, 2]})
    pairs = counts.key_by("k").join(rows.key_by("k")).window(sl.TumblingEventTimeWindows(100), uid="pairs")
    assert pairs.execute_and_collect(local=True).to_arrow().num_rows == len(KEYS[name])
    assert counts.enrich(table, "k", how="inner", uid="z").execute_and_collect(local=True).to_arrow().num_rows == len(
        table
    )
