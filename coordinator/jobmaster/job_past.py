"""What is remembered of a job: its failures under this leader, and the figures of the leaders before.

Mirrors Flink's RootExceptionHistoryEntry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import ResourceID

EXCEPTION_HISTORY_SIZE = 16
"""Failures that are remembered (Flink: web.exception-history-size)."""


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
    shares_restart: bool = False
    """Whether the job waited for the restart of the one before when it failed."""


def with_entry(history: deque[RootException], entry: RootException) -> deque[RootException]:
    """Return the history with the entry. In place of one too many goes the oldest that shares its restart with another,
    so that what began it stays; else the oldest."""
    kept = deque(history)
    if len(kept) >= EXCEPTION_HISTORY_SIZE:
        kept.remove(next((each for each in kept if each.shares_restart), kept[0]))
    kept.append(entry)
    return kept
