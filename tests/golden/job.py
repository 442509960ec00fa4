"""The golden job: two streams, and a branch with a sink of its own for every operator.

What a branch puts out does not depend on the order in which rows of different splits come, nor on batches, parallelism,
restarts or checkpoints: event time decides, or what is put out is a count. `tests.golden.reference` computes the same
from the rows alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.parquet.parquet_sink import ParquetSink
from tests.golden.forms import BUCKET_MS, COUNTS, GAP_MS, PAIRS, Pushed, more_branches
from tests.golden.verbs import Greatest, verb_branches
from tests.services.gate import GatedGenerator

KEYS = 7
LEFT_ROWS, RIGHT_ROWS = 1_500, 750
LEFT_STEP_MS, RIGHT_STEP_MS = 10, 20
SLIDE_MS = 3_000
COUNT = 10
NEAR_MS = 40
PAUSE_ROWS = 90
"""So many rows of the left stream come for sessions, then as many do not."""
NAMES = pa.table({"id": [0, 1, 2, 3, 4], "name": ["zero", "one", "two", "three", "four"]})
RULES = [{"rule_key": key, "factor": key + 2, "at": 0} for key in range(KEYS)]

LEFT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("ms"))])
RIGHT = pa.schema([("rk", pa.int64()), ("rv", pa.int64()), ("t", pa.timestamp("ms"))])
RULE_SCHEMA = pa.schema([("rule_key", pa.int64()), ("factor", pa.int64()), ("at", pa.timestamp("ms"))])
BUCKETS = pa.schema([("k", pa.int64()), ("bucket", pa.int64()), ("total", pa.int64())])
FACTOR_OF = sl.MapStateDescriptor("factors", pa.int64(), pa.int64())
LONG = sl.StateTtlConfig(dt.timedelta(hours=1))


def left_source(rate: float | None = None, gate: Path | None = None) -> GeneratorSource:
    """Row i: key from i, value i, time 10 ms times i. With a gate its last rows wait until that file is there."""
    return _source(LEFT_ROWS, LEFT_STEP_MS, rate, gate)


def right_source(rate: float | None = None, gate: Path | None = None) -> GeneratorSource:
    """Half as many, with twice the distance."""
    return _source(RIGHT_ROWS, RIGHT_STEP_MS, None if rate is None else rate / 2, gate)


def _source(rows: int, step_ms: int, rate: float | None, gate: Path | None = None) -> GeneratorSource:
    create: Any = GeneratorSource if gate is None else partial(GatedGenerator, gate)
    return create(
        keys=KEYS, rows=rows, rows_per_second=rate, batch_rows=64, splits=4, event_time_column="t",
        event_interval_us=step_ms * 1000,
    )  # fmt: skip


def renamed(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The generator's columns under other names."""

    def rename(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)], schema=schema
        )

    return rename


def bucket_of(time: Any) -> int:
    """Number of the bucket in which a time lies."""
    return to_ms(time) // BUCKET_MS


def to_ms(time: Any) -> int:
    """Since the epoch."""
    return round(time.replace(tzinfo=dt.UTC).timestamp() * 1000)


def with_pauses(batch: pa.RecordBatch) -> pa.Array:
    """Rows for sessions."""
    return pc.equal(pc.bit_wise_and(pc.divide(batch.column("v"), PAUSE_ROWS), 1), 0)


def split_in_two(batch: pa.RecordBatch) -> Iterator[Any]:
    """Odd values aside."""
    odd = pc.equal(pc.bit_wise_and(batch.column("v"), 1), 1)
    yield batch.filter(pc.invert(odd)).select(["k", "v"])
    yield sl.SideOutput("odd", batch.filter(odd).select(["k", "v"]))


class BucketSums(sl.KeyedProcessFunction):
    """Sums per bucket in a map with a time-to-live; a timer at the bucket's end says the sum, and forgets it."""

    def open(self, context: Any) -> None:
        """One map."""
        self.sums = context.get_map_state(sl.MapStateDescriptor("sums", pa.int64(), pa.int64(), ttl=LONG))

    def add(self, row: sl.Row, value: int, time: Any, context: Any) -> None:
        """A row of either input."""
        bucket = bucket_of(time)
        self.sums.put(bucket, (self.sums.get(bucket) or 0) + value)
        context.timer_service.register_event_time_timer((bucket + 1) * BUCKET_MS - 1)

    def process_element(self, row: sl.Row, context: Any) -> None:
        """Add."""
        self.add(row, row["v"], row["t"], context)

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[sl.Row]:
        """The bucket is complete."""
        bucket = timestamp_ms // BUCKET_MS
        yield {"k": context.current_key, "bucket": bucket, "total": self.sums.get(bucket)}
        self.sums.remove(bucket)


class BothSums(sl.KeyedCoProcessFunction):
    """The same over two inputs."""

    def __init__(self) -> None:
        self.one = BucketSums()

    def open(self, context: Any) -> None:
        """The same state."""
        self.one.open(context)

    def process_element1(self, row: sl.Row, context: Any) -> None:
        """Left."""
        self.one.add(row, row["v"], row["t"], context)

    def process_element2(self, row: sl.Row, context: Any) -> None:
        """Right, negative."""
        self.one.add(row, -row["rv"], row["t"], context)

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[sl.Row]:
        """The bucket is complete."""
        return self.one.on_timer(timestamp_ms, context)


class Multiplied(sl.KeyedBroadcastProcessFunction):
    """Keeps rows in a list until the end of their bucket, when all rules are known, and multiplies them."""

    def open(self, context: Any) -> None:
        """Rows that wait."""
        self.waiting = context.get_list_state(
            sl.ListStateDescriptor("waiting", pa.schema([("v", pa.int64()), ("bucket", pa.int64())]))
        )

    def process_element(self, row: sl.Row, context: Any) -> None:
        """Wait."""
        bucket = bucket_of(row["t"])
        self.waiting.add({"v": row["v"], "bucket": bucket})
        context.timer_service.register_event_time_timer((bucket + 1) * BUCKET_MS - 1)

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        """A rule."""
        context.get_broadcast_state(FACTOR_OF)[row["rule_key"]] = row["factor"]

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[sl.Row]:
        """The rows of the bucket."""
        bucket, key = timestamp_ms // BUCKET_MS, context.current_key
        factor = context.get_broadcast_state(FACTOR_OF)[key]
        waiting = self.waiting.get()
        yield from ({"k": key, "v": factor * one["v"]} for one in waiting if one["bucket"] <= bucket)
        self.waiting.update([one for one in waiting if one["bucket"] > bucket])


class Counted(sl.KeyedProcessFunction):
    """Says of every row how many its key has had, by three kinds of state."""

    def open(self, context: Any) -> None:
        """A value with a time-to-live, and a reduced one."""
        self.seen = context.get_state(sl.ValueStateDescriptor("seen", pa.int64(), ttl=LONG))
        self.most = context.get_reducing_state(sl.ReducingStateDescriptor("most", max, pa.int64()))

    def process_element(self, row: sl.Row, context: Any) -> Iterator[sl.Row]:
        """One more."""
        n = (self.seen.value() or 0) + 1
        self.seen.update(n)
        self.most.add(n)
        yield {"k": row["k"], "n": self.most.get()}


class CountedInBatches(sl.KeyedBatchProcessFunction):
    """Counts rows per key and bucket in columns; a timer at the bucket's end says the count."""

    counts = sl.MapStateDescriptor("counts", pa.int64(), pa.int64())

    def process_batch(self, keys: Any, batch: pa.RecordBatch, state: Any) -> None:
        """A row at a time in a map would be a loop in Python: here once per distinct bucket of the batch."""
        buckets = pc.divide(batch.column("t").cast(pa.int64()), BUCKET_MS)
        known = pc.fill_null(state.lookup(self.counts, buckets), 0).to_pylist()
        seen: dict[tuple[int, int], int] = {}
        values = []
        for key, bucket, before in zip(keys.rows.tolist(), buckets.to_pylist(), known, strict=True):
            seen[key, bucket] = seen.get((key, bucket), 0) + 1
            values.append(before + seen[key, bucket])
        state.put_entries(self.counts, buckets, pa.array(values, pa.int64()))
        ends = (buckets.to_numpy() + 1) * BUCKET_MS - 1
        state.register_event_time_timers(ends, keys.rows)

    def on_timers(self, keys: Any, times_ms: Any, state: Any) -> pa.RecordBatch:
        """All that are due."""
        buckets = pa.array(times_ms // BUCKET_MS)
        totals = state.lookup(self.counts, buckets)
        columns = [keys.columns.column(0).take(pa.array(keys.rows)), buckets, totals]
        return pa.RecordBatch.from_arrays(columns, schema=BUCKETS)


class Spread(sl.ProcessWindowFunction):
    """Greatest less least value of a window."""

    def process(self, key: Any, context: Any, rows: Any) -> Iterator[sl.Row]:
        """Of all rows at once."""
        values = [row["v"] for row in rows]
        yield {"k": key, "bucket": context.window.start_ms // BUCKET_MS, "total": max(values) - min(values)}


class Doubled(sl.AsyncFunction):
    """Asks something that answers at once."""

    async def async_invoke(self, row: sl.Row) -> list[sl.Row]:
        """Twice the value."""
        return [{"k": row["k"], "v": 2 * row["v"]}]


def greater(left: sl.Row, right: sl.Row) -> sl.Row:
    """For reduce."""
    return left if left["v"] >= right["v"] else right


def build(
    environment: sl.StreamExecutionEnvironment, output: str, rate: float | None, gate: Path | None = None
) -> sl.StreamExecutionEnvironment:
    """Add all branches to the environment. No source but that of the rules ends before `gate` is there, if one is
    given."""
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("t")
    left = environment.from_source(left_source(rate, gate), strategy, uid="left").map_batches(
        renamed(LEFT), uid="left-names", schema=LEFT
    )
    generated = sl.WatermarkStrategy.for_generator("t", Greatest)
    right = environment.from_source(right_source(rate, gate), generated, uid="right").map_batches(
        renamed(RIGHT), uid="right-names", schema=RIGHT
    )
    rules = (
        environment.from_source(CollectionSource.of_rows(RULES), uid="rules")
        .map_batches(renamed(RULE_SCHEMA), uid="rule-names", schema=RULE_SCHEMA)
        .set_parallelism(1)
    )
    for name, stream in branches(left, right, rules, rate, gate).items():
        stream.sink_to(ParquetSink(f"{output}/{name}"), uid=f"{name}-sink")
    return environment


def branches(
    left: sl.DataStream, right: sl.DataStream, rules: sl.DataStream, rate: float | None, gate: Path | None
) -> dict[str, sl.DataStream]:
    """By name, which is also the beginning of the uid."""
    keyed, other = left.key_by("k"), right.key_by("rk")
    buckets = keyed.window(sl.TumblingEventTimeWindows(BUCKET_MS))
    with_sessions = left.filter(with_pauses, uid="pauses")
    paused = with_sessions.key_by("k")
    parted = left.map_batches(split_in_two, uid="parted", schema=PAIRS)
    renamed_right = right.map_batches(lambda batch: batch.rename_columns(LEFT.names), uid="union-names", schema=LEFT)
    return {
        "tumbling": buckets.aggregate(
            uid="tumbling", n=sl.count(), total=sl.sum("v"), low=sl.min("v"), high=sl.max("v")
        ),
        "sliding": keyed.window(sl.SlidingEventTimeWindows(2 * SLIDE_MS, SLIDE_MS)).aggregate(
            uid="sliding", n=sl.count(), total=sl.sum("v")
        ),
        "sessions": paused.window(sl.EventTimeSessionWindows(GAP_MS)).aggregate(
            uid="sessions", n=sl.count(), total=sl.sum("v")
        ),
        "window-process": buckets.process(Spread(), uid="window-process", schema=BUCKETS),
        "reduce": buckets.reduce(greater, uid="reduce"),
        "max-by": buckets.max_by("v", ties="all", uid="max-by"),
        "min-by": paused.window(sl.EventTimeSessionWindows(GAP_MS)).min_by("v", ties="all", uid="min-by"),
        "count-windows": keyed.count_window(COUNT).aggregate(uid="count-windows", n=sl.count()),
        "triggered": keyed.window(sl.GlobalWindows(sl.CountTrigger(COUNT))).aggregate(uid="triggered", n=sl.count()),
        "clock-windows": keyed.window(sl.TumblingProcessingTimeWindows(500)).aggregate(
            uid="clock-windows", n=sl.count()
        ),
        "running": keyed.running_aggregate(uid="running", n=sl.count()),
        "process": keyed.process(BucketSums(), uid="process", schema=BUCKETS),
        "states": keyed.process(Counted(), uid="states", schema=COUNTS),
        "batches": keyed.process_batches(CountedInBatches(), uid="batches", schema=BUCKETS),
        "connect": left.connect(right).key_by("k", "rk").process(BothSums(), uid="connect", schema=BUCKETS),
        "broadcast": sl.BroadcastConnectedStream(keyed, rules.broadcast_state(FACTOR_OF)).process(
            Multiplied(), uid="broadcast", schema=PAIRS
        ),
        "window-join": keyed.join(other).window(sl.TumblingEventTimeWindows(100), how="full", uid="window-join"),
        "interval-join": keyed.join(other).between(-NEAR_MS, NEAR_MS, uid="interval-join"),
        "temporal-join": keyed.join(other).as_of(how="left", uid="temporal-join"),
        "expressions": left.filter(sl.col("v") % 3 == 0)
        .with_columns(double=sl.col("v") * 2)
        .select("k", "t", kind=sl.when(sl.col("double") > 9).then("much").otherwise("little")),
        "enrich": left.enrich(NAMES, {"k": "id"}, how="inner", uid="enrich").start_new_chain(),
        "union": left.union(renamed_right).key_by("k").running_aggregate(uid="union", n=sl.count()),
        "even": parted.disable_chaining(),
        "odd": parted.get_side_output("odd", PAIRS),
        "async-ordered": left.async_wait(Doubled(), uid="async-ordered", schema=PAIRS),
        "async-unordered": left.async_wait(Doubled(), ordered=False, uid="async-unordered", schema=PAIRS),
        **verb_branches(left),
        **more_branches(left, right, with_sessions, NAMES, Pushed(rate and rate / 3, gate)),
    }
