"""What a row costs in functions that work row by row, on Spark: the same four as of the Flink program to compare with.

`map` reads and writes one of 1,000 pairs of its key; `list` appends, and one row in a hundred reads the list and puts
its sum in its place; `timer` adds to a value and sets a timer for each row, a second of event time later; `async` makes
a request of 10 ms for each row, a thousand at a time.

    python -m benchmarks.row_functions --function timer --seconds 12 --json
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable

import pyarrow as pa

import snapline as sl
from benchmarks.cluster import benchmark_environment, measure_job, parser
from benchmarks.row_state import OUTPUT, Recent
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink

KEYS = 997
"""It has no divisor in common with the 1,000 values, so that each key sees all of them."""
EVENT_INTERVAL_US = 10
TIMER_MS = 1_000
REQUEST_SECONDS = 0.01
CAPACITY = 1_000


class SumsOfValues(sl.KeyedProcessFunction):
    """Reads and writes one of a thousand pairs of the key's map."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.sums = context.get_map_state(sl.MapStateDescriptor("sums", pa.int64(), pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterable[sl.Row]:
        total = (self.sums.get(row["value"]) or 0) + 1
        self.sums.put(row["value"], total)
        return ({"key": row["key"], "total": total, "n": 1},)


class Reminder(sl.KeyedProcessFunction):
    """Adds to a value, and says it a second later, by a timer for each row."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.total = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterable[sl.Row]:
        self.total.update((self.total.value() or 0) + row["value"])
        context.timer_service.register_event_time_timer(row["at"] + TIMER_MS)
        return ()

    def on_timer(self, timestamp_ms: int, context: sl.ProcessContext) -> Iterable[sl.Row]:
        return ({"key": context.current_key, "total": self.total.value(), "n": 1},)


class Request(sl.AsyncFunction):
    """Answers with the row itself after the time that a request takes."""

    async def async_invoke(self, row: sl.Row) -> Iterable[sl.Row]:
        await asyncio.sleep(REQUEST_SECONDS)
        return (row,)

    def result_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        return schema


def with_milliseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Let the event time be a number, as functions calculate with it."""
    at = pa.array(batch.column("at").view(pa.int64()).to_numpy() // 1_000)
    return batch.set_column(batch.schema.get_field_index("at"), "at", at)


FUNCTIONS: dict[str, Callable[[], sl.KeyedProcessFunction]] = {"map": SumsOfValues, "list": Recent, "timer": Reminder}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = parser(__doc__)
    cli.add_argument("--function", choices=[*FUNCTIONS, "async"], required=True)
    cli.add_argument("--batch-rows", type=int, default=8_192, help="rows per generated batch")
    options = cli.parse_args(arguments)

    def build(directory: str) -> sl.StreamExecutionEnvironment:
        environment = benchmark_environment(options.parallelism, options.checkpoint_interval, directory)
        source = GeneratorSource(
            keys=KEYS, batch_rows=options.batch_rows, event_time_column="at", event_interval_us=EVENT_INTERVAL_US
        )
        rows = environment.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="generator")
        if options.function == "async":
            result = rows.async_wait(Request(), capacity=CAPACITY, ordered=False, uid="function", name="function")
        else:
            make = FUNCTIONS[options.function]
            schema = source.schema()
            schema = schema.set(schema.get_field_index("at"), pa.field("at", pa.int64()))
            rows = rows.map_batches(with_milliseconds, uid="milliseconds", schema=schema)
            result = rows.key_by("key").process(make(), uid="function", name="function", schema=OUTPUT)
        result.sink_to(DiscardingSink(), uid="sink")
        return environment

    title = f"row_functions, {options.function}, parallelism {options.parallelism}"
    return measure_job(build, options, name="row_functions", vertex="function", title=title)


if __name__ == "__main__":
    sys.exit(main())
