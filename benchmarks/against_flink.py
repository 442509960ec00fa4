"""A benchmark of ours and the same job on Flink, in turn on one machine, and the ratios of each pair.

The Flink side is a program of yours that is not part of this project: `--flink` (or the variable FLINK_PERF) names its
command. It is called with the options that the table below shows, each with a value, and its last line is one JSON
object with `events_per_s`, `cpu_us_per_event` and `checkpoint_ms` {median}, or `latency_ms` {p50, p99}. A ratio above 1
says that ours is so many times better: more events, less CPU, shorter checkpoints and latencies.

    python -m benchmarks.against_flink --case q7 q8 --flink ./flink_perf/run.sh --pairs 3 --seconds 12
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from benchmarks.cluster import fail, report, versions
from benchmarks.pairs import FailedRun, run_pairs
from benchmarks.row_functions import KEYS

WARM_UP = ("--warmup-seconds", "5", "--warmup-cpu-s", "12")
"""How long Flink runs before anything counts, because the JVM compiles what it runs often."""
BY_HAND = {"q4": "q4h", "q6": "q6h", "q9": "q9h"}
"""Winning bids in a function of one's own, which is faster on Flink than its interval join."""
CASES: dict[str, tuple[list[str], list[str]]] = {
    **{
        name: (["benchmarks.nexmark", "--queries", name], ["--job", BY_HAND.get(name, name)])
        for name in ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q11", "q12", "q13")
    },
    "keyed-sum": (["benchmarks.keyed_sum", "--keys", "100000"], ["--job", "kc", "--keys", "100000"]),
    "keyed-sum-1m": (["benchmarks.keyed_sum", "--keys", "1000000"], ["--job", "kc", "--keys", "1000000"]),
    "keyed-sum-rows": (["benchmarks.keyed_sum", "--keys", "100000", "--rows"], ["--job", "kc", "--keys", "100000"]),
    "keyed-sum-strings": (
        ["benchmarks.keyed_sum", "--keys", "1000000", "--string-keys"],
        ["--job", "kc", "--keys", "1000000", "--key", "string"],
    ),
    "keyed-sum-pairs": (
        ["benchmarks.shapes", "--shape", "pairs", "--keys", "100000"],
        ["--job", "kc", "--keys", "100000", "--key", "pair"],
    ),
    "windows": (["benchmarks.windows"], ["--job", "win"]),
    **{
        f"rocksdb-{keys // 100_000 / 10:g}m": (
            ["benchmarks.keyed_sum", "--keys", str(keys), "--backend", "rocksdb", "--memory", "64 mb"],
            ["--job", "kc", "--keys", str(keys), "--backend", "rocksdb", "--managed-mb", "128", "--fill", str(keys)],
        )
        for keys in (2_500_000, 10_000_000)
    },
    **{
        name: (["benchmarks.row_functions", "--function", name], ["--job", name, "--keys", str(KEYS)])
        for name in ("map", "list", "timer", "async")
    },
    "latency": (
        ["benchmarks.latency", "--rate", "10000", "--buffer-timeout", "0ms"],
        ["--job", "lat", "--rate", "10000", "--buffer-timeout-ms", "0", "--emit-us", "1000", "--keys", "1000"],
    ),
    "latency-1m": (
        ["benchmarks.latency", "--rate", "1000000", "--buffer-timeout", "0ms"],
        ["--job", "lat", "--rate", "1000000", "--buffer-timeout-ms", "0", "--emit-us", "1000", "--keys", "1000"],
    ),
}
"""Module and options of ours, and options of the Flink program."""


def commands(case: str, flink: Sequence[str], seconds: int, parallelism: int) -> tuple[list[str], list[str]]:
    """Ours and Flink's of a case."""
    mine, theirs = CASES[case]
    common = ["--seconds", str(seconds), "--parallelism", str(parallelism)]
    ours = [sys.executable, "-m", *mine, *common, "--json"]
    return ours, [*flink, *theirs, *common, "--checkpoint-interval-ms", "1000", *WARM_UP]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--case", nargs="+", choices=sorted(CASES), required=True)
    cli.add_argument("--flink", default=os.environ.get("FLINK_PERF", ""), help="command of the Flink program")
    cli.add_argument("--pairs", type=int, default=3)
    cli.add_argument("--seconds", type=int, default=12)
    cli.add_argument("--parallelism", type=int, default=2)
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    if not options.flink:
        return fail(FailedRun("which program is Flink's? Name its command with --flink, or in FLINK_PERF"))
    results = {}
    for case in options.case:
        try:
            ours, flink = commands(case, shlex.split(options.flink), options.seconds, options.parallelism)
            results[case] = run_pairs(ours, flink, options.pairs)
        except FailedRun as error:
            return fail(error)
        if not options.json:
            report(f"{case}, {options.pairs} pairs", results[case]["times_better"], as_json=False)
    if options.json:
        report("against Flink", {"cases": results, "versions": versions()}, as_json=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
