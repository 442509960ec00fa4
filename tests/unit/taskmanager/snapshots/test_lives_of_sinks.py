"""Random lives of several tasks that share files: what the coordinator was told of stays, and nothing else, whoever
ends when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from snapline.dataflow.ids import CheckpointID, JobID, OperatorID, ResourceID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    SegmentStateHandle,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot
from snapline.taskmanager.snapshots.uploader import SnapshotUploader, TaskSnapshotSink

OPERATOR = OperatorID("op")
RANGE = KeyGroupRange(0, 3)


class AnyOrder:
    """Work waits until the test performs a piece of it."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._waiting: list[Callable[[], Any]] = []

    def submit(self, _job_id: JobID, work: Callable[[], None]) -> None:
        self._waiting.append(work)

    def close(self) -> None: ...

    def perform_one(self) -> bool:
        if self._waiting:
            self._waiting.pop(self._choose.randrange(len(self._waiting)))()
            return True
        return False


@dataclass
class Part:
    """Keyed state in the directory of its checkpoint."""

    key_group_range: KeyGroupRange = RANGE

    def encode(self) -> bytes:
        return b"k" * 100

    def release(self) -> None: ...


@dataclass
class SharedPart(Part):
    """Keyed state that later checkpoints may refer to."""

    shared_key: str = "delta"
    references: tuple[KeyedStateHandle, ...] = ()

    def stored(self, handle: StreamStateHandle) -> KeyedStateHandle:
        return KeyedStateHandle(RANGE, handle, self.shared_key)


def files_of(state: TaskStateSnapshot) -> set[str]:
    operators = state.operators.values()
    handles = [keyed.handle for operator in operators for keyed in operator.managed_keyed]
    return {handle.path for handle in handles if isinstance(handle, SegmentStateHandle)}


@dataclass
class Task:
    """One attempt and what became of its snapshots."""

    sink: TaskSnapshotSink
    answers: dict[CheckpointID, list[TaskStateSnapshot]] = field(default_factory=dict)
    """Not acknowledged and not cancelled."""
    told: set[CheckpointID] = field(default_factory=set)
    untold: set[CheckpointID] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    """Files that the coordinator was told of."""

    def begin(self, checkpoint_id: CheckpointID, part: Part) -> None:
        answer = self.answers.setdefault(checkpoint_id, [])
        snapshots = [(OPERATOR, OperatorSnapshot(keyed=(part,)))]
        self.sink.start(checkpoint_id, f"chk-{checkpoint_id}", snapshots, None, answer.append)

    def acknowledge(self, checkpoint_id: CheckpointID, *, is_told: bool) -> None:
        (state,) = self.answers.pop(checkpoint_id)
        self.sink.acknowledged(checkpoint_id, state)
        (self.told if is_told else self.untold).add(checkpoint_id)
        self.needed |= files_of(state) if is_told else set()

    def end(self) -> set[str]:
        for checkpoint_id in self.answers:
            self.sink.cancel(checkpoint_id)
        self.sink.release(tuple(self.untold))
        return self.needed


@pytest.mark.parametrize("seed", range(200))
def test_files_stay_that_somebody_was_told_of_and_no_others(seed: int) -> None:
    """Tasks that snapshot, are told to give up, acknowledge in any order, hear what became of it or do not, end, and
    begin again."""
    choose = random.Random(seed)
    memory, pool = MemoryStorage("job"), AnyOrder(choose)
    uploader = SnapshotUploader(
        ResourceID("tm"), StateStorages(lambda _: memory), memory_threshold_bytes=1, workers=pool
    )
    latest_id = 0
    tasks = [Task(uploader.for_task("memory://job")) for _ in range(3)]
    needed: set[str] = set()
    for _ in range(choose.randint(10, 80)):
        number = choose.randrange(len(tasks))
        task = tasks[number]
        answered = [checkpoint_id for checkpoint_id, answer in task.answers.items() if answer]
        kind = choose.random()
        if kind < 0.2:
            latest_id += 1
            for other in tasks:
                if choose.random() < 0.7:
                    other.begin(CheckpointID(latest_id), choose.choice([Part(), SharedPart()]))
        elif kind < 0.6:
            pool.perform_one()
        elif kind < 0.8 and answered:
            task.acknowledge(choose.choice(answered), is_told=choose.random() < 0.6)
        elif kind < 0.87 and task.answers:
            checkpoint_id = choose.choice(list(task.answers))
            task.sink.cancel(checkpoint_id)
            del task.answers[checkpoint_id]
        elif kind < 0.93 and task.told:
            task.sink.settled(choose.choice(sorted(task.told)), completed=choose.random() < 0.6)
        elif kind < 0.96 and task.untold:
            task.sink.settled(choose.choice(sorted(task.untold)), completed=False)
        elif kind >= 0.96:
            needed |= task.end()
            tasks[number] = Task(uploader.for_task("memory://job"))
    for task in tasks:
        needed |= task.end()
    while pool.perform_one():
        pass

    assert {path for path, _ in memory.list("")} == needed
    assert uploader._planner.is_idle and not uploader._running and not uploader._held
