"""Random interleavings of data, barriers of every kind, aborts, ends and timeouts: completed checkpoints are consistent
cuts, and nothing is lost, doubled or reordered on the way."""

from __future__ import annotations

import pytest

from tests.unit.taskmanager.checkpointing.small_job import Job

STEPS = 500


def run(job: Job) -> Job:
    """Random steps, then rest; every completed checkpoint is checked."""
    for _ in range(STEPS):
        job.step()
    job.settle()
    job.check_delivery()
    for checkpoint_id in job.completed():
        job.check_cut(checkpoint_id)
    return job


@pytest.mark.parametrize("seed", range(80))
def test_alternating_handler_takes_consistent_cuts(seed: int) -> None:
    """Unaligned, aligned with timeout, and savepoints mixed."""
    run(Job(seed))


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_aligner_takes_consistent_cuts_without_channel_state(seed: int) -> None:
    """Aligned only: nothing is in flight in any snapshot."""
    job = run(Job(seed, unaligned=False))

    assert job.modes_seen == set()


@pytest.mark.parametrize("seed", range(4000, 4060))
def test_channels_that_nothing_may_overtake_hold_the_snapshot_back(seed: int) -> None:
    """A broadcast beside a hash edge, say: what the barriers overtook on the other channels is in flight, and nothing
    on these."""
    run(Job(seed, never_overtaken=0.4))


@pytest.mark.parametrize("seed", range(2000, 2010))
def test_cuts_are_consistent_when_ends_abort(seed: int) -> None:
    """The same with checkpoints after the end of tasks switched off."""
    run(Job(seed, checkpoints_after_tasks_finish=False))


@pytest.mark.parametrize("seed", range(3000, 3010))
def test_tracker_delivers_everything_once(seed: int) -> None:
    """At least once after a failure, but exactly once without; cuts are not checked."""
    job = Job(seed, mode="AT_LEAST_ONCE", unaligned=False)
    for _ in range(STEPS):
        job.step()
    job.settle()
    job.check_delivery()


def test_the_harness_reaches_what_it_is_for() -> None:
    """Over some seeds: checkpoints complete, with data in flight on both sides, and some are declined."""
    _assert_reached([run(Job(seed)) for seed in range(5000, 5010)])
    _assert_reached([run(Job(seed, never_overtaken=0.4)) for seed in range(5000, 5010)])


def _assert_reached(jobs: list[Job]) -> None:
    assert sum(len(job.completed()) for job in jobs) >= 15
    assert {mode for job in jobs for mode in job.modes_seen} == {"input in flight", "output in flight"}
    assert any(job.declined for job in jobs)


def test_the_oracle_finds_a_lost_batch() -> None:
    """A canary: an input whose in-flight data is dropped from the snapshot is found."""
    found = 0
    for seed in range(5000, 5010):
        job = Job(seed)
        for _ in range(STEPS):
            job.step()
        job.settle()
        for checkpoint_id in job.completed():
            for snapshot in job.snapshots[checkpoint_id].values():
                if snapshot.state.inputs:
                    object.__setattr__(snapshot.state, "inputs", {})
                    with pytest.raises(AssertionError):
                        job.check_cut(checkpoint_id)
                    found += 1
                    break

    assert found > 0
