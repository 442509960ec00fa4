"""`make bench`: the engine's benchmarks one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

RUNS = (
    ["benchmarks.keyed_sum", "--keys", "100000"],
    ["benchmarks.keyed_sum", "--keys", "1000000"],
    ["benchmarks.keyed_sum", "--keys", "100000", "--rows"],
    ["benchmarks.windows"],
    ["benchmarks.latency"],
    ["benchmarks.connectors"],
    ["benchmarks.files_and_tables", "--spark"],
    ["benchmarks.kafka_latency"],
    ["benchmarks.dataframe"],
    ["benchmarks.follow_files"],
    ["benchmarks.branches"],
    ["benchmarks.backpressure"],
    ["benchmarks.coordinator", "--subtasks", "1000", "10000"],
    ["benchmarks.failover"],
    ["benchmarks.rescale"],
    ["benchmarks.simulate"],
    ["benchmarks.quiet"],
    ["benchmarks.page"],
)


def main() -> int:
    """Run all; the worst exit code."""
    return max(subprocess.run([sys.executable, "-m", *run], check=False).returncode for run in RUNS)


if __name__ == "__main__":
    sys.exit(main())
