"""Job graphs for tests of the control plane: shapes, no payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snapline.dataflow.graph.jobgraph import JobEdge, JobGraph, JobVertex, OperatorNode
from snapline.dataflow.ids import JobID, JobVertexID, OperatorID
from snapline.dataflow.partitioning import Partitioning

PERIODIC = {"execution.checkpointing.interval": "500 ms"}
FAST_RESTARTS = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1000",
                 "restart-strategy.fixed-delay.delay": "100 ms"}  # fmt: skip


def vertex(
    name: str, parallelism: int, *, source: bool = False, group: str = "default", max_parallelism: int = 128
) -> JobVertex:
    operator = OperatorNode(
        OperatorID(f"op-{name}"), name, name, b"payload", is_source=source, stateful=True, commits=True
    )
    return JobVertex(JobVertexID(name), name, parallelism, max_parallelism, (operator,), group)


def edge(source: str, target: str, partitioning: Partitioning, target_input: int = 0) -> JobEdge:
    keys = ("key",) if partitioning is Partitioning.HASH else ()
    return JobEdge(
        f"{source}->{target}", JobVertexID(source), OperatorID(f"op-{source}"), JobVertexID(target), target_input,
        partitioning, keys,
    )  # fmt: skip


def job(
    name: str,
    vertices: Sequence[JobVertex],
    edges: Sequence[JobEdge],
    configuration: Mapping[str, str] | None = None,
) -> JobGraph:
    settings = {**PERIODIC, **FAST_RESTARTS} if configuration is None else dict(configuration)
    return JobGraph(JobID(f"job-{name}"), name, tuple(vertices), tuple(edges), settings)


def keyed_job(name: str = "keyed", parallelism: int = 2, configuration: Mapping[str, str] | None = None) -> JobGraph:
    """Source -hash-> window -forward-> sink."""
    return job(
        name,
        [vertex("source", parallelism, source=True), vertex("window", parallelism), vertex("sink", parallelism)],
        [edge("source", "window", Partitioning.HASH), edge("window", "sink", Partitioning.FORWARD)],
        configuration,
    )


def parallel_job(
    name: str = "parallel", parallelism: int = 3, configuration: Mapping[str, str] | None = None
) -> JobGraph:
    """Source -forward-> sink: as many regions as subtasks."""
    return job(
        name,
        [vertex("source", parallelism, source=True), vertex("sink", parallelism)],
        [edge("source", "sink", Partitioning.FORWARD)],
        configuration,
    )
