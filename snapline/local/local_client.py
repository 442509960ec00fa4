"""The calls of `snapline.client.ClusterClient`, answered by a job that runs in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

from snapline.client import RequestRefused
from snapline.coordinator.jobmaster.operations import (
    CancelJob,
    JobOperation,
    RescaleJob,
    RowsTapped,
    SnapshotCompleted,
    StopWithSavepoint,
    TakeCheckpoint,
    TakeSavepoint,
    TapOperator,
)
from snapline.coordinator.rpc.views import tapped_rows
from snapline.dataflow.ids import JobVertexID
from snapline.local.local_job import LOOK_MS, LocalJob
from snapline.protos import client_pb2 as pb


class LocalClient:
    """The client of one job; its id is ignored, because there is no other."""

    def __init__(self, job: LocalJob) -> None:
        self._job = job

    def get_job(self, job_id: str) -> pb.JobDetails:
        """Return the job's vertices, subtasks, failures and counts."""
        return self._job.details()

    def watch_job(self, job_id: str) -> Iterator[pb.JobDetails]:
        """Details now and after each change, until the job has ended. Raises what has broken the run."""
        last: pb.JobDetails | None = None
        while True:
            has_ended = self._job.has_ended
            details = self._job.details()
            if details != last:
                yield details
                last = details
            if has_ended:
                break
            time.sleep(LOOK_MS / 1000)
        if self._job.crash is not None:
            raise self._job.crash

    def cancel(self, job_id: str) -> None:
        """Begin to cancel the job; it ends as CANCELED."""
        self._job.operate(CancelJob())

    def trigger_savepoint(self, job_id: str, directory: str = "") -> str:
        """Path of the savepoint. Raises RequestRefused when it failed."""
        return self._snapshot(TakeSavepoint(directory)).path

    def stop_with_savepoint(self, job_id: str, directory: str = "", *, drain: bool = False) -> str:
        """Path of the savepoint. Raises RequestRefused when it failed; the job goes on then."""
        return self._snapshot(StopWithSavepoint(directory, drain)).path

    def trigger_checkpoint(self, job_id: str, *, full: bool = False) -> pb.TriggerCheckpointResponse:
        """Id and path of the completed checkpoint. Raises RequestRefused when it failed."""
        done = self._snapshot(TakeCheckpoint(full))
        return pb.TriggerCheckpointResponse(checkpoint_id=done.checkpoint_id, path=done.path)

    def rescale(self, job_id: str, parallelism: int) -> None:
        """Change the parallelism of all vertices, but for those that have one task for good."""
        vertices = self._job.details().vertices
        wanted = {JobVertexID(each.vertex_id): 1 if each.max_parallelism == 1 else parallelism for each in vertices}
        self._job.operate(RescaleJob(wanted))

    def tap(self, job_id: str, uid: str, *, rows: int = 10, max_bytes: int = 65_536) -> list[pb.TappedRows]:
        """Some of the rows that an operator puts out next. Raises RequestRefused."""
        answer = self._job.operate(TapOperator(uid, rows, max_bytes))
        return list(tapped_rows(answer.parts).parts) if isinstance(answer, RowsTapped) else []

    def list_checkpoints(self, job_id: str) -> pb.ListCheckpointsResponse:
        """Return the counts, the history and the summary of the job's checkpoints."""
        return self._job.checkpoints()

    def close(self) -> None:
        """End the job, if it still runs."""
        self._job.close()

    def _snapshot(self, operation: JobOperation) -> SnapshotCompleted:
        answer = self._job.operate(operation)
        if not isinstance(answer, SnapshotCompleted):
            raise RequestRefused(f"unexpected answer {answer}")
        return answer
