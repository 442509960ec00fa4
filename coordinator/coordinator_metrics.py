"""Which figures a coordinator shows to Prometheus: Flink's, under Flink's names, and what people set alerts on.

Read from the cores when somebody scrapes. Figures of a job carry `job_id` and `job_name`; those of its tasks also
`task_id`, `task_name`, `subtask_index`, `task_attempt_num`, `tm_id` and `host`, gathered from heartbeats, because
executors are hard to scrape themselves. A job that has ended keeps its status, restarts, failures and counts of
checkpoints: an alert on a job that has FAILED needs something to fire on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import pykka

from snapline.coordinator.dispatcher.dispatcher import Dispatcher
from snapline.coordinator.job_registry import JobRegistry, LiveJob
from snapline.coordinator.metric_table import TIMED_STATUSES, sample
from snapline.coordinator.resource.resource_manager import ResourceManager
from snapline.coordinator.rpc import views
from snapline.coordinator.user_metric_samples import (
    LabelledValue,
    counters_of_now,
    families_of,
    task_labels,
    user_values_of,
)
from snapline.dataflow.config import CHECKPOINTING_INTERVAL, Configuration
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.runtime.actor import Query
from snapline.runtime.clock import Clock
from snapline.runtime.metrics import Sample

TIMEOUT_SECONDS = 5.0
NANOS = 1_000_000
"""Nanoseconds of a millisecond: some of Flink's figures are in these."""
ENDED_JOBS_SHOWN = 100
"""The latest ended jobs; a job that ended before them is in the archive only."""

TASK_FIGURES = {
    "records_in": "numRecordsIn",
    "records_out": "numRecordsOut",
    "bytes_in": "numBytesIn",
    "bytes_out": "numBytesOut",
    "busy_ms": "accumulateBusyTimeMs",
    "backpressured_ms": "accumulateBackPressuredTimeMs",
    "idle_ms": "accumulateIdleTimeMs",
    "records_in_per_second": "numRecordsInPerSecond",
    "records_out_per_second": "numRecordsOutPerSecond",
    "busy_ms_per_second": "busyTimeMsPerSecond",
    "backpressured_ms_per_second": "backPressuredTimeMsPerSecond",
    "idle_ms_per_second": "idleTimeMsPerSecond",
    "step_ms": "currentStepDuration",
}
QUEUE_FIGURES = {
    "input_queue.batches": "buffers_inputQueueLength",
    "input_queue.size_bytes": "buffers_inputQueueSize",
    "input_queue.usage": "buffers_inPoolUsage",
    "input_queue.credits": "buffers_inputCredits",
    "output_queue.batches": "buffers_outputQueueLength",
    "output_queue.size_bytes": "buffers_outputQueueSize",
    "output_queue.usage": "buffers_outPoolUsage",
    "output_queue.credits": "buffers_outputCredits",
}
PROCESS_FIGURES = {
    "resident_bytes": "processResidentMemory",
    "cpu_ms_per_second": "processCpuTimeMsPerSecond",
    "threads": "processThreads",
    "open_files": "processOpenFiles",
}


DOWN = (JobStatus.RESTARTING, JobStatus.FAILING)


class CoordinatorMetrics:
    """Reads the figures of one coordinator for Prometheus."""

    def __init__(
        self,
        resource_manager: pykka.ActorRef[Any],
        dispatcher: pykka.ActorRef[Any],
        registry: JobRegistry,
        clock: Clock,
        start_time_ms: int,
    ) -> None:
        self._resource_manager = resource_manager
        self._dispatcher = dispatcher
        self._registry = registry
        self._clock = clock
        self._start_time_ms = start_time_ms

    def samples(self) -> Iterable[Sample]:
        """Everything, as of now. Blocks until the actors have answered."""
        now_ms = self._clock.now_ms()
        jobs = self._registry.live()
        figures: Any = self._resource_manager.ask(Query(_cluster), timeout=TIMEOUT_SECONDS)
        found: list[Sample] = [
            *figures,
            sample("jobmanager", "isLeader", 1),
            sample("jobmanager", "uptime", now_ms - self._start_time_ms),
            sample("jobmanager", "numRunningJobs", len(jobs)),
            sample("jobmanager", "failedJobs", self._registry.failed_jobs),
        ]
        shown = set()
        for job, figures in _ask_all(jobs, lambda job: partial(_job, job, now_ms)):
            found += figures
            shown.add(job.master.job_id)
        for details in self._registry.ended_jobs(ENDED_JOBS_SHOWN):
            if details.overview.job_id not in shown:
                found += _ended_job(details)
        with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout):
            listed: Any = self._dispatcher.ask(Query(Dispatcher.jobs), timeout=TIMEOUT_SECONDS)
            for known in listed:
                if known.job_id not in shown and known.job_id not in self._registry:  # it has no JobMaster: it is held
                    found += _statuses(known.status, {"job_id": known.job_id, "job_name": known.name})
        return found

    def user_families(self) -> list[Any]:
        """Metrics of users' functions, as families for Prometheus. Blocks until the actors have answered."""
        found: list[LabelledValue] = []
        for _, values in _ask_all(self._registry.live(), lambda _: user_values_of):
            found += values
        return families_of(found)


def _ask_all(
    jobs: Iterable[LiveJob], question: Callable[[LiveJob], Callable[[Any], Any]]
) -> Iterator[tuple[LiveJob, Any]]:
    """Each job with its answer, but for those that have ended meanwhile, and those that do not answer: they all have
    the same few seconds, so that none hides the figures of others."""
    until = time.monotonic() + TIMEOUT_SECONDS
    asked: list[tuple[LiveJob, Any]] = []
    for job in jobs:
        with contextlib.suppress(pykka.ActorDeadError):
            asked.append((job, job.actor.ask(Query(question(job)), block=False)))
    for job, answer in asked:
        with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout):
            yield job, answer.get(timeout=max(0.0, until - time.monotonic()))


def _cluster(manager: ResourceManager) -> list[Sample]:
    """Read the figures of the ResourceManager, on its actor."""
    resources = views.required_resources(manager)
    found = [
        sample("jobmanager", "numRegisteredTaskManagers", resources.registered_task_managers),
        sample("jobmanager", "taskSlotsTotal", resources.registered_slots),
        sample("jobmanager", "taskSlotsAvailable", resources.free_slots),
        sample("jobmanager", "taskSlotsRequired", resources.required_slots),
        sample("jobmanager", "rejectedRegistrations", manager.rejections),
        sample("jobmanager", "lostTaskManagers", manager.losses),
    ]
    for managed in manager.task_managers:
        labels = {"tm_id": managed.info.resource_id, "host": managed.info.host}
        found.append(sample("taskmanager", "slots", managed.info.slots, labels))
        found.append(sample("taskmanager", "slotsFree", managed.free, labels))
        process = manager.process_of(managed.info.resource_id)
        if process is not None:
            found.append(sample("taskmanager", "processMemoryGrowth", process.growth.grown_bytes, labels))
            found += [
                sample("taskmanager", name, getattr(process.latest, field), labels)
                for field, name in PROCESS_FIGURES.items()
            ]
    return found


def _job(job: LiveJob, now_ms: int, _core: Any) -> list[Sample]:
    """Read the figures of one job, on the job's actor."""
    return [*_job_figures(job, now_ms), *_task_figures(job, now_ms)]


def _job_figures(job: LiveJob, now_ms: int) -> Iterator[Sample]:
    graph = job.master.scheduler.graph
    labels = {"job_id": job.master.job_id, "job_name": graph.job_graph.name}
    snapshot = job.statistics()
    counts, status, since = snapshot.counts, job.master.status, graph.status_since_ms
    last = snapshot.latest_completed
    figures: dict[str, float] = {
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "totalNumberOfCheckpoints": counts.total,
        "numRestarts": job.master.scheduler.restarts,
        "uptime": now_ms - since.get(status, now_ms) if status is JobStatus.RUNNING else 0,
        "downtime": now_ms - down_since_ms(status, since, now_ms),
        **{
            f"{each.value.lower()}Time": now_ms - since.get(each, now_ms) if each is status else 0
            for each in TIMED_STATUSES
        },
    }
    if last is not None or Configuration(graph.job_graph.configuration).get_option(CHECKPOINTING_INTERVAL):
        began_ms = since[JobStatus.CREATED] if last is None else last.end_timestamp_ms
        figures["lastCheckpointAge"] = now_ms - began_ms  # a job that takes none would look as if they had stopped
    if last is not None:
        figures["lastCheckpointDuration"] = last.end_timestamp_ms - last.trigger_timestamp_ms
        figures["lastCheckpointSize"] = last.totals.checkpointed_size_bytes
        figures["lastCheckpointFullSize"] = last.totals.state_size_bytes
        figures["lastCheckpointProcessedData"] = last.totals.processed_data_bytes
        figures["lastCheckpointPersistedData"] = last.totals.persisted_data_bytes
        figures["lastCompletedCheckpointId"] = last.checkpoint_id
    if snapshot.latest_restored is not None:
        figures["lastCheckpointRestoreTimestamp"] = snapshot.latest_restored.restore_timestamp_ms
    yield from _statuses(status, labels)
    for name, value in figures.items():
        yield sample("jobmanager_job", name, value, labels)
    for uid in graph.job_graph.operator_uids:
        failures = job.master.scheduler.operator_failures[uid]
        yield sample("jobmanager_job", "numOperatorFailures", failures, {**labels, "operator_uid": uid})


def down_since_ms(status: JobStatus, since_ms: Mapping[JobStatus, int], now_ms: int) -> int:
    """When a failure has stopped the job, which has not run since; now for a job that is not down."""
    if status not in DOWN:
        return now_ms
    ran_ms = since_ms.get(JobStatus.RUNNING, 0)
    downs = [at_ms for each, at_ms in since_ms.items() if each in DOWN and at_ms >= ran_ms]
    return min(downs, default=since_ms[status])  # none, where the clock was put back


def _statuses(now: JobStatus, labels: dict[str, str]) -> Iterator[Sample]:
    for status in JobStatus:
        yield sample("jobmanager_job", f"{status.value.lower()}State", float(now is status), labels)


def _ended_job(details: pb.JobDetails) -> Iterator[Sample]:
    overview, counts = details.overview, details.checkpoint_counts
    labels = {"job_id": overview.job_id, "job_name": overview.name}
    yield from _statuses(decode_job_status(overview.status), labels)
    yield sample("jobmanager_job", "numRestarts", overview.restarts, labels)
    for uid in (uid for vertex in details.vertices for uid in vertex.operator_uids):
        failures = details.operator_failures.get(uid, 0)
        yield sample("jobmanager_job", "numOperatorFailures", failures, {**labels, "operator_uid": uid})
    yield sample("jobmanager_job", "totalNumberOfCheckpoints", counts.triggered, labels)
    yield sample("jobmanager_job", "numberOfCompletedCheckpoints", counts.completed, labels)
    yield sample("jobmanager_job", "numberOfFailedCheckpoints", counts.failed, labels)


def _task_figures(job: LiveJob, now_ms: int) -> Iterator[Sample]:
    last = job.statistics().latest_completed
    measured = {each[:2]: (each[3], each[5]) for each in last.reports} if last is not None else {}
    for vertex, counters in counters_of_now(job.master):
        labels = task_labels(job.master, vertex, counters.attempt_id)
        for field, name in (*TASK_FIGURES.items(), *QUEUE_FIGURES.items()):
            yield sample("taskmanager_job_task", name, attrgetter(field)(counters), labels)
        if (vertex.vertex_id, vertex.subtask_index) in measured:
            size_bytes, metrics = measured[vertex.vertex_id, vertex.subtask_index]
            figures = {
                "checkpointAlignmentTime": metrics.alignment_duration_ms * NANOS,
                "checkpointStartDelayNanos": metrics.checkpoint_start_delay_ms * NANOS,
                "checkpointStateSize": size_bytes,
            }
            for name, value in figures.items():
                yield sample("taskmanager_job_task", name, value, labels)
        yield sample("taskmanager_job_task", "currentInputWatermark", counters.watermark_ms, labels)
        if MIN_WATERMARK_MS < counters.watermark_ms < MAX_WATERMARK_MS:
            yield sample("taskmanager_job_task", "watermarkLag", now_ms - counters.watermark_ms, labels)
