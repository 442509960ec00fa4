"""The programs in examples/, with short data, on the simulated cluster: nothing breaks them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from examples import flights, pipeline, shopping, state_source_and_sink, test_orders
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.testing import simulate

SEEDS = pytest.mark.parametrize("seeds", [6, pytest.param(200, marks=[pytest.mark.rare, pytest.mark.timeout(600)])])
"""Few in each run of the tests, and as many as planted mistakes are looked for in the long one."""
MORNING = dt.datetime(2013, 1, 1, 8)  # noqa: DTZ001 - as in the data, which has no zone


def hours(count):
    """A time, so many hours after the first morning."""
    return MORNING + dt.timedelta(hours=count)


@SEEDS
def test_flights(tmp_path: Path, seeds: int) -> None:
    """Daily windows, and a function with list state and timers, over flights of four aircraft."""
    types = {**{name: pa.string() for name in flights.COLUMNS}, "scheduled_departure": pa.timestamp("ms")}
    types |= {"flight": pa.int64(), "dep_time": pa.int64(), "dep_delay": pa.int64()}
    rows = [
        {
            "scheduled_departure": hours(3 * n),
            "origin": ["EWR", "JFK"][n % 2],
            "carrier": "UA",
            "flight": n,
            "tailnum": f"N{n % 4}",
            "dep_time": None if n % 7 == 0 else 900,
            "dep_delay": None if n % 7 == 0 else 20 + n,
        }
        for n in range(40)
    ]
    path = tmp_path / "flights.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(types.items()))), path)

    report = simulate(lambda env: flights.build(env, str(path), str(tmp_path)), seeds=seeds)

    assert report.ok


@SEEDS
def test_shopping(tmp_path: Path, seeds: int) -> None:
    """Sessions, windows over an enriched stream and an interval join, over purchases of three households."""
    items = [
        {"household_id": n % 3, "product_id": n % 5, "quantity": 1, "sales_cents": n, "bought_at": hours(7 * n)}
        for n in range(36)
    ]
    coupons = pa.schema([("household_id", pa.int64()), ("coupon", pa.string()), ("redeemed_at", pa.timestamp("ms"))])
    redeemed = [{"household_id": n % 3, "coupon": f"c{n}", "redeemed_at": hours(20 * n)} for n in range(9)]
    products = pa.table({"product_id": list(range(5)), "department": ["a", "b", "a", "b", "c"]})
    pq.write_table(pa.Table.from_pylist(items, schema=shopping.ITEMS), tmp_path / "transactions.parquet")
    pq.write_table(pa.Table.from_pylist(redeemed, schema=coupons), tmp_path / "redemptions.parquet")
    pq.write_table(products, tmp_path / "products.parquet")

    report = simulate(lambda env: shopping.build(env, str(tmp_path), str(tmp_path / "out")), seeds=seeds)

    assert report.ok


@SEEDS
def test_state_source_and_sink(tmp_path: Path, seeds: int) -> None:
    """A push-style source and a sink with operator state of the program's own; a file may come twice, and none is
    missing."""

    def clear() -> None:
        for file in tmp_path.glob("*"):
            file.unlink()

    report = simulate(
        lambda env: state_source_and_sink.build(env, str(tmp_path), rows=200),
        seeds=seeds,
        outputs={"files": lambda: sorted(set(state_source_and_sink.flushed(str(tmp_path))))},
        before_each=clear,
    )

    assert report.ok


@SEEDS
def test_the_orders_of_the_test_kits_example(seeds: int) -> None:
    """A sum in value state."""
    orders = [{"customer": "xyz"[n % 3], "cents": n} for n in range(30)]

    def build(env):
        test_orders.spent(env.from_collection(orders, uid="orders")).sink_to(DiscardingSink(), uid="out")

    assert simulate(build, seeds=seeds).ok


class PlanesInMemory(sl.AsyncFunction):
    """Takes the place of the table of PostgreSQL, which a simulated cluster cannot reach; it answers as that does."""

    async def async_invoke(self, row):
        known = {"N0": ("BOEING", 100), "N1": ("AIRBUS", 50)}.get(row["tailnum"], (None, None))
        return [{**row, "manufacturer": known[0], "seats": known[1]}]

    def result_schema(self, schema):
        return pa.schema([*schema, ("manufacturer", pa.string()), ("seats", pa.int64())])


@SEEDS
def test_pipeline(tmp_path: Path, seeds: int) -> None:
    """A topic of two partitions, lookups, daily windows, and two sinks, one of which commits together."""
    flown = [
        {
            "scheduled_departure": hours(3 * n),
            "origin": ["EWR", "JFK"][n % 2],
            "tailnum": f"N{n % 3}",
            "dep_delay": None if n % 7 == 0 else 20 + n,
        }
        for n in range(40)
    ]

    report = simulate(
        lambda env: pipeline.build(env, "127.0.0.1:1", PlanesInMemory(), tmp_path / "delta"),
        inputs={"flights": [flown[::2], flown[1::2]]},
        seeds=seeds,
    )

    assert report.ok
