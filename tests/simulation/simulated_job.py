"""A job of a run, with its outside world and the oracle of its checkpoints; a run may have another one beside the
user's.

Decides when a job is over: it said how it ended, and nobody will run it again. Knows nothing of faults.
"""

from __future__ import annotations

from collections.abc import Callable

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import ExecutionAttemptID, JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import World
from tests.simulation.electing_cluster import ElectingCluster
from tests.simulation.job_plan import JobPlan, build
from tests.simulation.options import Options
from tests.simulation.oracles.alignment import AlignmentOracle
from tests.simulation.oracles.checkpoints import CheckpointOracle
from tests.simulation.oracles.hooks import HookOracle
from tests.simulation.workload import LEDGERS, Ledger

USERS = JobID("5".rjust(32, "0"))
ANOTHER = JobID("7".ljust(32, "0"))


class SimulatedJob:
    """One job."""

    def __init__(
        self,
        world: World,
        disk: Disk,
        options: Options,
        plan: JobPlan,
        job_id: JobID,
        name: str,
        ledger: Ledger,
        is_live: Callable[[str, ExecutionAttemptID], bool],
    ) -> None:
        """`name`: under which its functions find their ledger. `is_live`: whether the JobMaster of a name runs an
        attempt."""
        self.plan = plan
        self.name = name
        self.ledger = ledger
        ledger.pause_ms = options.pause_ms
        LEDGERS[name] = ledger
        self.graph = build(plan, name, options.job_settings, job_id)
        """As it runs now."""
        owns = (lambda owner: owner == ANOTHER) if job_id == ANOTHER else (lambda owner: owner != ANOTHER)
        self.checkpoints = CheckpointOracle(world, disk, ledger, options, owns, keeps_forks=job_id != ANOTHER)
        self.alignment = AlignmentOracle(plan.alignment, owns, is_live) if plan.alignment is not None else None
        ledger.sources = self.alignment
        self.hooks = HookOracle(ledger, owns, self.checkpoints.is_complete) if plan.hooked else None
        ledger.hooks = self.hooks

    def close(self) -> None:
        LEDGERS.pop(self.name, None)

    def outcome(self, cluster: ElectingCluster) -> tuple[JobStatus, SerializedFailure | None] | None:
        """None: it is not over."""
        job_id = self.graph.job_id
        if job_id not in cluster.outcomes and self.checkpoints.ended is not None and not cluster.is_stored(job_id):
            leader = cluster.coordinator
            if leader is None or not leader.alive or job_id not in leader.runners:
                cluster.outcomes[job_id] = self.checkpoints.ended
        return cluster.outcomes.get(job_id)
