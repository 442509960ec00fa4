"""Who a JobMaster is, and the keys of its own timers and restores. Values only; the rules are in `job_master`."""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.dataflow.ids import CheckpointID, LeaderSessionID

RECONCILING_ROUND = 0
"""Stands for no round: what was completed is asked for, nothing is deployed."""
NO_CHECKPOINT = CheckpointID(0)
RESTORE_PREFIX = "restore-"
"""What the ids of restore requests begin with; the round follows."""


@dataclass(frozen=True, slots=True)
class JobMasterIdentity:
    """What distinguishes this JobMaster from others of the same job, drawn by the shell."""

    session: LeaderSessionID
    address: str
    """host:port of the gateway that TaskManagers dial."""
    execution_graph_id: str


@dataclass(frozen=True, slots=True)
class IdleSlotTimer:
    """Timer key: a slot beyond the need has been idle for long enough."""


@dataclass(frozen=True, slots=True)
class ReconciliationTimer:
    """Timer key: reports are missing after `jobmanager.reconciliation.timeout`."""


def round_of(request_id: CheckpointRequestID) -> int:
    """The deployment round that a restore request is for."""
    return int(request_id.removeprefix(RESTORE_PREFIX))
