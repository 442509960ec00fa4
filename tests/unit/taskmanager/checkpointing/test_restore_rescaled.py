"""Crash after crash, each restored at other parallelisms from a checkpoint with data in flight: every row counts
once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from snapline.dataflow.partitioning import Partitioning
from tests.unit.taskmanager.checkpointing.restored_job import check_exactly_once, restore
from tests.unit.taskmanager.checkpointing.small_job import Job, draw_widths

GENERATIONS = 4


def run(seed: int, found: Counter[str], *, edges: tuple[Partitioning, ...] = ()) -> None:
    """Run, crash at any moment (also while a restore is still being worked off), restore, and finish in peace."""
    draw = random.Random(seed)
    job = Job(seed, edges=edges, disturbed=seed % 4 == 0)
    restored_from = None
    for generation in range(GENERATIONS):
        for _ in range(draw.choice((10, 60, 400)) if restored_from else 400):
            job.step()
        completed = job.completed()
        for checkpoint_id in completed:
            job.check_cut(checkpoint_id)
        found.update(job.modes_seen)
        if completed:
            restored_from = (job, completed[-1])
        if restored_from is None:
            continue
        old, checkpoint_id = restored_from
        snapshots = old.snapshots[checkpoint_id].values()
        if any(snapshot.state.inputs or snapshot.state.outputs for snapshot in snapshots):
            found["restored in-flight data"] += 1
        if any(not task.gate.gate.gates[0].is_recovered for task in job.others if task.gate is not None):
            found["crashed during recovery"] += 1
        next_seed = seed * 100 + generation + 1
        job = restore(old, checkpoint_id, next_seed, draw_widths(draw, old.edges))
    job.settle()
    job.check_delivery()
    if restored_from is not None:
        check_exactly_once(job)
        found["restored"] += 1


@pytest.mark.parametrize("block", range(6))
def test_every_row_counts_once_whatever_the_edges_and_parallelisms(block: int) -> None:
    """Ten seeds a block."""
    found: Counter[str] = Counter()
    for seed in range(block * 10, block * 10 + 10):
        run(seed, found)

    assert found["restored"] > 0


def test_hash_edges_with_data_in_flight_on_both_sides() -> None:
    """The matrix in which records were lost elsewhere: rescale, unaligned, crash during recovery."""
    found: Counter[str] = Counter()
    for seed in range(50_000, 50_040):
        run(seed, found, edges=(Partitioning.HASH, Partitioning.HASH))

    assert found["restored in-flight data"] >= 30
    assert found["input in flight"] >= 10
    assert found["crashed during recovery"] >= 3
