"""The parallelism that slots allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapline.coordinator.execution.execution_graph import with_parallelism
from snapline.coordinator.execution.reactive import ReactiveParallelism
from snapline.dataflow.partitioning import Partitioning
from tests.simulation.jobs import edge, job, vertex


def graph(*vertices):
    return job("j", [replace(one, max_parallelism=128) for one in vertices], [], {})


def found(reactive: ReactiveParallelism, slots: int) -> list[int] | None:
    parallelism = reactive.of(slots)
    return None if parallelism is None else list(parallelism.values())


def test_vertices_with_the_greatest_parallelism_follow_the_slots() -> None:
    """Others keep theirs, as far as it goes."""
    reactive = ReactiveParallelism(graph(vertex("source", 4, source=True), vertex("sums", 4), vertex("sink", 2)))
    assert reactive.slots_wanted == 128
    assert [found(reactive, slots) for slots in (0, 1, 3, 500)] == [None, [1, 1, 1], [3, 3, 2], [128, 128, 2]]


def test_who_follows_is_read_from_what_was_submitted() -> None:
    """Not from the parallelism that a former leader gave the job."""
    submitted = graph(vertex("source", 4, source=True), vertex("sums", 4), vertex("sink", 2))
    scaled_down = with_parallelism(submitted, ReactiveParallelism(submitted).of(1) or {})
    assert {one.parallelism for one in scaled_down.vertices} == {1}
    assert found(ReactiveParallelism(scaled_down), 3) == [3, 3, 2]


def test_slot_sharing_groups_need_slots_of_their_own() -> None:
    """What is left over is not used."""
    apart = replace(vertex("sums", 2), slot_sharing_group="apart")
    reactive = ReactiveParallelism(graph(vertex("source", 2, source=True), apart))
    assert [found(reactive, slots) for slots in (1, 2, 3, 4)] == [None, [1, 1], [1, 1], [2, 2]]


@pytest.mark.parametrize("most", [1, 7])
def test_max_parallelism_is_the_bound(most: int) -> None:
    """Of the vertices that follow; the state cannot be spread further."""
    one = replace(vertex("source", 1, source=True), max_parallelism=most)
    reactive = ReactiveParallelism(job("j", [one], [], {}))
    assert (reactive.slots_wanted, found(reactive, 100)) == (most, [most])


def test_a_vertex_that_has_one_subtask_only_holds_nobody_back() -> None:
    """The committer of a sink that commits together is such, also in a job that was submitted with parallelism 1."""
    committer = replace(vertex("committer", 1), max_parallelism=1)
    reactive = ReactiveParallelism(job("j", [vertex("source", 1, source=True), committer], [], {}))
    assert (reactive.slots_wanted, found(reactive, 5)) == (128, [5, 1])


def test_two_vertices_that_a_forward_edge_ties_together_go_no_further_than_the_narrower_one() -> None:
    """With more slots than its max parallelism the JobMaster broke each time, and the job failed."""
    narrow = replace(vertex("narrow", 1), max_parallelism=3)
    reactive = ReactiveParallelism(
        job(
            "j",
            [vertex("source", 1, source=True), vertex("wide", 1), narrow, vertex("sink", 1)],
            [
                edge("source", "wide", Partitioning.HASH),
                edge("wide", "narrow", Partitioning.FORWARD),
                edge("narrow", "sink", Partitioning.FORWARD),
            ],
            {},
        )
    )
    assert (reactive.slots_wanted, found(reactive, 5)) == (3, [3, 3, 3, 3])

    alone = replace(vertex("alone", 1), max_parallelism=1)
    reactive = ReactiveParallelism(
        job("j", [vertex("source", 1, source=True), alone], [edge("source", "alone", Partitioning.FORWARD)], {})
    )
    assert (reactive.slots_wanted, found(reactive, 5)) == (1, [1, 1])


def test_a_job_asks_for_no_more_slots_than_its_subtasks_may_be() -> None:
    """One with the greatest max parallelism and five vertices asked for more than a job may have, and failed."""
    vertices = [vertex("source", 1, source=True), *(vertex(f"map {number}", 1) for number in range(4))]
    reactive = ReactiveParallelism(job("j", [replace(one, max_parallelism=32_768) for one in vertices], [], {}))
    assert reactive.slots_wanted == 26_214
    assert found(reactive, 40_000) == [26_214] * 5
