"""Another parallelism for a job, as a user would choose it: what is connected by a forward edge keeps it equal."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from snapline.coordinator.execution.execution_graph import with_parallelism
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobVertexID
from snapline.dataflow.partitioning import Partitioning


def draw_rescaled(
    graph: JobGraph, rng: random.Random, most: int, kept: Collection[JobVertexID] = frozenset()
) -> JobGraph:
    """The same job with a parallelism of 1 to `most`, or to its max parallelism. `kept`: vertices that keep theirs,
    with all that is connected to them by forward edges, beside those that can have one subtask only."""
    group: dict[JobVertexID, JobVertexID] = {vertex.vertex_id: vertex.vertex_id for vertex in graph.vertices}
    for edge in graph.edges:
        if edge.partitioning is Partitioning.FORWARD:
            old, new = group[edge.target], group[edge.source]
            group = {vertex: new if head == old else head for vertex, head in group.items()}
    single = [vertex.vertex_id for vertex in graph.vertices if vertex.max_parallelism == 1]
    fixed = {group[vertex] for vertex in (*kept, *single)}
    allowed = dict.fromkeys(group.values(), most)
    for vertex in graph.vertices:
        head = group[vertex.vertex_id]
        allowed[head] = min(allowed[head], vertex.max_parallelism)
    drawn = {head: min(rng.randint(1, most), limit) for head, limit in allowed.items()}
    rescaled = with_parallelism(graph, {v: drawn[head] for v, head in group.items() if head not in fixed})
    submitted = tuple(replace(vertex, submitted_parallelism=0) for vertex in rescaled.vertices)
    return replace(rescaled, vertices=submitted)  # by a user: no leader has rescaled it
