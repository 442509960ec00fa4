"""What readers and writers are told of their subtask, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapline.dataflow.api.user_metrics import MetricGroup


@dataclass(frozen=True)
class Place:
    """A SourceContextInfo."""

    subtask_index: int = 0
    parallelism: int = 1
    attempt_number: int = 0
    job_id: str = "job"
    operator_uid: str = "uid"
    execution_attempt: str = "graph_vertex_0_0"
    metrics: MetricGroup = field(default_factory=lambda: MetricGroup("uid"), compare=False)
