"""Adapter: scenarios of kind `checkpoint_plan` against snapline.coordinator.checkpoint.checkpoint_plan."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.checkpoint_plan import DefaultCheckpointPlanCalculator, PlanRefused
from snapline.coordinator.checkpoint.events import ExecutionChange
from snapline.coordinator.checkpoint.executions import ExecutionTracker
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex, OperatorNode
from snapline.dataflow.ids import ExecutionAttemptID, JobVertexID, OperatorID
from snapline.dataflow.partitioning import Partitioning
from tests.conformance.kinds.properties import state_of
from tests.conformance.replay import ANY, difference

PATTERNS = {"all_to_all": Partitioning.HASH, "pointwise": Partitioning.RESCALE}


def _by_vertex(attempts: tuple[ExecutionAttemptID, ...]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for attempt in attempts:
        found.setdefault(int(attempt.vertex_id), []).append(attempt.subtask_index)
    return found


def _answer(config: dict[str, Any]) -> dict[str, Any]:
    vertices, changes = [], []
    for number, vertex in enumerate(config["vertices"]):
        vertex_id = JobVertexID(str(number))
        node = OperatorNode(OperatorID(f"op{number}"), f"op{number}", f"op{number}", b"")
        vertices.append(JobVertex(vertex_id, f"v{number}", vertex["parallelism"], 128, (node,)))
        for subtask in range(vertex["parallelism"]):
            state = vertex.get("state", "RUNNING")
            if isinstance(state, dict):
                state = state.get(subtask, "RUNNING")
            if subtask in vertex.get("finished", ()):
                state = "FINISHED"
            if state != "NONE":
                attempt = ExecutionAttemptID("graph", vertex_id, subtask, 0)
                changes.append(ExecutionChange(attempt, state_of(state)))
    edges = [
        JobEdge(
            f"e{number}",
            JobVertexID(str(edge["source"])),
            OperatorID(f"op{edge['source']}"),
            JobVertexID(str(edge["target"])),
            0,
            PATTERNS[edge["pattern"]],
        )
        for number, edge in enumerate(config.get("edges", ()))
    ]
    tracker = ExecutionTracker(vertices, edges)
    tracker.apply(changes)
    plan = DefaultCheckpointPlanCalculator().calculate(tracker)
    if isinstance(plan, PlanRefused):
        return {"error": "NOT_ALL_REQUIRED_TASKS_RUNNING"}
    return {
        "error": None,
        "trigger": _by_vertex(plan.tasks_to_trigger),
        "wait_for": _by_vertex(plan.tasks_to_wait_for),
        "fully_finished": sorted(int(vertex_id) for vertex_id in plan.fully_finished_vertices),
    }


def replay(scenario: dict[str, Any]) -> list[str]:
    """One plan per step."""
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = _answer(scenario["config"])
        for key, expected in step.get("expect", {}).items():
            if key == "error" and isinstance(expected, bool):
                expected = "NOT_ALL_REQUIRED_TASKS_RUNNING" if expected else None
            if isinstance(expected, dict):
                expected = {int(vertex): sorted(subtasks) for vertex, subtasks in expected.items() if subtasks}
            if expected not in (ANY, got.get(key)):
                failures.append(difference(number, key, expected, got.get(key)))
    return failures
