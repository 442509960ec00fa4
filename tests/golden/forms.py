"""More branches of the golden job: row-wise forms, ways to partition, operator state, late rows, composite keys, the
other forms of windows, connected streams and joins, timers of the clock.

What comes out is either the same for every run, or adds up to it (`late`, `lateness`, `clock-timers`); the tests say
which.
"""

from __future__ import annotations

import decimal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from snapline.dataflow.api.state import AggregateFunction
from snapline.taskmanager.operators.base.function_operator import FunctionOperator
from tests.services.gate import LOOK_AGAIN_MS

BUCKET_MS = 2_000
GAP_MS = 200
LATE_MS = 5_000
LATE_EVERY = 10
"""Of so many rows of the left stream, one is late."""
PUSHED = 500
"""Rows of the source with a thread."""
FEW_LEFT, FEW_RIGHT = 140, 70
"""Rows of the join without bounds."""
AFTER_ALL_MS = 2**40
"""Event time after that of all rows: the end."""
TENTH = "tenth"
FAR_MS = 3_600_000

PAIRS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NAMED = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("name", pa.string())])
COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
TOTALS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
SESSIONS = pa.schema([("k", pa.int64()), ("start", pa.int64()), ("total", pa.int64())])
COMPOSITE = pa.schema(
    [("s", pa.string()), ("d", pa.timestamp("us")), ("c", pa.decimal128(10, 2)), ("v", pa.int64()), ("t", pa.timestamp("ms"))]
)  # fmt: skip


class Pushed(sl.SourceFunction):
    """Rows from a thread of its own, at a pace or as fast as it can; its position is in operator state. With a gate its
    last row waits until that file is there."""

    def __init__(self, rate: float | None, gate: Path | None) -> None:
        self.rate, self.gate, self.position, self.running = rate, gate, 0, True

    def initialize_state(self, context: Any) -> None:
        """Where it was."""
        self.state = context.operator_state_store.get_list_state("position")
        for position in self.state.get():
            self.position = position

    def snapshot_state(self, context: Any) -> None:
        """Where it is."""
        self.state.update([self.position])

    def run(self, context: Any) -> None:
        """One row after the other."""
        while self.running and self.position < PUSHED:
            if self.position == PUSHED - 1 and self.gate is not None and not self.gate.exists():
                time.sleep(LOOK_AGAIN_MS / 1000)
                continue
            with context.get_checkpoint_lock():
                context.collect({"k": self.position % 7, "v": self.position})
                self.position += 1
            if self.rate is not None:
                time.sleep(1 / self.rate)

    def cancel(self) -> None:
        """Soon."""
        self.running = False


def composite_key(key: int) -> tuple[str | None, int, decimal.Decimal]:
    """A string that may be null, microseconds, and a decimal."""
    return (None if key % 3 == 0 else f"key {key % 3}"), key * 1_000, decimal.Decimal(key) / 4


def with_composite_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The key in three columns."""
    strings, times, decimals = zip(*map(composite_key, batch.column("k").to_pylist()), strict=True)
    columns = [
        pa.array(strings, pa.string()), pa.array(times, pa.int64()).cast(pa.timestamp("us")),
        pa.array(decimals, pa.decimal128(10, 2)), batch.column("v"), batch.column("t"),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=COMPOSITE)


def with_late_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One of some rows is put back."""
    values = batch.column("v").to_numpy()
    times = batch.column("t").cast(pa.int64()).to_numpy() - np.where(values % LATE_EVERY == 0, LATE_MS, 0)
    return batch.set_column(2, batch.schema.field(2), pa.array(times).cast(pa.timestamp("ms")))


def one_more(row: sl.Row) -> sl.Row:
    """For map."""
    return {"k": row["k"], "v": row["v"] + 1}


def even_ones_twice(row: sl.Row) -> Iterator[sl.Row]:
    """For flat_map."""
    yield row
    if row["v"] % 2 == 0:
        yield row


def no_multiple_of_three(row: sl.Row) -> bool:
    """For filter_rows."""
    return bool(row["v"] % 3)


class Waiting:
    """Rows in operator state, one element each, which is split when the parallelism changes; and the numbers of all
    subtasks, which each of them gets."""

    index = 0

    def initialize_state(self, context: Any) -> None:
        """What waited in the snapshot."""
        self.state = context.operator_state_store.get_list_state("waiting")
        self.all = context.operator_state_store.get_union_list_state("all")
        self.rows, numbers = self.state.get(), sorted(self.all.get())
        if context.is_restored and (not numbers or numbers != list(range(len(numbers)))):
            raise ValueError(f"not all subtasks, or some twice: {numbers}")

    def snapshot_state(self, context: Any) -> None:
        """What waits."""
        self.state.update(self.rows)
        self.all.update([self.index])


class HeldBack(FunctionOperator):
    """An operator of one's own: rows wait for the next batch, or the end; then their values change their sign."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        super().__init__(self.waiting)

    def open(self) -> None:
        """Which subtask it is."""
        self.waiting.index = self.context.subtask_index

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        """The rows before these."""
        self.finish()
        self.waiting.rows = batch.to_pylist()

    def finish(self) -> None:
        """All that wait."""
        rows, self.waiting.rows = self.waiting.rows, []
        batch = pa.RecordBatch.from_pylist(rows, schema=PAIRS)
        self.output.emit_batch(batch.set_column(1, PAIRS.field(1), pc.negate(batch.column("v"))))


class Share:
    """Of what all subtasks get, each keeps its share."""

    def open(self, context: Any) -> None:
        """Which one."""
        self.index, self.parallelism = context.subtask_index, context.parallelism

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """By value."""
        mine = batch.column("v").to_numpy() % self.parallelism == self.index
        return batch.select(["k", "v"]).filter(pa.array(mine))


class Ones(AggregateFunction):
    """Counts."""

    def create_accumulator(self) -> Any:
        """None yet."""
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        """One more."""
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        """All."""
        return accumulator


class CountedFourTimes(sl.KeyedProcessFunction):
    """Says of every row how many its key has had, if four kinds of state agree; every tenth aside."""

    def open(self, context: Any) -> None:
        """One of each."""
        self.seen = context.get_state(sl.ValueStateDescriptor("seen", pa.int64()))
        self.most = context.get_reducing_state(sl.ReducingStateDescriptor("most", max, pa.int64()))
        self.ones = context.get_aggregating_state(sl.AggregatingStateDescriptor("ones", Ones(), pa.int64()))
        self.last = context.get_list_state(sl.ListStateDescriptor("last", pa.int64()))

    def process_element(self, row: sl.Row, context: Any) -> Iterator[sl.Row]:
        """One more."""
        n = (self.seen.value() or 0) + 1
        self.seen.update(n)
        self.most.add(n)
        self.ones.add(1)
        self.last.update([*self.last.get()[-2:], n])
        agreed = {n, self.most.get(), self.ones.get(), self.last.get()[-1]} == {n}
        if n % 10 == 0:
            context.output(TENTH, {"k": row["k"], "n": n})
        yield {"k": row["k"], "n": n if agreed else -1}


class CountedByTheClock(sl.KeyedProcessFunction):
    """How many rows have come since it was said last: by the clock, and at the end."""

    def open(self, context: Any) -> None:
        """What was not said."""
        self.unsaid = context.get_state(sl.ValueStateDescriptor("unsaid", pa.int64()))

    def process_element(self, row: sl.Row, context: Any) -> None:
        """One more."""
        self.unsaid.update((self.unsaid.value() or 0) + 1)
        timers = context.timer_service
        timers.register_processing_time_timer(timers.current_processing_time() // 500 * 500 + 500)
        timers.register_event_time_timer(AFTER_ALL_MS)

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[sl.Row]:
        """Say it."""
        if unsaid := self.unsaid.value():
            yield {"k": context.current_key, "n": unsaid}
        self.unsaid.clear()


class BothInBatches(sl.KeyedCoBatchProcessFunction):
    """Rows of both inputs in a value, and their values in a list, columns in and out; all is said at the end."""

    rows = sl.ValueStateDescriptor("rows", pa.int64())
    values = sl.ListStateDescriptor("values", pa.int64())

    def process_batch1(self, keys: Any, batch: pa.RecordBatch, state: Any) -> None:
        """Left."""
        self._add(keys, batch.column("v"), state)

    def process_batch2(self, keys: Any, batch: pa.RecordBatch, state: Any) -> None:
        """Right, negative."""
        self._add(keys, pc.negate(batch.column("rv")), state)

    def _add(self, keys: Any, values: pa.Array, state: Any) -> None:
        before = state.get(self.rows).fill_null(0).to_numpy()
        state.put(self.rows, pa.array(before + np.bincount(keys.rows, minlength=len(keys))))
        state.append(self.values, values)
        state.register_event_time_timers(np.full(len(keys), AFTER_ALL_MS), np.arange(len(keys), dtype=np.int32))

    def on_timers(self, keys: Any, times_ms: Any, state: Any) -> pa.RecordBatch:
        """The end: one timer for each key."""
        which = pa.array(keys.rows)
        totals = pa.array([sum(values) for values in state.get(self.values).to_pylist()], pa.int64())
        columns = [keys.columns.column(0), state.get(self.rows), totals]
        return pa.RecordBatch.from_arrays([column.take(which) for column in columns], schema=TOTALS)


LATEST = sl.MapStateDescriptor("latest", pa.int64(), pa.int64())


class PassedBesideRules(sl.BroadcastProcessFunction):
    """Keeps rules, and lets every row pass, whichever of them have come."""

    def process_element(self, row: sl.Row, context: Any) -> list[sl.Row]:
        """Left."""
        return [{"k": row["k"], "v": row["v"]}]

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        """Right."""
        context.get_broadcast_state(LATEST)[row["rk"]] = row["rv"]


class BothAsTheyCome(sl.CoProcessFunction):
    """No keys."""

    def process_batch1(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Left."""
        return batch.select(["k", "v"])

    def process_batch2(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Right, negative."""
        return pa.RecordBatch.from_arrays([batch.column("rk"), pc.negate(batch.column("rv"))], schema=PAIRS)


PARITY = pa.schema([("of", pa.int64()), ("odd", pa.bool_())])


def key_and_parity(batch: pa.RecordBatch) -> pa.Array:
    """A key of two columns, computed."""
    odd = pc.equal(pc.bit_wise_and(batch.column("v"), 1), 1)
    return pa.StructArray.from_arrays([batch.column("k"), odd], fields=list(PARITY))


def session_total(key: int, window: Any, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """One row for a session."""
    rows = [{"k": key, "start": window.start_ms, "total": pc.sum(batch.column("v")).as_py()}]
    yield pa.RecordBatch.from_pylist(rows, schema=SESSIONS)


def more_branches(
    left: sl.DataStream, right: sl.DataStream, paused: sl.DataStream, names: pa.Table, pushed: Pushed
) -> dict[str, sl.DataStream]:
    """By name, which is also the beginning of the uid. `paused`: the rows of the left stream that come for
    sessions. `pushed`: the source with a thread."""
    rows = (
        left.map(one_more, uid="rows-map", schema=PAIRS)
        .flat_map(even_ones_twice, uid="rows-flat-map", schema=PAIRS)
        .filter_rows(no_multiple_of_three, uid="rows-filter")
        .rebalance()
        .transform(HeldBack, uid="rows-held", stateful=True)
        .rescale()
        .map_batches(lambda batch: batch, uid="rows-names", schema=PAIRS)
        .forward()
        .enrich(names, {"k": "id"}, how="left", uid="rows-enrich")
    )
    monotonous = sl.WatermarkStrategy.for_monotonous_timestamps("t")
    retimed = left.map_batches(with_late_rows, uid="retimed", schema=left.schema)
    keyed = retimed.assign_timestamps_and_watermarks(monotonous, uid="retimed-watermarks").key_by("k")
    buckets = keyed.window(sl.TumblingEventTimeWindows(BUCKET_MS))
    late = buckets.side_output_late_data("late").aggregate(uid="late", n=sl.count())
    composite = left.map_batches(with_composite_key, uid="composite-keys", schema=COMPOSITE).key_by("s", "d", "c")
    few_left = left.filter(lambda batch: pc.less(batch.column("v"), FEW_LEFT), uid="few-left")
    few_right = right.filter(lambda batch: pc.less(batch.column("rv"), FEW_RIGHT), uid="few-right")
    four_times = left.key_by("k").process(CountedFourTimes(), uid="four-times", schema=COUNTS)
    return {
        "rows": rows,
        "pushed": left.environment.add_source(pushed, uid="pushed", schema=PAIRS).set_parallelism(1),
        "everywhere": left.broadcast().map_batches(Share(), uid="everywhere", schema=PAIRS),
        "late": late,
        "late-rows": late.get_side_output("late"),
        "lateness": buckets.allowed_lateness(FAR_MS).aggregate(uid="lateness", n=sl.count()),
        "composite": composite.window(sl.TumblingEventTimeWindows(BUCKET_MS)).aggregate(
            uid="composite", n=sl.count(), average=sl.mean("v")
        ),
        "window-batches": paused.key_by("k")
        .window(sl.EventTimeSessionWindows(GAP_MS))
        .process_batches(session_total, uid="window-batches", schema=SESSIONS),
        "co-batches": left.connect(right)
        .key_by("k", "rk")
        .process_batches(BothInBatches(), uid="co-batches", schema=TOTALS),
        "ruled": left.connect(right.broadcast_state(LATEST)).process(PassedBesideRules(), uid="ruled", schema=PAIRS),
        "connect-plain": left.connect(right).process(BothAsTheyCome(), uid="connect-plain", schema=PAIRS),
        "unbounded-join": few_left.key_by("k").join(few_right.key_by("rk")).unbounded(uid="unbounded-join"),
        "four-times": four_times,
        TENTH: four_times.get_side_output(TENTH, COUNTS),
        "by-function": left.key_by(key_and_parity, schema=PARITY).running_aggregate(uid="by-function", n=sl.count()),
        "clock-timers": left.key_by("k").process(CountedByTheClock(), uid="clock-timers", schema=COUNTS),
    }
