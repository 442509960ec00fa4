"""The queries of Nexmark that the API can express: q0 to q9 and q11 to q13.

Each is a function of the streams to the stream of its results; the columns are those that `references` computes from
the same events. Rows are cut to the columns that a query needs before they are shuffled. q4, q6 and q9 begin with the
winning bids: a function of two inputs keeps the best bid of each auction, and says it when the auction expires.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """q2: keep the bids on some auctions. numpy divides several at a time, and takes remainders one by one."""

    def select(batch: pa.RecordBatch) -> pa.RecordBatch:
        auctions = batch.column("auction").to_numpy()
        return batch.select(["auction", "price"]).filter(pa.array(auctions // 123 * 123 == auctions))

    return streams.bids.map_batches(select, name="q2")


def q3(streams: Streams) -> sl.DataStream:
    """Who sells in category 10 in three states: a join that keeps everything."""
    persons = streams.persons.filter(
        lambda b: pc.is_in(b.column("state"), pa.array(["OR", "ID", "CA"])), name="q3-persons"
    )
    auctions = streams.auctions.filter(lambda b: pc.equal(b.column("category"), 10), name="q3-auctions")
    sellers = persons.select("id", "name", "city", "state").key_by("id")
    joined = auctions.select("id", "seller").key_by("seller").join(sellers).unbounded(uid="q3", name="q3")
    return joined.select("name", "city", "state", "id")


WINNERS = pa.schema(
    [
        ("auction", pa.int64()),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("price", pa.int64()),
        ("expires", TIME),
    ]
)
_EARLY = pa.struct([("price", pa.int64()), ("time", pa.int64())])
_CLOSED = pa.struct([("expires", pa.int64()), ("auction", pa.int64()), ("price", pa.int64())])
_AVERAGES = pa.schema([("seller", pa.int64()), ("average", pa.float64()), ("n", pa.int64())])
_NO_BID, _NEVER = -1, -(2**62)


class WinningBid(sl.KeyedCoBatchProcessFunction):
    """The highest bid of an auction, said when it expires. Bids that overtake their auction wait for it; none is older
    than its auction."""

    seller = sl.ValueStateDescriptor("seller", pa.int64())
    category = sl.ValueStateDescriptor("category", pa.int64())
    expires = sl.ValueStateDescriptor("expires", pa.int64())
    best = sl.ValueStateDescriptor("best", pa.int64())
    early = sl.ListStateDescriptor("early", _EARLY)

    def process_batch1(self, keys: sl.BatchKeys, batch: pa.RecordBatch, state: sl.BatchState) -> None:
        """Take auctions in, which come once each."""
        expires = _milliseconds(batch.column("expires"))
        state.put(self.seller, batch.column("seller"))
        state.put(self.category, batch.column("category"))
        state.put(self.expires, pa.array(expires))
        best = np.full(len(keys), _NO_BID)
        early = state.get(self.early)
        if early.null_count < len(early):
            owners = np.repeat(np.arange(len(keys)), pc.list_value_length(early).fill_null(0).to_numpy())
            prices, times = (column.to_numpy() for column in early.flatten().flatten())
            in_time = times < expires[owners]
            np.maximum.at(best, owners[in_time], prices[in_time])
            state.clear(self.early)
        state.put(self.best, pa.array(best))
        state.register_event_time_timers(expires, np.arange(len(keys), dtype=np.int32))

    def process_batch2(self, keys: sl.BatchKeys, batch: pa.RecordBatch, state: sl.BatchState) -> None:
        """Raise the best bid of auctions that are known, and let the others wait."""
        rows, times = keys.rows, _milliseconds(batch.column("date_time"))
        prices = batch.column("price").to_numpy()
        known = state.get(self.expires)
        expires = known.fill_null(_NEVER).to_numpy()
        if known.null_count < len(known):
            best = state.get(self.best).fill_null(_NO_BID).to_numpy().copy()
            np.maximum.at(best, rows, np.where(times < expires[rows], prices, _NO_BID))
            state.put(self.best, pa.array(best, mask=expires == _NEVER))
        if known.null_count:  # not here yet, or expired: the time of a bid is that by which its auction has come
            waiting, first = np.flatnonzero(expires[rows] == _NEVER), np.full(len(keys), -_NEVER)
            columns = [pa.array(prices[waiting]), pa.array(times[waiting])]
            state.append(self.early, pa.StructArray.from_arrays(columns, fields=list(_EARLY)), waiting)
            np.minimum.at(first, rows[waiting], times[waiting])
            unknown = np.flatnonzero(expires == _NEVER).astype(np.int32)
            state.register_event_time_timers(first[unknown], unknown)

    def on_timers(self, keys: sl.BatchKeys, times_ms: Any, state: sl.BatchState) -> pa.RecordBatch:
        """Emit auctions that have expired, and forget bids whose auction will not come any more."""
        expires = state.get(self.expires).fill_null(-_NEVER).to_numpy()
        over = expires <= state.watermark_ms
        best = state.get(self.best)
        columns = [keys.columns.column(0), state.get(self.seller), state.get(self.category), best]
        winners = pa.RecordBatch.from_arrays([*columns, pa.array(expires).view(TIME)], schema=WINNERS)
        for descriptor in (self.seller, self.category, self.expires, self.best):
            state.clear(descriptor, over)
        state.clear(self.early)
        return winners.filter(pa.array(over & (best.fill_null(_NO_BID).to_numpy() != _NO_BID)))


def _milliseconds(column: pa.Array) -> Any:
    return column.view(pa.int64()).to_numpy()


def winning_bids(streams: Streams) -> sl.DataStream:
    """Auction, seller, category and final price of auctions that had bids, as they expire."""
    auctions = streams.auctions.select("id", "seller", "category", "expires")
    bids = streams.bids.select("auction", "price", "date_time")
    both = auctions.connect(bids).key_by("id", "auction")
    return both.process_batches(WinningBid(), uid="winners", name="winners", schema=WINNERS)


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


class LastPrices(sl.KeyedBatchProcessFunction):
    """The average of a seller's last ten final prices, after each that closes."""

    last = sl.ValueStateDescriptor("last", pa.list_(_CLOSED))

    def process_batch(self, keys: sl.BatchKeys, batch: pa.RecordBatch, state: sl.BatchState) -> pa.RecordBatch:
        """Put what has closed, in its order, between what had closed before. `starts` and `ends`: where in this order
        the rows of a row's seller are."""
        before = state.get(self.last)
        counts = pc.list_value_length(before).fill_null(0).to_numpy()
        columns = [before.flatten().field(name).to_numpy() for name in ("expires", "auction", "price")]
        closed = [
            _milliseconds(batch.column("expires")),
            *(batch.column(name).to_numpy() for name in ("auction", "price")),
        ]
        expires, auctions, prices = (np.concatenate(pair) for pair in zip(columns, closed, strict=True))
        owners = np.concatenate([np.repeat(np.arange(len(keys)), counts), keys.rows])
        order = np.lexsort((auctions, expires, owners))
        expires, auctions, prices, owners = (values[order] for values in (expires, auctions, prices, owners))
        ends = np.cumsum(np.bincount(owners, minlength=len(keys)))
        starts = np.concatenate([[0], ends[:-1]])

        known = order < len(columns[0])
        rows = np.flatnonzero(~known)
        later, later_price = (
            _sums(values)[ends[owners[rows]]] - _sums(values)[rows] for values in (known, known * prices)
        )
        first = np.maximum(starts[owners[rows]], rows + 1 - (LAST_PRICES - later))
        n = rows + 1 - first + later
        totals = _sums(prices)[rows + 1] - _sums(prices)[first] + later_price

        kept = np.minimum(ends - starts, LAST_PRICES)
        stays = np.arange(len(order)) >= (ends - kept)[owners]
        rest = [pa.array(values[stays]) for values in (expires, auctions, prices)]
        offsets = pa.array(_sums(kept).astype(np.int32))
        state.put(self.last, pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(rest, fields=list(_CLOSED))))
        sellers = keys.columns.column(0).take(pa.array(owners[rows]))
        return pa.RecordBatch.from_arrays([sellers, pa.array(totals / n), pa.array(n)], schema=_AVERAGES)


def _sums(values: Any) -> Any:
    """The sum of all values before each position, and of all."""
    return np.concatenate([[0], np.cumsum(values)])


def q6(streams: Streams) -> sl.DataStream:
    """Average final price of each seller's last ten auctions."""
    return winning_bids(streams).key_by("seller").process_batches(LastPrices(), uid="q6", name="q6", schema=_AVERAGES)


def q7(streams: Streams) -> sl.DataStream:
    """The highest bid of every ten seconds: first of parts of the bidders, then of all."""
    parts = streams.bids.select("auction", "bidder", "price", "date_time", part=sl.col("bidder") % 16).key_by("part")
    window = sl.TumblingEventTimeWindows(WINDOW_MS)
    best = parts.window(window).max_by("price", ties="all", uid="q7-of-parts", name="q7-of-parts")
    highest = best.key_by("window_end").window(window).max_by("price", ties="all", uid="q7", name="q7")
    return highest.select("auction", "bidder", "price", "date_time", "window_end")


def q8(streams: Streams) -> sl.DataStream:
    """Who opened an auction in the ten seconds in which he came."""
    persons = streams.persons.select("id", "name", "date_time").key_by("id")
    joined = persons.join(streams.auctions.select("id", "seller", "date_time").key_by("seller"))
    pairs = joined.window(sl.TumblingEventTimeWindows(WINDOW_MS), uid="q8", name="q8")
    return pairs.select("id", "name", "id_right")


def q9(streams: Streams) -> sl.DataStream:
    """The winning bids themselves; of a bid its price is kept, not who made it."""
    return winning_bids(streams)


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
        auctions = batch.column("auction").to_numpy()
        return batch.append_column("part", pa.array(auctions - auctions // SIDE_ROWS * SIDE_ROWS))

    schema = pa.schema([*streams.bids.schema, ("part", pa.int64())])  # type: ignore[misc]
    parts = streams.bids.map_batches(with_part, name="q13-parts", schema=schema)
    return parts.enrich(side_input(), "part", uid="q13", name="q13")


QUERIES: dict[str, Callable[[Streams], sl.DataStream]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q12, q13)
}
