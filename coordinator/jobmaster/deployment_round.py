"""A round of deploying subtasks of a job: those that have to end first, the state that is restored, the slots that are
missing.

Holds where a round stands; what follows from that the Scheduler decides. Takes the place of the states between a
failure and the next deployment in Flink's DefaultScheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from snapline.coordinator.execution.deployment import NOTHING_RESTORED, RestoredTasks
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID


class RoundPhase(Enum):
    """Where the scheduler's round of deploying the job stands."""

    CANCELING = "canceling"
    RESTORING = "restoring"
    WAITING_FOR_SLOTS = "waiting for slots"


@dataclass(slots=True)
class DeploymentRound:
    """The subtasks that are on their way to being deployed."""

    number: int
    vertices: dict[ExecutionVertexID, None]
    phase: RoundPhase
    initial: bool = False
    not_before_ms: int = 0
    canceling: dict[ExecutionAttemptID, None] = field(default_factory=dict)
    """Attempts that must end first."""
    delay_timer_runs: bool = False
    slot_timer_runs: bool = False
    lacks_slots: bool = False
    """In reactive mode: there were too few for anything to run when the restart delay was over."""
    settles: bool = False
    """In reactive mode: nothing but the number of slots is waited for until `not_before_ms`."""
    free_slots_needed: int = 0
    """With fewer free slots than this it is not worth while to assign: slots of large jobs come in many small
    offers."""
    restored: RestoredTasks = NOTHING_RESTORED

    @property
    def waits_for(self) -> str:
        """Return what the round waits for, for people."""
        if self.phase is RoundPhase.CANCELING and not self.canceling:
            if self.lacks_slots:
                return RoundPhase.WAITING_FOR_SLOTS.value
            until = datetime.fromtimestamp(self.not_before_ms // 1_000, UTC)
            return f"the restart delay, until {until:%Y-%m-%d %H:%M:%S} UTC"
        return self.phase.value
