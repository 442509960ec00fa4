"""State outside of the dataflow that is snapshotted with it: the contract of master hooks.

A hook runs in the coordinator's process, one per function that has one. At every checkpoint it is asked for its state
before any task is told; on restore it gets its state back before any task starts. For what a source or sink keeps in an
outside system as a whole, not per subtask: a subscription, a schema version, a transaction that spans all subtasks.
Mirrors Flink's MasterTriggerRestoreHook and WithMasterCheckpointHook.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Generic, TypeVar

import cloudpickle

from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.failures import message_of

StateT = TypeVar("StateT")


class MasterTriggerRestoreHook(ABC, Generic[StateT]):
    """One hook. Its methods are called one after the other, on one thread; what they raise fails the checkpoint, or the
    restore.

    >>> class Subscription(sl.MasterTriggerRestoreHook):
    ...     identifier = "subscription"
    ...     def trigger_checkpoint(self, checkpoint_id, timestamp_ms):
    ...         return {"offset": checkpoint_id}
    ...     def restore_checkpoint(self, checkpoint_id, state):
    ...         self.offset = 0 if state is None else state["offset"]
    ...     def reset(self):
    ...         self.offset = 0
    ...     def close(self):
    ...         pass
    ...     def serialize(self, state):
    ...         return str(state["offset"]).encode()
    ...     def deserialize(self, version, data):
    ...         return {"offset": int(data)}
    >>> hook = Subscription()
    >>> hook.deserialize(1, hook.serialize(hook.trigger_checkpoint(3, 0)))
    {'offset': 3}
    """

    serializer_version = 1
    """Stored with the state; `deserialize` gets the one that it was written with."""

    @property
    @abstractmethod
    def identifier(self) -> str:
        """Finds the state again: unique in the job, the same in every version of it."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp_ms: int) -> StateT | None:
        """A checkpoint begins; no task knows of it. Returns the state, None when there is none. It may take as long as
        a checkpoint (`execution.checkpointing.timeout`)."""

    def restore_checkpoint(self, checkpoint_id: int, state: StateT | None) -> None:
        """The job goes on from this checkpoint; no task has started. None: it holds nothing for this hook."""

    def reset(self) -> None:
        """The job starts, or restarts, and there is no checkpoint to go on from."""

    def close(self) -> None:
        """The job has ended, or another coordinator goes on with it. What this raises is only logged."""

    def serialize(self, state: StateT) -> bytes:
        """For the checkpoint; without an own one, the state has to be bytes."""
        if not isinstance(state, bytes):
            raise TypeError(
                f"the state of master hook {self.identifier!r} is {type(state).__name__}, not bytes: override serialize and "
                "deserialize"
            )
        return state

    def deserialize(self, version: int, data: bytes) -> StateT:
        """The opposite; `version` is the `serializer_version` at the time."""
        return data  # type: ignore[return-value]  # without an own serializer the state is bytes


class WithMasterCheckpointHook(ABC):
    """A source, sink or function that brings a hook.

    >>> class Subscribed(sl.SinkFunction, sl.WithMasterCheckpointHook):
    ...     def invoke(self, value):
    ...         pass
    ...     def create_master_trigger_restore_hook(self):
    ...         return Hook()
    >>> class Hook(sl.MasterTriggerRestoreHook):
    ...     identifier = "subscription"
    ...     def trigger_checkpoint(self, checkpoint_id, timestamp_ms):
    ...         return b"position"
    >>> _ = orders.add_sink(Subscribed(), uid="subscribed")
    """

    @abstractmethod
    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[object]:
        """Called once in the coordinator, on a copy that was pickled like those for the tasks; `open` was not
        called."""


def functions_with_hooks(spec: object) -> list[WithMasterCheckpointHook]:
    """What the user gave an operator, as far as it brings a hook."""
    if not is_dataclass(spec):
        return []
    values = (getattr(spec, part.name) for part in fields(spec))
    return [value for value in values if isinstance(value, WithMasterCheckpointHook)]


def create_hooks(
    payloads: tuple[bytes, ...], unpickle: Callable[[bytes], object] = cloudpickle.loads
) -> list[MasterTriggerRestoreHook[object]]:
    """The hooks of a job graph, in its order. Raises JobDefinitionError that says what is wrong."""
    hooks: dict[str, MasterTriggerRestoreHook[object]] = {}
    for payload in payloads:
        try:
            function = unpickle(payload)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            said = f"{type(error).__name__}: {message_of(error)}"
            raise JobDefinitionError(
                f"a function with a master hook cannot be unpickled in the coordinator: {said}; every "
                "module that it imports must be installed there, in the same version as on the driver"
            ) from error
        name = type(function).__name__
        try:
            hook = function.create_master_trigger_restore_hook()  # type: ignore[attr-defined]
            identifier = hook.identifier
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise JobDefinitionError(
                f"{name} cannot create its master hook: {type(error).__name__}: {message_of(error)}"
            ) from error
        if not isinstance(identifier, str) or not identifier.strip():
            raise JobDefinitionError(f"the master hook of {name} needs an identifier that is not blank")
        if identifier in hooks:
            raise JobDefinitionError(
                f"two master hooks have the identifier {identifier!r}; it has to be unique in the job"
            )
        hooks[identifier] = hook
    return list(hooks.values())
