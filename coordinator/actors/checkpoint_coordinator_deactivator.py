"""CheckpointCoordinatorDeActivator: switches the periodic trigger on and off with the status of the job.

A JobStatusChanged of its job to RUNNING starts the scheduler, one to anything else stops it, every other message is
ignored. It does not look at what the checkpoint core makes of that. Mirrors Flink's class of the same name, a
JobStatusListener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pykka

from snapline.coordinator.checkpoint.events import StartCheckpointScheduler, StopCheckpointScheduler
from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.dataflow.wire.messages import JobStatus, JobStatusChanged


class CheckpointCoordinatorDeActivator(pykka.ThreadingActor):
    """Listens to the status of one job and starts or stops its periodic checkpoints."""

    use_daemon_thread = True

    def __init__(
        self,
        job_id: JobID,
        session: LeaderSessionID,
        tell_job_master: Callable[[Any], object],
        draw_initial_delay_ms: Callable[[], int],
    ) -> None:
        """`session`: of the JobMaster; what another one says of the job is ignored. `draw_initial_delay_ms`: a random
        time between the least pause and the interval, so that the checkpoints of many jobs do not begin together."""
        super().__init__()
        self._job_id = job_id
        self._session = session
        self._tell = tell_job_master
        self._draw_initial_delay_ms = draw_initial_delay_ms

    def on_receive(self, message: Any) -> None:
        if type(message) is not JobStatusChanged:
            return
        if (message.job_id, message.leader_session_id) != (self._job_id, self._session):
            return
        if message.status is JobStatus.RUNNING:
            self._tell(StartCheckpointScheduler(self._draw_initial_delay_ms()))
        else:
            self._tell(StopCheckpointScheduler())
