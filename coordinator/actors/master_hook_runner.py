"""Calls the master hooks of one job: user code in the coordinator's process, on a thread of its own.

Decides nothing but order: one call at a time, as asked for. A hook that hangs is given up after the checkpoint timeout
and answered as failed; what is asked meanwhile waits for it, and storage, which has other threads, does not. Mirrors
Flink's MasterHooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from snapline.coordinator.checkpoint.effects import (
    CloseMasterHook,
    ResetMasterHook,
    RestoreMasterHook,
    TriggerMasterHook,
)
from snapline.coordinator.checkpoint.events import MasterHookAnswered, MasterHookFailed, MasterHookRestored
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.coordinator.io import IoExecutor
from snapline.dataflow.api.master_hooks import MasterTriggerRestoreHook
from snapline.dataflow.failures import message_of
from snapline.dataflow.snapshot.handles import MasterState
from snapline.runtime.actor import Performer

CLOSE_LIMIT_MS = 24 * 60 * 60 * 1000
"""Nobody waits for it: it is called behind a hook that hangs, too."""


class MasterHookRunner:
    """One job's. Performers are called on the job's actor; the answers come on other threads, through `tell`."""

    def __init__(
        self,
        hooks: Sequence[MasterTriggerRestoreHook[object]],
        limit_ms: int,
        io: IoExecutor,
        tell: Callable[[Any], object],
    ) -> None:
        """`io`: of one thread, and for this alone; closed with this."""
        self._hooks = {hook.identifier: hook for hook in hooks}
        self._limit_ms = limit_ms
        self._io = io
        self._tell = tell
        self._open = dict.fromkeys(self._hooks)

    def registered(self) -> MasterHooks:
        """For the CheckpointCoordinator, in the order in which they are called."""
        hooks = MasterHooks()
        for hook_id in self._hooks:
            hooks.add(hook_id)
        return hooks

    def performers(self) -> dict[type, Performer]:
        """Return what performs the effects of master hooks, for the table of the job's actor."""
        return {
            TriggerMasterHook: self._trigger,
            RestoreMasterHook: self._restore,
            ResetMasterHook: self._reset,
            CloseMasterHook: lambda effect: self._close(effect.hook_id),
        }

    def close(self) -> None:
        """Close what is open, and end the thread; returns at once."""
        for hook_id in tuple(self._open):
            self._close(hook_id)
        self._io.close(0)

    def _trigger(self, effect: TriggerMasterHook) -> None:
        hook_id, checkpoint_id = effect.hook_id, effect.checkpoint_id
        hook = self._hooks[hook_id]

        def work() -> MasterHookAnswered:
            state = hook.trigger_checkpoint(checkpoint_id, effect.timestamp_ms)
            if state is None:
                return MasterHookAnswered(hook_id, checkpoint_id)
            stored = MasterState(hook_id, hook.serializer_version, bytes(hook.serialize(state)))
            return MasterHookAnswered(hook_id, checkpoint_id, stored)

        def failed(error: BaseException) -> MasterHookFailed:
            return MasterHookFailed(hook_id, checkpoint_id, _text(error))

        self._io.submit(f"trigger master hook {hook_id!r}", work, self._tell, failed, self._limit_ms)

    def _restore(self, effect: RestoreMasterHook) -> None:
        hook, state = self._hooks[effect.hook_id], effect.state

        def work() -> None:
            restored = None if state is None else hook.deserialize(state.version, state.data)
            hook.restore_checkpoint(effect.checkpoint_id, restored)

        self._before_tasks(effect.hook_id, "restore", work)

    def _reset(self, effect: ResetMasterHook) -> None:
        self._before_tasks(effect.hook_id, "reset", self._hooks[effect.hook_id].reset)

    def _before_tasks(self, hook_id: str, what: str, call: Callable[[], None]) -> None:
        def work() -> MasterHookRestored:
            call()
            return MasterHookRestored(hook_id)

        def failed(error: BaseException) -> MasterHookFailed:
            return MasterHookFailed(hook_id, None, _text(error))

        self._io.submit(f"{what} master hook {hook_id!r}", work, self._tell, failed, self._limit_ms)

    def _close(self, hook_id: str) -> None:
        """Once. The job does not wait for it."""
        if hook_id in self._open:
            del self._open[hook_id]
            name = f"close master hook {hook_id!r}"
            self._io.submit(name, self._hooks[hook_id].close, self._tell, lambda _: None, CLOSE_LIMIT_MS)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"
