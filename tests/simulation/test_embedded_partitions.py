"""Partitions of resumable functions under faults: some seeds of the simulator, and mistakes that its oracles must
find."""

from __future__ import annotations

from snapline.embed.partition_log import PartitionLog, ResumableError
from snapline.embed.partition_run import PartitionRun
from snapline.testing.simulated.world import Violation
from tests.simulation.embedded_partitions import Run

SEEDS = range(25)


def test_attempts_that_fail_leave_the_output_as_it_is():
    """They stall, die, run beside each other, and their storage refuses, does not answer, or takes a file twice."""
    for seed in SEEDS:
        Run(seed).perform()


def found():
    """Whether some seed contradicts an oracle."""
    for seed in SEEDS:
        try:
            Run(seed).perform()
        except (Violation, ResumableError):
            return True
    return False


def test_a_checkpoint_without_its_output_is_found(monkeypatch):
    """Output that is not written before the checkpoint that covers it is lost with the attempt."""
    monkeypatch.setattr(PartitionRun, "_write_pending", lambda self: None)
    assert found()


def test_a_partition_that_does_not_go_on_from_its_furthest_checkpoint_is_found(monkeypatch):
    """One that begins anew gives the same output, and does its work twice."""
    monkeypatch.setattr(PartitionLog, "latest", lambda self: None)
    assert found()


def test_state_that_does_not_fit_the_position_is_found(monkeypatch):
    """A function that goes on with another state gives other output."""
    monkeypatch.setattr(PartitionRun, "_checked_state", lambda self: {"total": 0})
    assert found()
