"""Numbers that are large for their type, in expressions: as Polars and Python have them, and no error of Arrow's."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import snapline as sl

NS = 1_700_000_000_123_456_789
WHOLE = [2**63 - 1, -(2**63), 2**53 + 1, -(2**24) - 1, 7, None]


@pytest.mark.parametrize(
    ("floats", "of_polars"), [(pa.float64(), pl.Float64), (pa.float32(), pl.Float32)], ids=["double", "float"]
)
def test_whole_numbers_are_cast_to_the_nearest_floats(floats: pa.DataType, of_polars: Any) -> None:
    """One that a float has to round failed the job, which the advice for means of large numbers led to."""
    batch = pa.RecordBatch.from_pydict({"n": pa.array(WHOLE, pa.int64())})
    expected = pl.DataFrame(pl.from_arrow(batch)).select(pl.col("n").cast(of_polars))["n"].to_list()

    assert sl.col("n").cast(floats).evaluate(batch).to_pylist() == expected
    with pytest.raises(pa.ArrowInvalid):
        sl.col("n").cast(pa.int32()).evaluate(batch)


def test_the_mean_of_nanoseconds_since_1970() -> None:
    """What the guide advises: the sum of twenty of them is more than 64 bits hold."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"k": 1, "ns": NS + number} for number in range(20)])
    mean = sl.mean(sl.col("ns").cast(pa.float64()))
    found = rows.key_by("k").running_aggregate(uid="mean", mean=mean).execute_and_collect(local=True)

    assert [*found][-1]["mean"] == pytest.approx(NS, rel=1e-12)
