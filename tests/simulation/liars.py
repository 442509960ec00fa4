"""TaskManagers that lie: beside what they have to say, they speak for tasks that run elsewhere.

Whenever one acknowledges a checkpoint, it may acknowledge it for others, too, without their state; or say that they
have declined it, or have finished. Nobody may believe it: the oracles are those of honest runs. Only runs that ask for
the fault `LIES` have liars.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ExecutionState,
    Fenced,
    TaskStateChanged,
)

LIES = "lies"
"""The fault."""
LYING = 0.3
"""How often."""


class Liars:
    """All of one run."""

    def __init__(
        self,
        rng: random.Random,
        tasks: Callable[[], Iterable[tuple[str, ExecutionAttemptID]]],
        say: Callable[[str], None],
    ) -> None:
        """`tasks`: what runs, with the name of its TaskManager."""
        self._rng = rng
        self._tasks = tasks
        self._say = say
        self.count = 0

    def lies_of(self, process: str, envelope: Fenced[Any]) -> list[Any]:
        """What the process says before this message."""
        message = envelope.message
        if type(message) is not AcknowledgeCheckpoint or self._rng.random() >= LYING:
            return []
        graph_id = message.attempt_id.execution_graph_id
        others = [a for where, a in self._tasks() if where != process and a.execution_graph_id == graph_id]
        lies = [self._lie(message, attempt_id) for attempt_id in others]
        if lies:
            self.count += len(lies)
            self._say(f"{process} lies about {len(lies)} tasks")
        return lies

    def _lie(self, message: AcknowledgeCheckpoint, attempt_id: ExecutionAttemptID) -> Any:
        job_id, checkpoint_id = message.job_id, message.checkpoint_id
        return self._rng.choice(
            [
                AcknowledgeCheckpoint(job_id, attempt_id, checkpoint_id),
                AcknowledgeCheckpoint(job_id, attempt_id, checkpoint_id),
                DeclineCheckpoint(
                    job_id, attempt_id, checkpoint_id, CheckpointFailureReason.CHECKPOINT_DECLINED, "a lie"
                ),
                TaskStateChanged(job_id, attempt_id, ExecutionState.FINISHED),
            ]
        )
