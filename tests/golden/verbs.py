"""Branches of the golden job for aggregates that keep values, a user's own aggregate, triggers, and windows of
processing time; and what they have to put out.

Values and times of the left stream are all different, so that what is first, last or best does not depend on how rows
of its splits mix. What the clock cuts is added up by the tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from tests.golden.forms import BUCKET_MS, PAIRS

KINDS = 5
EVERY_MS = 300
ATTEMPTS = 30
"""Of a row: after each restart the function has forgotten what it was asked, and fails twice more."""
COLLECTED = pa.schema([("k", pa.int64()), ("window_start", pa.timestamp("ms")), ("all", pa.list_(pa.int64()))])


class Squares(sl.BatchAggregateFunction):
    """The sum of squares."""

    accumulator = pa.schema([("total", pa.int64())])

    def result_type(self, *input_types: pa.DataType) -> pa.DataType:
        """Integers."""
        return pa.int64()

    def add(self, accumulators: pa.RecordBatch, groups: Any, *columns: pa.Array) -> pa.RecordBatch:
        """Squares of a column."""
        return self._more(accumulators, groups, pc.multiply(columns[0], columns[0]))

    def merge(self, accumulators: pa.RecordBatch, groups: Any, others: pa.RecordBatch) -> pa.RecordBatch:
        """Sums of other panes."""
        return self._more(accumulators, groups, others["total"].fill_null(0))

    def _more(self, accumulators: pa.RecordBatch, groups: Any, values: pa.Array) -> pa.RecordBatch:
        totals = accumulators["total"].fill_null(0).to_numpy().copy()
        np.add.at(totals, groups, values.to_numpy())
        return pa.RecordBatch.from_arrays([pa.array(totals)], schema=self.accumulator)

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        """As they are."""
        return accumulators["total"]


class Greatest(sl.WatermarkGenerator):
    """As far as the rows of a split have come, as monotonous timestamps say it, but by the clock."""

    def __init__(self) -> None:
        self.greatest: int | None = None

    def on_batch(self, batch: pa.RecordBatch, times_ms: Any, output: sl.WatermarkOutput) -> None:
        """Remember."""
        self.greatest = max(int(times_ms.max()), self.greatest or 0)

    def on_periodic_emit(self, output: sl.WatermarkOutput) -> None:
        """Say."""
        if self.greatest is not None:
            output.emit_watermark(self.greatest - 1)


class Moody(sl.AsyncFunction):
    """Fails before it answers, and answers with nothing before it answers well."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    async def async_invoke(self, row: sl.Row) -> list[sl.Row]:
        """At the third attempt, for some."""
        self.asked[row["v"]] += 1
        attempt = self.asked[row["v"]]
        if row["v"] % 50 == 0 and attempt == 1:
            raise OSError("not yet")
        if row["v"] % 50 == 0 and attempt == 2:
            return []
        return [{"k": row["k"], "v": row["v"]}]


class OddAside(sl.ProcessFunction):
    """Even values, and odd ones to a side output."""

    def process_element(self, row: sl.Row, context: Any) -> Iterator[sl.Row]:
        """With the event time of the row."""
        if row["v"] % 2:
            context.output("odd", {"k": row["k"], "v": row["v"]})
        else:
            yield {"k": row["k"], "v": context.timestamp_ms}


def one_more_of(reduced: sl.Row, row: sl.Row) -> sl.Row:
    """Counts in the place of the value."""
    return {"k": row["k"], "n": reduced["n"] + row["n"]}


def sorted_values(row: sl.Row) -> sl.Row:
    """The order in which rows of several splits come is open."""
    return {"k": row["k"], "window_start": row["window_start"], "all": sorted(row["all"])}


def verb_branches(left: sl.DataStream) -> dict[str, sl.DataStream]:
    """By name, which is also the beginning of the uid."""
    keyed = left.key_by("k")
    buckets = keyed.window(sl.TumblingEventTimeWindows(BUCKET_MS))
    triggers: dict[str, Any] = {
        "clock": sl.ContinuousProcessingTimeTrigger(EVERY_MS),
        "silence": sl.ProcessingTimeoutTrigger(EVERY_MS),
        "watermark": sl.ContinuousEventTimeTrigger(EVERY_MS),
        "count": sl.CountTrigger(3),
        "purged": sl.PurgingTrigger(sl.ContinuousProcessingTimeTrigger(EVERY_MS)),
        "purged by count": sl.CountTrigger(4, purge=True),
    }
    early = [
        buckets.trigger(trigger).aggregate(uid=f"early-{number}", n=sl.count()).with_columns(kind=sl.lit(kind))
        for number, (kind, trigger) in enumerate(triggers.items())
    ]
    clocks = [
        keyed.window(sl.ProcessingTimeSessionWindows(EVERY_MS)).aggregate(uid="clock-sessions", n=sl.count()),
        keyed.window(sl.SlidingProcessingTimeWindows(2 * EVERY_MS, EVERY_MS)).aggregate(
            uid="clock-sliding", n=sl.count()
        ),
    ]
    plain = left.process(OddAside(), uid="plain-process", schema=PAIRS)
    retry = sl.AsyncRetryStrategy.fixed_delay(ATTEMPTS, 1, retry_if_result=lambda rows: not rows)
    return {
        "plain-process": plain,
        "plain-odd": plain.get_side_output("odd", PAIRS),
        "running-reduce": left.select("k", n=sl.lit(1)).key_by("k").reduce(one_more_of, uid="running-reduce"),
        "async-retry": left.async_wait(Moody(), retry=retry, uid="async-retry", schema=PAIRS),
        "held": buckets.aggregate(
            uid="held",
            kinds=sl.count_distinct(sl.col("v") % KINDS),
            about=sl.approx_count_distinct(sl.col("v") % KINDS),
            middle=sl.median("v"),
            ninth=sl.quantile("v", 0.9),
            near=sl.approx_quantile("v", 0.5),
            opening=sl.first("v", by="t"),
            closing=sl.last("v", by="t"),
            best=sl.top_n("v", 2),
            latest=sl.top_n("v", 2, by="t"),
        ),
        "collected": buckets.aggregate(uid="collected", all=sl.collect_list("v")).map(sorted_values, schema=COLLECTED),
        "own": keyed.window(sl.SlidingEventTimeWindows(2 * BUCKET_MS, BUCKET_MS)).aggregate(
            uid="own", n=sl.count(), squares=sl.batch_aggregate(Squares(), "v"), different=sl.count_distinct("v")
        ),
        "held-running": keyed.running_aggregate(
            uid="held-running", n=sl.count(), different=sl.count_distinct("v"), about=sl.approx_count_distinct("k")
        ),
        "early": early[0].union(*early[1:]),
        "clocks": clocks[0].with_columns(kind=sl.lit("sessions")).union(clocks[1].with_columns(kind=sl.lit("sliding"))),
    }


def verbs_expected(left: list[tuple[int, int, int]]) -> dict[str, Iterable[dict[str, Any]]]:
    """What is the same in every run."""
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    sliding: dict[tuple[int, int], list[int]] = defaultdict(list)
    for key, value, time in left:
        bucket = time // BUCKET_MS
        buckets[key, bucket].append(value)
        for window in (bucket - 1, bucket):
            sliding[key, window].append(value)
    counts = Counter(key for key, _, _ in left)

    def times(bucket: int, size: int = 1) -> dict[str, int]:
        return {"window_start": bucket * BUCKET_MS, "window_end": (bucket + size) * BUCKET_MS}

    return {
        "plain-process": ({"k": key, "v": time} for key, value, time in left if value % 2 == 0),
        "plain-odd": ({"k": key, "v": value} for key, value, _ in left if value % 2 == 1),
        "running-reduce": ({"k": key, "n": n + 1} for key, count in counts.items() for n in range(count)),
        "async-retry": ({"k": key, "v": value} for key, value, _ in left),
        "held": (
            {
                "k": key,
                **times(bucket),
                "kinds": len({value % KINDS for value in values}),
                "about": len({value % KINDS for value in values}),
                "middle": float(np.quantile(values, 0.5)),
                "ninth": float(np.quantile(values, 0.9)),
                "near": float(sorted(values)[(len(values) + 1) // 2 - 1]),
                "opening": values[0],
                "closing": values[-1],
                "best": tuple(sorted(values)[:-3:-1]),
                "latest": tuple(values[:-3:-1]),
            }
            for (key, bucket), values in buckets.items()
        ),
        "collected": (
            {"k": key, "window_start": bucket * BUCKET_MS, "all": tuple(sorted(values))}
            for (key, bucket), values in buckets.items()
        ),
        "own": (
            {
                "k": key,
                **times(bucket, 2),
                "n": len(values),
                "squares": sum(v * v for v in values),
                "different": len(values),
            }
            for (key, bucket), values in sliding.items()
        ),
        "held-running": (
            {"k": key, "n": n + 1, "different": n + 1, "about": 1}
            for key, count in counts.items()
            for n in range(count)
        ),
    }


def check_verbs(rows_of: Callable[[str], Iterable[dict[str, Any]]], left: list[tuple[int, int, int]]) -> None:
    """Branches that the clock cuts: early results add up to the last ones, and each row is in as many windows as
    there are of its kind."""
    counts = Counter((key, time // BUCKET_MS * BUCKET_MS) for key, _, time in left)
    found: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    for row in rows_of("early"):
        window = (row["k"], row["window_start"])
        known = found[row["kind"]]
        known[window] = known[window] + row["n"] if row["kind"].startswith("purged") else max(known[window], row["n"])
    assert dict(found) == dict.fromkeys(found, counts)
    assert len(found) == 6
    clocks: Counter[str] = Counter()
    for row in rows_of("clocks"):
        clocks[row["kind"]] += row["n"]
    assert clocks == {"sessions": len(left), "sliding": 2 * len(left)}
