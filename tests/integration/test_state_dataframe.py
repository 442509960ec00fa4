"""State of a snapshot as a DataFrame, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapline import state
from snapline.session import open_spark
from snapline.spark.state_source import StateDataSource
from tests.unit.snapline.test_state import Writer


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    handle = open_spark("state", {"spark.master": "local[2]"})
    yield handle.session
    handle.session.stop()


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


def test_an_operator_that_is_not_there(spark: Any, path: str) -> None:
    """Said before Spark runs anything."""
    with pytest.raises(state.StateReadError, match="there is some of 'totals'"):
        state.read(spark, path, "sums")
    assert "snapline_state" == StateDataSource.name()
