"""What clients asked of a running job and have not been told yet.

Decides what a client is told, and when: a snapshot when it is complete, stop-with-savepoint when the job has finished
as well, a rescale when the job runs again. Every request gets exactly one answer; when the job ends or fails over,
those that cannot be met any more fail, naming the snapshot that exists all the same. Mirrors Flink's
StopWithSavepointTerminationManager and the futures in SchedulerBase.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.coordinator.execution.execution_graph import with_parallelism
from snapline.coordinator.jobmaster.operations import Acknowledged, OperationFailed, Reply, RequestID, SnapshotCompleted
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import CheckpointID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import JobStatus


@dataclass(slots=True)
class _Pending:
    request_id: RequestID
    stop: bool = False
    parallelism: Mapping[JobVertexID, int] | None = None
    """The parallelism that a rescale asks for, None for other operations."""
    leave: tuple[ResourceID, ...] = ()
    """The TaskManagers that the job is to leave."""
    completed: SnapshotCompleted | None = None
    """The snapshot is there, the rest is not."""
    stopped: bool = False
    """The job has finished with it, and may still come back under another leader."""


def refused(request_id: RequestID, summary: str, *, retryable: bool = False) -> Reply:
    """The answer to what cannot be done."""
    return Reply(request_id, OperationFailed(SerializedFailure(summary, Blame.USER, retryable=retryable)))


class PendingOperations:
    """The open requests of one job, by the id under which its checkpoint core knows them."""

    def __init__(self) -> None:
        """Begin with no client that waits for an answer."""
        self._pending: dict[CheckpointRequestID, _Pending] = {}

    def refusal_of_rescale(
        self, request_id: RequestID, status: JobStatus, graph: JobGraph, parallelism: Mapping[JobVertexID, int]
    ) -> Reply | None:
        """Why the job cannot be rescaled now, or not to this; None when it can."""
        if status is not JobStatus.RUNNING or self.rescale_in_progress:
            state = "being rescaled" if self.rescale_in_progress else status.value
            return refused(request_id, f"only a running job can be rescaled; it is {state}", retryable=True)
        try:
            with_parallelism(graph, parallelism)
        except ValueError as error:
            return refused(request_id, str(error))
        return None

    def snapshot(self, request_id: RequestID) -> CheckpointRequestID:
        """A client waits for a checkpoint or savepoint."""
        return self._add(_Pending(request_id))

    def stop(self, request_id: RequestID) -> CheckpointRequestID:
        """A client waits for a savepoint and the end of the job."""
        return self._add(_Pending(request_id, stop=True))

    def rescale(
        self, request_id: RequestID, parallelism: Mapping[JobVertexID, int], leave: tuple[ResourceID, ...]
    ) -> CheckpointRequestID:
        """A client waits for the job to run with other parallelism, or elsewhere, after a checkpoint."""
        return self._add(_Pending(request_id, parallelism=parallelism, leave=leave))

    @property
    def is_stopping(self) -> bool:
        """A savepoint is under way, or complete, that the job stops with."""
        return any(pending.stop for pending in self._pending.values())

    @property
    def has_savepoint_to_stop_with(self) -> bool:
        """Return whether the savepoint that the job stops with is complete."""
        return any(pending.stop and pending.completed is not None for pending in self._pending.values())

    @property
    def rescale_in_progress(self) -> bool:
        """Return whether a rescale is under way, so that another one has to wait."""
        return any(pending.parallelism is not None for pending in self._pending.values())

    def _add(self, pending: _Pending) -> CheckpointRequestID:
        request_id = CheckpointRequestID(f"client-{pending.request_id}")
        self._pending[request_id] = pending
        return request_id

    def completed(
        self, request_id: CheckpointRequestID, checkpoint_id: CheckpointID, path: str
    ) -> tuple[list[Reply], Mapping[JobVertexID, int] | None]:
        """A snapshot is complete. Answers, and the parallelism to restart with, if that is what was asked for."""
        pending = self._pending.get(request_id)
        if pending is None:
            return [], None
        pending.completed = SnapshotCompleted(checkpoint_id, path)
        if pending.stop or pending.parallelism is not None:
            return [], pending.parallelism
        del self._pending[request_id]
        return [Reply(pending.request_id, pending.completed)], None

    def failed(self, request_id: CheckpointRequestID, summary: str) -> list[Reply]:
        """A snapshot will never be complete."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return []
        return [Reply(pending.request_id, OperationFailed(SerializedFailure(summary, Blame.EXTERNAL)))]

    def job_status_changed(self, status: JobStatus, task_managers: Collection[ResourceID]) -> list[Reply]:
        """Whom the new status of the job, which has slots of these TaskManagers, answers."""
        replies: list[Reply] = []
        for key, pending in list(self._pending.items()):
            if pending.completed is None:
                continue  # the checkpoint core will say that it failed
            if pending.stop:
                if status is JobStatus.FINISHED:
                    pending.stopped = True
                    continue
                summary = f"the savepoint {pending.completed.path} is complete, but the job did not stop: it is {status.value}"
                replies.append(refused(pending.request_id, summary))
                del self._pending[key]
            elif status is JobStatus.RUNNING:
                stays = [each for each in pending.leave if each in task_managers]
                summary = f"the slots that it had elsewhere were lost, so that it stays on {', '.join(stays)}"
                done = refused(pending.request_id, summary, retryable=True) if stays else None
                replies.append(done or Reply(pending.request_id, Acknowledged()))
                del self._pending[key]
            elif status is not JobStatus.RESTARTING:
                replies.append(refused(pending.request_id, f"the job is {status.value}; it was not rescaled"))
                del self._pending[key]
        return replies

    def job_is_forgotten(self) -> list[Reply]:
        """No leader will start the job again: who has stopped it may start it from the savepoint."""
        stopped = [key for key, pending in self._pending.items() if pending.stopped]
        return [Reply(done.request_id, done.completed) for done in map(self._pending.pop, stopped) if done.completed]
