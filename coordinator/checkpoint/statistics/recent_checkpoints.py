"""The ids that were pending lately, so that a late message is told from one that makes no sense.

Bounded, as Flink's NUM_GHOST_CHECKPOINT_IDS. Remembers also how each ended: files of an aborted checkpoint may go,
files of a completed one must not, even if an acknowledgement is delivered twice.
"""

from __future__ import annotations

from enum import Enum

from snapline.dataflow.ids import CheckpointID

MAX_REMEMBERED = 16


class CheckpointOutcome(Enum):
    """How a checkpoint ended: completed, or for which reason not."""

    COMPLETED = "completed"
    ABORTED = "aborted"


class RecentCheckpoints:
    """Remembers how the last checkpoints ended, and where they lie."""

    def __init__(self) -> None:
        self._outcomes: dict[CheckpointID, tuple[CheckpointOutcome, str]] = {}

    def remember(self, checkpoint_id: CheckpointID, outcome: CheckpointOutcome, location: str) -> None:
        """A pending checkpoint has ended; its directory is, or was, there."""
        self._outcomes[checkpoint_id] = outcome, location
        if len(self._outcomes) > MAX_REMEMBERED:
            del self._outcomes[next(iter(self._outcomes))]

    def outcome_of(self, checkpoint_id: CheckpointID) -> CheckpointOutcome | None:
        """How it ended; None when it is unknown or long ago."""
        return self._outcomes.get(checkpoint_id, (None, ""))[0]

    def location_of(self, checkpoint_id: CheckpointID) -> str:
        """The directory of the checkpoint; empty when it is unknown or long ago."""
        return self._outcomes.get(checkpoint_id, (None, ""))[1]
