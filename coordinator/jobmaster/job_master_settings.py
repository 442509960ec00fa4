"""What of the configuration the JobMaster core needs, read and checked once.

Cluster settings (heartbeats, registration) come from the coordinator's configuration, the rest from the job's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from snapline.dataflow.config import (
    RECONCILIATION_TIMEOUT,
    RESOURCE_STABILIZATION_TIMEOUT,
    RESTART_SAME_ROW,
    SAVEPOINT_DIRECTORY,
    SCHEDULER_MODE,
    SLOT_IDLE_TIMEOUT,
    SLOT_REQUEST_TIMEOUT,
    TASK_CANCELLATION_TIMEOUT,
    Configuration,
)
from snapline.runtime.cores.heartbeat import HeartbeatSettings
from snapline.runtime.cores.registration import RegistrationSettings

CANCELLATION_GRACE_MS = 30_000
"""What a TaskManager gets beyond `task.cancellation.timeout`, after which it should have ended its process, before the
JobMaster gives it up."""


@dataclass(frozen=True, slots=True)
class JobMasterSettings:
    """Everything that a JobMaster can be told by configuration, besides checkpointing and the restart strategy."""

    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    slot_request_timeout_ms: int = 300_000
    slot_idle_timeout_ms: int = 50_000
    cancellation_timeout_ms: int = 180_000 + CANCELLATION_GRACE_MS
    """A TaskManager whose task does not end within this after CancelTask is given up; 0: never."""
    savepoint_directory: str = ""
    reconciliation_timeout_ms: int = 0
    """How long a JobMaster that follows another waits for reports of what runs; 0: not at all, it restarts the job."""
    is_reactive: bool = False
    """Whether the parallelism follows the slots."""
    resource_stabilization_ms: int = 1_000
    same_row_failures: int = 3
    """So many equal failures at one row end the job; 0: none."""

    @classmethod
    def from_configuration(cls, cluster: Configuration, job: Configuration) -> JobMasterSettings:
        """Read the settings of cluster and job. Raises ConfigurationError."""
        cancellation_ms = job.get_option(TASK_CANCELLATION_TIMEOUT)
        return cls(
            heartbeat=HeartbeatSettings.from_configuration(cluster),
            registration=RegistrationSettings.from_configuration(cluster),
            slot_request_timeout_ms=job.get_option(SLOT_REQUEST_TIMEOUT),
            slot_idle_timeout_ms=job.get_option(SLOT_IDLE_TIMEOUT),
            cancellation_timeout_ms=cancellation_ms + CANCELLATION_GRACE_MS if cancellation_ms else 0,
            savepoint_directory=job.get_option(SAVEPOINT_DIRECTORY),
            reconciliation_timeout_ms=cluster.get_option(RECONCILIATION_TIMEOUT),
            is_reactive=job.get_option(SCHEDULER_MODE) == "reactive",
            resource_stabilization_ms=job.get_option(RESOURCE_STABILIZATION_TIMEOUT),
            same_row_failures=job.get_option(RESTART_SAME_ROW),
        )
