"""A checkpoint core that does as a test says: records what it is told, answers what it was given to answer."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.effects import CoordinatorShutDown, StateRestored
from snapline.coordinator.checkpoint.events import ExecutionsChanged, RestoreLatest, Shutdown
from snapline.dataflow.ids import CheckpointID


class ScriptedCheckpointCoordinator:
    """Restores nothing, at once, and shuts down at once, unless `answers` has something else for the event's type."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        """All but execution changes."""
        self.changes: list[tuple[str, str]] = []
        self.answers: dict[type, list[Any]] = {}

    def handle(self, event: Any, now_ms: int) -> list[Any]:
        if isinstance(event, ExecutionsChanged):
            self.changes += [(str(change.attempt_id), change.state.value) for change in event.changes]
            return []
        self.events.append(event)
        if type(event) in self.answers:
            return self.answers[type(event)]
        if isinstance(event, RestoreLatest):
            return [StateRestored(event.request_id, CheckpointID(0))]
        if isinstance(event, Shutdown):
            return [CoordinatorShutDown(event.status)]
        return []
