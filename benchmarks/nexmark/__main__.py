"""Nexmark on Spark: events per second of every query.

    python -m benchmarks.nexmark --queries q0,q5,q8 --parallelism 2 --seconds 10 --json

One event is a person, an auction or a bid: all 50 of an epoch count, also where a query reads the bids alone, as in
Flink's nexmark.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any

from benchmarks.cluster import (
    benchmark_environment,
    checkpoint_directory,
    checkpoint_figures,
    fail,
    measure_rate,
    parser,
    report,
    running_job,
    versions,
)
from benchmarks.nexmark.generator import EVENTS_PER_EPOCH, Nexmark, Streams
from benchmarks.nexmark.queries import QUERIES
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.errors import SnaplineError

BATCH_EPOCHS = {"q3": 8_192, "q8": 2_048}
"""Epochs in a batch of the source for queries that read no bids; a window waits for all splits, so that the batches of
q8 are shorter than its windows."""
EPOCHS_WITH_BIDS = 1_400
"""Epochs in a batch for all others: 64,400 bids. With half of them queries have a sixth fewer events, and checkpoints
are a quarter shorter."""


def run_query(name: str, options: Any) -> dict[str, Any]:
    """Measure one query and return its figures."""
    directory = checkpoint_directory()
    try:
        environment = benchmark_environment(options.parallelism, options.checkpoint_interval, directory)
        batch_epochs = options.batch_epochs or BATCH_EPOCHS.get(name, EPOCHS_WITH_BIDS)
        settings = Nexmark(options.events_per_second)
        streams = Streams(environment, settings, batch_epochs=batch_epochs, splits=options.parallelism)
        QUERIES[name](streams).sink_to(DiscardingSink(), uid="sink")
        with running_job(environment, name, options.master) as (client, graph):
            figures = measure_rate(client, graph, "epochs", options.warm_up, options.seconds)
            checkpoints = checkpoint_figures(client, graph)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    figures["events_per_s"] *= EVENTS_PER_EPOCH
    figures["cpu_us_per_event"] /= EVENTS_PER_EPOCH
    return {**figures, **checkpoints}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = parser(__doc__)
    cli.add_argument("--queries", default=",".join(QUERIES), help="which, separated by commas")
    cli.add_argument("--events-per-second", type=int, default=100_000, help="of event time")
    cli.add_argument(
        "--batch-epochs", type=int, help=f"of the source; {EPOCHS_WITH_BIDS} where bids are read, else more"
    )
    options = cli.parse_args(arguments)
    names = options.queries.split(",")
    unknown = [name for name in names if name not in QUERIES]
    if unknown:
        return fail(ValueError(f"no query {unknown[0]!r}: there are {', '.join(QUERIES)}"))
    results = {}
    try:
        for name in names:
            results[name] = run_query(name, options)
            if not options.json:
                report(f"{name}, parallelism {options.parallelism}", results[name], as_json=False)
    except (SnaplineError, RuntimeError) as error:
        return fail(error)
    if options.json:
        report("nexmark", {"queries": results, "versions": versions()}, as_json=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
