"""Tests of a job as a user would write them: copy this file, and say
`pytest_plugins = ["snapline.testing.fixtures"]` in the `conftest.py` beside it.

The job adds up what each customer spends. Its function is tested alone, then the job with a kill in the middle.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.testing import AwaitCheckpoint, MiniCluster, OperatorHarness, ScriptedSource, assert_same_rows

ORDERS = pa.schema([("customer", pa.string()), ("cents", pa.int64())])


class Spent(sl.KeyedProcessFunction):
    """Puts out the sum of the customer with each order."""

    def open(self, context: sl.RuntimeContext) -> None:
        """Ask the context for the state of the key."""
        self.cents = context.get_state(sl.ValueStateDescriptor("cents", pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Any:
        """Add one order to the sum of its customer."""
        self.cents.update((self.cents.value() or 0) + row["cents"])
        yield {"customer": row["customer"], "spent": self.cents.value()}


def spent(orders: sl.DataStream) -> sl.DataStream:
    """The part of the job that is tested."""
    return orders.key_by("customer").process(Spent(), uid="spent")


def test_the_sum_survives_a_restore_at_another_parallelism() -> None:
    """The function alone: rows in, rows out, a snapshot in between."""
    harness = OperatorHarness(spent, ORDERS, parallelism=2)
    snapshot = harness.push([{"customer": "x", "cents": 5}, {"customer": "y", "cents": 7}]).snapshot()
    with snapshot.restore(parallelism=3) as restored:
        restored.push([{"customer": "x", "cents": 1}])
        assert restored.rows() == [{"customer": "x", "spent": 6}]


def test_no_order_counts_twice(mini_cluster: MiniCluster) -> None:
    """The whole job: a task dies after the checkpoint, and what came after it is read again."""
    script = [
        {"customer": "x", "cents": 5},
        AwaitCheckpoint(),
        {"customer": "x", "cents": 7},
        AwaitCheckpoint(),
        {"customer": "x", "cents": 1},
    ]

    def build(env: sl.StreamExecutionEnvironment) -> None:
        orders = env.from_source(ScriptedSource(script, schema=ORDERS), uid="orders")
        spent(orders).sink_to(mini_cluster.sink(), uid="sink")

    job = mini_cluster.start(build)
    job.run_until(lambda: job.rows_in("spent") == 1).checkpoint()
    job.run_until(lambda: job.rows_in("spent") == 2).kill("spent")
    job.run_until(lambda: job.rows_in("spent") == 1).checkpoint()
    job.finish()
    assert_same_rows(mini_cluster.rows(), [{"customer": "x", "spent": cents} for cents in (5, 12, 13)])
