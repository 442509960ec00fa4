"""From "everybody has acknowledged" to "durable and counted", and back to nothing when a checkpoint is given up.

Decides which checkpoint is being made durable (one at a time, in the order in which they became complete, so that an
older one is never stored behind a newer one's back), what is retained, and which files nobody needs. Does not know
tasks, timers or requests. Mirrors the storing half of Flink's completePendingCheckpoint, with
DefaultCompletedCheckpointStore and CheckpointsCleaner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from snapline.coordinator.checkpoint.abandoned_files import (
    checkpoint_of_shared_file,
    is_below,
    may_be_claimed,
    may_be_deleted,
    may_be_shared,
)
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.completed_store import CompletedCheckpointStore
from snapline.coordinator.checkpoint.effects import (
    CheckpointCoordinatorEffect,
    DeleteLeftovers,
    DiscardState,
    ReleaseCompletedCheckpoints,
    RemoveCompletedCheckpoint,
    StoreCompletedCheckpoint,
    VerifyStoredCheckpoint,
)
from snapline.coordinator.checkpoint.finalization import FinalizeRefused
from snapline.coordinator.checkpoint.pending_checkpoint import PendingCheckpoint
from snapline.coordinator.checkpoint.shared_state_registry import SharedStateRegistry
from snapline.coordinator.checkpoint.statistics.recent_checkpoints import CheckpointOutcome
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import SegmentStateHandle, StreamStateHandle, TaskStateSnapshot
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.cores.machine import check

MAX_DELETED_SHARED = 100_000
"""Shared files whose deletion is remembered, so that nothing that refers to one is ever taken for a checkpoint."""

NO_LIMIT = CheckpointID(1 << 62)
"""No checkpoint has such a number."""

MAX_STRAYS = 10_000
"""Files of unknown tasks that are remembered until their checkpoint is decided."""


@dataclass(frozen=True, slots=True)
class Storing:
    """The checkpoint that is being made durable. `pending` is None for a savepoint that a job is restored from."""

    checkpoint: CompletedCheckpoint
    pending: PendingCheckpoint | None
    duplicates: tuple[StreamStateHandle, ...] = ()
    """Shared state that tasks uploaded although it was there."""


class CheckpointPublication:
    """The completed checkpoints of one job, and the one that is about to join them."""

    def __init__(self, store: CompletedCheckpointStore) -> None:
        self.store = store
        self.registry = SharedStateRegistry()
        self.storing: Storing | None = None
        self._removing: dict[CheckpointID, None] = {}
        """Checkpoints given up whose pointers and files are still being deleted."""
        self._recovered_until = CheckpointID(0)
        """The newest checkpoint of former leaders."""
        self._is_store_known = False
        """Whether what former leaders completed has been read, or there was no former leader."""
        self._unreferenced: dict[str, tuple[CheckpointID, CheckpointID]] = {}
        """Shared files that no retained checkpoint refers to: the last one that did, and the one that pushed it out."""
        self._deleted_shared: dict[str, None] = {}
        """Shared files that are gone, oldest first."""
        self.may_have_leftovers = False
        """Whether a task was ever told to write anything."""
        self._is_released = False
        """Whether a successor may go on from what is there."""
        self._kept: tuple[CompletedCheckpoint, ...] = ()
        """What the job has left for its user when it ended."""
        self._adopted_files: dict[str, bool] = {}
        """Files elsewhere than in the job's directory that snapshots refer to which the job was started from, or which
        a former leader took; and whether they are the job's to delete."""
        self._strays: dict[CheckpointID, dict[str, None]] = {}
        """Files of unknown tasks by pending checkpoint: they may be shared with tasks that count."""

    @property
    def cleaning_count(self) -> int:
        """Checkpoints given up whose files are still being deleted."""
        return len(self._removing)

    @property
    def retained_ids(self) -> frozenset[CheckpointID]:
        """Checkpoints whose files are there: while the job runs, and those that stay for its user after the end."""
        return frozenset(checkpoint.checkpoint_id for checkpoint in (*self.store.checkpoints, *self._kept))

    def shared_bytes(self, state: TaskStateSnapshot) -> int:
        """How much of a task's state lies in files that completed checkpoints have written."""
        if self.registry.is_empty:
            return 0
        parts = (part for operator in state.operators.values() for part in operator.managed_keyed if part.shared_key)
        return sum(part.handle.state_size_bytes for part in parts if self.registry.references(part.shared_key))

    # --- storing

    def begin(
        self, checkpoint: CompletedCheckpoint, pending: PendingCheckpoint
    ) -> StoreCompletedCheckpoint | FinalizeRefused:
        """Return the effect that makes a fully acknowledged checkpoint durable, or why there is none."""
        check(self.storing is None, f"checkpoint {checkpoint.checkpoint_id} was stored beside another one")
        foreign = self._foreign_file(checkpoint)
        if foreign:
            return FinalizeRefused(
                f"a task says that its state lies in {foreign}, which is outside of the job's directory",
                CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
            )
        unknown = self._unknown_file(checkpoint)
        if unknown:
            return _refers_to_lost(unknown)
        operators, duplicates = self.registry.register_all(checkpoint.operators)
        if duplicates:
            checkpoint = replace(checkpoint, operators=operators)
        lost = self._lost_file(checkpoint)
        if lost:
            self.registry.unregister_all(checkpoint)
            return _refers_to_lost(lost)
        self.storing = Storing(checkpoint, pending, duplicates)
        properties = checkpoint.properties
        return StoreCompletedCheckpoint(checkpoint, register=not properties.is_savepoint or properties.is_synchronous)

    def begin_adoption(self, checkpoint: CompletedCheckpoint) -> StoreCompletedCheckpoint:
        """Register a snapshot that is durable already: the job starts from it."""
        check(self.storing is None, f"snapshot {checkpoint.location} was registered beside another one")
        self._is_store_known = True
        self._adopt_files(checkpoint)
        if not checkpoint.properties.is_unclaimed:
            self.registry.register_all(checkpoint.operators)
        self.storing = Storing(checkpoint, None)
        return StoreCompletedCheckpoint(checkpoint, write_metadata=False)

    def is_storing(self, checkpoint_id: CheckpointID) -> bool:
        """Whether an answer for this checkpoint is outstanding."""
        return self.storing is not None and self.storing.checkpoint.checkpoint_id == checkpoint_id

    def verify(self, doubt: str) -> VerifyStoredCheckpoint:
        """Find out how the storing ended, because nobody knows whether the checkpoint is durable; `doubt` says why."""
        check(self.storing is not None, "nothing is being stored")
        return VerifyStoredCheckpoint(self._stored().checkpoint, doubt)

    def succeeded(self) -> tuple[Storing, CheckpointID, list[CheckpointCoordinatorEffect]]:
        """Note that the checkpoint is durable; returns it, the id of the newest checkpoint that it pushed out (0:
        none), and what has to go."""
        storing = self._stored()
        self.storing = None
        checkpoint = storing.checkpoint
        effects: list[CheckpointCoordinatorEffect] = []
        removed: tuple[CompletedCheckpoint, ...] = ()
        if storing.pending is None or not checkpoint.properties.is_savepoint:
            removed = self.store.add(checkpoint)
        elif checkpoint.properties.is_synchronous:
            removed = self.store.remember_stop(checkpoint)
        duplicates = self._paths_of_duplicates(storing)
        if duplicates:
            self._remember_deleted(duplicates)
            effects.append(DiscardState(checkpoint.checkpoint_id, (), duplicates))
        strays = self._strays.pop(checkpoint.checkpoint_id, None)
        if strays:
            needed = frozenset(checkpoint.file_paths())
            paths = tuple(
                path
                for path in strays
                if not self._is_shared(path)
                and path not in needed
                and may_be_deleted(path, checkpoint.checkpoint_id, checkpoint.location)
            )
            if paths:
                effects.append(DiscardState(checkpoint.checkpoint_id, (), paths))
        if self._unreferenced and not checkpoint.properties.is_savepoint:
            effects += self._delete_unreferenced(checkpoint.checkpoint_id)
        effects += [self._subsume(old, checkpoint.checkpoint_id) for old in removed]
        last_subsumed = max((old.checkpoint_id for old in removed), default=CheckpointID(0))
        return storing, last_subsumed, effects

    def failed(self) -> Storing:
        """Note that the checkpoint is not durable, and that nothing points to it."""
        storing = self._stored()
        self.storing = None
        if not self.registry.is_empty and not storing.checkpoint.properties.is_unclaimed:
            self.registry.unregister_all(storing.checkpoint)
        return storing

    def _stored(self) -> Storing:
        storing = self.storing
        check(storing is not None, "the answer of a store came, and nothing is being stored")
        return storing  # type: ignore[return-value]

    # --- retaining

    def recover(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Take over what a former leader completed."""
        self._is_store_known = True
        for checkpoint in checkpoints:
            self.may_have_leftovers = True
            checkpoint_id = checkpoint.checkpoint_id
            self._recovered_until = max(self._recovered_until, checkpoint_id)
            self._adopt_files(checkpoint)
            if self.store.find(checkpoint_id) is not None or checkpoint_id in self._removing:
                continue
            if not checkpoint.properties.is_unclaimed:
                self.registry.register_all(checkpoint.operators)
            self.store.recover((checkpoint,))

    def _subsume(self, old: CompletedCheckpoint, newest: CheckpointID) -> RemoveCompletedCheckpoint:
        """Give up a checkpoint that a newer one has pushed out.

        Shared files that nobody refers to any more stay until the next completion: a task that has not heard of the
        newest checkpoint yet may build one more on the old one, and the file is then referred to again.
        """
        discard = old.properties.discard_on_subsumed
        if not self.registry.is_empty and not old.properties.is_unclaimed:
            for path in self._orphaned_paths(self.registry.unregister_all(old)):
                if discard and self._is_own_shared(path):
                    self._unreferenced[path] = (old.checkpoint_id, newest)
        self._removing[old.checkpoint_id] = None
        return RemoveCompletedCheckpoint(old, discard)

    def _delete_unreferenced(self, newest: CheckpointID) -> list[CheckpointCoordinatorEffect]:
        gone = []
        oldest_pointer = min(self._removing, default=newest)
        for path, (last_user, since) in tuple(self._unreferenced.items()):
            if self.registry.uses_file(path):
                del self._unreferenced[path]
            elif since < newest and last_user < oldest_pointer:  # no pointer leads to a checkpoint that has lost a file
                del self._unreferenced[path]
                gone.append(path)
        if not gone:
            return []
        self._remember_deleted(gone)
        return [DiscardState(newest, (), tuple(gone))]

    def _remember_deleted(self, paths: Iterable[str]) -> None:
        self._deleted_shared.update(dict.fromkeys(paths))
        while len(self._deleted_shared) > MAX_DELETED_SHARED:
            del self._deleted_shared[next(iter(self._deleted_shared))]

    def _lost_file(self, checkpoint: CompletedCheckpoint) -> str:
        """A shared file that the checkpoint refers to and that is deleted; empty if there is none."""
        if not self._deleted_shared:
            return ""
        return next((path for path in checkpoint.file_paths() if path in self._deleted_shared), "")

    def _unknown_file(self, checkpoint: CompletedCheckpoint) -> str:
        """A shared file of a former leader's time that no retained checkpoint refers to: that leader may have deleted
        it."""
        if not self._recovered_until:
            return ""
        for path in checkpoint.file_paths():
            written_for = checkpoint_of_shared_file(path)
            if written_for is not None and written_for <= self._recovered_until and not self._is_shared(path):
                return path
        return ""

    def removed(self, checkpoint_id: CheckpointID) -> None:
        """A checkpoint that was given up is gone."""
        check(checkpoint_id in self._removing, f"checkpoint {checkpoint_id} was removed, and nobody wanted that")
        del self._removing[checkpoint_id]

    def shutdown(self, status: JobStatus) -> list[CheckpointCoordinatorEffect]:
        """The job has ended with this status, or is suspended."""
        outcome = self.store.shutdown(status)
        effects: list[CheckpointCoordinatorEffect] = []
        for discarded in outcome.discarded:
            self._removing[discarded.checkpoint_id] = None
            if not self.registry.is_empty and not discarded.properties.is_unclaimed:
                orphans = [
                    path for path in _paths_of(self.registry.unregister_all(discarded)) if self._is_own_shared(path)
                ]
                last_user = discarded.checkpoint_id
                self._unreferenced.update(dict.fromkeys(orphans, (last_user, last_user)))
            effects.append(RemoveCompletedCheckpoint(discarded, discard=True))
        for kept in outcome.kept:  # still registered: what it shares with the discarded ones stays
            self._removing[kept.checkpoint_id] = None
            effects.append(RemoveCompletedCheckpoint(kept, discard=False))
        self._kept = outcome.kept
        self._is_released = bool(outcome.released) or not status.is_globally_terminal
        if outcome.released:
            self._unreferenced.clear()  # a successor may find pointers to their checkpoints
        effects.append(ReleaseCompletedCheckpoints())
        return effects

    @property
    def has_kept(self) -> bool:
        """Whether a snapshot of the job stays for its user after the end."""
        return bool(self._kept)

    def close(self) -> list[CheckpointCoordinatorEffect]:
        """All that had to be removed is; shared files that nobody kept follow."""
        gone = tuple(path for path in self._unreferenced if not self.registry.uses_file(path))
        self._unreferenced.clear()
        effects: list[CheckpointCoordinatorEffect] = [DiscardState(CheckpointID(0), (), gone)] if gone else []
        if self.may_have_leftovers and not self._is_released:
            effects += self.leftovers_before(NO_LIMIT)
        self.registry.close()
        return effects

    # --- files that nobody needs

    def leftovers_before(self, checkpoint_id: CheckpointID) -> list[CheckpointCoordinatorEffect]:
        """Files of tasks that are gone, which wrote for older checkpoints than this one and never said what."""
        if not self._is_store_known:
            return []
        locations = [checkpoint.location for checkpoint in (*self.store.checkpoints, *self._kept)]
        files = self.registry.files | self._unreferenced.keys()
        return [DeleteLeftovers(files, frozenset(locations), checkpoint_id)]

    def remember_stray(self, checkpoint_id: CheckpointID, state: TaskStateSnapshot) -> None:
        """State that does not belong to this pending checkpoint, in files that may. Only their names are kept: what
        travels in an acknowledgement can be hundreds of megabytes."""
        strays = self._strays.setdefault(checkpoint_id, {})
        strays.update(dict.fromkeys(_file_paths((state,))[: MAX_STRAYS - len(strays)]))

    def forget_strays(self, checkpoint_id: CheckpointID) -> None:
        """The checkpoint was aborted: its directory goes as a whole."""
        self._strays.pop(checkpoint_id, None)

    def paths_of_aborted(
        self, pending: PendingCheckpoint, states: Iterable[TaskStateSnapshot], *, owns_directory: bool
    ) -> tuple[str, ...]:
        """Files of an aborted checkpoint that nobody shares; without those in its directory when that goes as a
        whole."""
        location = pending.location
        prefix = f"{location.rstrip('/')}/" if owns_directory and location else ""
        return tuple(
            path
            for path in self._unshared_paths(states)
            if may_be_deleted(path, pending.checkpoint_id, location) and not (prefix and path.startswith(prefix))
        )

    def paths_of_late_state(
        self, checkpoint_id: CheckpointID, outcome: CheckpointOutcome | None, location: str, state: TaskStateSnapshot
    ) -> tuple[str, ...]:
        """Files of an acknowledgement for a checkpoint that is not pending (any more) that may be deleted. `location`:
        its directory, empty when that is not known."""
        unshared = tuple(
            path for path in self._unshared_paths((state,)) if may_be_deleted(path, checkpoint_id, location)
        )
        completed = self.store.find(checkpoint_id)
        if completed is not None:
            needed = frozenset(completed.file_paths())
            return tuple(path for path in unshared if path not in needed)
        if outcome is CheckpointOutcome.COMPLETED:
            return ()  # a savepoint: its user's, whatever this message says
        if checkpoint_id in self._removing or (outcome is None and not self._is_store_known):
            return ()
        if outcome is None:
            own = f"chk-{checkpoint_id}/"
            return tuple(
                path for path in unshared if path.startswith(own) or checkpoint_of_shared_file(path) == checkpoint_id
            )
        return unshared

    def _adopt_files(self, checkpoint: CompletedCheckpoint) -> None:
        """What this one refers to outside of the job's directory may be referred to again."""
        for path in checkpoint.file_paths():
            if not is_below(path):
                is_claimed = not checkpoint.properties.is_unclaimed and may_be_claimed(path)
                self._adopted_files[path] = is_claimed or self._adopted_files.get(path, False)

    def _foreign_file(self, checkpoint: CompletedCheckpoint) -> str:
        """A file outside of the job's directory that no task of the job can have written or been given; empty if there
        is none."""
        inside = f"{checkpoint.location.rstrip('/')}/"
        for path in checkpoint.file_paths():
            if is_below(path) or path in self._adopted_files:
                continue
            if not (path.startswith(inside) and is_below(path.removeprefix(inside))):
                return path
        return ""

    def _is_own_shared(self, path: str) -> bool:
        """Whether a shared file is the job's to delete."""
        return may_be_shared(path) or self._adopted_files.get(path, False)

    def _paths_of_duplicates(self, storing: Storing) -> tuple[str, ...]:
        """The paths of shared state that was uploaded for the second time."""
        checkpoint = storing.checkpoint
        needed = frozenset(checkpoint.file_paths()) if storing.duplicates else frozenset()
        return tuple(
            path
            for path in self._orphaned_paths(storing.duplicates)
            if path not in needed and may_be_deleted(path, checkpoint.checkpoint_id, checkpoint.location)
        )

    def _unshared_paths(self, states: Iterable[TaskStateSnapshot]) -> tuple[str, ...]:
        """Files of these states that hold no registered state, and none that may be registered again; each once."""
        return tuple(path for path in _file_paths(states) if not self._is_shared(path))

    def _is_shared(self, path: str) -> bool:
        return self.registry.uses_file(path) or path in self._unreferenced

    def _orphaned_paths(self, handles: Iterable[StreamStateHandle]) -> tuple[str, ...]:
        return tuple(path for path in _paths_of(handles) if not self._is_shared(path))


def _refers_to_lost(path: str) -> FinalizeRefused:
    return FinalizeRefused(
        f"{path} is not shared any more: the task that refers to it has not heard of a newer completed checkpoint",
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY,
    )


def _paths_of(handles: Iterable[StreamStateHandle]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(handle.path for handle in handles if isinstance(handle, SegmentStateHandle)))


def _file_paths(states: Iterable[TaskStateSnapshot]) -> tuple[str, ...]:
    return _paths_of(
        handle for state in states for operator in state.operators.values() for handle in operator.stream_handles
    )
