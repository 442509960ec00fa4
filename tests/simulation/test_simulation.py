"""Whole jobs under faults: the seeds that once found a bug, some others, and the bugs that are planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.canary import CANARIES, planted_options, with_liars, with_stranger
from tests.simulation.drawing import draw_options
from tests.simulation.kept_runs import keep, kept_runs, read_run
from tests.simulation.simulation import run_seed

OTHERS = range(10_000, 10_015)
TRIED_PER_CANARY = 40
LONG = frozenset(("111408", "171", "55", "7906", "80766", "9100071", "9301474"))
"""Of the runs that are kept, those that take seconds: together nearly as long as all others."""
KEPT = [pytest.param(path, id=path.stem, marks=[pytest.mark.rare] * (path.stem in LONG)) for path in kept_runs()]


@pytest.mark.parametrize("path", KEPT)
def test_runs_that_found_bugs_find_none_any_more(path: Path) -> None:
    """Each of them found a defect, of the product unless its file says otherwise."""
    options = read_run(path)
    report = run_seed(options.seed, options=options)

    assert report.ok, report.line()


def test_a_run_that_is_kept_is_read_as_it_was(tmp_path: Path) -> None:
    """The options of many seeds are the same after a way through a file."""
    drawn = [draw_options(seed) for seed in range(200)]

    assert drawn == [read_run(keep(options, "nothing", tmp_path / f"{options.seed}.json")) for options in drawn]


@pytest.mark.parametrize("seed", OTHERS)
def test_seeds(seed: int) -> None:
    """Faults of all kinds, and the output is that of the reference."""
    report = run_seed(seed)

    assert report.ok, report.line()


@pytest.mark.parametrize("seed", range(20_000, 20_010))
def test_nobody_believes_a_task_manager_that_lies(seed: int) -> None:
    """It acknowledges, declines and ends tasks of others, and the run is as honest ones are."""
    report = run_seed(seed, options=with_liars(draw_options(seed)))

    assert report.ok, report.line()


@pytest.mark.parametrize("seed", range(30_000, 30_004))
def test_nobody_believes_a_stranger_that_says_anything(seed: int) -> None:
    """No lie ends a coordinator, completes a checkpoint, deletes a file or changes what a job puts out."""
    report = run_seed(seed, options=with_stranger(draw_options(seed)))

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
        first = CANARIES[name].seed
        seeds = range(first, first + TRIED_PER_CANARY)
        reports = (run_seed(seed, options=planted_options(name, draw_options(seed))) for seed in seeds)
        assert any(not report.ok for report in reports), f"{name}: {CANARIES[name].what}"
