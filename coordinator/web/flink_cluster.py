"""The cluster and its metrics as Flink's REST API shows them; a pure translation like that of jobs.

Metrics have Flink's names, and values are texts, as Flink gives them. Without `get` the names alone are listed.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping
from operator import attrgetter

from snapline.coordinator.metric_table import TIMED_STATUSES
from snapline.coordinator.web.flink_jobs import Json, has_ended, status_of
from snapline.dataflow.config import is_secret
from snapline.protos import client_pb2 as pb
from snapline.protos import cluster_pb2
from snapline.runtime.logs import REDACTED

Figures = Mapping[str, float | str]

NOT_YET = -1
"""A figure of a checkpoint, where there is none."""
REFRESH_INTERVAL_MS = 3_000
AGGREGATIONS = ("min", "max", "avg", "sum", "skew")
SUBTASK_FIGURES = {
    name: attrgetter(field)
    for name, field in {
        "numRecordsIn": "records_in",
        "numRecordsOut": "records_out",
        "numBytesIn": "bytes_in",
        "numBytesOut": "bytes_out",
        "numRecordsInPerSecond": "records_in_per_second",
        "numRecordsOutPerSecond": "records_out_per_second",
        "busyTimeMsPerSecond": "busy_ms_per_second",
        "backPressuredTimeMsPerSecond": "backpressured_ms_per_second",
        "idleTimeMsPerSecond": "idle_ms_per_second",
        "accumulateBusyTimeMs": "busy_ms",
        "accumulateBackPressuredTimeMs": "backpressured_ms",
        "accumulateIdleTimeMs": "idle_ms",
        "currentInputWatermark": "watermark_ms",
        "buffers.inputQueueLength": "input_queue.batches",
        "buffers.inputQueueSize": "input_queue.size_bytes",
        "buffers.inPoolUsage": "input_queue.usage",
        "buffers.inputCredits": "input_queue.credits",
        "buffers.outputQueueLength": "output_queue.batches",
        "buffers.outputQueueSize": "output_queue.size_bytes",
        "buffers.outPoolUsage": "output_queue.usage",
        "buffers.outputCredits": "output_queue.credits",
    }.items()
}
NO_RESOURCES: Json = {
    "cpuCores": 0.0,
    "taskHeapMemory": 0,
    "taskOffHeapMemory": 0,
    "managedMemory": 0,
    "networkMemory": 0,
    "extendedResources": {},
}
MEMORY_PARTS = (
    "frameworkHeap", "taskHeap", "frameworkOffHeap", "taskOffHeap", "networkMemory", "managedMemory", "jvmMetaspace",
    "jvmOverhead", "totalFlinkMemory", "totalProcessMemory",
)  # fmt: skip
JVM_FIGURES = (
    "heapUsed", "heapCommitted", "heapMax", "nonHeapUsed", "nonHeapCommitted", "nonHeapMax", "directCount", "directUsed",
    "directMax", "mappedCount", "mappedUsed", "mappedMax", "nettyShuffleMemorySegmentsAvailable",
    "nettyShuffleMemorySegmentsUsed", "nettyShuffleMemorySegmentsTotal", "nettyShuffleMemoryAvailable",
    "nettyShuffleMemoryUsed", "nettyShuffleMemoryTotal",
)  # fmt: skip


class BadParameter(ValueError):
    """A parameter of a request cannot be understood; the text says which and why."""


def overview(cluster: pb.ClusterOverview, jobs: Iterable[pb.JobOverview]) -> Json:
    """`/overview`: TaskManagers, slots, and jobs by what has become of them."""
    found = list(jobs)
    ended = [status_of(job) for job in found if has_ended(job)]
    return {
        "taskmanagers": cluster.task_managers,
        "taskmanagers-blocked": 0,
        "slots-total": cluster.slots,
        "slots-available": cluster.free_slots,
        "slots-free-and-blocked": 0,
        "jobs-running": len(found) - len(ended),
        "jobs-finished": ended.count("FINISHED"),
        "jobs-cancelled": ended.count("CANCELED"),
        "jobs-failed": ended.count("FAILED"),
        "flink-version": f"snapline-{cluster.version}",
        "flink-commit": "",
    }


def dashboard_configuration(version: str) -> Json:
    """`/config`: what a user interface of Flink asks first."""
    return {
        "refresh-interval": REFRESH_INTERVAL_MS,
        "timezone-name": "UTC",
        "timezone-offset": 0,
        "flink-version": f"snapline-{version}",
        "flink-revision": "",
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": False, "web-history": False},
    }


def cluster_configuration(settings: Mapping[str, str]) -> list[Json]:
    """`/jobmanager/config`: the settings of the process that answers, secrets masked."""
    return [{"key": key, "value": REDACTED if is_secret(key) else value} for key, value in sorted(settings.items())]


def cluster_figures(cluster: pb.ClusterOverview) -> Figures:
    """The figures of the coordinator, behind `/jobmanager/metrics`."""
    return {
        "numRegisteredTaskManagers": cluster.task_managers,
        "numRunningJobs": cluster.jobs_running,
        "taskSlotsAvailable": cluster.free_slots,
        "taskSlotsTotal": cluster.slots,
        **_process_figures(cluster.process),
    }


def task_managers(found: Iterable[pb.TaskManagerDetails]) -> Json:
    """`/taskmanagers`: all that are registered."""
    return {"taskmanagers": [_task_manager(each) for each in found]}


def task_manager_details(found: pb.TaskManagerDetails, jobs: Iterable[pb.JobDetails]) -> Json:
    """`/taskmanagers/:taskmanagerid`: one of them, with the slots that jobs have there."""
    allocated = []
    for job in jobs:
        by_vertex = [sum(s.resource_id == found.resource_id for s in vertex.subtasks) for vertex in job.vertices]
        slots = max(by_vertex, default=0)  # subtasks of all vertices share slots
        allocated += [{"jobId": job.overview.job_id, "resource": NO_RESOURCES}] * slots
    return {
        **_task_manager(found),
        "allocatedSlots": allocated,
        "metrics": {**dict.fromkeys(JVM_FIGURES, 0), "garbageCollectors": []},
    }


def _task_manager(found: pb.TaskManagerDetails) -> Json:
    port = found.exchange_address.rpartition(":")[2]
    return {
        "id": found.resource_id,
        "path": found.exchange_address,
        "dataPort": int(port) if port.isdecimal() and len(port) <= 5 else -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": found.last_heartbeat_timestamp_ms,
        "slotsNumber": found.slots,
        "freeSlots": found.free_slots,
        "totalResource": NO_RESOURCES,
        "freeResource": NO_RESOURCES,
        "hardware": {"cpuCores": 0, "physicalMemory": 0, "freeMemory": 0, "managedMemory": 0},
        "memoryConfiguration": dict.fromkeys(MEMORY_PARTS, 0),
        "blocked": False,
    }


def task_manager_figures(found: pb.TaskManagerDetails) -> Figures:
    """The figures of one TaskManager, behind `/taskmanagers/:taskmanagerid/metrics`."""
    return {"slots": found.slots, "slotsFree": found.free_slots, **_process_figures(found.process)}


def _process_figures(process: cluster_pb2.ProcessFigures) -> dict[str, float | str]:
    """Flink's names where it means the same, and what only a process without a JVM has."""
    return {
        "Status.JVM.CPU.Load": process.cpu_ms_per_second / 1000,
        "Status.JVM.Threads.Count": process.threads,
        "processResidentMemory": process.resident_bytes,
        "processOpenFiles": process.open_files,
    }


def thread_dump(dump: cluster_pb2.ThreadDump) -> Json:
    """`/taskmanagers/:taskmanagerid/thread-dump`: innermost frame first, as a JVM prints stacks."""
    infos = []
    for stack in dump.stacks:
        frames = "".join(f"\tat {frame}\n" for frame in reversed(stack.frames))
        title = f'"{stack.thread_name}"' + (f" {stack.task_name}" if stack.task_name else "")
        infos.append({"threadName": stack.thread_name, "stringifiedThreadInfo": f"{title}\n{frames}\n"})
    return {"threadInfos": infos}


def job_figures(details: pb.JobDetails, checkpoints: pb.ListCheckpointsResponse, now_ms: int) -> Figures:
    """The figures of one job, behind `/jobs/:jobid/metrics`."""
    counts, since = checkpoints.counts, details.status_timestamps_ms
    status = status_of(details.overview)
    lasts = now_ms - since.get(status, now_ms)
    found: dict[str, float | str] = {
        "uptime": lasts if status == "RUNNING" else 0,
        "downtime": lasts if status in ("RESTARTING", "FAILING") else 0,
        **{f"{each.value.lower()}Time": lasts if status == each.value else 0 for each in TIMED_STATUSES},
        "numRestarts": details.overview.restarts,
        "fullRestarts": details.overview.restarts,
        "totalNumberOfCheckpoints": counts.triggered,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
    }
    last = checkpoints.latest_completed if checkpoints.HasField("latest_completed") else None
    return found | {
        "lastCompletedCheckpointId": NOT_YET if last is None else last.checkpoint_id,
        "lastCheckpointDuration": NOT_YET if last is None else last.end_to_end_duration_ms,
        "lastCheckpointSize": NOT_YET if last is None else last.checkpointed_size_bytes,
        "lastCheckpointFullSize": NOT_YET if last is None else last.state_size_bytes,
        "lastCheckpointProcessedData": NOT_YET if last is None else last.processed_data_bytes,
        "lastCheckpointPersistedData": NOT_YET if last is None else last.persisted_data_bytes,
        "lastCheckpointExternalPath": "n/a" if last is None else last.path,
        "lastCheckpointRestoreTimestamp": checkpoints.restored_timestamp_ms or NOT_YET,
    }


def subtask_figures(subtask: pb.SubtaskDetails) -> Figures:
    """The figures of one subtask, by Flink's names."""
    return {name: figure_of(subtask) for name, figure_of in SUBTASK_FIGURES.items()}


def vertex_figures(vertex: pb.VertexDetails) -> Figures:
    """The figures behind `/jobs/:jobid/vertices/:vertexid/metrics`: those of each subtask, as `3.numRecordsIn`."""
    return {
        f"{subtask.subtask_index}.{name}": value
        for subtask in vertex.subtasks
        for name, value in subtask_figures(subtask).items()
    }


def watermarks(vertex: pb.VertexDetails) -> list[Json]:
    """`/jobs/:jobid/vertices/:vertexid/watermarks`: that of each subtask; the smallest 64-bit number: none yet."""
    return [
        {"id": f"{subtask.subtask_index}.currentInputWatermark", "value": str(subtask.watermark_ms)}
        for subtask in vertex.subtasks
    ]


def chosen(figures: Figures, get: str | None) -> list[Json]:
    """What a path that ends with `/metrics` answers: all names, or the values of those in `get`."""
    if get is None:
        return [{"id": name} for name in sorted(figures)]
    return [{"id": name, "value": str(figures[name])} for name in _listed(get) if name in figures]


def aggregated(members: Iterable[Figures], get: str | None, agg: str | None) -> list[Json]:
    """What a path of several subtasks, jobs or TaskManagers answers: names, or values in all of them taken together.
    Raises BadParameter for an aggregation that there is not."""
    wanted = AGGREGATIONS if agg is None else _listed(agg.lower())
    for name in wanted:
        if name not in AGGREGATIONS:
            raise BadParameter(f"agg = {name!r}: choose from {', '.join(AGGREGATIONS)}")
    by_name: dict[str, list[float]] = {}
    for figures in members:
        for name, value in figures.items():
            if not isinstance(value, str):
                by_name.setdefault(name, []).append(float(value))
    if get is None:
        return [{"id": name} for name in sorted(by_name)]
    found = []
    for name in _listed(get):
        values = by_name.get(name)
        if values:
            results = {
                "min": min(values),
                "max": max(values),
                "avg": sum(values) / len(values),
                "sum": sum(values),
                "skew": _skew(values),
            }
            found.append({"id": name, **{kind: results[kind] for kind in wanted}})
    return found


def _skew(values: list[float]) -> float:
    """How far the values are from their mean, on average, in percent of it: 0 for equal ones, 100 at most."""
    mean = sum(values) / len(values)
    return min(100 * sum(abs(value - mean) for value in values) / len(values) / mean, 100.0) if mean else 0.0


def chosen_subtasks(vertex: pb.VertexDetails, text: str | None) -> list[pb.SubtaskDetails]:
    """The subtasks of the vertex that are in `0,2-5`; None: all. Raises BadParameter."""
    if text is None:
        return list(vertex.subtasks)
    ranges = sorted(map(_range_of, _listed(text)))
    begins = [first for first, _ in ranges]
    ends = list(itertools.accumulate((last for _, last in ranges), max))  # the furthest of all that begin so far
    found = []
    for subtask in vertex.subtasks:
        begun = bisect.bisect_right(begins, subtask.subtask_index)
        if begun and subtask.subtask_index <= ends[begun - 1]:
            found.append(subtask)
    return found


def _range_of(part: str) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise BadParameter(f"subtasks = {part!r}: give numbers and ranges, such as 0,2-5")
    return int(first), int(last if dash else first)


def _listed(text: str) -> list[str]:
    """The parts between commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
