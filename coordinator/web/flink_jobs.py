"""Jobs, vertices and subtasks as Flink's REST API shows them: messages of the client service in, Flink's JSON out.

A pure translation: it asks nobody and has no clock. Names of fields, words for states and what stands for "not yet"
(-1, where ours is 0) are Flink's. What Flink says of a JVM and what Snapline does not have is 0 or empty. A job's and a
vertex's id are the same 32 hexadecimal digits in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from snapline.coordinator.checkpoint.statistics.stats_summary import quantile
from snapline.dataflow.api.accumulators import AccumulatorValue, results_of
from snapline.dataflow.config import RESTART_STRATEGY, canonical_key, is_secret
from snapline.dataflow.wire.codec import decode, decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.logs import REDACTED

Json = dict[str, Any]

TASK_STATES = (
    "CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED",
    "RECONCILING",
)  # fmt: skip
"""Flink's ExecutionState; a task of ours is never RECONCILING, its job is."""

ENDED_STATES = frozenset({"FINISHED", "CANCELED", "FAILED"})
DEFAULT_EXCEPTIONS = 16
HIGH_RATIO, LOW_RATIO = 0.5, 0.1
"""Above them back-pressure is called high or low."""
SHIP_STRATEGIES = {job_pb2.PARTITIONING_DEMAND: "CUSTOM"}
RESULTS = {JobStatus.FINISHED: "SUCCEEDED", JobStatus.FAILED: "FAILED", JobStatus.CANCELED: "CANCELED"}


def job_ids(jobs: Iterable[pb.JobOverview]) -> Json:
    """`/jobs`: the ids and statuses of all jobs."""
    return {"jobs": [{"id": job.job_id, "status": status_of(job)} for job in jobs]}


def status_of(job: pb.JobOverview) -> str:
    """The word for a job's status, which is the same in both."""
    return decode_job_status(job.status).value


def has_ended(job: pb.JobOverview) -> bool:
    """Whether the job is in a status that it does not leave."""
    return decode_job_status(job.status).is_globally_terminal


def jobs_overview(jobs: Iterable[pb.JobOverview], now_ms: int) -> Json:
    """`/jobs/overview`: one entry a job, with the number of tasks by state."""
    return {"jobs": [_in_overview(job, now_ms) for job in jobs]}


def _in_overview(job: pb.JobOverview, now_ms: int) -> Json:
    end = job.end_time_ms or -1
    tasks = {state.lower(): job.subtasks_by_state[state] for state in TASK_STATES if state in job.subtasks_by_state}
    return {
        "jid": job.job_id,
        "name": job.name,
        "start-time": job.start_time_ms,
        "end-time": end,
        "duration": _duration(job.start_time_ms, end, now_ms),
        "state": status_of(job),
        "last-modification": job.end_time_ms or job.start_time_ms,
        "tasks": {
            "total": sum(tasks.values()),
            **{state.lower(): tasks.get(state.lower(), 0) for state in TASK_STATES},
        },
        "pending-operators": 0,
    }


def job_details(details: pb.JobDetails, now_ms: int) -> Json:
    """`/jobs/:jobid`: the job with its vertices and its plan."""
    overview = details.overview
    end = overview.end_time_ms or -1
    vertices = [_vertex_summary(vertex, now_ms) for vertex in details.vertices]
    counts = Counter(vertex["status"] for vertex in vertices)
    since = {status.value: details.status_timestamps_ms.get(status.value, 0) for status in JobStatus}
    return {
        "jid": overview.job_id,
        "name": overview.name,
        "isStoppable": False,
        "state": status_of(overview),
        "job-type": "STREAMING",
        "start-time": overview.start_time_ms,
        "end-time": end,
        "duration": _duration(overview.start_time_ms, end, now_ms),
        "maxParallelism": max((vertex.max_parallelism for vertex in details.vertices), default=-1),
        "now": now_ms,
        "timestamps": {"INITIALIZING": overview.start_time_ms, **since},
        "vertices": vertices,
        "status-counts": {state: counts[state] for state in TASK_STATES},
        "pending-operators": 0,
        "plan": job_plan(details)["plan"],
        "stream-graph": {},
    }


def _vertex_summary(vertex: pb.VertexDetails, now_ms: int) -> Json:
    states = Counter(_state(subtask) for subtask in vertex.subtasks)
    start, end = _span(vertex.subtasks)
    return {
        "id": vertex.vertex_id,
        "slotSharingGroupId": vertex.vertex_id,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": _aggregate_state(states, len(vertex.subtasks)),
        "start-time": start,
        "end-time": end,
        "duration": _duration(start, end, now_ms),
        "tasks": {state: states[state] for state in TASK_STATES},
        "metrics": _io_metrics(vertex.subtasks),
    }


def _aggregate_state(states: Mapping[str, int], parallelism: int) -> str:
    """The state of a vertex, from those of its subtasks, in the order in which Flink looks."""
    for state in ("FAILED", "CANCELING", "CANCELED", "INITIALIZING", "RUNNING"):
        if states.get(state):
            return state
    if states.get("FINISHED"):
        return "FINISHED" if states["FINISHED"] == parallelism else "RUNNING"
    return next((state for state in ("DEPLOYING", "SCHEDULED") if states.get(state)), "CREATED")


def vertex_details(vertex: pb.VertexDetails, now_ms: int) -> Json:
    """`/jobs/:jobid/vertices/:vertexid`: the vertex with its subtasks."""
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": now_ms,
        "aggregated": _aggregated(vertex.subtasks, now_ms),
        "subtasks": [subtask_details(subtask, now_ms) for subtask in vertex.subtasks],
    }


def subtask_details(subtask: pb.SubtaskDetails, now_ms: int) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex`: the present attempt of a subtask."""
    start, end = _span([subtask])
    return {
        "subtask": subtask.subtask_index,
        "status": _state(subtask),
        "attempt": subtask.attempt_number,
        "endpoint": subtask.host,
        "host": subtask.host,
        "start-time": start,
        "end-time": end,
        "duration": _duration(start, end, now_ms),
        "metrics": _io_metrics([subtask]),
        "taskmanager-id": subtask.resource_id,
        "status-duration": _state_durations(subtask, now_ms),
        "start_time": start,
        "other-concurrent-attempts": [],
    }


def subtask_times(vertex: pb.VertexDetails, now_ms: int) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/subtasktimes`: when the subtasks entered their states."""
    found = []
    for subtask in vertex.subtasks:
        start, end = _span([subtask])
        times = {state: subtask.state_timestamps_ms.get(state, 0) for state in TASK_STATES}
        duration = _duration(start, end, now_ms)
        found.append(
            {"subtask": subtask.subtask_index, "endpoint": subtask.host, "duration": duration, "timestamps": times}
        )
    return {"id": vertex.vertex_id, "name": vertex.name, "now": now_ms, "subtasks": found}


def vertex_task_managers(vertex: pb.VertexDetails, now_ms: int) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/taskmanagers`: the subtasks by the TaskManager that runs them."""
    by_id: dict[str, list[pb.SubtaskDetails]] = {}
    for subtask in vertex.subtasks:
        by_id.setdefault(subtask.resource_id, []).append(subtask)
    found = []
    for resource_id, here in sorted(by_id.items()):
        states = Counter(_state(subtask) for subtask in here)
        start, end = _span(here)
        found.append(
            {
                "endpoint": here[0].host,
                "status": _aggregate_state(states, len(here)),
                "start-time": start,
                "end-time": end,
                "duration": _duration(start, end, now_ms),
                "metrics": _io_metrics(here),
                "status-counts": {state: states[state] for state in TASK_STATES},
                "taskmanager-id": resource_id or "(unassigned)",
                "aggregated": _aggregated(here, now_ms),
            }
        )
    return {"id": vertex.vertex_id, "name": vertex.name, "now": now_ms, "taskmanagers": found}


def back_pressure(vertex: pb.VertexDetails, now_ms: int) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/backpressure`: how much of the last ten seconds each subtask spent how."""
    subtasks = []
    for subtask in vertex.subtasks:
        ratio = subtask.backpressured_ms_per_second / 1000
        subtasks.append(
            {
                "subtask": subtask.subtask_index,
                "attempt-number": subtask.attempt_number,
                **_level(ratio),
                "ratio": ratio,
                "idleRatio": subtask.idle_ms_per_second / 1000,
                "busyRatio": subtask.busy_ms_per_second / 1000,
                "other-concurrent-attempts": [],
            }
        )
    highest = max((each["ratio"] for each in subtasks), default=0.0)
    return {"status": "ok", **_level(highest), "end-timestamp": now_ms, "subtasks": subtasks}


def _level(ratio: float) -> Json:
    level = "high" if ratio > HIGH_RATIO else "low" if ratio > LOW_RATIO else "ok"
    return {"backpressureLevel": level, "backpressure-level": level}  # Flink has written it either way


def job_plan(details: pb.JobDetails) -> Json:
    """`/jobs/:jobid/plan`: the graph, vertex by vertex with its inputs."""
    nodes = []
    for vertex in details.vertices:
        inputs = [
            {
                "num": number,
                "id": edge.source,
                "ship_strategy": _ship_strategy(edge),
                "exchange": "pipelined_bounded",
                "local_strategy": "",
                "caching": "",
            }
            for number, edge in enumerate(edge for edge in details.edges if edge.target == vertex.vertex_id)
        ]
        node: Json = {
            "id": vertex.vertex_id,
            "parallelism": vertex.parallelism,
            "operator": "",
            "operator_strategy": "",
            "description": vertex.name,
            "optimizer_properties": {},
        }
        nodes.append({**node, "inputs": inputs} if inputs else node)
    plan = {"jid": details.overview.job_id, "name": details.overview.name, "type": "STREAMING", "nodes": nodes}
    return {"plan": plan}


def _ship_strategy(edge: job_pb2.JobEdge) -> str:
    name = job_pb2.Partitioning.Name(edge.partitioning).removeprefix("PARTITIONING_")
    return SHIP_STRATEGIES.get(edge.partitioning, name)


def job_exceptions(details: pb.JobDetails, at_most: int = DEFAULT_EXCEPTIONS) -> Json:
    """`/jobs/:jobid/exceptions`: the latest failures, the newest first."""
    failures = list(details.failures)
    entries = [_exception(entry) for entry in failures[:at_most]]
    newest = failures[0] if failures else None
    return {
        "root-exception": None if newest is None else newest.failure.traceback or newest.failure.summary,
        "timestamp": None if newest is None else newest.timestamp_ms,
        "all-exceptions": [],
        "truncated": len(failures) > at_most,
        "exceptionHistory": {"entries": entries, "truncated": len(failures) > at_most},
    }


def _exception(entry: pb.FailureHistoryEntry) -> Json:
    failure = entry.failure
    return {
        "exceptionName": failure.error_type,
        "stacktrace": failure.traceback or failure.summary,
        "timestamp": entry.timestamp_ms,
        "taskName": entry.task_name or None,
        "endpoint": entry.resource_id or None,
        "location": entry.resource_id or None,
        "taskManagerId": entry.resource_id or None,
        "failureLabels": {
            name: text for name, text in (("operator", failure.operator_uid), ("position", failure.position)) if text
        },
        "concurrentExceptions": [],
    }


def job_config(details: pb.JobDetails) -> Json:
    """`/jobs/:jobid/config`: the settings of the job, secrets masked."""
    settings = dict(details.configuration)
    user = {key: REDACTED if is_secret(key) else value for key, value in sorted(settings.items())}
    execution = {
        "execution-mode": "PIPELINED",
        "restart-strategy": next(
            (text for key, text in settings.items() if canonical_key(key) == RESTART_STRATEGY.key),
            RESTART_STRATEGY.default,
        ),
        "job-parallelism": max((vertex.parallelism for vertex in details.vertices), default=1),
        "object-reuse-mode": False,
        "user-config": user,
    }
    return {"jid": details.overview.job_id, "name": details.overview.name, "execution-config": execution}


def job_accumulators(details: pb.JobDetails) -> Json:
    """`/jobs/:jobid/accumulators`: summed up over the present attempts of all subtasks."""
    found = [decode(AccumulatorValue, value) for value in details.accumulators]
    kinds = {value.name: value.kind for value in details.accumulators}
    values = [
        {"name": name, "type": kinds[name], "value": str(value)} for name, value in sorted(results_of(found).items())
    ]
    return {"job-accumulators": [], "user-task-accumulators": values, "serialized-user-task-accumulators": {}}


def vertex_accumulators(vertex: pb.VertexDetails) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/accumulators`: empty, because accumulators belong to the job as a whole."""
    return {"id": vertex.vertex_id, "user-accumulators": []}


def subtask_accumulators(vertex: pb.VertexDetails) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/subtasks/accumulators`: the subtasks that there are; see above."""
    subtasks = [
        {
            "subtask": subtask.subtask_index,
            "attempt": subtask.attempt_number,
            "endpoint": subtask.host,
            "user-accumulators": [],
        }
        for subtask in vertex.subtasks
    ]
    return {"id": vertex.vertex_id, "parallelism": vertex.parallelism, "subtasks": subtasks}


def attempt_accumulators(subtask: pb.SubtaskDetails) -> Json:
    """`/jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex/attempts/:attempt/accumulators`: empty, as those of a
    vertex are."""
    return {
        "subtask": subtask.subtask_index,
        "attempt": subtask.attempt_number,
        "id": "",
        "user-accumulators": [],
    }


def execution_result(details: pb.JobDetails) -> Json:
    """`/jobs/:jobid/execution-result`: how the job has ended, once it has."""
    overview = details.overview
    if not has_ended(overview):
        return {"status": {"id": "IN_PROGRESS"}}
    result: Json = {
        "id": overview.job_id,
        "application-status": RESULTS.get(decode_job_status(overview.status), "UNKNOWN"),
        "accumulator-results": {},
        "net-runtime": overview.end_time_ms - overview.start_time_ms,
    }
    if overview.status == job_pb2.JOB_STATUS_FAILED and overview.HasField("failure"):  # it may tell of a restart, too
        failure = overview.failure
        result["failure-cause"] = throwable(failure.error_type, failure.traceback or failure.summary)
    return {"status": {"id": "COMPLETED"}, "job-execution-result": result}


def throwable(name: str, text: str) -> Json:
    """A cause as Flink writes it, without the serialized Java object."""
    return {"class": name, "stack-trace": text}


def _state(subtask: pb.SubtaskDetails) -> str:
    return job_pb2.ExecutionState.Name(subtask.state).removeprefix("EXECUTION_STATE_")


def _span(subtasks: Iterable[pb.SubtaskDetails]) -> tuple[int, int]:
    """When the first one was deployed, and when the last one ended; -1: not yet."""
    starts, ends = [], []
    for subtask in subtasks:
        times = subtask.state_timestamps_ms
        start = times.get("DEPLOYING", 0)
        if start:
            starts.append(start)
        state = _state(subtask)
        ends.append(times.get(state, 0) if state in ENDED_STATES else 0)
    return min(starts, default=-1), max(ends) if ends and all(ends) else -1


def _duration(start_ms: int, end_ms: int, now_ms: int) -> int:
    if start_ms <= 0:
        return -1
    return max((end_ms if end_ms > 0 else now_ms) - start_ms, 0)


def _state_durations(subtask: pb.SubtaskDetails, now_ms: int) -> Json:
    """How long the attempt has been in each state, as far as it came; -1: it was not."""
    times = subtask.state_timestamps_ms
    entered = sorted((times[state], n, state) for n, state in enumerate(TASK_STATES) if times.get(state, 0))
    left = [since for since, _, _ in entered[1:]] + [now_ms]
    lasted = {
        state: 0 if state in ENDED_STATES else max(until - since, 0)
        for (since, _, state), until in zip(entered, left, strict=False)  # one that came nowhere has left nothing
    }
    return {state: lasted.get(state, -1) for state in ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")}


def _io_metrics(subtasks: Iterable[pb.SubtaskDetails]) -> Json:
    found = list(subtasks)
    return {
        "read-bytes": sum(subtask.bytes_in for subtask in found),
        "read-bytes-complete": True,
        "write-bytes": sum(subtask.bytes_out for subtask in found),
        "write-bytes-complete": True,
        "read-records": sum(subtask.records_in for subtask in found),
        "read-records-complete": True,
        "write-records": sum(subtask.records_out for subtask in found),
        "write-records-complete": True,
        "accumulated-backpressured-time": sum(subtask.backpressured_ms for subtask in found),
        "accumulated-idle-time": sum(subtask.idle_ms for subtask in found),
        "accumulated-busy-time": float(sum(subtask.busy_ms for subtask in found)),
    }


def _aggregated(subtasks: Sequence[pb.SubtaskDetails], now_ms: int) -> Json:
    """Distributions over the subtasks: of their figures, and of the time that they spent in each state."""
    metrics = [_io_metrics([subtask]) for subtask in subtasks]
    figures = {name: value for name, value in (metrics[0] if metrics else {}).items() if not isinstance(value, bool)}
    durations = [_state_durations(subtask, now_ms) for subtask in subtasks]
    return {
        "metrics": {name: distribution([each[name] for each in metrics]) for name in figures},
        "status-duration": {
            state: distribution([each[state] for each in durations if each[state] >= 0])
            for state in (durations[0] if durations else ())
        },
    }


def distribution(values: Iterable[float]) -> Json:
    """Least, greatest, mean and quantiles, as Flink names them; all 0 for none."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("min", "max", "avg", "p50", "p90", "p95", "p99", "p999"), 0)
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "avg": int(sum(ordered) / len(ordered)),
        **{name: quantile(ordered, part) for name, part in quantiles.items()},
    }
