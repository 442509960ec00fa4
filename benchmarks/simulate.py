"""How many seeds a second `snapline.testing.simulate` runs, for a job of five operators, on one core.

The rate is that of a call with many seeds less that of a call with few, so that what is done once (imports, the runs
without faults) does not count; it is said what that takes.

    python -m benchmarks.simulate --seeds 200
"""

from __future__ import annotations

import argparse
import json
import time

import pyarrow as pa

import snapline as sl
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.testing import simulate

FEW = 5
ROWS = [{"key": f"k{n % 5}", "value": n} for n in range(30)]


class Count(sl.KeyedProcessFunction):
    """Counts the rows of each key."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.n = context.get_state(sl.ValueStateDescriptor("n", pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> tuple[sl.Row]:
        self.n.update((self.n.value() or 0) + 1)
        return ({"key": row["key"], "n": self.n.value()},)


def build(environment: sl.StreamExecutionEnvironment) -> None:
    """Source, map, filter, keyed function, sink; two subtasks of each."""
    rows = environment.from_collection(ROWS, uid="rows")
    doubled = rows.map(lambda row: {"key": row["key"], "value": 2 * row["value"]}, uid="doubled")
    kept = doubled.filter(sl.col("value") >= 0, uid="kept")
    kept.key_by("key").process(Count(), uid="count").sink_to(DiscardingSink(), uid="sink")


def measure(seeds: int) -> tuple[float, float]:
    """Seconds by the clock and of the processor, for a call with so many seeds."""
    wall, busy = time.perf_counter(), time.process_time()
    simulate(build, seeds=seeds)
    return time.perf_counter() - wall, time.process_time() - busy


def main() -> int:
    """Print the rates, as a line and as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    first, _ = measure(FEW)
    few, few_busy = measure(FEW)
    many, many_busy = measure(seeds)
    found = {
        "seeds": seeds,
        "seeds_per_second": round((seeds - FEW) / (many - few), 1),
        "seeds_per_processor_second": round((seeds - FEW) / (many_busy - few_busy), 1),
        "first_call_seconds": round(first, 2),
        "call_with_few_seeds_seconds": round(few, 2),
    }
    print(
        f"simulate: {found['seeds_per_second']} seeds a second, {found['seeds_per_processor_second']} a second of one core"
    )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
