"""Every query of Nexmark on a bounded run, with a restore in the middle, against polars."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from contextlib import nullcontext
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import benchmarks.nexmark.__main__ as program
from benchmarks.nexmark.generator import Nexmark, Streams
from benchmarks.nexmark.queries import (
    LAST_PRICES,
    QUERIES,
    SESSION_GAP_MS,
    SLIDE_MS,
    WINDOW_MS,
    WINNERS,
    LastPrices,
    side_input,
)
from snapline import StreamExecutionEnvironment
from snapline.dataflow.elements import AlignmentType
from tests.unit.taskmanager.task.local_job import LocalJob, Outside, StagingSink

SETTINGS = Nexmark(events_per_second=400, events=24_000)
"""A minute of event time."""
MS = pl.Datetime("ms")


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    return {name: pl.DataFrame(pl.from_arrow(table)) for name, table in SETTINGS.tables().items()}


def run(name: str, parallelism: int) -> pl.DataFrame:
    """The query's rows; after some batches a checkpoint, a crash, and a restore from it at another parallelism."""
    Outside.reset()

    def job(parallelism: int, restored: Any = None) -> LocalJob:
        environment = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": parallelism})
        streams = Streams(environment, SETTINGS, batch_epochs=7)
        QUERIES[name](streams).sink_to(StagingSink("out"), uid="sink")
        settings = {"execution.buffer-timeout": "0 ms", "pipeline.auto-watermark-interval": "0 ms"}
        graph = environment.translate(name, "0" * 32).job_graph
        return LocalJob(graph, settings, restored=restored)

    first = job(parallelism)
    for _ in range(60):
        for running in first.tasks:
            first.step(running)
    completed = first.checkpoint(alignment=AlignmentType.ALIGNED)
    first.crash()
    job(3 - parallelism, completed).run_to_end(checkpoints=True)
    batches = Outside.committed["out"]
    return pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches)))


def same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    names = expected.columns
    assert found.select(names).sort(names).rows() == expected.sort(names).rows()


def winners(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    joined = tables["bid"].join(tables["auction"], left_on="auction", right_on="id", suffix="_opened")
    valid = joined.filter(
        (pl.col("date_time") >= pl.col("date_time_opened")) & (pl.col("date_time") < pl.col("expires"))
    )
    return valid.group_by("auction", "seller", "category", "expires").agg(pl.col("price").max())


def start_of(column: str, width_ms: int) -> pl.Expr:
    return pl.col(column).dt.epoch("ms") // width_ms * width_ms


@pytest.mark.parametrize("parallelism", [1, 2])
class TestQueries:
    """One by one."""

    def test_q0(self, tables: Any, parallelism: int) -> None:
        """All bids."""
        same(run("q0", parallelism), tables["bid"])

    def test_q1(self, tables: Any, parallelism: int) -> None:
        """Prices in euros."""
        same(run("q1", parallelism), tables["bid"].with_columns(pl.col("price") * 0.908))

    def test_q2(self, tables: Any, parallelism: int) -> None:
        """Some auctions."""
        same(run("q2", parallelism), tables["bid"].filter(pl.col("auction") % 123 == 0).select("auction", "price"))

    def test_q3(self, tables: Any, parallelism: int) -> None:
        """A join without windows."""
        persons = tables["person"].filter(pl.col("state").is_in(["OR", "ID", "CA"]))
        auctions = tables["auction"].filter(pl.col("category") == 10)
        expected = auctions.join(persons, left_on="seller", right_on="id").select("name", "city", "state", "id")
        same(run("q3", parallelism), expected)

    def test_q4(self, tables: Any, parallelism: int) -> None:
        """The last word on every category."""
        found = run("q4", parallelism).sort("n").group_by("category").last()
        expected = winners(tables).group_by("category").agg(average=pl.col("price").mean(), n=pl.len())
        assert [row[::2] for row in found.select("category", "average", "n").sort("category").rows()] == [
            row[::2] for row in expected.sort("category").rows()
        ]
        for one, other in zip(found.sort("category")["average"], expected.sort("category")["average"], strict=True):
            assert one == pytest.approx(other)

    def test_q5(self, tables: Any, parallelism: int) -> None:
        """Sliding windows, then the hottest of each."""
        starts = pl.concat(
            [
                tables["bid"].select("auction", start=start_of("date_time", SLIDE_MS) - back * SLIDE_MS)
                for back in range(WINDOW_MS // SLIDE_MS)
            ]
        )
        counts = starts.group_by("auction", "start").agg(n=pl.len().cast(pl.Int64))
        expected = counts.filter(pl.col("n") == pl.col("n").max().over("start"))
        found = run("q5", parallelism).with_columns(start=pl.col("window_start").dt.epoch("ms"))
        same(found, expected.select("auction", "start", "n"))

    def test_q6(self, tables: Any, parallelism: int) -> None:
        """The last ten of every seller, once all have closed."""
        found = run("q6", parallelism)
        assert len(found) == len(winners(tables))
        last = winners(tables).sort("expires", "auction").group_by("seller").tail(LAST_PRICES)
        expected = (
            last.group_by("seller").agg(average=pl.col("price").mean(), n=pl.len()).filter(pl.col("n") < LAST_PRICES)
        )
        sellers = found.group_by("seller").agg(pl.col("average").sort_by("n").last(), pl.col("n").max())
        joined = expected.join(sellers, on="seller", suffix="_found")
        assert len(joined) == len(expected) > 10
        assert joined["n"].to_list() == joined["n_found"].to_list()
        assert joined["average"].to_list() == pytest.approx(joined["average_found"].to_list())

    def test_q7(self, tables: Any, parallelism: int) -> None:
        """The highest bid of every window."""
        bids = tables["bid"].with_columns(start=start_of("date_time", WINDOW_MS))
        expected = bids.filter(pl.col("price") == pl.col("price").max().over("start"))
        same(run("q7", parallelism), expected.select("auction", "bidder", "price", "date_time"))

    def test_q8(self, tables: Any, parallelism: int) -> None:
        """Persons and auctions of one window."""
        persons = tables["person"].with_columns(start=start_of("date_time", WINDOW_MS))
        auctions = tables["auction"].with_columns(start=start_of("date_time", WINDOW_MS), auction_id=pl.col("id"))
        expected = persons.join(auctions, left_on=["id", "start"], right_on=["seller", "start"])
        same(run("q8", parallelism), expected.select("id", "name", id_right="auction_id"))

    def test_q9(self, tables: Any, parallelism: int) -> None:
        """Each auction that had bids, once, with its highest."""
        same(run("q9", parallelism), winners(tables).select(WINNERS.names))

    def test_q11(self, tables: Any, parallelism: int) -> None:
        """Sessions."""
        bids = tables["bid"].select("bidder", time=pl.col("date_time").dt.epoch("ms")).sort("bidder", "time")
        gap = (
            (pl.col("time") - pl.col("time").shift(1) > SESSION_GAP_MS).fill_null(value=False).cum_sum().over("bidder")
        )
        expected = bids.with_columns(session=gap).group_by("bidder", "session").agg(n=pl.len().cast(pl.Int64))
        same(run("q11", parallelism), expected.select("bidder", "n"))

    def test_q12(self, tables: Any, parallelism: int) -> None:
        """Whatever the clock made of it, every bid is in one window."""
        found = run("q12", parallelism).group_by("bidder").agg(pl.col("n").sum(), pl.col("dearest").max())
        expected = tables["bid"].group_by("bidder").agg(n=pl.len().cast(pl.Int64), dearest=pl.col("price").max())
        same(found, expected)

    def test_q13(self, tables: Any, parallelism: int) -> None:
        """A static table."""
        side = pl.DataFrame(pl.from_arrow(side_input()))
        bids = tables["bid"].with_columns(part=pl.col("auction") % len(side))
        same(run("q13", parallelism), bids.join(side, on="part"))


def test_the_events_do_not_depend_on_how_they_are_cut() -> None:
    """Deterministic by position."""
    import numpy as np

    epochs = np.arange(100)
    for make in (SETTINGS.persons, SETTINGS.auctions, SETTINGS.bids):
        whole = pa.Table.from_batches([make(epochs)])
        parts = pa.Table.from_batches([make(part) for part in np.array_split(epochs, 7)])
        assert whole.equals(parts.combine_chunks())


def test_figures_are_of_an_event_and_not_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are counted are epochs of 50 events."""
    monkeypatch.setattr(program, "running_job", lambda *_: nullcontext((None, None)))
    monkeypatch.setattr(program, "measure_rate", lambda *_: {"events_per_s": 2.0, "cpu_us_per_event": 50.0})
    monkeypatch.setattr(program, "checkpoint_figures", lambda *_: {})
    options = Namespace(
        parallelism=1, checkpoint_interval="1 s", batch_epochs=None, events_per_second=1_000,
        master="", warm_up=0, seconds=0,
    )  # fmt: skip
    assert {"events_per_s": 100, "cpu_us_per_event": 1} == program.run_query("q0", options)


class OneState:
    """The state of a function with one value for each key."""

    def __init__(self, held: dict[int, Any], keys: list[int]) -> None:
        self.held, self.keys = held, keys

    def get(self, descriptor: Any) -> pa.Array:
        return pa.array([self.held.get(key) for key in self.keys], descriptor.value_type)

    def put(self, descriptor: Any, values: pa.Array) -> None:
        self.held.update(zip(self.keys, values.to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_the_last_prices_of_batches_are_those_of_rows(seed: int) -> None:
    """What closed earlier may come later: each average is of the last ten that are known by then."""
    random = Random(seed)
    held: dict[int, Any] = {}
    known: dict[int, list[Any]] = defaultdict(list)
    for first in range(0, 600, 60):
        rows = [
            {"seller": random.randrange(5), "expires": max(0, number - random.choice((0, 0, 90))), "auction": number}
            for number in range(first, first + 60)
        ]
        rows = [row | {"price": row["auction"] * 7 % 100} for row in rows]
        expected = []
        for row in sorted(rows, key=itemgetter("seller", "expires", "auction")):
            last = known[row["seller"]]
            last[:] = sorted([*last, (row["expires"], row["auction"], row["price"])])[-LAST_PRICES:]
            expected.append((row["seller"], sum(price for _, _, price in last) / len(last), len(last)))
        sellers = sorted({row["seller"] for row in rows})
        keys = KeysOfBatch(sellers, np.array([sellers.index(row["seller"]) for row in rows], np.int32))
        batch = pa.RecordBatch.from_pylist(rows, schema=WINNERS)
        found = LastPrices().process_batch(keys, batch, OneState(held, sellers))  # type: ignore[arg-type]
        assert [tuple(row.values()) for row in found.to_pylist()] == expected


class KeysOfBatch:
    """Sellers, and which of them each row has."""

    def __init__(self, sellers: list[int], rows: Any) -> None:
        self.columns, self.rows = pa.record_batch({"seller": pa.array(sellers)}), rows

    def __len__(self) -> int:
        return self.columns.num_rows
