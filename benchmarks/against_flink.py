"""A benchmark of ours and the same job on Flink, in turn on one machine, and the ratios of each pair.

The Flink side is a program of yours that is not part of this project: `--flink` (or the variable FLINK_PERF) names its
command. It is called with the options that the table below shows, each with a value, and its last line is one JSON
object with `events_per_s`, `cpu_us_per_event` and `checkpoint_ms` {median}, or `latency_ms` {p50, p99}. Pairs begin
with the one side and with the other in turn, because a machine changes its speed meanwhile. A ratio above 1 says that
ours is so many times better: more events, less CPU, shorter checkpoints and latencies.

    python -m benchmarks.against_flink --case q7 q8 --flink ./flink_perf/run.sh --pairs 3 --seconds 12
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cluster import fail, report, versions
from benchmarks.row_functions import KEYS
from snapline.dataflow.errors import SnaplineError

PATIENCE_S = 900.0
"""The bound on one run of either side."""
WARM_UP = ("--warmup-seconds", "5", "--warmup-cpu-s", "12")
"""How long Flink runs before anything counts, because the JVM compiles what it runs often."""
BY_HAND = {"q4": "q4h", "q6": "q6h"}
"""Winning bids in a function of one's own, which is faster on Flink than its interval join."""
CASES: dict[str, tuple[list[str], list[str]]] = {
    **{
        name: (["benchmarks.nexmark", "--queries", name], ["--job", BY_HAND.get(name, name)])
        for name in ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q11", "q12", "q13")
    },
    "keyed-sum": (["benchmarks.keyed_sum", "--keys", "100000"], ["--job", "kc", "--keys", "100000"]),
    "keyed-sum-1m": (["benchmarks.keyed_sum", "--keys", "1000000"], ["--job", "kc", "--keys", "1000000"]),
    "keyed-sum-rows": (["benchmarks.keyed_sum", "--keys", "100000", "--rows"], ["--job", "kc", "--keys", "100000"]),
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


class FailedRun(SnaplineError):
    """One side of a pair did not end with a line of figures."""


def figures_of(command: Sequence[str]) -> dict[str, Any]:
    """Run it; the object on its last line, of one query where there are queries. Raises FailedRun."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedRun(f"{shlex.join(command)}: {error}") from None
    lines = ended.stdout.strip().splitlines()
    try:
        figures = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
        raise FailedRun(
            f"{shlex.join(command)} ended with code {ended.returncode} and without figures: {said}"
        ) from None
    queries = figures.get("queries")
    return dict(next(iter(queries.values())) if queries else figures)


def compared(ours: Mapping[str, Any], flink: Mapping[str, Any]) -> dict[str, float]:
    """How many times better ours is, by figure, as far as both sides have it.

    >>> compared({"events_per_s": 30, "checkpoint_ms": {"median": 5}}, {"events_per_s": 10, "checkpoint_ms": {"median": 20}})
    {'events_per_s': 3.0, 'checkpoint_ms': 4.0}
    """
    ratios = {}
    if ours.get("events_per_s") and flink.get("events_per_s"):
        ratios["events_per_s"] = ours["events_per_s"] / flink["events_per_s"]
    if ours.get("cpu_us_per_event") and flink.get("cpu_us_per_event"):
        ratios["cpu_us_per_event"] = flink["cpu_us_per_event"] / ours["cpu_us_per_event"]
    for group, names in (("checkpoint_ms", ("median",)), ("latency_ms", ("p50", "p99", "p999"))):
        for name in names:
            mine, theirs = ((side.get(group) or {}).get(name) for side in (ours, flink))
            if mine and theirs:
                ratios[group if name == "median" else f"{group}.{name}"] = theirs / mine
    return ratios


def run_pairs(case: str, flink: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All pairs of one case: what both sides said, and median, least and greatest ratio."""
    mine, theirs = CASES[case]
    common = ["--seconds", str(options.seconds), "--parallelism", str(options.parallelism)]
    commands = {
        "ours": [sys.executable, "-m", *mine, *common, "--json"],
        "flink": [*flink, *theirs, *common, "--checkpoint-interval-ms", "1000", *WARM_UP],
    }
    said: dict[str, list[dict[str, Any]]] = {side: [] for side in commands}
    for pair in range(options.pairs):
        for side in sorted(commands, reverse=pair % 2 == 0):
            said[side].append(figures_of(commands[side]))
    pairs = [compared(*both) for both in zip(said["ours"], said["flink"], strict=True)]
    ratios = {
        name: {
            "median": round(statistics.median(pair[name] for pair in pairs), 2),
            "min": round(min(pair[name] for pair in pairs), 2),
            "max": round(max(pair[name] for pair in pairs), 2),
        }
        for name in pairs[0]
        if all(name in pair for pair in pairs)
    }
    return {"times_better": ratios, **said}


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
            results[case] = run_pairs(case, shlex.split(options.flink), options)
        except FailedRun as error:
            return fail(error)
        if not options.json:
            report(f"{case}, {options.pairs} pairs", results[case]["times_better"], as_json=False)
    if options.json:
        report("against Flink", {"cases": results, "versions": versions()}, as_json=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
