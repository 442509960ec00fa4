"""Figures of a job for its program: `job.metrics()`. Read off what the coordinator says of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snapline.dataflow.api.user_metrics import MetricValue, by_operator, is_sound
from snapline.dataflow.wire.codec import decode
from snapline.protos import client_pb2 as pb

TASK_FIGURES = ("records_in", "records_out", "bytes_in", "bytes_out", "busy_ms", "idle_ms", "backpressured_ms")


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """What a job has counted up to now; attempts that failed do not count.

    >>> class Parse(sl.Function):
    ...     def open(self, context):
    ...         self.rows = context.metrics.counter("rows")
    ...     def __call__(self, row):
    ...         self.rows.inc()
    ...         return row
    >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
    >>> _ = env.from_collection([{"x": 1}, {"x": 2}]).map(Parse(), uid="parse").sink_to(sl_connectors.DiscardingSink())
    >>> job = env.execute_async("parses", local=True)
    >>> _ = job.wait()
    >>> job.metrics().operators["parse"]["rows"]
    2
    """

    tasks: Mapping[str, Mapping[str, int]]
    """The figures of each task: rows and bytes in and out, milliseconds busy, idle and back-pressured, of all its
    subtasks together. Where tasks have one name, the uid of its first operator stands behind that of each."""
    operators: Mapping[str, Mapping[str, Any]]
    """The users' metrics by uid of the operator and name: of a counter the sum over all subtasks, of a gauge the number
    of each, of a histogram count, mean and quantiles; with `metrics.latency.interval` also `latency from SOURCE`, in
    milliseconds."""


def metrics_of(details: pb.JobDetails) -> JobMetrics:
    """Return the figures of a job, from what the coordinator says of it."""
    values = (decode(MetricValue, value) for value in details.metrics)
    names = [vertex.name for vertex in details.vertices]
    return JobMetrics(
        tasks={
            vertex.name if names.count(vertex.name) == 1 else f"{vertex.name} ({vertex.operator_uids[0]})": {
                name: sum(getattr(subtask, name) for subtask in vertex.subtasks) for name in TASK_FIGURES
            }
            for vertex in details.vertices
        },
        operators=by_operator(value for value in values if is_sound(value)),
    )
