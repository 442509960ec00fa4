"""Metrics of users' functions, and latencies, as Prometheus is shown them.

Decides names and labels: `snapline_taskmanager_job_task_operator_<name>` with the job, the task, the subtask and the
uid of the operator, as Flink's scope `operator` has them; markers' latencies have a name and the source's uid besides.
What two operators call alike is one family, unless they are of different kinds: then the kind is part of the later
name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.dataflow.api.user_metrics import COUNTER, HISTOGRAM, MetricValue, is_sound
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID
from snapline.dataflow.wire.messages import ExecutionState, TaskMetrics

SCOPE = "snapline_taskmanager_job_task_operator"
LATENCY_NAME = "snapline_taskmanager_job_latency_ms"
"""From the source to the operator, in milliseconds."""
LabelledValue = tuple[Mapping[str, str], MetricValue]
"""The labels of a task, and what one of its metrics holds."""


def user_values_of(master: JobMaster) -> list[LabelledValue]:
    """Read what the functions of one job have measured, on the job's actor."""
    found: list[LabelledValue] = []
    for vertex, counters in counters_of_now(master):
        labels = task_labels(master, vertex, counters.attempt_id)
        found += [(labels, value) for value in counters.user_metrics]
    return found


def counters_of_now(master: JobMaster) -> Iterator[tuple[ExecutionVertexID, TaskMetrics]]:
    """The last counters of each present attempt that has not failed: what one said that was lost with its TaskManager
    would go on as if it still ran, until the job has slots again."""
    for vertex, counters in master.metrics.items():
        execution = master.scheduler.graph.find(counters.attempt_id)
        if execution is not None and execution.state not in (ExecutionState.FAILED, ExecutionState.CANCELED):
            yield vertex, counters


def task_labels(master: JobMaster, vertex: ExecutionVertexID, attempt: ExecutionAttemptID) -> dict[str, str]:
    """What every figure of a subtask is labelled with: job, task, subtask, attempt, and where that runs."""
    graph = master.scheduler.graph
    job_vertex = graph.job_vertices.get(vertex.vertex_id)
    execution = graph.find(attempt)
    managed = master.task_managers.get(execution.resource_id) if execution is not None else None
    return {
        "job_id": str(master.job_id),
        "job_name": graph.job_graph.name,
        "task_id": str(vertex.vertex_id),
        "task_name": job_vertex.name if job_vertex else "",
        "subtask_index": str(vertex.subtask_index),
        "task_attempt_num": str(attempt.attempt_number),
        "tm_id": "" if execution is None else str(execution.resource_id),
        "host": managed.info.host if managed is not None else "",
    }


def families_of(values: Iterable[LabelledValue]) -> list[Any]:
    """Return families of prometheus-client, of the kind that each metric has."""
    kinds: dict[str, str] = {}
    families: dict[str, Any] = {}
    for labels, value in values:
        if not is_sound(value):
            continue
        name = LATENCY_NAME if value.source_uid else f"{SCOPE}_{value.name}"
        if kinds.setdefault(name, value.kind) != value.kind:
            name = f"{name}_{value.kind}"
            kinds.setdefault(name, value.kind)
        named = {**labels, "operator_uid": value.operator_uid}
        if value.source_uid:
            named["source_uid"] = value.source_uid
        family = families.get(name)
        if family is None:
            family = families[name] = _family(value, name, tuple(named))
        _add(family, tuple(named.values()), value)
    return list(families.values())


def _family(value: MetricValue, name: str, labels: tuple[str, ...]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    text = "Time of markers from a source to an operator." if value.source_uid else f"{value.kind} of a user's function"
    if value.kind == HISTOGRAM:
        return HistogramMetricFamily(name, text, labels=labels)
    return (CounterMetricFamily if value.kind == COUNTER else GaugeMetricFamily)(name, text, labels=labels)


def _add(family: Any, labels: tuple[str, ...], value: MetricValue) -> None:
    if value.kind != HISTOGRAM:
        family.add_metric(labels, value.value)
        return
    bounds = ["+Inf" if bound == math.inf else repr(bound).removesuffix(".0") for bound in (*value.bounds, math.inf)]
    family.add_metric(labels, list(dict(zip(bounds, accumulate(value.counts), strict=True)).items()), value.value)
