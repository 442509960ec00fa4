"""Many tasks in one process: one generator, and a branch with keyed state for each of so many questions, on Spark.

What is measured is how well tasks share one Python: with `--active-tasks 1000` all that have work run at once, as
threads do.

    python -m benchmarks.branches --branches 50 --seconds 15 [--active-tasks 1000] --json
"""

from __future__ import annotations

import sys

import snapline as sl
from benchmarks.cluster import benchmark_environment, measure_job, parser
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink

WINDOW_MS = 1_000


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = parser(__doc__)
    cli.set_defaults(parallelism=1, master="local[1]")
    cli.add_argument("--branches", type=int, default=50)
    cli.add_argument("--keys", type=int, default=100)
    cli.add_argument("--batch-rows", type=int, default=512, help="rows per generated batch")
    cli.add_argument("--active-tasks", type=int, default=2, help="taskmanager.active-tasks")
    options = cli.parse_args(arguments)

    def build(directory: str) -> sl.StreamExecutionEnvironment:
        environment = benchmark_environment(
            options.parallelism,
            options.checkpoint_interval,
            directory,
            taskmanager__active_tasks=str(options.active_tasks),
        )
        source = GeneratorSource(keys=options.keys, batch_rows=options.batch_rows, event_time_column="t")
        events = environment.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("t"), uid="generator")
        for number in range(options.branches):
            keyed = events.key_by("key")
            if number % 2:
                result = keyed.running_aggregate(
                    uid=f"branch-{number}", name="branch", total=sl.sum("value"), n=sl.count()
                )
            else:
                windows = keyed.window(sl.TumblingEventTimeWindows(WINDOW_MS))
                result = windows.aggregate(uid=f"branch-{number}", name="branch", most=sl.max("value"), n=sl.count())
            result.sink_to(DiscardingSink(), uid=f"sink-{number}")
        return environment

    title = f"{options.branches} branches in one process, batches of {options.batch_rows:,} rows"
    return measure_job(build, options, name="branches", vertex="branch", title=title)


if __name__ == "__main__":
    sys.exit(main())
