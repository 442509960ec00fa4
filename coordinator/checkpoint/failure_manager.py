"""When failed checkpoints fail the job.

Decides by reason, kind of snapshot and the count of consecutive failures; knows neither tasks nor time. Mirrors Flink's
CheckpointFailureManager of 1.14 and later. Differs in one point: a synchronous savepoint that was in flight and is lost
always fails the job, whoever lost it (as in 1.11), because its tasks stand still and nobody else would wake them.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.checkpoint.properties import CheckpointProperties
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID

UNLIMITED_TOLERABLE_FAILURES = 2**31 - 1

_COUNTED = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""Every other reason says nothing about whether checkpoints can succeed: refusals, subsumption, shutdown, and failures
that fail their task anyway."""

_MAX_COUNTED_IDS = 1_000
"""Ids remembered so that one checkpoint counts once; far more than can fail between two successes that matter."""


@dataclass(frozen=True, slots=True)
class FailureVerdict:
    """Fail the job; because of this task when there is one."""

    attempt_id: ExecutionAttemptID | None
    detail: str


class CheckpointFailureManager:
    """Counts failed checkpoints in a row, and decides when they fail the job."""

    def __init__(self, tolerable_failures: int) -> None:
        """Raises ValueError for a negative number; UNLIMITED_TOLERABLE_FAILURES counts nothing."""
        if tolerable_failures < 0:
            raise ValueError(f"tolerable checkpoint failures must not be negative: {tolerable_failures}")
        self._tolerable = tolerable_failures
        self._consecutive = 0
        self._counted_ids: dict[CheckpointID, None] = {}
        self._last_succeeded = -1

    def handle_success(self, checkpoint_id: CheckpointID) -> None:
        """A checkpoint completed; failures of older ones do not matter any more."""
        if checkpoint_id > self._last_succeeded:
            self._last_succeeded = checkpoint_id
            self._clear()

    def handle_failure(
        self,
        checkpoint_id: CheckpointID | None,
        properties: CheckpointProperties,
        reason: CheckpointFailureReason,
        attempt_id: ExecutionAttemptID | None,
        detail: str = "",
    ) -> FailureVerdict | None:
        """A checkpoint failed; `checkpoint_id` None: before it had an id. Returns the verdict when the job must
        fail."""
        if properties.is_synchronous:
            if checkpoint_id is None:
                return None
            return self.handle_synchronous_savepoint_failure(reason, detail)
        if properties.is_savepoint and (attempt_id is None or reason.pre_flight):
            return None  # a user's manual action that the coordinator lost: no restart would help
        if reason not in _COUNTED or self._tolerable >= UNLIMITED_TOLERABLE_FAILURES:
            return None
        if checkpoint_id is not None and checkpoint_id <= self._last_succeeded:
            return None
        self._count(checkpoint_id)
        if self._consecutive <= self._tolerable:
            return None
        failures = self._consecutive
        self._clear()
        return FailureVerdict(
            attempt_id=None if reason.pre_flight else attempt_id,
            detail=(
                f"Exceeded checkpoint tolerable failure threshold: {failures} failed in a row, {self._tolerable} are "
                f"tolerated (execution.checkpointing.tolerable-failed-checkpoints). The last one: {reason.message}"
                + (f" {detail}" if detail else "")
            ),
        )

    def handle_synchronous_savepoint_failure(
        self, reason: CheckpointFailureReason, detail: str = ""
    ) -> FailureVerdict | None:
        """Stop-with-savepoint failed. Nothing happens when it was refused before it started."""
        if reason.pre_flight:
            return None
        return FailureVerdict(None, f"Stop with savepoint failed: {reason.message}" + (f" {detail}" if detail else ""))

    def _count(self, checkpoint_id: CheckpointID | None) -> None:
        if checkpoint_id is None:
            self._consecutive += 1
        elif checkpoint_id not in self._counted_ids:
            self._counted_ids[checkpoint_id] = None
            if len(self._counted_ids) > _MAX_COUNTED_IDS:
                del self._counted_ids[next(iter(self._counted_ids))]
            self._consecutive += 1

    def _clear(self) -> None:
        self._consecutive = 0
        self._counted_ids.clear()
