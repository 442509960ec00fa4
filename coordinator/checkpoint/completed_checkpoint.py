"""A checkpoint that every task acknowledged: all that is needed to restore it, and to delete it.

A value. It becomes true once its metadata and pointer are durable, which the coordinator knows, not this file. Mirrors
Flink's CompletedCheckpoint; the in-memory twin of `_metadata` plus what the pointer in the store adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from snapline.coordinator.checkpoint.properties import CheckpointProperties
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.snapshot.handles import CheckpointMetadata, MasterState, OperatorState, SegmentStateHandle


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """One completed checkpoint or savepoint of one job."""

    job_id: JobID
    job_name: str
    checkpoint_id: CheckpointID
    timestamp_ms: int
    """When the checkpoint was triggered, in milliseconds since the epoch."""
    completion_timestamp_ms: int
    """When its last acknowledgement came; restored from `_metadata`: the trigger time."""
    properties: CheckpointProperties
    location: str
    """Directory that holds `_metadata`: `chk-<n>`, relative to the job's checkpoint directory, or an absolute URL."""
    operators: tuple[OperatorState, ...]
    master_states: tuple[MasterState, ...] = ()

    @property
    def metadata(self) -> CheckpointMetadata:
        """Return what is written to the checkpoint's `_metadata` file."""
        return CheckpointMetadata(
            job_id=self.job_id,
            job_name=self.job_name,
            checkpoint_id=self.checkpoint_id,
            timestamp_ms=self.timestamp_ms,
            snapshot_type=self.properties.snapshot_type,
            operators=self.operators,
            master_states=self.master_states,
        )

    @classmethod
    def from_metadata(
        cls, metadata: CheckpointMetadata, properties: CheckpointProperties, location: str
    ) -> CompletedCheckpoint:
        """The checkpoint behind a pointer, or one that a user named."""
        return cls(
            job_id=metadata.job_id,
            job_name=metadata.job_name,
            checkpoint_id=metadata.checkpoint_id,
            timestamp_ms=metadata.timestamp_ms,
            completion_timestamp_ms=metadata.timestamp_ms,
            properties=properties,
            location=location,
            operators=metadata.operators,
            master_states=metadata.master_states,
        )

    @property
    def state_size_bytes(self) -> int:
        """Sum over all operators, subtasks and master hooks."""
        return sum(state.state_size_bytes for operator in self.operators for state in operator.subtasks.values()) + sum(
            len(state.data) for state in self.master_states
        )

    def file_paths(self) -> Iterator[str]:
        """The file of every handle, with repetitions."""
        for operator in self.operators:
            for state in operator.subtasks.values():
                for handle in state.stream_handles:
                    if isinstance(handle, SegmentStateHandle):
                        yield handle.path
