"""Whole jobs under faults: the seeds that once found a bug, some others, and the bugs that are planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.canary import CANARIES, planted_options
from tests.simulation.options import draw_options
from tests.simulation.simulation import run_seed

SEEDS = Path(__file__).with_name("seeds.txt")
OTHERS = range(10_000, 10_030)
TRIED_PER_CANARY = 20


def regression_seeds() -> list[str]:
    """First word of each line that is no comment: the seed, and the generation that it is of."""
    lines = SEEDS.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("seed", regression_seeds())
def test_seeds_that_found_bugs_find_none_any_more(seed: str) -> None:
    """Each of them was a defect, of the product unless it says otherwise."""
    number, _, generation = seed.partition("@")
    report = run_seed(int(number), options=draw_options(int(number), generation=int(generation)))

    assert report.ok, report.line()


@pytest.mark.parametrize("seed", OTHERS)
def test_seeds(seed: int) -> None:
    """Faults of all kinds, and the output is that of the reference."""
    report = run_seed(seed)

    assert report.ok, report.line()


@pytest.mark.parametrize("seed", [3, 10_004])
def test_runs_without_faults_leave_nothing_behind(seed: int) -> None:
    """No file on the disk when the job has finished."""
    report = run_seed(seed, options=draw_options(seed, faults=False))

    assert report.ok, report.line()


@pytest.mark.parametrize("seed", [7, 10_001])
def test_the_same_seed_tells_the_same_story(seed: int) -> None:
    """A run can be replayed."""
    assert run_seed(seed).story_hash == run_seed(seed).story_hash


@pytest.mark.parametrize("name", CANARIES)
def test_planted_bugs_are_caught(name: str) -> None:
    """A simulator that does not find these finds nothing."""
    with CANARIES[name].plant():
        reports = (run_seed(seed, options=planted_options(name, draw_options(seed))) for seed in range(500, 500 + TRIED_PER_CANARY))  # fmt: skip
        assert any(not report.ok for report in reports), f"{name}: {CANARIES[name].what}"
