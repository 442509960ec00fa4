"""What is remembered of a job: its failures under this leader, and the figures of the leaders before.

Mirrors Flink's RootExceptionHistoryEntry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import ResourceID


@dataclass(frozen=True, slots=True)
class JobPast:
    """What former leaders of a job have left, so that its figures go on."""

    submitted_ms: int | None = None
    """When the job was submitted; None: now."""
    restarts: int = 0
    operator_failures: Mapping[str, int] = field(default_factory=dict)
    """How often each operator failed its task, by its uid."""


NO_PAST = JobPast()
"""What a job has that no leader has led before."""


@dataclass(frozen=True, slots=True)
class RootException:
    """One entry of the exception history."""

    failure: SerializedFailure
    timestamp_ms: int
    task_name: str = ""
    resource_id: ResourceID = ResourceID("")
    attempt: int = 0
    """Number of the attempt that failed; the first one is 0."""
    number: int = 0
    """Rises by one with each failure of the job under this leader."""
