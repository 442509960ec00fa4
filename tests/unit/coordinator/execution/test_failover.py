"""FailoverRegions: who restarts with whom."""

from __future__ import annotations

import itertools

from snapline.coordinator.execution.failover import FailoverRegions
from snapline.dataflow.ids import ExecutionVertexID, JobVertexID
from snapline.dataflow.partitioning import Partitioning
from tests.simulation.jobs import edge, job, keyed_job, parallel_job, vertex


def subtask(name: str, index: int) -> ExecutionVertexID:
    return ExecutionVertexID(JobVertexID(name), index)


def test_a_hash_edge_makes_one_region() -> None:
    """Everybody is connected with everybody."""
    regions = FailoverRegions(keyed_job(parallelism=4))

    assert len(regions) == 1
    assert len(regions.tasks_needing_restart([subtask("sink", 3)])) == 12


def test_forward_pipelines_restart_alone() -> None:
    """One region per pipeline."""
    regions = FailoverRegions(parallel_job(parallelism=3))

    assert len(regions) == 3
    assert list(regions.tasks_needing_restart([subtask("sink", 1)])) == [subtask("source", 1), subtask("sink", 1)]


def test_a_rescale_edge_joins_blocks() -> None:
    """4 producers, 2 consumers: two regions of three."""
    graph = job("r", [vertex("a", 4, source=True), vertex("b", 2)], [edge("a", "b", Partitioning.RESCALE)])
    regions = FailoverRegions(graph)

    assert len(regions) == 2
    assert list(regions.tasks_needing_restart([subtask("a", 3)])) == [subtask("a", 2), subtask("a", 3), subtask("b", 1)]


def test_unconnected_parts_of_a_job_do_not_touch_each_other() -> None:
    """Two pipelines in one job."""
    graph = job(
        "two",
        [vertex("a", 2, source=True), vertex("b", 2), vertex("c", 2, source=True), vertex("d", 2)],
        [edge("a", "b", Partitioning.HASH), edge("c", "d", Partitioning.REBALANCE)],
    )
    regions = FailoverRegions(graph)

    assert len(regions) == 2
    assert {v.vertex_id for v in regions.tasks_needing_restart([subtask("d", 0)])} == {"c", "d"}
    assert len(regions.tasks_needing_restart([subtask("d", 0), subtask("a", 1)])) == 8


def test_ten_thousand_subtasks_take_linear_time() -> None:
    """20 vertices of 500, hash edges between them: no pair is looked at."""
    names = [f"v{number}" for number in range(20)]
    graph = job(
        "big",
        [vertex(name, 500) for name in names],
        [edge(a, b, Partitioning.HASH) for a, b in itertools.pairwise(names)],
    )

    assert len(FailoverRegions(graph).tasks_needing_restart([subtask("v7", 3)])) == 10_000
