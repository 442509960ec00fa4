"""Count, sum and maximum per key and 10 s tumbling event-time window: generator -> hash exchange -> windows, on Spark.

Events are 10 microseconds of event time apart, so a window holds a million of them; its results come out for every key.

    python -m benchmarks.windows --keys 10000 --parallelism 2 --seconds 15 --checkpoint-interval 1s --json
"""

from __future__ import annotations

import sys

import snapline as sl
from benchmarks.cluster import keyed_environment, keyed_parser, measure_job
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink

EVENT_INTERVAL_US = 10


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = keyed_parser(__doc__, keys=10_000)
    cli.add_argument("--window-ms", type=int, default=10_000)
    cli.add_argument("--batch-rows", type=int, default=65_536, help="rows per generated batch")
    options = cli.parse_args(arguments)

    def build(directory: str) -> sl.StreamExecutionEnvironment:
        environment = keyed_environment(options, directory)
        source = GeneratorSource(
            keys=options.keys,
            batch_rows=options.batch_rows,
            event_time_column="at",
            event_interval_us=EVENT_INTERVAL_US,
            splits=options.parallelism,
        )
        events = environment.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="generator")
        windows = events.key_by("key").window(sl.TumblingEventTimeWindows(options.window_ms))
        result = windows.aggregate(
            uid="windows", name="windows", n=sl.count(), total=sl.sum("value"), highest=sl.max("value")
        )
        result.sink_to(DiscardingSink(), uid="sink")
        return environment

    title = f"windows of {options.window_ms} ms, {options.keys:,} keys, parallelism {options.parallelism}, {options.backend}"
    return measure_job(build, options, name="windows", vertex="windows", title=title)


if __name__ == "__main__":
    sys.exit(main())
