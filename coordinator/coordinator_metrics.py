"""Which figures a coordinator shows to Prometheus: Flink's, under Flink's names.

Read from the cores when somebody scrapes. Figures of a job carry `job_id` and `job_name`; those of its tasks also
`task_id`, `task_name` and `subtask_index`, gathered from heartbeats, because executors are hard to scrape themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pykka

from snapline.coordinator.job_registry import JobRegistry, LiveJob
from snapline.coordinator.resource.resource_manager import ResourceManager
from snapline.coordinator.rpc import views
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.actor import Query
from snapline.runtime.metrics import Sample

TIMEOUT_SECONDS = 5.0

TASK_COUNTERS = {
    "records_in": "numRecordsIn",
    "records_out": "numRecordsOut",
    "bytes_in": "numBytesIn",
    "bytes_out": "numBytesOut",
    "busy_ms": "accumulateBusyTimeMs",
    "backpressured_ms": "accumulateBackPressuredTimeMs",
    "idle_ms": "accumulateIdleTimeMs",
    "watermark_ms": "currentInputWatermark",
}


class CoordinatorMetrics:
    """Reads the figures of one coordinator for Prometheus."""

    def __init__(self, resource_manager: pykka.ActorRef[Any], registry: JobRegistry) -> None:
        self._resource_manager = resource_manager
        self._registry = registry

    def samples(self) -> Iterable[Sample]:
        """Everything, as of now. Blocks until the actors have answered."""

        def read(manager: ResourceManager) -> Any:
            return views.required_resources(manager)

        resources: Any = self._resource_manager.ask(Query(read), timeout=TIMEOUT_SECONDS)
        jobs = self._registry.live()
        found = [
            Sample("jobmanager", "numRegisteredTaskManagers", resources.registered_task_managers),
            Sample("jobmanager", "taskSlotsTotal", resources.registered_slots),
            Sample("jobmanager", "taskSlotsAvailable", resources.free_slots),
            Sample("jobmanager", "numRunningJobs", len(jobs)),
        ]
        for job in jobs:
            try:
                figures: Any = job.actor.ask(Query(partial(_job, job)), timeout=TIMEOUT_SECONDS)
                found += figures
            except pykka.ActorDeadError:  # it ended meanwhile
                continue
        return found


def _job(job: LiveJob, _core: Any) -> list[Sample]:
    """Read the figures of one job, on the job's actor."""
    return list(_samples_of(job))


def _samples_of(job: LiveJob) -> Iterator[Sample]:
    graph = job.master.scheduler.graph
    labels = {"job_id": job.master.job_id, "job_name": graph.job_graph.name}
    snapshot = job.statistics()
    counts = snapshot.counts
    figures: dict[str, float] = {
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "totalNumberOfCheckpoints": counts.total,
        "numRestarts": job.master.scheduler.restarts,
    }
    last = snapshot.latest_completed
    if last is not None:
        figures["lastCheckpointDuration"] = last.end_timestamp_ms - last.trigger_timestamp_ms
        figures["lastCheckpointSize"] = figures["lastCheckpointFullSize"] = last.totals.state_size_bytes
        figures["lastCheckpointProcessedData"] = last.totals.processed_data_bytes
        figures["lastCheckpointPersistedData"] = last.totals.persisted_data_bytes
        figures["lastCompletedCheckpointId"] = last.checkpoint_id
    if snapshot.latest_restored is not None:
        figures["lastCheckpointRestoreTimestamp"] = snapshot.latest_restored.restore_timestamp_ms
    for status in JobStatus:
        figures[f"{status.value.lower()}State"] = float(job.master.status is status)
    for name, value in figures.items():
        yield Sample("jobmanager_job", name, value, labels)
    for vertex, counters in job.master.metrics.items():
        job_vertex = graph.job_vertices.get(vertex.vertex_id)
        task = {
            **labels,
            "task_id": vertex.vertex_id,
            "task_name": job_vertex.name if job_vertex else "",
            "subtask_index": str(vertex.subtask_index),
        }
        for field, name in TASK_COUNTERS.items():
            yield Sample("taskmanager_job_task", name, getattr(counters, field), task)
