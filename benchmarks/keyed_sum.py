"""Running sum and count per key: generator -> hash exchange -> keyed state -> discarding sink, on Spark.

Every event emits its key's sum and count after it, in order. `--rows` does the same in a row-wise Python function with
ValueState.

    python -m benchmarks.keyed_sum --keys 100000 --parallelism 2 --seconds 15 --checkpoint-interval 1s [--rows] --json
"""

from __future__ import annotations

import sys

import pyarrow as pa

import snapline as sl
from benchmarks.cluster import keyed_environment, keyed_parser, measure_job
from snapline.connectors.builtin.generator import DEFAULT_SPLITS, GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink

STRING_KEY = pa.field("key", pa.string())
OUTPUT = pa.schema([("key", pa.int64()), ("total", pa.int64()), ("n", pa.int64())])


def with_string_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the key by its text."""
    return batch.set_column(0, STRING_KEY, batch.column(0).cast(pa.string()))


class RunningSum(sl.KeyedProcessFunction):
    """The row-wise form: two ValueStates per key."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.total = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))
        self.count = context.get_state(sl.ValueStateDescriptor("n", pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> tuple[sl.Row]:
        total = (self.total.value() or 0) + row["value"]
        n = (self.count.value() or 0) + 1
        self.total.update(total)
        self.count.update(n)
        return ({"key": row["key"], "total": total, "n": n},)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = keyed_parser(__doc__, keys=100_000)
    cli.add_argument("--rows", action="store_true", help="row-wise Python function instead of the vectorised operator")
    cli.add_argument(
        "--batch-rows", type=int, default=0, help="rows per generated batch (default: 65,536; 8,192 with --rows)"
    )
    cli.add_argument(
        "--rate", type=int, default=0, help="events per second at the source (default: as fast as it goes)"
    )
    cli.add_argument("--string-keys", action="store_true", help="keys as strings")
    options = cli.parse_args(arguments)

    def build(directory: str) -> sl.StreamExecutionEnvironment:
        environment = keyed_environment(options, directory)
        batch_rows = options.batch_rows or (8_192 if options.rows else 65_536)
        source = GeneratorSource(
            keys=options.keys,
            batch_rows=batch_rows,
            rows_per_second=options.rate or None,
            splits=max(DEFAULT_SPLITS, options.parallelism),
        )
        events = environment.from_source(source, uid="generator")
        if options.string_keys:
            events = events.map_batches(with_string_key, uid="string-keys", schema=source.schema().set(0, STRING_KEY))
        keyed = events.key_by("key")
        if options.rows:
            result = keyed.process(RunningSum(), uid="sums", name="sums", schema=OUTPUT)
        else:
            result = keyed.running_aggregate(uid="sums", name="sums", total=sl.sum("value"), n=sl.count())
        result.sink_to(DiscardingSink(), uid="sink")
        return environment

    title = f"keyed_sum, {options.keys:,} keys, parallelism {options.parallelism}, {'row by row' if options.rows else 'vectorised'}, {options.backend}"
    return measure_job(build, options, name="keyed_sum", vertex="sums", title=title)


if __name__ == "__main__":
    sys.exit(main())
