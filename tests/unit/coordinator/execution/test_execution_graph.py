"""ExecutionGraph: legal transitions, counts, new attempts, graphs that cannot run."""

from __future__ import annotations

import itertools

import pytest

from snapline.coordinator.execution.execution_graph import (
    EXECUTION_TRANSITIONS,
    JOB_STATUS_TRANSITIONS,
    ExecutionGraph,
    check_job_graph,
)
from snapline.dataflow.ids import ExecutionVertexID, JobVertexID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from snapline.runtime.cores.machine import InvariantViolation
from tests.simulation.jobs import edge, job, keyed_job, vertex

SOURCE_0 = ExecutionVertexID(JobVertexID("source"), 0)


def graph() -> ExecutionGraph:
    return ExecutionGraph(keyed_job(parallelism=2), "graph", 0)


def walk(of: ExecutionGraph, subtask: ExecutionVertexID, *states: ExecutionState) -> None:
    for state in states:
        of.transition(of.current(subtask), state, 1)


def test_every_subtask_begins_with_attempt_0() -> None:
    """One CREATED execution per subtask, in topological order."""
    created = graph()

    assert [str(e.attempt_id) for e in created.executions] == [
        "graph_source_0_0", "graph_source_1_0", "graph_window_0_0", "graph_window_1_0", "graph_sink_0_0", "graph_sink_1_0",
    ]  # fmt: skip
    assert created.count(ExecutionState.CREATED) == len(created) == 6
    assert created.task_name(SOURCE_0) == "source (1/2)"


@pytest.mark.parametrize(("state", "target"), list(itertools.product(ExecutionState, ExecutionState)))
def test_an_attempt_moves_along_its_table_only(state: ExecutionState, target: ExecutionState) -> None:
    """Whatever the table does not name is a broken invariant, and changes nothing."""
    of = graph()
    execution = of.current(SOURCE_0)
    of._count[execution.state] -= 1
    of._count[state] += 1
    execution.state = state

    if target in EXECUTION_TRANSITIONS[state]:
        of.transition(execution, target, 5)
        assert (execution.state, execution.state_since_ms) == (target, 5)
    else:
        with pytest.raises(InvariantViolation, match="cannot go from"):
            of.transition(execution, target, 5)
        assert execution.state is state


def test_the_tables_name_every_state() -> None:
    """No state is forgotten, and nothing follows a terminal one."""
    assert set(EXECUTION_TRANSITIONS) == set(ExecutionState)
    assert set(JOB_STATUS_TRANSITIONS) == set(JobStatus)
    assert all(not EXECUTION_TRANSITIONS[state] for state in ExecutionState if state.is_terminal)
    assert all(not JOB_STATUS_TRANSITIONS[status] for status in JobStatus if status.is_globally_terminal)


def test_a_job_does_not_skip_failing() -> None:
    """RUNNING -> FAILED is not a way."""
    of = graph()
    of.transition_job(JobStatus.RUNNING, 1)

    with pytest.raises(InvariantViolation, match="from RUNNING to FAILED"):
        of.transition_job(JobStatus.FAILED, 2)


def test_counts_answer_for_the_whole_job() -> None:
    """all_running_or_finished and all_finished follow the last subtask."""
    of = ExecutionGraph(job("one", [vertex("source", 1, source=True)], []), "graph", 0)
    walk(of, SOURCE_0, ExecutionState.SCHEDULED, ExecutionState.DEPLOYING, ExecutionState.INITIALIZING)
    assert (of.all_running_or_finished, of.all_finished) == (False, False)
    walk(of, SOURCE_0, ExecutionState.RUNNING)
    assert (of.all_running_or_finished, of.all_finished) == (True, False)
    walk(of, SOURCE_0, ExecutionState.FINISHED)
    assert (of.all_finished, of.all_terminal) == (True, True)


def test_a_new_attempt_replaces_one_that_is_over() -> None:
    """The old id is not current any more; a living attempt cannot be replaced."""
    of = graph()
    old = of.current(SOURCE_0).attempt_id
    with pytest.raises(InvariantViolation, match="is still CREATED"):
        of.reset_for_new_execution([SOURCE_0], 1)
    walk(of, SOURCE_0, ExecutionState.CANCELED)
    of.reset_for_new_execution([SOURCE_0], 7)

    assert of.find(old) is None
    assert of.current(SOURCE_0).attempt_id == old._replace(attempt_number=1)
    assert of.count(ExecutionState.CREATED) == 6


def test_a_rescaled_graph_has_attempts_that_never_were() -> None:
    """Attempt numbers go on from the highest; the status stays."""
    of = graph()
    of.transition_job(JobStatus.RUNNING, 1)
    of.transition_job(JobStatus.RESTARTING, 2)
    walk(of, SOURCE_0, ExecutionState.CANCELED)
    of.reset_for_new_execution([SOURCE_0], 3)
    rescaled = of.rescaled({JobVertexID("source"): 3}, 9)

    assert len(rescaled) == 7
    assert {e.attempt_id.attempt_number for e in rescaled.executions} == {2}
    assert rescaled.status is JobStatus.RESTARTING


def test_a_snapshot_fixes_the_max_parallelism() -> None:
    """Vertex and graph agree."""
    of = graph()
    of.use_max_parallelism({JobVertexID("window"): 64})

    assert of.job_vertices[JobVertexID("window")].max_parallelism == 64
    assert [v.max_parallelism for v in of.job_graph.vertices] == [128, 64, 128]


FORWARD = Partitioning.FORWARD


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (job("x", [], []), "has no vertices"),
        (job("x", [vertex("a", 0)], []), "parallelism 0 does not lie between 1"),
        (job("x", [vertex("a", 9, max_parallelism=8)], []), "the max parallelism 8"),
        (job("x", [vertex("a", 1, max_parallelism=32_769)], []), "between 1 and 32768, not 32769"),
        (
            job("x", [vertex(name, 32_768, max_parallelism=32_768) for name in "abcde"], []),
            "job 'x' has 163840 subtasks, and a coordinator takes 131072 at most",
        ),
        (job("\x1b[2J", [vertex("a", 1)], []), "characters that cannot be printed"),
        (job("x" * 10_001, [vertex("a", 1)], []), "or more than 10000"),
        (job("x", [vertex("a", 1), vertex("a", 1)], []), "two vertices have the id a"),
        (job("x", [vertex("a", 1)], [edge("a", "b", FORWARD)]), "'a->b' connects a vertex that is not in the job"),
        (job("x", [vertex("a", 1), vertex("b", 1)], [edge("b", "a", FORWARD)]), "goes backwards"),
        (job("x", [vertex("a", 1), vertex("b", 2)], [edge("a", "b", FORWARD)]), "give both the same, or rebalance"),
        (
            job("x", [vertex("a", 1), vertex("b", 1)], [edge("a", "b", FORWARD), edge("a", "b", FORWARD)]),
            "two edges have the id 'a->b'",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused(graph, message: str) -> None:
    """The error names the culprit."""
    with pytest.raises(ValueError, match=message):
        check_job_graph(graph)
