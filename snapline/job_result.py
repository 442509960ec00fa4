"""How a job went: what `execute` and the wait for a job return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snapline.dataflow.api.accumulators import AccumulatorValue, results_of
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import decode, decode_job_status
from snapline.protos import client_pb2 as pb


@dataclass(frozen=True, slots=True)
class JobExecutionResult:
    """How a job went (Flink: JobExecutionResult).

    >>> sl.JobExecutionResult("0f3a", "flights", "FINISHED", 1_500, 1, 3, 1_000).summary
    'FINISHED in 1.5 s: 1,000 rows read (those after a restart twice), 3 checkpoints, 1 restarts'
    """

    job_id: JobID
    name: str
    status: str
    duration_ms: int
    restarts: int
    checkpoints_completed: int
    rows_read: int
    """Rows that sources emitted, those read again after restarts included."""
    accumulators: Mapping[str, Any] = field(default_factory=dict)
    """The sums, by name, of what the functions of all subtasks have counted; attempts that failed do not count."""

    @property
    def summary(self) -> str:
        """Return how the job went, in one line."""
        if self.status == "CREATED":
            return f"submitted as {self.job_id}"
        again = " (those after a restart twice)" if self.restarts else ""
        return (
            f"{self.status} in {self.duration_ms / 1000:.1f} s: {self.rows_read:,} rows read{again}, "
            f"{self.checkpoints_completed} checkpoints, {self.restarts} restarts"
        )


def result_of(details: pb.JobDetails, rows_read: int) -> JobExecutionResult:
    """Return how the job went, from what the coordinator says of it."""
    overview = details.overview
    return JobExecutionResult(
        job_id=JobID(overview.job_id),
        name=overview.name,
        status=decode_job_status(overview.status).value,
        duration_ms=max(0, overview.end_time_ms - overview.start_time_ms),
        restarts=overview.restarts,
        checkpoints_completed=details.checkpoint_counts.completed,
        rows_read=rows_read,
        accumulators=results_of(decode(AccumulatorValue, value) for value in details.accumulators),
    )
