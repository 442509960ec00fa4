"""A job that follows its slots: the parallelism that it should have, counted in the simplest way."""

from __future__ import annotations

from snapline.dataflow.graph.jobgraph import JobGraph
from tests.simulation.electing_cluster import ElectingCluster


def has_what_slots_allow(submitted: JobGraph, cluster: ElectingCluster) -> bool:
    """Whether the job runs with all slots of all TaskManagers, as far as it has use for them."""
    greatest = max(vertex.parallelism for vertex in submitted.vertices)
    of_greatest = [
        vertex for vertex in submitted.vertices if vertex.parallelism == greatest and vertex.max_parallelism > 1
    ]
    slots = len(cluster.alive()) * cluster.options.slots
    most = min(slots, *(vertex.max_parallelism for vertex in of_greatest))
    allowed = {
        vertex.vertex_id: most if vertex in of_greatest else min(vertex.parallelism, most)
        for vertex in submitted.vertices
    }
    coordinator = cluster.coordinator
    runner = None if coordinator is None else coordinator.runners.get(submitted.job_id)
    core = None if runner is None else runner.core
    if core is None or len(cluster.alive()) != cluster.size:
        return False
    return allowed == {vertex.vertex_id: vertex.parallelism for vertex in core.scheduler.graph.job_graph.vertices}
