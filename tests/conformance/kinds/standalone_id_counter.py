"""Checkpoint ids that end with the process (Flink: StandaloneCheckpointIDCounter)."""

from __future__ import annotations

import threading

from snapline.coordinator.checkpoint.id_counter import INITIAL_CHECKPOINT_ID
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import JobStatus


class StandaloneCheckpointIDCounter:
    """A number in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = int(INITIAL_CHECKPOINT_ID)

    def start(self) -> None:
        """Nothing to read."""

    def get_and_increment(self) -> CheckpointID:
        """The next id."""
        with self._lock:
            drawn, self._next = self._next, self._next + 1
            return CheckpointID(drawn)

    def get(self) -> CheckpointID:
        """The id that `get_and_increment` would return."""
        with self._lock:
            return CheckpointID(self._next)

    def set_count(self, next_id: CheckpointID) -> None:
        """Make this the next id."""
        with self._lock:
            self._next = int(next_id)

    def shutdown(self, status: JobStatus) -> None:
        """Nothing is stored."""
