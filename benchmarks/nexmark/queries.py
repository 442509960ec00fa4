"""The queries of Nexmark that the API can express: q0 to q8 and q11 to q13.

Each is a function of the streams to the stream of its results; the columns are those that `references` computes from
the same events. q4 and q6 begin with the winning bids: bids joined to their auctions, the best one said when an auction
expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from benchmarks.nexmark.generator import TIME, Streams

WINDOW_MS, SLIDE_MS, SESSION_GAP_MS = 10_000, 2_000, 10_000
LAST_PRICES = 10
SIDE_ROWS = 10_000


def q0(streams: Streams) -> sl.DataStream:
    """q0: every bid passes through."""
    return streams.bids.map_batches(lambda batch: batch, name="q0")


def q1(streams: Streams) -> sl.DataStream:
    """q1: prices in dollars become prices in euros."""

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(2, "price", pc.multiply(batch.column("price"), 0.908))

    return streams.bids.map_batches(convert, name="q1")


def q2(streams: Streams) -> sl.DataStream:
    """q2: keep the bids on some auctions."""

    def select(batch: pa.RecordBatch) -> pa.RecordBatch:
        auctions = batch.column("auction").to_numpy()
        return batch.select(["auction", "price"]).filter(pa.array(auctions % 123 == 0))

    return streams.bids.map_batches(select, name="q2")


def q3(streams: Streams) -> sl.DataStream:
    """Who sells in category 10 in three states: a join that keeps everything."""
    persons = streams.persons.filter(
        lambda b: pc.is_in(b.column("state"), pa.array(["OR", "ID", "CA"])), name="q3-persons"
    )
    auctions = streams.auctions.filter(lambda b: pc.equal(b.column("category"), 10), name="q3-auctions")
    joined = auctions.key_by("seller").join(persons.key_by("id")).unbounded(uid="q3", name="q3")
    return joined.map_batches(lambda batch: batch.select(["name", "city", "state", "id"]), name="q3-columns")


class WinningBid(sl.KeyedBatchProcessFunction):
    """The highest price of an auction, when it expires."""

    best = sl.ValueStateDescriptor("best", pa.int64())
    seller = sl.ValueStateDescriptor("seller", pa.int64())
    category = sl.ValueStateDescriptor("category", pa.int64())

    def process_batch(self, keys: sl.BatchKeys, batch: pa.RecordBatch, state: sl.BatchState) -> None:
        """Keep the highest price of each auction, and who sells it."""
        best = state.get(self.best).fill_null(-1).to_numpy().copy()
        np.maximum.at(best, keys.rows, batch.column("price").to_numpy())
        state.put(self.best, pa.array(best))
        first = np.unique(keys.rows, return_index=True)[1]
        state.put(self.seller, batch.column("seller").take(pa.array(first)))
        state.put(self.category, batch.column("category").take(pa.array(first)))
        expires = batch.column("expires").take(pa.array(first)).view(pa.int64()).to_numpy()
        state.register_event_time_timers(expires, np.arange(len(keys), dtype=np.int32))

    def on_timers(self, keys: sl.BatchKeys, times_ms: Any, state: sl.BatchState) -> pa.RecordBatch:
        """Emit the winners of the auctions that have expired."""
        columns = [
            keys.columns.column(0),
            state.get(self.seller),
            state.get(self.category),
            state.get(self.best),
            pa.array(times_ms).view(TIME),
        ]
        for descriptor in (self.best, self.seller, self.category):
            state.clear(descriptor)
        return pa.RecordBatch.from_arrays(columns, schema=WINNERS)


WINNERS = pa.schema(
    [
        ("auction", pa.int64()),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("price", pa.int64()),
        ("expires", TIME),
    ]
)


def winning_bids(streams: Streams) -> sl.DataStream:
    """Auction, seller, category and final price of auctions that had bids, as they expire."""
    settings = streams.settings
    longest_ms = 2 * 100 * 50 // 3 * 1_000 // settings.events_per_second + 2
    joined = streams.auctions.key_by("id").join(streams.bids.key_by("auction"))
    pairs = joined.between(0, longest_ms, uid="bids-of-auctions", name="bids-of-auctions")
    in_time = pairs.filter(lambda b: pc.less(b.column("date_time_right"), b.column("expires")), name="in-time")
    return in_time.key_by("id").process_batches(WinningBid(), uid="winners", name="winners", schema=WINNERS)


def q4(streams: Streams) -> sl.DataStream:
    """Average final price per category, so far."""
    winners = winning_bids(streams)
    return winners.key_by("category").running_aggregate(uid="q4", name="q4", average=sl.mean("price"), n=sl.count())


def _hottest(_key: Any, _window: sl.TimeWindow, batch: pa.RecordBatch) -> pa.RecordBatch:
    counts = batch.column("n")
    return batch.filter(pc.equal(counts, pc.max(counts)))


def q5(streams: Streams) -> sl.DataStream:
    """The auctions with the most bids of the last ten seconds, every two."""
    windows = streams.bids.key_by("auction").window(sl.SlidingEventTimeWindows(WINDOW_MS, SLIDE_MS))
    counts = windows.aggregate(uid="q5-counts", name="q5-counts", n=sl.count())
    ends = counts.key_by("window_end").window(sl.TumblingEventTimeWindows(SLIDE_MS))
    return ends.process_batches(_hottest, uid="q5", name="q5")


class LastPrices(sl.KeyedProcessFunction):
    """The average of a seller's last ten final prices."""

    def open(self, context: sl.RuntimeContext) -> None:
        """State per seller: [expires, auction, price] of the last ten."""
        self.last = context.get_state(sl.ValueStateDescriptor("last", serializer="json"))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterable[sl.Row]:
        """Emit the winner of an auction that has closed."""
        closed = [row["expires"].isoformat(), row["auction"], row["price"]]
        last = sorted([*(self.last.value() or []), closed])[-LAST_PRICES:]
        self.last.update(last)
        yield {"seller": row["seller"], "average": sum(price for _, _, price in last) / len(last), "n": len(last)}


def q6(streams: Streams) -> sl.DataStream:
    """Average final price of each seller's last ten auctions."""
    return winning_bids(streams).key_by("seller").process(LastPrices(), uid="q6", name="q6")


def q7(streams: Streams) -> sl.DataStream:
    """The highest bid of every ten seconds: first of parts of the bidders, then of all."""

    def with_part(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("part", pa.array(batch.column("bidder").to_numpy() % 16))

    schema = pa.schema([*streams.bids.schema, ("part", pa.int64())])  # type: ignore[misc]
    parts = streams.bids.map_batches(with_part, name="q7-parts", schema=schema).key_by("part")
    window = sl.TumblingEventTimeWindows(WINDOW_MS)
    best = parts.window(window).max_by("price", ties="all", uid="q7-of-parts", name="q7-of-parts")
    highest = best.key_by("window_end").window(window).max_by("price", ties="all", uid="q7", name="q7")
    return highest.map_batches(
        lambda batch: batch.select(["auction", "bidder", "price", "date_time", "window_end"]), name="q7-columns"
    )


def q8(streams: Streams) -> sl.DataStream:
    """Who opened an auction in the ten seconds in which he came."""
    joined = streams.persons.key_by("id").join(streams.auctions.key_by("seller"))
    pairs = joined.window(sl.TumblingEventTimeWindows(WINDOW_MS), uid="q8", name="q8")
    return pairs.map_batches(lambda batch: batch.select(["id", "name", "id_right"]), name="q8-columns")


def q11(streams: Streams) -> sl.DataStream:
    """Bids per bidder and session."""
    sessions = streams.bids.key_by("bidder").window(sl.EventTimeSessionWindows(SESSION_GAP_MS))
    return sessions.aggregate(uid="q11", name="q11", n=sl.count())


def q12(streams: Streams) -> sl.DataStream:
    """Bids per bidder and ten seconds of processing time."""
    windows = streams.bids.key_by("bidder").window(sl.TumblingProcessingTimeWindows(WINDOW_MS))
    return windows.aggregate(uid="q12", name="q12", n=sl.count(), dearest=sl.max("price"))


def side_input() -> pa.Table:
    """The static table of q13."""
    keys = np.arange(SIDE_ROWS)
    return pa.table({"part": keys, "note": pa.array([f"note {key * 7 % SIDE_ROWS}" for key in keys])})


def q13(streams: Streams) -> sl.DataStream:
    """Bids with a column of a static table."""

    def with_part(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("part", pa.array(batch.column("auction").to_numpy() % SIDE_ROWS))

    schema = pa.schema([*streams.bids.schema, ("part", pa.int64())])  # type: ignore[misc]
    parts = streams.bids.map_batches(with_part, name="q13-parts", schema=schema)
    return parts.enrich(side_input(), "part", uid="q13", name="q13")


QUERIES: dict[str, Callable[[Streams], sl.DataStream]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12, q13)
}
