"""The port behind DrawCheckpointId: ids that rise over the life of a job, across restarts and leaders.

The core only knows the effect; shells hold one of these per job. Mirrors Flink's CheckpointIDCounter. Adapters:
`snapline.coordinator.ha.standalone` (in memory), `snapline.coordinator.ha.embedded` (durable), ZooKeeper; one contract
suite runs against all.
"""

from __future__ import annotations

from typing import Protocol

from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import JobStatus

INITIAL_CHECKPOINT_ID = CheckpointID(1)


class CheckpointIDCounterError(Exception):
    """The counter could not be read or moved; names the place and what to check."""


class CheckpointIDCounter(Protocol):
    """Hands out checkpoint ids. Every method may raise CheckpointIDCounterError; safe to call from several threads."""

    def start(self) -> None:
        """Begin; a durable counter goes on where its predecessor stopped."""
        ...

    def get_and_increment(self) -> CheckpointID:
        """The next id. No two calls, of whatever process, get the same one."""
        ...

    def get(self) -> CheckpointID:
        """The id that `get_and_increment` would return."""
        ...

    def set_count(self, next_id: CheckpointID) -> None:
        """Make this the next id."""
        ...

    def shutdown(self, status: JobStatus) -> None:
        """The job has this status now: a globally terminal one removes what is stored, SUSPENDED keeps it."""
        ...
