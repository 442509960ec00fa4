"""From a kill to the first new output."""

from __future__ import annotations

from pathlib import Path

from examples.recovery_times import recoveries


def test_the_first_file_after_the_job_runs_again_counts():
    """Not one that was on its way when the kill came, and not one that came after the next kill."""
    files = {Path("a"): 10.5, Path("b"): 13.0, Path("c"): 12.5, Path("d"): 31.0}

    assert recoveries([10.0, 20.0, 30.0], [1.0, 12.0, 30.5], files) == [(10.0, 2.5), (30.0, 1.0)]


def test_a_job_that_does_not_come_back_has_none():
    """No time is better than a wrong one."""
    assert recoveries([10.0], [1.0], {Path("a"): 11.0}) == []
