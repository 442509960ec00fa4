"""Master hooks: asked before any task hears of a checkpoint, and given back what they said before any task starts from
it.

Every checkpoint gets a state of its own, so that a wrong one is seen. A fresh job resets its hooks. Knows nothing of
how hooks are run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapline.coordinator.checkpoint.effects import ResetMasterHook, RestoreMasterHook
from snapline.coordinator.checkpoint.events import MasterHookRestored
from snapline.dataflow.wire.messages import SubmitTasks, TriggerCheckpoint
from snapline.runtime.cores.connections import Send, SendToTasks
from snapline.testing.simulated.world import Violation
from tests.simulation.workload import Ledger


class HookOracle:
    """Of one job with one hook (HookWatch)."""

    def __init__(self, ledger: Ledger, owns: Callable[[str], bool], is_complete: Callable[[int], bool]) -> None:
        """`owns`: whether a job id is of this job. `is_complete`: whether a checkpoint is."""
        self._ledger = ledger
        self._owns = owns
        self._is_complete = is_complete
        self._given_back: list[int] = []
        """Checkpoints that hooks were called back to, and whose tasks have not started yet."""
        self._asked: dict[str, int] = {}
        """By JobMaster: what it wants its hook called back to."""
        self._done: dict[str, int] = {}
        """By JobMaster: what its hook was called back to last."""

    # --- the hook -----------------------------------------------------------------------------------------------------

    def triggered(self, checkpoint_id: int) -> bytes:
        """It answers this."""
        said = self._ledger.hook_states.get(checkpoint_id, [])
        state = f"{checkpoint_id} for the {len(said) + 1}. time".encode()
        self._ledger.hook_states[checkpoint_id] = [*said, state]
        return state

    def restored(self, checkpoint_id: int, state: bytes | None) -> None:
        """Raises Violation."""
        if checkpoint_id:
            if not self._is_complete(checkpoint_id):
                raise Violation(f"the master hook is to go back to checkpoint {checkpoint_id}, which is not complete")
            if state not in self._ledger.hook_states.get(checkpoint_id, []):
                raise Violation(f"the master hook gets {state!r} back with checkpoint {checkpoint_id}")
        self._given_back.append(checkpoint_id)

    # --- JobMasters ---------------------------------------------------------------------------------------------------

    def observe(self, name: str, event: Any, effects: list[Any]) -> None:
        """What a core was told and wants. Raises Violation."""
        if type(event) is MasterHookRestored and name in self._asked:
            self._done[name] = self._asked.pop(name)
            if self._done[name] not in self._given_back:
                raise Violation(f"{name}: the master hook was not called back to checkpoint {self._done[name]}")
            self._given_back.remove(self._done[name])
        for effect in effects:
            match effect:
                case RestoreMasterHook(checkpoint_id=checkpoint_id):
                    self._asked[name] = checkpoint_id
                case ResetMasterHook():
                    self._asked[name] = 0
                case Send(envelope=envelope) if isinstance(envelope.message, SubmitTasks):
                    self._starts(name, envelope.message)
                case SendToTasks(template=TriggerCheckpoint() as message):
                    if self._owns(message.job_id) and message.checkpoint_id not in self._ledger.hook_states:
                        raise Violation(f"tasks hear of checkpoint {message.checkpoint_id} before the master hook")

    def _starts(self, name: str, message: SubmitTasks) -> None:
        for task in message.tasks:
            if self._owns(task.job_id) and self._done.get(name) != max(0, task.restore_checkpoint_id):
                raise Violation(
                    f"{task.task_name} starts from checkpoint {task.restore_checkpoint_id}; the master hook of {name} was called "
                    f"back to {self._done.get(name)}"
                )
