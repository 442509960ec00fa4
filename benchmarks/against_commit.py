"""Benchmarks of this tree and of another commit, in turn on one machine: whether a change made anything slower.

The other commit is checked out beside this tree for the time, and runs with the packages that this Python has. A ratio
above 1 says that this tree is so many times better: more events, less CPU, shorter checkpoints and latencies.

    python -m benchmarks.against_commit main~20 --case q3 q4 q7 keyed-sum --pairs 2 --seconds 10
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.against_flink import CASES
from benchmarks.cluster import fail, report, versions
from benchmarks.pairs import FailedRun, run_pairs

ROOT = Path(__file__).resolve().parent.parent
CASES_OF_A_CHANGE = ("keyed-sum", "keyed-sum-rows", "windows", "q3", "q4", "q7", "q8", "latency")
"""Exchange, rows, windows, joins and waiting: what a change of the engine may make slower."""


@contextmanager
def checked_out(commit: str) -> Iterator[str]:
    """A directory with the files of the commit, until the end. Raises FailedRun."""
    with tempfile.TemporaryDirectory(prefix="snapline-commit-") as directory:
        tree = str(Path(directory) / "tree")
        _git("worktree", "add", "--quiet", "--detach", tree, commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", tree)


def _git(*arguments: str) -> None:
    ended = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise FailedRun((ended.stderr.strip().splitlines() or [f"git {arguments[0]} failed"])[-1])


def main(arguments: list[str] | None = None) -> int:
    """Run the pairs and print their ratios."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("commit", help="what this tree is compared with")
    cli.add_argument("--case", nargs="+", choices=sorted(CASES), default=CASES_OF_A_CHANGE)
    cli.add_argument("--pairs", type=int, default=2)
    cli.add_argument("--seconds", type=int, default=10)
    cli.add_argument("--parallelism", type=int, default=2)
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    common = ["--seconds", str(options.seconds), "--parallelism", str(options.parallelism), "--json"]
    results = {}
    try:
        with checked_out(options.commit) as other:
            for case in options.case:
                command = [sys.executable, "-m", *CASES[case][0], *common]
                results[case] = run_pairs(command, command, options.pairs, other_directory=other)
                if not options.json:
                    title = f"{case}, {options.pairs} pairs, this tree over {options.commit}"
                    report(title, results[case]["times_better"], as_json=False)
    except FailedRun as error:
        return fail(error)
    if options.json:
        report("against a commit", {"cases": results, "versions": versions()}, as_json=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
