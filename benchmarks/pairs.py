"""Two commands that measure the same, in turn on one machine, and the ratios of each pair.

Pairs begin with the one side and with the other in turn, because a machine changes its speed meanwhile.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from snapline.dataflow.errors import SnaplineError

PATIENCE_S = 900.0
"""The bound on one run of either side."""


class FailedRun(SnaplineError):
    """One side of a pair did not end with a line of figures."""


def figures_of(command: Sequence[str], directory: str | None = None) -> dict[str, Any]:
    """Run it, in a directory whose modules come before others if one is given; the object on its last line, of one
    query where there are queries. Raises FailedRun."""
    variables = None if directory is None else {**os.environ, "PYTHONPATH": directory}
    try:
        ended = subprocess.run(
            command, cwd=directory, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
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


def compared(ours: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """How many times better ours is, by figure, as far as both sides have it.

    >>> compared({"events_per_s": 30, "checkpoint_ms": {"median": 5}}, {"events_per_s": 10, "checkpoint_ms": {"median": 20}})
    {'events_per_s': 3.0, 'checkpoint_ms': 4.0}
    """
    ratios = {}
    if ours.get("events_per_s") and other.get("events_per_s"):
        ratios["events_per_s"] = ours["events_per_s"] / other["events_per_s"]
    if ours.get("cpu_us_per_event") and other.get("cpu_us_per_event"):
        ratios["cpu_us_per_event"] = other["cpu_us_per_event"] / ours["cpu_us_per_event"]
    for group, names in (("checkpoint_ms", ("median",)), ("latency_ms", ("p50", "p99", "p999"))):
        for name in names:
            mine, theirs = ((side.get(group) or {}).get(name) for side in (ours, other))
            if mine and theirs:
                ratios[group if name == "median" else f"{group}.{name}"] = theirs / mine
    return ratios


def run_pairs(
    ours: Sequence[str], other: Sequence[str], pairs: int, *, other_directory: str | None = None
) -> dict[str, Any]:
    """What both sides said, and of each figure that every pair has median, least and greatest ratio. Raises
    FailedRun."""
    sides: dict[str, tuple[Sequence[str], str | None]] = {"ours": (ours, None), "other": (other, other_directory)}
    said: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for pair in range(pairs):
        for side in sorted(sides, reverse=pair % 2 == 1):
            said[side].append(figures_of(*sides[side]))
    ratios = [compared(*both) for both in zip(said["ours"], said["other"], strict=True)]
    better = {
        name: {
            "median": round(statistics.median(pair[name] for pair in ratios), 2),
            "min": round(min(pair[name] for pair in ratios), 2),
            "max": round(max(pair[name] for pair in ratios), 2),
        }
        for name in ratios[0]
        if all(name in pair for pair in ratios)
    }
    return {"times_better": better, **said}
