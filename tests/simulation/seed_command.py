"""The command line of a small simulation: seeds one after another, until one contradicts an oracle."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol


class SeededRun(Protocol):
    """What one seed does."""

    @property
    def story(self) -> Sequence[str]:
        """What has happened so far, a line each."""
        ...

    def perform(self) -> object:
        """Go on to the end. Raises what an oracle finds."""
        ...


class CreateRun(Protocol):
    """Makes the run of a seed."""

    def __call__(self, seed: int, *, keep_story: bool) -> SeededRun:
        """`keep_story`: it will be printed."""
        ...


def run_seeds(what: str, all_well: str, create: CreateRun) -> NoReturn:
    """Run what the command line asks for, and end the process. The story of a seed that was asked for alone is printed.
    Raises what a run raises, after its seed was printed."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    is_alone = given.seed is not None
    for seed in [given.seed] if is_alone else range(given.seeds):
        run = create(seed, keep_story=is_alone)
        try:
            run.perform()
        except BaseException:
            print(f"seed {seed}")
            raise
        finally:
            if is_alone:
                print("\n".join(run.story))
    print(f"{1 if is_alone else given.seeds} seeds: {all_well}")
    sys.exit(0)
