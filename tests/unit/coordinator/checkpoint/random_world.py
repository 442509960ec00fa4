"""A world that does everything to one coordinator after another, from a seed, and watches what must never happen.

Tasks are two sources and a sink on two TaskManagers; a TaskManager writes one file per checkpoint for all its tasks,
and files that incremental checkpoints share. Messages are lost, late, doubled; ids and stores fail or nobody knows;
tasks crash and finish; leaders change. The oracles stand beside what they watch, marked `oracle`.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

from snapline.coordinator.checkpoint import effects as asked
from snapline.coordinator.checkpoint import events as told
from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.coordinator.checkpoint.metadata import build_metadata, encode_pointer, parse_metadata, resolve_pointer
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ExecutionState,
    ForTasks,
    JobStatus,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from tests.unit.coordinator.checkpoint.small_job import JOB, edge, vertex

TASKS = (("src", 0), ("src", 1), ("sink", 0))
ANSWERED = (
    asked.DrawCheckpointId,
    asked.StoreCompletedCheckpoint,
    asked.VerifyStoredCheckpoint,
    asked.RemoveCompletedCheckpoint,
    asked.RecoverCompletedCheckpoints,
)
DECLINES = (CheckpointFailureReason.CHECKPOINT_DECLINED, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION)


class RandomWorld:
    """One job through its leaders."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.configuration = CheckpointCoordinatorConfiguration(
            interval_ms=self.rng.choice((100, 1000)),
            timeout_ms=self.rng.choice((300, 5000)),
            min_pause_ms=self.rng.choice((0, 200)),
            max_concurrent_checkpoints=self.rng.choice((1, 1, 2, 3)),
            max_retained_checkpoints=self.rng.choice((1, 2)),
            unaligned=False,
        )
        self.now_ms = 1_000_000
        self.next_id = 1
        self.pointers: dict[int, bytes] = {}
        self.metadata: dict[str, bytes] = {}
        self.files: set[str] = set()
        self.contents: dict[tuple[str, int], int] = dict.fromkeys(TASKS, 0)
        """What a task's shared file would hold; rises when it is compacted."""
        self.base: dict[tuple[str, int], tuple[int, str]] = {}
        """(content, file) of the newest complete checkpoint that a task has heard of: what it need not write again."""
        self.offered: dict[tuple[int, tuple[str, int]], tuple[int, str]] = {}
        self.notifications: list[tuple[int, tuple[str, int]]] = []
        """On their way; barriers may overtake them."""
        self.drawn: list[int] = []
        self.open_requests: set[str] = set()
        self.answered: list[str] = []
        self.request_count = 0
        self.stored_ids: set[int] = set()
        self.notified: list[int] = []
        self.aborted: set[int] = set()
        self.triggered: dict[int, tuple[ExecutionAttemptID, ...]] = {}
        self.sent: list[AcknowledgeCheckpoint] = []
        self.leader = 0
        self.new_leader()

    # --- leaders and tasks

    def new_leader(self) -> None:
        self.leader += 1
        self.timers: dict[Hashable, int] = {}
        self.outstanding: list[Any] = []
        self.open_requests = set()
        self.numbers = dict.fromkeys(TASKS, 0)
        self.states = dict.fromkeys(TASKS, ExecutionState.CREATED)
        self.core = CheckpointCoordinator(
            JOB,
            "random",
            self.configuration,
            (vertex("src", 2), vertex("sink")),
            (edge("src", "sink"),),
            store_survives_suspension=True,
        )
        self.restoring = False
        self.restore()

    def restore(self) -> None:
        if not self.restoring:
            self.restoring = True
            self.tell(told.RestoreLatest(self.request()))

    def request(self) -> CheckpointRequestID:
        self.request_count += 1
        name = f"{self.leader}.{self.request_count}"
        self.open_requests.add(name)
        return CheckpointRequestID(name)

    def attempt(self, task: tuple[str, int]) -> ExecutionAttemptID:
        return ExecutionAttemptID(f"leader{self.leader}", JobVertexID(task[0]), task[1], self.numbers[task])

    def change(self, state: ExecutionState, *tasks: tuple[str, int]) -> None:
        for task in tasks:
            self.states[task] = state
        changes = tuple(told.ExecutionChange(self.attempt(task), state) for task in tasks)
        self.tell(told.ExecutionsChanged(changes))

    def redeploy(self) -> None:
        for task in TASKS:
            self.numbers[task] += 1
        self.change(ExecutionState.RUNNING, *TASKS)
        self.tell(told.StartCheckpointScheduler(self.rng.randint(1, self.configuration.interval_ms)))

    # --- the shell

    def tell(self, event: Any) -> None:
        for effect in self.core.handle(event, self.now_ms):
            self.perform(effect)

    def perform(self, effect: Any) -> None:
        if isinstance(effect, ANSWERED):
            self.outstanding.append(effect)
        match effect:
            case StartTimer(key, at_ms):
                self.timers[key] = at_ms
            case CancelTimer(key):
                self.timers.pop(key, None)
            case ForTasks(TriggerCheckpoint(_, _, number), attempts):
                self.triggered[number] = attempts
            case ForTasks(NotifyCheckpointComplete(_, _, number)):
                assert number in self.stored_ids, f"oracle: {number} was announced before it was durable"
                assert number not in self.aborted, f"oracle: {number} was aborted and is announced as complete"
                self.notified.append(number)
                self.notifications += [(number, task) for task in TASKS if (number, task) in self.offered]
            case ForTasks(NotifyCheckpointAborted(_, _, number, latest)):
                assert number not in self.notified, f"oracle: {number} was announced as complete and is aborted"
                assert latest == 0 or latest in self.stored_ids, f"oracle: {latest} is said to be complete"
                self.aborted.add(number)
            case asked.CheckpointRequestCompleted(name) | asked.CheckpointRequestFailed(name):
                self.answer(name)
            case asked.StateRestored(name, number):
                self.answer(name)
                assert number == max(self.pointers, default=0), (
                    "oracle: the job starts from the latest durable checkpoint"
                )
                self.restoring = False
                self.notifications.clear()
                self.base = {task: self.offered[number, task] for task in TASKS if (number, task) in self.offered}
                self.redeploy()
            case asked.RestoreFailed(name):
                self.answer(name)
                self.restoring = False
            case asked.DiscardCheckpoint(_, location, _, paths):
                self.delete(location, paths)
            case asked.DiscardState(_, _, paths):
                self.delete("", paths)
            case _:
                pass

    def answer(self, name: str) -> None:
        if name.startswith(("periodic", "end-of-data")):
            return
        assert name in self.open_requests, f"oracle: {name} is answered a second time"
        self.open_requests.remove(name)
        self.answered.append(name)

    def delete(self, location: str, paths: tuple[str, ...]) -> None:
        gone = {path for path in self.files if path in paths or (location and path.startswith(f"{location}/"))}
        needed = {path for number in self.pointers for path in self.read(number).file_paths()}
        assert not gone & needed, f"oracle: {gone & needed} are needed and deleted"
        self.files -= gone

    def read(self, number: int) -> CompletedCheckpoint:
        location = f"chk-{number}"
        for place in (location, f"file:///savepoints/{number}"):
            if place in self.metadata:
                location = place
        return resolve_pointer(self.pointers[number], parse_metadata(self.metadata[location], location), JOB)

    def perform_outstanding(self, effect: Any, fault: float) -> None:
        """Do one piece of slow work, or fail at it."""
        self.outstanding.remove(effect)
        fails = self.rng.random() < fault
        match effect:
            case asked.DrawCheckpointId(name):
                drawn, self.next_id = self.next_id, self.next_id + 1
                if fails:
                    self.tell(told.CheckpointIdFailed(name, "told to"))
                    return
                assert not self.drawn or drawn > self.drawn[-1], "oracle: ids rise"
                self.drawn.append(drawn)
                self.tell(told.CheckpointIdDrawn(name, CheckpointID(drawn)))
            case asked.StoreCompletedCheckpoint(checkpoint, _, register):
                self.store(checkpoint, register, fails)
            case asked.VerifyStoredCheckpoint(checkpoint):
                number = checkpoint.checkpoint_id
                there = number in self.pointers
                self.tell(told.CheckpointStored(number) if there else told.CheckpointStoreFailed(number, "no pointer"))
            case asked.RemoveCompletedCheckpoint(checkpoint, discard):
                self.pointers.pop(checkpoint.checkpoint_id, None)
                if discard:
                    self.delete(checkpoint.location, ())
                self.tell(told.CompletedCheckpointRemoved(checkpoint.checkpoint_id))
            case asked.RecoverCompletedCheckpoints():
                if fails:
                    self.tell(told.CompletedCheckpointsRecoveryFailed("told to"))
                    return
                found = [self.read(number) for number in self.pointers]
                self.rng.shuffle(found)
                self.tell(told.CompletedCheckpointsRecovered(tuple(found)))

    def store(self, checkpoint: CompletedCheckpoint, register: bool, fails: bool) -> None:
        number = checkpoint.checkpoint_id
        lost = {path for path in checkpoint.file_paths() if path not in self.files}
        assert not lost, f"oracle: checkpoint {number} refers to {lost}, which are deleted"
        outcome = self.rng.choice(("nothing", "unknown", "unknown but there")) if fails else "stored"
        if outcome == "nothing":
            self.tell(told.CheckpointStoreFailed(number, "told to"))
            return
        self.metadata[checkpoint.location] = build_metadata(checkpoint.metadata, checkpoint.location)
        if register and outcome != "unknown":
            self.pointers[number] = encode_pointer(checkpoint)
        if register and outcome != "stored":
            if number in self.pointers:
                self.stored_ids.add(number)
            self.tell(told.CheckpointStoreFailed(number, "connection lost", outcome_unknown=True))
            return
        self.stored_ids.add(number)
        self.tell(told.CheckpointStored(number))

    # --- what tasks do

    def acknowledge(self, number: int, attempt: ExecutionAttemptID) -> None:
        task = (str(attempt.vertex_id), attempt.subtask_index)
        location = next(
            (p.location for p in self.core.pending_checkpoints if p.checkpoint_id == number), f"chk-{number}"
        )
        own = f"{location}/tm-{task[1]}-{attempt.attempt_number}"
        self.files.add(own)
        keys = KeyGroupRange(task[1] * 4, task[1] * 4 + 3) if task[0] == "src" else KeyGroupRange(0, 7)
        parts = [KeyedStateHandle(keys, SegmentStateHandle(own, 0, 1))]
        if location.startswith("chk-"):
            if self.rng.random() < 0.3:
                self.contents[task] += 1
            content, shared = self.base.get(task, (-1, ""))
            if content != self.contents[task]:
                content, shared = self.contents[task], f"shared/{task[0]}{task[1]}-{number}-{attempt}"
                self.files.add(shared)
            self.offered[number, task] = content, shared
            parts.append(KeyedStateHandle(keys, SegmentStateHandle(shared, 0, 1), shared_key=shared))
        state = TaskStateSnapshot({OperatorID(task[0]): OperatorSubtaskState(managed_keyed=tuple(parts))})
        message = AcknowledgeCheckpoint(JOB, attempt, CheckpointID(number), state=state)
        self.sent.append(message)
        self.tell(told.AcknowledgesReceived((message,)))

    def hear(self, task: tuple[str, int]) -> None:
        """The next notification arrives, in order for each task."""
        number, _ = next(entry for entry in self.notifications if entry[1] == task)
        self.notifications.remove((number, task))
        self.base[task] = self.offered[number, task]

    # --- steps

    def step(self) -> None:
        """Something happens."""
        rng = self.rng
        waiting = [(p.checkpoint_id, a) for p in self.core.pending_checkpoints for a in p.unacknowledged_tasks]
        match rng.choices(
            (
                "work",
                "ack",
                "hear",
                "time",
                "trigger",
                "savepoint",
                "decline",
                "again",
                "crash",
                "finish",
                "stop",
                "leader",
            ),
            (30, 40, 25, 8, 8, 2, 2, 3, 2, 1, 1, 1),
        )[0]:
            case "hear" if self.notifications:
                task = rng.choice(self.notifications)[1]
                self.hear(task)
            case "work" if self.outstanding:
                self.perform_outstanding(rng.choice(self.outstanding), fault=0.15)
            case "ack" if waiting:
                number, attempt = rng.choice(waiting)
                if number in self.triggered:
                    self.acknowledge(number, attempt)
            case "time":
                self.advance(rng.randint(1, 400))
            case "trigger":
                self.tell(told.CheckpointRequested(self.request()))
            case "savepoint":
                name = self.request()
                target = f"file:///savepoints/{name}"
                self.tell(told.CheckpointRequested(name, SnapshotType.SAVEPOINT, target))
            case "decline" if waiting:
                number, attempt = rng.choice(waiting)
                message = DeclineCheckpoint(JOB, attempt, number, rng.choice(DECLINES))
                self.tell(told.DeclineReceived(message))
            case "again" if self.sent:  # delivered twice, or long after
                self.tell(told.AcknowledgesReceived((rng.choice(self.sent[-8:]),)))
            case "crash":
                self.change(ExecutionState.FAILED, rng.choice(TASKS))
                self.tell(told.StopCheckpointScheduler())
                self.restore()
            case "finish":
                self.change(ExecutionState.FINISHED, TASKS[0])
            case "stop":
                self.tell(told.StopCheckpointScheduler())
                self.tell(told.StartCheckpointScheduler(10))
            case "leader":
                self.tell(told.Shutdown(JobStatus.SUSPENDED))
                self.drain()
                assert not self.open_requests, f"oracle: {self.open_requests} were never answered"
                self.new_leader()
            case _:
                pass
        if not self.restoring and not any(isinstance(e, asked.RecoverCompletedCheckpoints) for e in self.outstanding):
            running = all(state in (ExecutionState.RUNNING, ExecutionState.FINISHED) for state in self.states.values())
            if not running:
                self.restore()

    def advance(self, by_ms: int) -> None:
        until = self.now_ms + by_ms
        while True:
            due = min(((at, key) for key, at in self.timers.items()), key=lambda timer: timer[0], default=None)
            if due is None or due[0] > until:
                self.now_ms = until
                return
            self.now_ms = max(self.now_ms, due[0])
            del self.timers[due[1]]
            self.tell(TimerFired(due[1]))

    def drain(self) -> None:
        while self.outstanding:
            self.perform_outstanding(self.outstanding[0], fault=0.0)

    def live(self) -> None:
        """Faults end: whatever went before, a checkpoint completes, and everything asked for is answered."""
        self.change(ExecutionState.FAILED, *TASKS)
        self.tell(told.StopCheckpointScheduler())
        self.drain()
        self.restore()
        self.drain()
        before = len(self.notified)
        self.tell(told.StopCheckpointScheduler())
        self.tell(told.CheckpointRequested(self.request()))
        for _ in range(20):
            self.drain()
            for pending in self.core.pending_checkpoints:
                for attempt in pending.unacknowledged_tasks:
                    self.acknowledge(pending.checkpoint_id, attempt)
        assert len(self.notified) > before, "oracle: no checkpoint completes although nothing fails"
        self.tell(told.Shutdown(JobStatus.FINISHED))
        self.drain()
        assert not self.open_requests, f"oracle: {self.open_requests} were never answered"
        assert not self.pointers, "oracle: a finished job leaves no checkpoint"
        left = {path for path in self.files if path.startswith("shared/")}
        late = {
            part.handle.path  # type: ignore[union-attr]
            for message in self.sent
            for state in message.state.operators.values()
            for part in state.managed_keyed
            if part.shared_key
        }
        assert left <= late, f"oracle: {left - late} belong to nobody"
