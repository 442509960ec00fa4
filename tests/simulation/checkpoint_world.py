"""What checkpoints need of the world: an id counter, a store of completed ones, and barriers that pass through tasks.

`CheckpointStore` outlives JobMasters. `Barriers` stands in for the data plane where tasks are simulated too: a barrier
begins at the triggered tasks and passes a task when it has passed all of the task's producers that still run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.effects import (
    DrawCheckpointId,
    RecoverCompletedCheckpoints,
    RemoveCompletedCheckpoint,
    SetCheckpointIdCount,
    StoreCompletedCheckpoint,
    TriggerMasterHook,
    VerifyStoredCheckpoint,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointStored,
    CheckpointStoreFailed,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    MasterHookAnswered,
)
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID
from snapline.dataflow.wire.messages import TaskDeploymentDescriptor
from snapline.testing.simulated.network import SimulatedClock


class CheckpointStore:
    """The durable side of one job's checkpoints."""

    def __init__(self, clock: SimulatedClock, rng: random.Random, max_delay_ms: int = 20) -> None:
        self._clock = clock
        self._rng = rng
        self._max_delay_ms = max_delay_ms
        self.next_id = 1
        self.drawn: list[int] = []
        self.completed: dict[CheckpointID, CompletedCheckpoint] = {}
        self.stored: list[CheckpointID] = []
        """All that ever were, in order."""
        self.fail_next_store = False

    def perform(self, effect: Any, answer: Callable[[Any], None]) -> None:
        """Do what the checkpoint core asks, and answer after a while. Deletions that are not answered leave no
        trace."""
        match effect:
            case DrawCheckpointId(request_id):
                drawn = CheckpointID(self.next_id)
                self.next_id += 1
                self.drawn.append(drawn)
                self._later(answer, CheckpointIdDrawn(request_id, drawn))
            case SetCheckpointIdCount(request_id, next_id):
                self.next_id = next_id
                self._later(answer, CheckpointIdCountSet(request_id))
            case TriggerMasterHook(hook_id, checkpoint_id):
                self._later(answer, MasterHookAnswered(hook_id, checkpoint_id))
            case StoreCompletedCheckpoint(checkpoint):
                self._clock.after(self._delay(), lambda: self._store(checkpoint, answer))
            case VerifyStoredCheckpoint(checkpoint):
                there = checkpoint.checkpoint_id in self.completed
                verdict = CheckpointStored if there else _not_stored
                self._later(answer, verdict(checkpoint.checkpoint_id))
            case RemoveCompletedCheckpoint(checkpoint):
                self.completed.pop(checkpoint.checkpoint_id, None)
                self._later(answer, CompletedCheckpointRemoved(checkpoint.checkpoint_id))
            case RecoverCompletedCheckpoints():
                self._later(answer, CompletedCheckpointsRecovered(tuple(self.completed.values())))

    def _store(self, checkpoint: CompletedCheckpoint, answer: Callable[[Any], None]) -> None:
        if self.fail_next_store:
            self.fail_next_store = False
            answer(_not_stored(checkpoint.checkpoint_id))
            return
        assert checkpoint.checkpoint_id not in self.stored, f"checkpoint {checkpoint.checkpoint_id} completed twice"
        self.completed[checkpoint.checkpoint_id] = checkpoint
        self.stored.append(checkpoint.checkpoint_id)
        answer(CheckpointStored(checkpoint.checkpoint_id))

    def _later(self, answer: Callable[[Any], None], event: Any) -> None:
        self._clock.after(self._delay(), lambda: answer(event))

    def _delay(self) -> int:
        return self._rng.randint(0, self._max_delay_ms)


def _not_stored(checkpoint_id: CheckpointID) -> CheckpointStoreFailed:
    return CheckpointStoreFailed(checkpoint_id, "the store said no")


class Barriers:
    """Barriers on their way through the simulated tasks of a cluster."""

    def __init__(self, clock: SimulatedClock, rng: random.Random, max_delay_ms: int = 10) -> None:
        self._clock = clock
        self._rng = rng
        self._max_delay_ms = max_delay_ms
        self._running: dict[ExecutionAttemptID, TaskDeploymentDescriptor] = {}
        self._consumers: dict[ExecutionAttemptID, dict[ExecutionAttemptID, None]] = {}
        self.last_one: CheckpointID | None = None
        """A synchronous savepoint, after which tasks end."""
        self._passed: dict[CheckpointID, set[ExecutionAttemptID]] = {}
        self._acknowledge: dict[ExecutionAttemptID, Callable[[CheckpointID], None]] = {}

    def task_started(self, descriptor: TaskDeploymentDescriptor, acknowledge: Callable[[CheckpointID], None]) -> None:
        self._running[descriptor.attempt_id] = descriptor
        self._acknowledge[descriptor.attempt_id] = acknowledge
        for gate in descriptor.input_gates:
            for channel in gate.channels:
                self._consumers.setdefault(channel.producer, {})[descriptor.attempt_id] = None

    def task_ended(self, attempt_id: ExecutionAttemptID) -> None:
        self._running.pop(attempt_id, None)
        self._acknowledge.pop(attempt_id, None)
        for checkpoint_id in list(self._passed):  # the end of an input counts as its barrier
            self._look_at_consumers(checkpoint_id, attempt_id)

    def barrier_at(self, attempt_id: ExecutionAttemptID, checkpoint_id: CheckpointID) -> None:
        """The task snapshots and acknowledges, and its consumers see the barrier after a while."""
        passed = self._passed.setdefault(checkpoint_id, set())
        if attempt_id not in self._running or attempt_id in passed:
            return
        passed.add(attempt_id)
        while len(self._passed) > 8:
            del self._passed[next(iter(self._passed))]

        def pass_on() -> None:
            acknowledge = self._acknowledge.get(attempt_id)
            if acknowledge is not None:
                acknowledge(checkpoint_id)
                self._look_at_consumers(checkpoint_id, attempt_id)

        self._clock.after(self._rng.randint(0, self._max_delay_ms), pass_on)

    def _look_at_consumers(self, checkpoint_id: CheckpointID, attempt_id: ExecutionAttemptID) -> None:
        for consumer in self._consumers.get(attempt_id, {}):
            descriptor = self._running.get(consumer)
            if descriptor is None:
                continue
            passed = self._passed.get(checkpoint_id, set())
            producers = (channel.producer for gate in descriptor.input_gates for channel in gate.channels)
            if all(producer in passed or producer not in self._running for producer in producers):
                self.barrier_at(consumer, checkpoint_id)
