"""State outside the dataflow that is snapshotted with it: hooks that run in the coordinator's process.

Decides which hooks exist, in which order they are called, and how stored state finds its hook; calling them is an
effect. Mirrors Flink's MasterTriggerRestoreHook and MasterHooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from snapline.dataflow.snapshot.handles import MasterState


@dataclass(frozen=True, slots=True)
class HookStateMismatch:
    """A snapshot holds state of hooks that the job does not have."""

    hook_ids: tuple[str, ...]


class MasterHooks:
    """The registered hooks, in order of registration."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    @property
    def hook_ids(self) -> tuple[str, ...]:
        """Ids in the order in which hooks are called."""
        return tuple(self._ids)

    def add(self, hook_id: str | None) -> bool:
        """Register a hook; False when there is one with this id. Raises ValueError for a blank id."""
        if hook_id is None or not hook_id.strip():
            raise ValueError("a master hook needs an id that is not blank")
        if hook_id in self._ids:
            return False
        self._ids[hook_id] = None
        return True

    def match(
        self, states: Iterable[MasterState], *, allow_unmatched: bool
    ) -> tuple[tuple[str, MasterState | None], ...] | HookStateMismatch:
        """What to tell each hook on restore: its state, or None when the snapshot has none."""
        by_hook = {state.hook_id: state for state in states}
        unmatched = tuple(hook_id for hook_id in by_hook if hook_id not in self._ids)
        if unmatched and not allow_unmatched:
            return HookStateMismatch(unmatched)
        return tuple((hook_id, by_hook.get(hook_id)) for hook_id in self._ids)
