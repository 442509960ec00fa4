"""Metrics of a user's functions: what travels, what a job's handle has of them, and what bounds them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.api.user_metrics import (
    MOST_METRICS,
    MetricLimit,
    MetricValue,
    added_up,
    by_operator,
    is_sound,
    quantile,
)
from snapline.dataflow.config import Configuration
from snapline.dataflow.wire.codec import encode_into
from snapline.protos import job_pb2

FEW = 40


class Measuring(sl.Function):
    """Counts rows, notes the last number and how large the batches are."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.rows = context.metrics.counter("rows")
        self.last = context.metrics.gauge("last")
        context.metrics.gauge("subtasks", lambda: context.parallelism)
        self.sizes = context.metrics.histogram("sizes", buckets=[5, 10, 100])

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows.inc(batch.num_rows)
        self.last.set(batch.num_rows)
        self.sizes.update(batch.num_rows)
        return batch


class MeasuringKeys(sl.KeyedProcessFunction):
    """Counts the rows of all keys."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.rows = context.metrics.counter("keyed_rows")

    def process_element(self, row, context):
        self.rows.inc()
        yield row


def test_a_jobs_handle_has_the_metrics_of_its_functions() -> None:
    """Counters and histograms are added up over the subtasks, a gauge has the number of each."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    rows: list[dict[str, object]] = [{"n": number % 3} for number in range(FEW)]
    stream = env.from_collection(rows, uid="numbers").map_batches(Measuring(), uid="measuring")
    stream.key_by("n").process(MeasuringKeys(), uid="keys").set_parallelism(2).sink_to(DiscardingSink(), uid="out")
    with env.execute_async("measuring", local=True) as job:
        job.wait()
        metrics = job.metrics()
    measured = metrics.operators["measuring"]
    assert (measured["rows"], measured["last"], measured["subtasks"]) == (FEW, [FEW], [1])
    assert (measured["sizes"]["count"], measured["sizes"]["mean"]) == (1, FEW)
    assert metrics.operators["keys"] == {"keyed_rows": FEW}
    assert sum(task["records_in"] for task in metrics.tasks.values()) >= FEW


class Combining(sl.Function):
    """Computes keys from a batch, and combines rows; counts how often it is asked, and that it was closed."""

    closed: ClassVar[list[str]] = []

    def open(self, context: sl.RuntimeContext) -> None:
        self.calls = context.metrics.counter("calls")
        self.task = context.task_name

    def close(self) -> None:
        self.closed.append(self.task)

    def __call__(self, one: Any, other: Any = None) -> Any:
        self.calls.inc()
        return one["n"] if other is None else other


def test_tasks_of_one_name_have_figures_of_their_own() -> None:
    """Two sources that are printed are two tasks, whose names say the same."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    for uid, rows in (("few", 2), ("many", 5)):
        env.from_collection([{"n": n} for n in range(rows)], uid=uid).sink_to(DiscardingSink(), uid=f"{uid}-sink")
    job = env.execute_async(local=True)
    job.wait()
    figures = job.metrics().tasks
    assert {name: task["records_in"] for name, task in figures.items()} == {
        "CollectionSource -> DiscardingSink (few)": 2,
        "CollectionSource -> DiscardingSink (many)": 5,
    }


def test_functions_of_keys_and_of_reduce_are_opened_and_closed() -> None:
    """They are functions as any other, though operators of ours stand around them."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    keyed = env.from_collection([{"n": number % 3} for number in range(FEW)], uid="numbers").key_by(
        Combining(), schema=pa.schema([("k", pa.int64())])
    )
    keyed.reduce(Combining(), uid="reducing").sink_to(DiscardingSink(), uid="out")
    Combining.closed.clear()
    with env.execute_async("combining", local=True) as job:
        job.wait()
        operators = job.metrics().operators
    assert sorted(figures["calls"] for figures in operators.values()) == [1, FEW - 3]
    assert len(Combining.closed) == 2


class Largest(sl.BatchAggregateFunction):
    """The largest value, and how often batches were folded in."""

    accumulator = pa.schema([("largest", pa.int64())])

    def open(self, context: sl.RuntimeContext) -> None:
        self.folded = context.metrics.counter("folded")

    def result_type(self, *input_types: pa.DataType) -> pa.DataType:
        return pa.int64()

    def add(self, accumulators: pa.RecordBatch, groups: Any, *columns: pa.Array) -> pa.RecordBatch:
        self.folded.inc()
        return self.merge(accumulators, groups, pa.RecordBatch.from_arrays([*columns], schema=self.accumulator))

    def merge(self, accumulators: pa.RecordBatch, groups: Any, others: pa.RecordBatch) -> pa.RecordBatch:
        values = accumulators["largest"].to_pylist()
        for group, value in zip(groups, others["largest"].to_pylist(), strict=True):
            values[group] = value if values[group] is None else max(value, values[group])
        return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=self.accumulator)

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        return accumulators["largest"]


class Counting(sl.WatermarkGenerator):
    """Says how far time has come, and counts how often."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.said = context.metrics.counter("said")

    def on_batch(self, batch: pa.RecordBatch, times_ms: Any, output: sl.WatermarkOutput) -> None:
        self.said.inc()
        output.emit_watermark(int(times_ms.max()))


def test_aggregates_and_watermark_generators_of_the_users_are_opened() -> None:
    """At the source, between operators, in windows with and without triggers, and in running aggregates."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    rows: list[dict[str, object]] = [{"k": number % 2, "t": number} for number in range(20)]
    strategy = sl.WatermarkStrategy.for_generator("t", Counting)
    numbers = env.from_source(CollectionSource.of_rows(rows), strategy, uid="numbers")
    again = numbers.map_batches(lambda batch: batch, schema=numbers.schema, uid="same")
    keyed = again.assign_timestamps_and_watermarks(strategy, uid="again").key_by("k")
    window = keyed.window(sl.TumblingEventTimeWindows(5))
    window.aggregate(uid="windows", largest=sl.batch_aggregate(Largest(), "t")).sink_to(DiscardingSink(), uid="out-1")
    early = window.trigger(sl.PurgingTrigger(sl.CountTrigger(1)))
    early.aggregate(uid="early", largest=sl.batch_aggregate(Largest(), "t")).sink_to(DiscardingSink(), uid="out-2")
    running = keyed.running_aggregate(uid="running", largest=sl.batch_aggregate(Largest(), "t"))
    running.sink_to(DiscardingSink(), uid="out-3")
    with env.execute_async("opened", local=True) as job:
        job.wait()
        found = job.metrics().operators
    assert {uid for uid, figures in found.items() if figures.get("said")} == {"numbers", "again"}
    assert {uid for uid, figures in found.items() if figures.get("folded")} == {"windows", "early", "running"}


def test_a_task_has_so_many_metrics_at_most_and_says_which_one_is_left_out() -> None:
    """The metric works all the same; names made of data are the usual reason."""
    limit = MetricLimit()
    groups = [sl.MetricGroup("parse", limit), sl.MetricGroup("check", limit)]
    for number in range(MOST_METRICS):
        groups[number % 2].counter(f"n{number}")
    with pytest.warns(UserWarning, match="metric 'one_more' of operator 'check' is not reported.*100 metrics at most"):
        groups[1].counter("one_more").inc()
    groups[0].counter("another").inc()
    groups[0].counter("n0").inc()
    assert sum(len(group.travelling()) for group in groups) == MOST_METRICS


def test_names_and_kinds_of_metrics_are_checked_where_they_are_registered() -> None:
    """One line names the operator, the metric and the way out."""
    group = sl.MetricGroup("parse")
    assert group.counter("rows") is group.counter("rows")
    with pytest.raises(sl.JobDefinitionError, match="'parse': 'bad rows' is no name of a metric"):
        group.counter("bad rows")
    with pytest.raises(sl.JobDefinitionError, match="metric 'rows' is a Counter already: give the Gauge another name"):
        group.gauge("rows")
    with pytest.raises(sl.JobDefinitionError, match="numbers that rise"):
        group.histogram("sizes", buckets=[3, 2])
    with pytest.raises(ValueError, match="a counter only rises"):
        group.counter("rows").inc(-1)


@pytest.mark.parametrize("by", [10**400, math.nan, math.inf], ids=["large", "nan", "inf"])
def test_a_counter_rises_by_numbers_that_can_be_sent(by: float) -> None:
    """The report of the task failed the job with an error that named no operator."""
    counter = sl.Counter()
    counter.inc(2**40)
    with pytest.raises(ValueError, match=r"a counter only rises, and (10+|nan|inf)"):
        counter.inc(by)

    assert counter.value == 2**40


def test_what_is_added_up_of_numbers_of_numpy_does_not_wrap_around() -> None:
    """A counter of 32 bits became negative, and a sum of 32 bits did not rise any more."""
    counter, histogram = sl.Counter(), sl.BucketHistogram([1, 10])
    for by in np.full(3, 2**30, np.int32):
        counter.inc(by)  # type: ignore[arg-type]
    for value in np.array([2**24, 1, 1], np.float32):
        histogram.update(value)

    assert [counter.value, histogram.sum] == [3 * 2**30, 2**24 + 2]


@pytest.mark.parametrize("raised", [SystemExit(1), type("PanicException", (BaseException,), {})("index 3")])
def test_what_is_no_exception_and_comes_from_a_gauge_ends_nothing(raised: BaseException) -> None:
    """The heartbeat that asked such a gauge ended the TaskManager, and every job that had tasks there."""

    def read() -> float:
        raise raised

    assert math.isnan(sl.Gauge(read).value)


def test_a_gauge_whose_function_fails_is_not_a_number_and_ends_nothing() -> None:
    """Heartbeats ask for it, and a figure is no reason to end a job."""
    group = sl.MetricGroup("parse")
    gauge = group.gauge("broken", lambda: 1 / 0)
    assert math.isnan(gauge.value)
    assert math.isnan(group.travelling()[0].value)
    with pytest.raises(ValueError, match="reads its value from a function"):
        gauge.set(1)


def test_quantiles_of_a_histogram_lie_within_its_buckets() -> None:
    """Half of 100 numbers from 1 to 100 lies at 50; what lies above all bounds counts as the last one."""
    histogram = sl.BucketHistogram([25, 50, 75])
    for number in range(1, 101):
        histogram.update(number)
    value = MetricValue("u", "n", "histogram", histogram.sum, histogram.bounds, histogram.counts)
    assert [quantile(value, share) for share in (0.1, 0.25, 0.5, 0.99)] == [10, 25, 50, 75]
    assert math.isnan(quantile(MetricValue("u", "n", "histogram", 0, (1.0,), (0, 0)), 0.5))


def test_what_is_not_sound_or_has_other_buckets_is_left_out_of_sums() -> None:
    """A newer version may send kinds that this one does not know, and two functions may share one name."""
    values = [
        MetricValue("u", "n", "histogram", 3.0, (1.0, 2.0), (1, 1, 0)),
        MetricValue("u", "n", "histogram", 5.0, (1.0, 2.0), (0, 1, 1)),
        MetricValue("u", "n", "histogram", 7.0, (9.0,), (1, 0)),
        MetricValue("u", "n", "histogram", 7.0, (9.0,), (1,)),
        MetricValue("u", "n", "of a newer version"),
    ]
    assert added_up(values) == [MetricValue("u", "n", "histogram", 8.0, (1.0, 2.0), (1, 2, 1))]
    assert [is_sound(value) for value in values] == [True, True, True, False, False]


def test_counts_that_no_message_has_room_for_are_cut() -> None:
    """A TaskManager that said them made every question about its job end in a traceback."""
    most = (1 << 63) - 1
    values = [MetricValue("u", "n", "histogram", 1.0, (1.0,), counts) for counts in ((most, 1), (most, 2), (0, -most))]
    (added,) = added_up(values)
    assert added.counts == (most, 3)
    encode_into(added, job_pb2.MetricValue())


def test_latencies_are_shown_by_source() -> None:
    """An operator has one histogram for each source whose markers reach it."""
    value = MetricValue("sink", "latency", "histogram", 4.0, (2.0, 4.0), (1, 1, 0), "orders")
    assert by_operator([value])["sink"]["latency from orders"]["count"] == 2
