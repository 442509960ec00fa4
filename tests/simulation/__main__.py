"""`python -m tests.simulation 42` replays seed 42 and tells its story; `--seeds 2000` runs many and sums up.

`42 --keep "what it found"` writes its options to `kept/42.json`, and `--kept FILE` replays such a file.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulation.canary import CANARIES, planted_options, with_stranger
from tests.simulation.drawing import draw_options
from tests.simulation.kept_runs import keep, read_run
from tests.simulation.options import Options
from tests.simulation.simulation import Report, run_seed


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or that of the first failing seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed and print its story")
    parser.add_argument("--seeds", type=int, help="run so many seeds")
    parser.add_argument("--start", type=int, default=0, help="first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", metavar="FOUND", help="write the options of this seed, and what it found, to kept/")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="replay a run that was kept")
    parser.add_argument("--no-faults", action="store_true", help="the same runs without faults")
    parser.add_argument("--stranger", action="store_true", help="with a process that says anything, in each run")
    parser.add_argument("--quiet", action="store_true", help="no story")
    parser.add_argument("--canary", choices=sorted(CANARIES), help="plant a bug; at most --seeds seeds (40) are tried")
    chosen = parser.parse_args(arguments)
    gc.set_threshold(50_000, 20, 20)  # a seed makes many small objects: a tenth less CPU, and more in a large world
    if chosen.canary is not None:
        return _plant(chosen.canary, chosen.start, chosen.seeds or 40)
    if chosen.kept is not None:
        return _replay(read_run(chosen.kept), quiet=chosen.quiet)
    if chosen.seed is not None:
        options = _draw(chosen.seed, faults=not chosen.no_faults, stranger=chosen.stranger)
        if chosen.keep is not None:
            print(keep(options, chosen.keep))
            return 0
        return _replay(options, quiet=chosen.quiet)
    if chosen.seeds is None:
        parser.error("give a seed, or --seeds")
    return _many(chosen.start, chosen.seeds, chosen.jobs, faults=not chosen.no_faults, stranger=chosen.stranger)


def _replay(options: Options, *, quiet: bool) -> int:
    print(options.describe(), flush=True)
    report = run_seed(options.seed, keep_story=not quiet, options=options)
    for line in report.story:
        print(line)
    print(report.line())
    return report.exit_code


def _plant(name: str, start: int, seeds: int) -> int:
    print(f"{name}: {CANARIES[name].what}")
    with CANARIES[name].plant():
        for seed in range(start, start + seeds):
            report = run_seed(seed, options=planted_options(name, draw_options(seed)))
            if not report.ok:
                print(f"caught by seed {seed}, the {seed - start + 1}. that was tried")
                print(report.line())
                return 0
    print(f"not caught by {seeds} seeds")
    return 1


def _draw(seed: int, *, faults: bool, stranger: bool) -> Options:
    options = draw_options(seed, faults=faults)
    return with_stranger(options) if stranger else options


def _one(argument: tuple[int, bool, bool]) -> Report:
    seed, faults, stranger = argument
    return run_seed(seed, options=_draw(seed, faults=faults, stranger=stranger))


def _many(start: int, count: int, jobs: int, *, faults: bool, stranger: bool) -> int:
    begun = time.perf_counter()
    work = [(seed, faults, stranger) for seed in range(start, start + count)]
    failed: list[Report] = []
    totals: Counter[str] = Counter()
    digest = hashlib.blake2b(digest_size=8)
    with ProcessPoolExecutor(jobs) if jobs > 1 else _Here() as pool:
        for report in pool.map(_one, work, chunksize=4):
            digest.update(report.story_hash.encode())
            totals.update(
                checkpoints=report.checkpoints,
                restarts=report.restarts,
                faults=report.faults,
                steps=report.steps,
                adoptions=report.adoptions,
            )
            if not report.ok:
                failed.append(report)
                print(report.line(), flush=True)
    seconds = time.perf_counter() - begun
    print(
        f"{count} seeds from {start} in {seconds:.0f} s ({60 * count / seconds:.0f} a minute, {jobs} processes of "
        f"{os.cpu_count()} cores): {len(failed)} failed; {dict(totals)}; all stories: "
        f"{digest.hexdigest()}"
    )
    if failed:
        print("failing seeds:", " ".join(str(report.seed) for report in failed))
    return failed[0].exit_code if failed else 0


class _Here:
    """One process: this one."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(
        self,
        function: Callable[[tuple[int, bool, bool]], Report],
        work: list[tuple[int, bool, bool]],
        chunksize: int = 1,
    ) -> Iterator[Report]:
        return map(function, work)


if __name__ == "__main__":
    sys.exit(main())
