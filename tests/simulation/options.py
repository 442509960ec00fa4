"""What one run of the simulator is: the cluster, the job, the settings, and which faults there are and how often.

A run is drawn from a seed (`drawing.py`) or read from a file (`kept_runs.py`). Nothing here runs anything; `describe`
is what a replay prints first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.job_plan import JobPlan

FAULT_KINDS = (
    "kill task manager",
    "kill coordinator",
    "kill at storage",
    "break control connection",
    "break data stream",
    "partition",
    "slow network",
    "duplicate messages",
    "failing storage",
    "slow storage",
    "user exception",
    "slow task",
    "failing commit",
)

STOPS = ("stop", "drain", "cancel")
"""What a user may ask for that ends the job."""
FREEZING_KINDS = ("freeze", "replace coordinator")
LATER_KINDS = ("clocks", "isolate")
RETENTION = "execution.checkpointing.externalized-checkpoint-retention"
SETTLED = "jobmanager.adaptive-scheduler.resource-stabilization-timeout"
RESIZING = "resize cluster"
"""Only of runs whose job follows its slots."""
ZOOKEEPER_KINDS = ("lose answers of zookeeper", "expire session")
LOCAL_KINDS = ("lose machine", "damage local copies")

RELAY_KINDS = ("lose relay", "relay stands still")


@dataclass(frozen=True)
class FaultOptions:
    """Which faults are on in the safety phase, and how often they come."""

    enabled: frozenset[str] = frozenset()
    mean_pause_ms: int = 1500
    """Between two faults that come at a time of their own."""

    def __contains__(self, kind: str) -> bool:
        return kind in self.enabled


@dataclass(frozen=True)
class Options:
    """One run."""

    seed: int
    task_managers: int
    slots: int
    max_delay_ms: int
    pause_ms: int
    """Of the sources, between two batches."""
    job: JobPlan
    job_settings: dict[str, str]
    cluster_settings: dict[str, str]
    faults: FaultOptions
    safety_ms: int
    """Faults stop after this."""
    liveness_ms: int = 240_000
    """After that, the job must have finished within this."""
    start_delay_ms: int = 300
    forks: int = 1
    """Completed checkpoints that are restored on the side and run to the end."""
    rescale_forks: bool = False
    """At another parallelism."""
    operations: tuple[tuple[int, str], ...] = ()
    """What the user does, and when: savepoint, checkpoint, rescale, leave (a TaskManager, which ends then), stop (with
    a savepoint, and go on from it), drain (stop for good: all windows and timers fire), cancel (and go on from the
    last checkpoint, if it is retained)."""
    stalls: tuple[str, int] = ("", 0)
    """Tasks with this in their name wait up to so long between two pieces of work, faults or not."""
    another_job: JobPlan | None = None
    """That nobody touches, and that faults of the first must not keep from its end."""
    coordinators: int = 0
    """On a ZooKeeper; 0: there is none, and one coordinator at a time on a directory."""
    machines: int = 0
    """On which TaskManagers keep copies of state; 0: each has one of its own, and keeps none."""

    @property
    def exactly_once(self) -> bool:
        return self.job_settings["execution.checkpointing.mode"] == "EXACTLY_ONCE"

    @property
    def retains_on_cancellation(self) -> bool:
        return self.job_settings.get(RETENTION) == "RETAIN_ON_CANCELLATION"

    @property
    def is_reactive(self) -> bool:
        return self.job_settings.get("scheduler-mode") == "reactive"

    @property
    def retained(self) -> int:
        return int(self.job_settings["execution.checkpointing.num-retained"])

    @property
    def has_zookeeper(self) -> bool:
        return self.coordinators > 0

    def describe(self) -> str:
        job = ", ".join(f"{key.removeprefix('execution.')}={value}" for key, value in self.job_settings.items())
        faults = ", ".join(sorted(self.faults.enabled)) or "none"
        done = ", ".join(f"{kind} at {at_ms} ms" for at_ms, kind in self.operations) or "nothing"
        beside = f"\n  another job: {self.another_job.describe()}" if self.another_job else ""
        slow = (
            f"\n  tasks with {self.stalls[0]!r} in their name wait up to {self.stalls[1]} ms" if self.stalls[1] else ""
        )
        return (
            f"seed {self.seed}\n  cluster: {self.task_managers} TaskManagers with {self.slots} slots, "
            f"{f'{self.coordinators} coordinators on ZooKeeper' if self.coordinators else 'one coordinator'}, {f'{self.machines} machines, ' if self.machines else ''}messages take up to "
            f"{self.max_delay_ms} ms\n  job: {self.job.describe()}{beside}\n  sources pause up to {self.pause_ms} ms\n"
            f"  settings: {job}{slow}\n  the user: {done}; a checkpoint is started from on the side"
            f"{', rescaled' if self.rescale_forks else ''}{'; it follows its slots' if self.is_reactive else ''}\n  faults for {self.safety_ms} ms, every {self.faults.mean_pause_ms} ms: {faults}"
        )
