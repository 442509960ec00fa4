"""Checkpoints: durable before anybody hears of it, ids that only rise, one leader's each; and cuts to start again from.

A checkpoint is complete when its pointer is on the disk. From then on, and not before, sinks may commit what it holds
and sources may publish its positions. A few completed checkpoints are kept with the state of the outside world at that
instant (`Fork`): whether each is a consistent cut is found out by starting from it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snapline.coordinator.checkpoint.metadata import parse_metadata
from snapline.coordinator.jobmaster.effects import ReportJobStatus
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import JobStatus, TriggerCheckpoint
from snapline.runtime.cores.connections import SendToTasks
from snapline.taskmanager.executor.events import TaskEnteredState
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import Violation, World
from tests.simulation.options import Options
from tests.simulation.oracles.failures import check_failure
from tests.simulation.workload import Ledger, Transaction


@dataclass
class Fork:
    """A completed checkpoint and the world at that instant."""

    checkpoint_id: int
    files: dict[str, bytes]
    transactions: dict[str, Transaction]
    hook_states: dict[int, list[bytes]]

    def ledger(self) -> Ledger:
        """The outside world as it was. Transactions that were not yet pre-committed or staged later never happened."""
        return Ledger(
            transactions=copy.deepcopy(self.transactions), next_number=1_000_000, hook_states=dict(self.hook_states)
        )


class CheckpointOracle:
    """Watches disk, messages and commits."""

    def __init__(
        self,
        world: World,
        disk: Disk,
        ledger: Ledger,
        options: Options,
        owns: Callable[[str], bool],
        *,
        keeps_forks: bool,
    ) -> None:
        """`owns`: whether a job id is of the job that this watches."""
        self._owns = owns
        self._keeps_forks = keeps_forks
        self._world = world
        self._disk = disk
        self._ledger = ledger
        self._options = options
        self._rng = world.random("forks")
        self.completed: list[int] = []
        """Ids whose pointer was written, in that order."""
        self._of_job: dict[str, set[int]] = {}
        """Ids of each job's completed checkpoints."""
        self._known: set[int] = set()
        """All of them, and savepoints."""
        for path, _ in disk.files.list("ha/pointers"):
            if _is_pointer(path) and owns(path.split("/")[-3]):
                self._known.add(self._id_of(path))
                self._of_job.setdefault(path.split("/")[-3], set()).add(self._id_of(path))
        self.durable_files: Callable[[], dict[str, bytes]] = disk.snapshot
        self.leader: Callable[[], str] = lambda: ""
        """Name of the coordinator that everybody follows."""
        self._savepoints: set[int] = set()
        self._session_of: dict[tuple[str, int], str] = {}
        """Who triggered a checkpoint."""
        self.restarts = 0
        self.ended: tuple[JobStatus, SerializedFailure | None] | None = None
        """How the job ended, if no leader finds it any more."""
        self.forks: list[Fork] = []
        ledger.may_commit = self._may_commit
        ledger.published = self._published

    @staticmethod
    def _id_of(path: str) -> int:
        return int(path.split("/")[-2])

    def latest_completed_of(self, job_id: str) -> int:
        """As whoever lists the job's checkpoints would see; 0: none. Savepoints are not among them."""
        return max(self._of_job.get(job_id, ()), default=0)

    def retained(self, checkpoint_id: int) -> None:
        """The job was cancelled, and another one starts from this. What completed later, and was not stored, is
        nothing."""
        latest = self.latest_completed_of_all()
        if checkpoint_id < latest:
            raise Violation(f"checkpoint {latest} of the cancelled job is not there; the latest one is {checkpoint_id}")
        self._savepoints.add(checkpoint_id)

    def latest_completed_of_all(self) -> int:
        """Whatever the job's id was; 0: none."""
        return max((max(of_job) for of_job in self._of_job.values()), default=0)

    def job_ends(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None:
        """Its leader lets go of it."""
        if self._owns(job_id):
            self.ended = status, failure

    # --- events -------------------------------------------------------------------------------------------------------

    def observe(self, name: str, event: Any, effects: list[Any]) -> None:
        """What a core was told and wants."""
        if type(event) is TaskEnteredState and event.failure is not None:
            check_failure(event.failure)
        for effect in effects:
            if type(effect) is SendToTasks and type(effect.template) is TriggerCheckpoint:
                if not self._owns(effect.template.job_id):
                    continue
                if name.partition("/")[0] == self.leader():  # one that was replaced and does not know it reaches nobody
                    self._triggered(effect.template, effect.session)
            elif type(effect) is ReportJobStatus and self._owns(effect.change.job_id):
                self.restarts += effect.change.status is JobStatus.RESTARTING

    def _triggered(self, message: TriggerCheckpoint, session: str) -> None:
        triggered = message.job_id, message.checkpoint_id
        earlier = self._session_of.get(triggered)
        if earlier is None:
            latest = max(self._of_job.get(message.job_id, ()), default=0)
            if message.checkpoint_id <= latest:
                raise Violation(f"checkpoint {message.checkpoint_id} is triggered after {latest} completed")
            self._session_of[triggered] = session
            self._world.story.say("checkpoints", f"{message.checkpoint_id} triggered")
        elif earlier != session:
            raise Violation(f"checkpoint id {message.checkpoint_id} was used by two leaders: {earlier} and {session}")

    def written(self, path: str, late: bool) -> None:
        """To the disk."""
        if path.startswith("savepoints/") and path.endswith("/_metadata"):
            checkpoint_id = parse_metadata(self._disk.files.get(path), path).checkpoint_id
            self._world.story.say("checkpoints", f"savepoint {checkpoint_id} is complete")
            self._known.add(checkpoint_id)
            self._savepoints.add(checkpoint_id)
        if _is_pointer(path):
            self.pointer_written(path.split("/")[-3], CheckpointID(self._id_of(path)), late=late)

    def pointer_written(self, job_id: str, checkpoint_id: CheckpointID, *, late: bool) -> None:
        """A checkpoint is complete."""
        if not self._owns(job_id):
            return
        if checkpoint_id in self._savepoints:  # registered, or adopted by the job that starts from it
            return
        of_job = self._of_job.setdefault(job_id, set())
        if checkpoint_id in of_job:
            raise Violation(f"checkpoint {checkpoint_id} completed twice")
        if checkpoint_id < max(of_job, default=0) and not late:
            raise Violation(f"checkpoint {checkpoint_id} completed after {max(of_job)}")
        of_job.add(checkpoint_id)
        metadata = f"checkpoints/{job_id}/chk-{checkpoint_id}/_metadata"
        if not self._disk.files.exists(metadata):
            raise Violation(f"checkpoint {checkpoint_id} has a pointer and no metadata")
        self._known.add(checkpoint_id)
        self.completed.append(checkpoint_id)
        self._world.story.say("checkpoints", f"{checkpoint_id} is complete{', late' if late else ''}")
        self._keep(checkpoint_id)

    def _keep(self, checkpoint_id: int) -> None:
        """A fair choice of so many as are wanted among all that complete."""
        wanted, seen = self._options.forks if self._keeps_forks else 0, len(self.completed)
        if not wanted or self.ended is not None:  # what completes after the end of its job is of no use to anybody
            return
        place = len(self.forks) if len(self.forks) < wanted else self._rng.randrange(seen)
        if place < wanted:
            ledger = self._ledger
            fork = Fork(
                checkpoint_id, self.durable_files(), copy.deepcopy(ledger.transactions), dict(ledger.hook_states)
            )
            self.forks[place : place + 1] = [fork]

    def is_complete(self, checkpoint_id: int) -> bool:
        """Whether a checkpoint or savepoint is."""
        return checkpoint_id in self._known

    def _may_commit(self, transaction: Transaction) -> None:
        if transaction.aborted:
            raise Violation(f"transaction {transaction.transaction_id} is committed after it was aborted")
        if transaction.checkpoint_id > max(self._known, default=0):
            raise Violation(
                f"transaction {transaction.transaction_id} of checkpoint {transaction.checkpoint_id} is committed, and the "
                f"latest completed checkpoint is {max(self._known, default=0)}"
            )

    def _published(self, checkpoint_id: int) -> None:
        if checkpoint_id not in self._known:
            raise Violation(f"a source was told that checkpoint {checkpoint_id} is complete, and it is not")


def _is_pointer(path: str) -> bool:
    return path.startswith("ha/pointers/") and path.endswith("/pointer")
