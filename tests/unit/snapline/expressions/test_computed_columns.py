"""Columns that keys and aggregates over expressions are computed into: their names, their order, and who sees them."""

from __future__ import annotations

import snapline as sl

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
