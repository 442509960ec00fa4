"""Count, sum and maximum per key and 10 s tumbling event-time window: generator -> hash exchange -> windows, on Spark.

Events are 10 microseconds of event time apart, so a window holds a million of them; its results come out for every key.

    python -m benchmarks.windows --keys 10000 --parallelism 2 --seconds 15 --checkpoint-interval 1s --json
"""

from __future__ import annotations

import shutil
import sys

import snapline as sl
from benchmarks.cluster import (
    checkpoint_directory,
    checkpoint_figures,
    fail,
    keyed_environment,
    keyed_parser,
    measure_rate,
    report,
    running_job,
    versions,
)
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.errors import SnaplineError

EVENT_INTERVAL_US = 10


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = keyed_parser(__doc__, keys=10_000)
    cli.add_argument("--window-ms", type=int, default=10_000)
    cli.add_argument("--batch-rows", type=int, default=65_536, help="rows per generated batch")
    options = cli.parse_args(arguments)
    directory = checkpoint_directory()
    try:
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
        with running_job(environment, "windows", options.master) as (client, graph):
            figures = measure_rate(client, graph, "windows", options.warm_up, options.seconds)
            checkpoints = checkpoint_figures(client, graph)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    title = f"windows of {options.window_ms} ms, {options.keys:,} keys, parallelism {options.parallelism}, {options.backend}"
    report(title, {**figures, **checkpoints, "versions": versions()}, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
