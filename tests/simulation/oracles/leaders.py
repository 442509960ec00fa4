"""One leader acts at a time.

With ZooKeeper: whatever is written below the node of the cluster is written in the session of the oldest candidate. On
a directory: by the coordinator that took over last. And no TaskManager does what an earlier JobMaster of a job says,
once it has done what a later one said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapline.dataflow.ids import JobID
from snapline.runtime.cores.connections import MessageReceived
from snapline.runtime.leaders.leader_election import CANDIDATES, SEQUENCE_DIGITS
from snapline.taskmanager.executor.effects import CancelTaskExecution, DeliverToTask, FailTaskExecution, StartTask
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import Violation, World
from tests.simulation.zookeeper import Operation, SimulatedEnsemble

ACTIONS = (StartTask, CancelTaskExecution, FailTaskExecution, DeliverToTask)
OF_LEADERS = ("jobs", "counters", "pointers", "statistics")


class LeaderOracle:
    """Watches writes and messages."""

    def __init__(self, world: World, base: str) -> None:
        """`base`: the node of the cluster."""
        self._world = world
        self._base = base
        self._sessions: dict[str, tuple[JobID, int]] = {}
        """Of JobMasters: whose, and the how manieth leader."""
        self._followed: dict[tuple[str, JobID], int] = {}
        """By TaskManager and job: the latest leader that it obeyed."""

    def leads(self, job_id: JobID, session: str) -> None:
        """A JobMaster has begun."""
        self._sessions[session] = job_id, self._world.number("leadership")

    def observe(self, name: str, event: Any, effects: list[Any]) -> None:
        """What a core was told and wants."""
        if type(event) is not MessageReceived or not any(isinstance(effect, ACTIONS) for effect in effects):
            return
        session = event.envelope.leader_session_id
        known = self._sessions.get(session)
        if known is None:
            return
        job_id, number = known
        latest = self._followed.get((name, job_id), 0)
        if number < latest:
            message = type(event.envelope.message).__name__
            raise Violation(f"{name} obeys {message} of leader {number} of {job_id}, after one of leader {latest}")
        self._followed[name, job_id] = number

    def written_to_disk(self, session: str, disk: Disk, path: str) -> None:
        """By a coordinator without ZooKeeper."""
        parts = path.split("/")
        if parts[0] == "ha" and parts[1] in OF_LEADERS:
            newest = max(name for name, _ in disk.files.list("ha/leaders"))
            if disk.files.get(newest).decode() != session:
                raise Violation(f"{path} is written by somebody who does not lead (session {session})")

    def watch(self, ensemble: SimulatedEnsemble) -> Callable[[int, Operation], None]:
        """What to call with every write."""
        candidates = f"{self._base}/{CANDIDATES}/"

        def written(session: int, operation: Operation) -> None:
            name = operation.path.removeprefix(f"{self._base}/")
            if name.partition("/")[0] not in OF_LEADERS and name != "leader/table":
                return
            nodes = ensemble.nodes
            contending = [path for path in nodes if path.startswith(candidates)]
            leader = min(contending, key=lambda path: int(path[-SEQUENCE_DIGITS:]), default="")
            if not leader or nodes[leader].owner != session:
                raise Violation(f"{operation.kind} {name} by somebody who does not lead (session {session})")

        return written
