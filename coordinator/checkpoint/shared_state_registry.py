"""Who still needs a file that several incremental checkpoints share: a count of references per key.

Decides which handle is the one for a key, and when its file may go; deletes nothing itself. Knows nothing of
checkpoints except in the two methods that walk one. Mirrors Flink's SharedStateRegistry with reference counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    OperatorState,
    OperatorSubtaskState,
    SegmentStateHandle,
    StreamStateHandle,
)
from snapline.runtime.cores.machine import InvariantViolation, check


@dataclass(slots=True)
class _Entry:
    handle: StreamStateHandle
    references: int


@dataclass(frozen=True, slots=True)
class Registration:
    """Outcome of registering or unregistering one key."""

    handle: StreamStateHandle | None
    """The handle that counts for this key; None when nobody refers to it any more."""
    references: int
    discarded: StreamStateHandle | None = None
    """A duplicate upload, or state that lost its last reference: nobody needs it."""


class SharedStateRegistry:
    """Reference counts of shared state."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._keys_by_path: dict[str, int] = {}
        """How many registered keys lie in a file; several may share one."""
        self._is_open = True

    @property
    def is_empty(self) -> bool:
        """Return whether no shared state is registered."""
        return not self._entries

    def references(self, key: str) -> int:
        """How many checkpoints refer to the key."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.references

    @property
    def files(self) -> frozenset[str]:
        """All files in which registered state lies."""
        return frozenset(self._keys_by_path)

    def uses_file(self, path: str) -> bool:
        """Whether registered state lies in this file."""
        return path in self._keys_by_path

    def register(self, key: str, handle: StreamStateHandle) -> Registration:
        """One more reference. The first handle of a key stays the one that counts; another one is a duplicate."""
        check(self._is_open, f"shared state {key!r} was registered after the registry was closed")
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(handle, 1)
            if isinstance(handle, SegmentStateHandle):
                self._keys_by_path[handle.path] = self._keys_by_path.get(handle.path, 0) + 1
            return Registration(handle, 1)
        entry.references += 1
        return Registration(entry.handle, entry.references, handle if handle != entry.handle else None)

    def unregister(self, key: str) -> Registration:
        """Take one reference from the key's shared state; without any it is to be deleted."""
        entry = self._entries.get(key)
        if entry is None:
            raise InvariantViolation(f"shared state {key!r} was unregistered and is not registered")
        entry.references -= 1
        if entry.references > 0:
            return Registration(entry.handle, entry.references)
        del self._entries[key]
        if isinstance(entry.handle, SegmentStateHandle):
            self._keys_by_path[entry.handle.path] -= 1
            if not self._keys_by_path[entry.handle.path]:
                del self._keys_by_path[entry.handle.path]
        return Registration(None, 0, entry.handle)

    def register_all(
        self, operators: Iterable[OperatorState]
    ) -> tuple[tuple[OperatorState, ...], tuple[StreamStateHandle, ...]]:
        """Refer to all shared state of a checkpoint; returns its operators with the handles that count, and the
        duplicates that nobody needs."""
        registered = [self._register_operator(operator) for operator in operators]
        duplicates = tuple(handle for _, discarded in registered for handle in discarded)
        return tuple(operator for operator, _ in registered), duplicates

    def unregister_all(self, checkpoint: CompletedCheckpoint) -> tuple[StreamStateHandle, ...]:
        """Give up all shared state of a checkpoint; returns what nobody needs any more."""
        orphans = []
        for key in _shared_keys(checkpoint.operators):
            registration = self.unregister(key)
            if registration.discarded is not None:
                orphans.append(registration.discarded)
        return tuple(orphans)

    def close(self) -> None:
        """Forget everything and take nothing more; nothing is discarded."""
        self._entries.clear()
        self._keys_by_path.clear()
        self._is_open = False

    def _register_operator(self, operator: OperatorState) -> tuple[OperatorState, list[StreamStateHandle]]:
        """The operator with the handles that count, and the duplicates of them."""
        changed: dict[int, OperatorSubtaskState] = {}
        duplicates: list[StreamStateHandle] = []
        for subtask, state in operator.subtasks.items():
            if any(part.shared_key for part in state.managed_keyed):
                registered = [self._register_part(part) for part in state.managed_keyed]
                keyed = tuple(part for part, _ in registered)
                duplicates += [duplicate for _, duplicate in registered if duplicate is not None]
                if keyed != state.managed_keyed:
                    changed[subtask] = replace(state, managed_keyed=keyed)
        if changed:
            operator = replace(operator, subtasks={**operator.subtasks, **changed})
        return operator, duplicates

    def _register_part(self, part: KeyedStateHandle) -> tuple[KeyedStateHandle, StreamStateHandle | None]:
        """The part with the handle that counts, and its own handle if that is a duplicate."""
        if not part.shared_key:
            return part, None
        registration = self.register(part.shared_key, part.handle)
        if registration.discarded is None or registration.handle is None:
            return part, None
        return replace(part, handle=registration.handle), registration.discarded


def _shared_keys(operators: Iterable[OperatorState]) -> Iterable[str]:
    for operator in operators:
        for state in operator.subtasks.values():
            for part in state.managed_keyed:
                if part.shared_key:
                    yield part.shared_key
