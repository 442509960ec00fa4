"""Whose word counts for an attempt: that of the TaskManager on which it was deployed, and nobody else's.

Decides it for every message that names an attempt. An attempt that is over has nobody who speaks for it; what is still
acknowledged for one is looked at for its files only. Flink believes each TaskManager that is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snapline.coordinator.checkpoint.effects import MessageRefused
from snapline.coordinator.execution.execution_graph import ExecutionGraph
from snapline.dataflow.ids import ExecutionAttemptID, ResourceID
from snapline.dataflow.wire.messages import AcknowledgeCheckpoint, DeclineCheckpoint


class Speakers:
    """Which TaskManagers may speak for the attempts of one job."""

    def __init__(self, graph: Callable[[], ExecutionGraph]) -> None:
        """`graph`: the one that the job has now; a rescale gives it another."""
        self._graph = graph

    def runs_on(self, resource_id: ResourceID, attempt_id: ExecutionAttemptID) -> bool:
        """Whether this is a current attempt of this TaskManager."""
        execution = self._graph().find(attempt_id)
        return execution is not None and execution.resource_id == resource_id

    def may_run(self, resource_id: ResourceID, attempt_id: ExecutionAttemptID, *, reconciling: bool) -> bool:
        """Whether this is a current attempt of this TaskManager, or may turn out to be one, because those of a former
        leader are waited for."""
        execution = self._graph().find(attempt_id)
        return reconciling if execution is None else execution.resource_id == resource_id

    def sift(
        self, resource_id: ResourceID, messages: Sequence[AcknowledgeCheckpoint]
    ) -> tuple[Sequence[AcknowledgeCheckpoint], list[MessageRefused]]:
        """The acknowledgements that this TaskManager may make, and the refusals of the others. This is the hot path of
        a large job, in which hardly any is ever refused."""
        find = self._graph().find
        for message in messages:
            execution = find(message.attempt_id)
            if execution is not None and execution.resource_id != resource_id:
                break
        else:
            return messages, []
        refusals = [self.refusal(resource_id, message) for message in messages]
        accepted = [message for message, refusal in zip(messages, refusals, strict=True) if refusal is None]
        return accepted, [refusal for refusal in refusals if refusal is not None]

    def refusal(
        self, resource_id: ResourceID, message: AcknowledgeCheckpoint | DeclineCheckpoint
    ) -> MessageRefused | None:
        """Why this TaskManager may not say this; None: it may."""
        execution = self._graph().find(message.attempt_id)
        is_acknowledgement = isinstance(message, AcknowledgeCheckpoint)
        if is_acknowledgement if execution is None else execution.resource_id == resource_id:
            return None
        where = "is over" if execution is None else f"runs on {execution.resource_id or 'no TaskManager'}"
        detail = f"{'acknowledged' if is_acknowledgement else 'declined'} by {resource_id}, but the attempt {where}"
        return MessageRefused(message.checkpoint_id, message.attempt_id, detail, execution is None, resource_id)
