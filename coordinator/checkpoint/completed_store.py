"""Which completed checkpoints are kept, in which order, and which one a job starts from.

Decides by id, kind and retention; what it decides to drop is returned, never deleted here: pointers and files are
effects of the coordinator, performed by `coordinator.ha`. Knows nothing of storage. Rules:

* A checkpoint enters only after its pointer is durable (`StoreCompletedCheckpoint` was answered): add before remove.
* Oldest first, by id, whatever order a recovery delivers.
* At most `max_retained` stay, but the latest one always does, and so does the latest that is no savepoint (later
  incremental checkpoints refer to it), unless the latest is a synchronous savepoint (nothing follows it).
* A snapshot that the job does not own goes with the next one, however many may stay: its user may have deleted it.
* Recovering never drops; the surplus goes when the next one is added.

Mirrors Flink's StandaloneCompletedCheckpointStore, DefaultCompletedCheckpointStore and CheckpointSubsumeHelper.
Differs: a completed stop-with-savepoint is remembered beside the list as the place to restart from. Its notification
has made the tasks commit, so a job that fails while it stops and started from an older checkpoint would produce that
output twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.cores.machine import check


@dataclass(frozen=True, slots=True)
class StoreShutdown:
    """What becomes of each checkpoint when the store goes down."""

    discarded: tuple[CompletedCheckpoint, ...] = ()
    """Checkpoints whose pointers and files are to be deleted."""
    kept: tuple[CompletedCheckpoint, ...] = ()
    """Pointers go, files stay for the user."""
    released: tuple[CompletedCheckpoint, ...] = ()
    """Nothing goes: the next leader recovers them."""


class CompletedCheckpointStore:
    """The retained checkpoints of one job."""

    def __init__(self, max_retained: int, *, survives_suspension: bool = False) -> None:
        """`survives_suspension`: pointers are durable, so a job that is only suspended leaves everything for the next
        leader. Otherwise nobody could find the checkpoints again, and retention decides. ValueError: retains none."""
        if max_retained < 1:
            raise ValueError(f"at least one completed checkpoint has to be retained, not {max_retained}")
        self._max_retained = max_retained
        self._survives_suspension = survives_suspension
        self._checkpoints: list[CompletedCheckpoint] = []
        """The retained checkpoints by ascending id, oldest first."""
        self._stopped_with: CompletedCheckpoint | None = None
        """The synchronous savepoint that completed last, until a checkpoint completes after it."""
        self._is_open = True

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        """Return the retained checkpoints, the oldest one first."""
        return tuple(self._checkpoints)

    @property
    def is_open(self) -> bool:
        """Whether a checkpoint can be added: it has not been shut down, or has been recovered since."""
        return self._is_open

    @property
    def stopped_with(self) -> CompletedCheckpoint | None:
        """The stop-with-savepoint that the job would start from."""
        return self._stopped_with

    def find(self, checkpoint_id: CheckpointID) -> CompletedCheckpoint | None:
        """The retained checkpoint with this id."""
        for checkpoint in reversed(self._checkpoints):
            if checkpoint.checkpoint_id == checkpoint_id:
                return checkpoint
        stopped_with = self._stopped_with
        return stopped_with if stopped_with is not None and stopped_with.checkpoint_id == checkpoint_id else None

    def latest(self, *, prefer_checkpoint: bool = False) -> CompletedCheckpoint | None:
        """What to restore; with `prefer_checkpoint` the latest that is no savepoint, if there is one."""
        if prefer_checkpoint:
            for checkpoint in reversed(self._checkpoints):
                if not checkpoint.properties.is_savepoint:
                    return checkpoint
        latest = self._checkpoints[-1] if self._checkpoints else None
        stopped_with = self._stopped_with
        if stopped_with is None or (latest is not None and latest.checkpoint_id > stopped_with.checkpoint_id):
            return latest
        return stopped_with

    @property
    def latest_id(self) -> CheckpointID:
        """Id of the latest retained checkpoint, 0 when there is none."""
        return self._checkpoints[-1].checkpoint_id if self._checkpoints else CheckpointID(0)

    def add(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Retain a checkpoint whose pointer is durable; returns what it pushes out, oldest first."""
        check(self._is_open, f"checkpoint {checkpoint.checkpoint_id} was added to a completed store that is shut down")
        self._insert(checkpoint)
        dropped = self._subsume()
        stopped_with = self._stopped_with
        if stopped_with is not None and stopped_with.checkpoint_id < checkpoint.checkpoint_id:
            dropped.append(stopped_with)
            self._stopped_with = None
        return tuple(dropped)

    def remember_stop(self, savepoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """A synchronous savepoint completed; returns the one that it replaces."""
        check(self._is_open, f"savepoint {savepoint.checkpoint_id} was added to a completed store that is shut down")
        replaced = () if self._stopped_with is None else (self._stopped_with,)
        self._stopped_with = savepoint
        return replaced

    def recover(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Take over what the durable store holds, in any order."""
        self._is_open = True
        for checkpoint in checkpoints:
            if self.find(checkpoint.checkpoint_id) is None:
                self._insert(checkpoint)

    def shutdown(self, status: JobStatus) -> StoreShutdown:
        """The job has ended, or is suspended; the store is empty and closed afterwards."""
        everything = self._checkpoints + ([self._stopped_with] if self._stopped_with is not None else [])
        self._checkpoints, self._stopped_with, self._is_open = [], None, False
        if self._survives_suspension and not status.is_globally_terminal:
            return StoreShutdown(released=tuple(everything))
        return StoreShutdown(
            discarded=tuple(c for c in everything if c.properties.discard_on(status)),
            kept=tuple(c for c in everything if not c.properties.discard_on(status)),
        )

    def _insert(self, checkpoint: CompletedCheckpoint) -> None:
        position = len(self._checkpoints)
        while position and self._checkpoints[position - 1].checkpoint_id > checkpoint.checkpoint_id:
            position -= 1
        self._checkpoints.insert(position, checkpoint)

    def _subsume(self) -> list[CompletedCheckpoint]:
        latest = self._checkpoints[-1]
        latest_no_savepoint = next((c for c in reversed(self._checkpoints) if not c.properties.is_savepoint), None)
        dropped: list[CompletedCheckpoint] = []
        for checkpoint in tuple(self._checkpoints):
            is_surplus = len(self._checkpoints) > self._max_retained or checkpoint.properties.is_unclaimed
            if checkpoint is latest or not is_surplus:
                continue
            needed = checkpoint is latest_no_savepoint and not latest.properties.is_synchronous
            if not needed:
                self._checkpoints.remove(checkpoint)
                dropped.append(checkpoint)
        return dropped
