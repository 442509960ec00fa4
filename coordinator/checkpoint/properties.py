"""What kind of snapshot it is, who owns it, and when its files may go.

Decides by snapshot type and retention policy alone; knows nothing of any particular checkpoint. Mirrors Flink's
CheckpointProperties and CheckpointRetentionPolicy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.wire.messages import JobStatus


class CheckpointRetentionPolicy(Enum):
    """What becomes of the completed checkpoints when the job ends
    (execution.checkpointing.externalized-checkpoint-retention)."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    RETAIN_ON_FAILURE = "RETAIN_ON_FAILURE"
    NEVER_RETAIN_AFTER_TERMINATION = "NEVER_RETAIN_AFTER_TERMINATION"


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """Properties of one snapshot, fixed when it is requested."""

    snapshot_type: SnapshotType
    forced: bool
    """Ignores the limit of concurrent checkpoints."""
    discard_on_subsumed: bool
    discard_on_finished: bool
    discard_on_canceled: bool
    discard_on_failed: bool
    discard_on_suspended: bool
    is_unclaimed: bool = False
    """A snapshot that the job was restored from without owning it (NO_CLAIM): never deleted, and the next checkpoint
    must not refer to its files."""

    @property
    def is_savepoint(self) -> bool:
        """Return whether the snapshot is a savepoint, which belongs to the user."""
        return self.snapshot_type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Return whether the job stops with this savepoint."""
        return self.snapshot_type.is_synchronous

    @property
    def can_be_subsumed(self) -> bool:
        """Whether a newer completed checkpoint makes a pending one of this kind pointless."""
        return not self.is_savepoint

    def discard_on(self, status: JobStatus) -> bool:
        """Whether the files go when the job ends with this status."""
        match status:
            case JobStatus.FINISHED:
                return self.discard_on_finished
            case JobStatus.CANCELED:
                return self.discard_on_canceled
            case JobStatus.FAILED:
                return self.discard_on_failed
            case JobStatus.SUSPENDED:
                return self.discard_on_suspended
            case _:
                raise ValueError(f"a checkpoint coordinator does not shut down with job status {status.value}")

    @classmethod
    def for_checkpoint(
        cls, policy: CheckpointRetentionPolicy, snapshot_type: SnapshotType = SnapshotType.CHECKPOINT
    ) -> CheckpointProperties:
        """A checkpoint that the job owns."""
        keep_on_failure = policy is not CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
        keep_on_cancellation = policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
        return cls(
            snapshot_type=snapshot_type,
            forced=False,
            discard_on_subsumed=True,
            discard_on_finished=True,
            discard_on_canceled=not keep_on_cancellation,
            discard_on_failed=not keep_on_failure,
            discard_on_suspended=not keep_on_cancellation,
        )

    @classmethod
    def for_savepoint(
        cls, snapshot_type: SnapshotType = SnapshotType.SAVEPOINT, *, forced: bool = True
    ) -> CheckpointProperties:
        """A savepoint, synchronous or not: only its user deletes it."""
        return cls(snapshot_type, forced, False, False, False, False, False)

    @classmethod
    def for_unclaimed_snapshot(cls, snapshot_type: SnapshotType = SnapshotType.SAVEPOINT) -> CheckpointProperties:
        """A snapshot that the job started from in NO_CLAIM mode."""
        return cls(snapshot_type, False, False, False, False, False, False, is_unclaimed=True)
