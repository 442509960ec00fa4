"""Adapter: scenarios of kind `restore` against snapline.coordinator.checkpoint.checkpoint_coordinator.

The store of the scenario is what the shell reads back; each operator of the scenario is a vertex of its own, one
feeding the next. The state of a subtask is one keyed file, one element of list state and one batch in flight, so that
every kind is moved.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import (
    CloseMasterHook,
    DrawCheckpointId,
    RecoverCompletedCheckpoints,
    RemoveCompletedCheckpoint,
    ResetMasterHook,
    RestoreFailed,
    RestoreMasterHook,
    SetCheckpointIdCount,
    StateRestored,
    StoreCompletedCheckpoint,
    TriggerMasterHook,
)
from snapline.coordinator.checkpoint.events import (
    AcknowledgesReceived,
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointStored,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    ExecutionChange,
    ExecutionsChanged,
    MasterHookAnswered,
    MasterHookRestored,
    RestoreLatest,
    RestoreSavepoint,
    Shutdown,
)
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex, OperatorNode
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import (
    ChannelStateHandle,
    CheckpointMetadata,
    KeyedStateHandle,
    MasterState,
    OperatorState,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    ExecutionState,
    ForTasks,
    JobStatus,
    TriggerCheckpoint,
)
from tests.conformance.replay import ANY, difference

JOB = JobID("job")
DEFAULT_MAX_PARALLELISM = 128
PROPERTIES = {
    "checkpoint": CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
    "savepoint": CheckpointProperties.for_savepoint(),
    "sync_savepoint": CheckpointProperties.for_savepoint(SnapshotType.SAVEPOINT_SUSPEND),
}


def operator_state(
    operator_id: str, subtasks: int, max_parallelism: int, *, has_input: bool, has_output: bool
) -> OperatorState:
    states = {}
    for subtask in range(subtasks):
        name = f"{operator_id}-{subtask}"
        keys = compute_key_group_range_for_operator_index(max_parallelism, subtasks, subtask)
        entry = OperatorStateEntry("list", OperatorStateMode.SPLIT_DISTRIBUTE, ((0, 1),))
        in_flight = ChannelStateHandle(0, 0, SegmentStateHandle(f"{name}-channel", 0, 1), 1)
        states[subtask] = OperatorSubtaskState(
            managed_keyed=(KeyedStateHandle(keys, SegmentStateHandle(f"{name}-keyed", 0, 1)),),
            managed_operator=(OperatorStateHandle(SegmentStateHandle(f"{name}-list", 0, 1), (entry,)),),
            input_channel=(in_flight,) if has_input else (),
            output_channel=(in_flight,) if has_output else (),
        )
    return OperatorState(OperatorID(operator_id), operator_id, operator_id, subtasks, max_parallelism, states)


class Harness:
    """The shell: id counter, store and master hooks."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.tasks: dict[str, int] = config.get("tasks", {})
        self.stored = tuple(self.checkpoint_of(entry) for entry in config.get("store", ()))
        known = {operator.operator_id for checkpoint in self.stored for operator in checkpoint.operators}
        ids = config.get("user_ids", {})
        self.operator_ids = {task: ids[task] if ids.get(task) in known else task for task in self.tasks}
        vertices = tuple(self.vertex_of(task) for task in self.tasks)
        names = list(self.tasks)
        edges = tuple(
            JobEdge(
                f"{source}-{target}",
                JobVertexID(source),
                OperatorID(self.operator_ids[source]),
                JobVertexID(target),
                0,
                Partitioning.HASH,
            )
            for source, target in pairwise(names)
        )
        hooks = MasterHooks()
        for hook_id in config.get("hooks", ()):
            hooks.add(hook_id)
        self.core = CheckpointCoordinator(
            JOB,
            "conformance",
            CheckpointCoordinatorConfiguration(
                max_retained_checkpoints=max(1, len(self.stored)),
                prefer_checkpoint_for_recovery=config.get("prefer_checkpoint", False),
            ),
            vertices,
            edges,
            store_survives_suspension=True,
            master_hooks=hooks,
        )
        self.next_id = 1
        self.answers: list[Any] = []
        self.hook_calls: list[dict[str, Any]] = []

    def vertex_of(self, task: str) -> JobVertex:
        operator_id = self.operator_ids[task]
        return JobVertex(
            JobVertexID(task),
            task,
            self.tasks[task],
            self.config.get("max_parallelism", {}).get(task, DEFAULT_MAX_PARALLELISM),
            (OperatorNode(OperatorID(operator_id), operator_id, task, b""),),
            max_parallelism_explicit=self.config.get("max_parallelism_explicit", False),
        )

    def operators_of(self, entry: dict[str, Any]) -> tuple[OperatorState, ...]:
        names = list(self.tasks)
        limits = entry.get("max_parallelism", {})
        return tuple(
            operator_state(
                name,
                subtasks,
                limits.get(name, self.config.get("max_parallelism", {}).get(name, DEFAULT_MAX_PARALLELISM)),
                has_input=name in names[1:] and subtasks == self.tasks[name],
                has_output=name in names[:-1] and subtasks == self.tasks[name],
            )
            for name, subtasks in entry.get("operators", {}).items()
        )

    def checkpoint_of(self, entry: dict[str, Any]) -> CompletedCheckpoint:
        masters = tuple(
            MasterState(hook, 1, str(state).encode()) for hook, state in entry.get("hook_states", {}).items()
        )
        return CompletedCheckpoint(
            JOB,
            "",
            CheckpointID(entry["id"]),
            0,
            0,
            PROPERTIES[entry.get("type", "checkpoint")],
            f"chk-{entry['id']}",
            self.operators_of(entry),
            masters,
        )

    # --- the shell

    def feed(self, event: Any) -> None:
        for effect in self.core.handle(event, 0):
            match effect:
                case RecoverCompletedCheckpoints():
                    self.feed(CompletedCheckpointsRecovered(self.stored))
                case DrawCheckpointId(request_id):
                    drawn, self.next_id = self.next_id, self.next_id + 1
                    self.feed(CheckpointIdDrawn(request_id, CheckpointID(drawn)))
                case SetCheckpointIdCount(request_id, next_id):
                    self.next_id = int(next_id)
                    self.feed(CheckpointIdCountSet(request_id))
                case StoreCompletedCheckpoint(checkpoint):
                    self.feed(CheckpointStored(checkpoint.checkpoint_id))
                case RemoveCompletedCheckpoint(checkpoint):
                    self.feed(CompletedCheckpointRemoved(checkpoint.checkpoint_id))
                case TriggerMasterHook(hook_id, checkpoint_id):
                    self.hook_calls.append({"hook": hook_id, "call": "trigger", "cp": checkpoint_id})
                    answer = self.config.get("hook_answers", {}).get(hook_id)
                    state = None if answer is None else MasterState(hook_id, 1, str(answer).encode())
                    self.feed(MasterHookAnswered(hook_id, checkpoint_id, state))
                case RestoreMasterHook(hook_id, checkpoint_id, state):
                    text = None if state is None else state.data.decode()
                    self.hook_calls.append({"hook": hook_id, "call": "restore", "cp": checkpoint_id, "state": text})
                    self.feed(MasterHookRestored(hook_id))
                case ResetMasterHook(hook_id):
                    self.hook_calls.append({"hook": hook_id, "call": "reset"})
                    self.feed(MasterHookRestored(hook_id))
                case CloseMasterHook(hook_id):
                    self.hook_calls.append({"hook": hook_id, "call": "close"})
                case ForTasks(TriggerCheckpoint(checkpoint_id=checkpoint_id)):
                    self.acknowledge_all(checkpoint_id)
                case StateRestored() | RestoreFailed():
                    self.answers.append(effect)
                case _:
                    pass

    def attempts(self) -> list[ExecutionAttemptID]:
        return [
            ExecutionAttemptID("graph", JobVertexID(task), subtask, 0)
            for task, parallelism in self.tasks.items()
            for subtask in range(parallelism)
        ]

    def acknowledge_all(self, checkpoint_id: CheckpointID) -> None:
        messages = []
        for attempt in self.attempts():
            operator_id = self.operator_ids[attempt.vertex_id]
            limit = self.core.executions.vertex(attempt.vertex_id).max_parallelism
            state = operator_state(
                operator_id, self.tasks[attempt.vertex_id], limit, has_input=False, has_output=False
            ).subtasks[attempt.subtask_index]
            messages.append(
                AcknowledgeCheckpoint(
                    JOB, attempt, checkpoint_id, state=TaskStateSnapshot({OperatorID(operator_id): state})
                )
            )
        self.feed(AcknowledgesReceived(tuple(messages)))

    # --- the steps

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        self.answers, self.hook_calls = [], []
        got: dict[str, Any] = {"error": False}
        match step:
            case {"restore": how}:
                everything = tuple(JobVertexID(task) for task in self.tasks)
                self.feed(
                    RestoreLatest(
                        "restore",  # type: ignore[arg-type]
                        everything if how.get("scope", "all") == "subtasks" else None,
                        how.get("allow_non_restored", False),
                        how.get("error_if_none", False),
                    )
                )
            case {"restore_savepoint": entry}:
                checkpoint = self.checkpoint_of(entry)
                metadata = CheckpointMetadata(
                    JOB,
                    "",
                    checkpoint.checkpoint_id,
                    0,
                    SnapshotType.SAVEPOINT,
                    checkpoint.operators,
                    checkpoint.master_states,
                )
                self.feed(
                    RestoreSavepoint(
                        "restore",  # type: ignore[arg-type]
                        metadata,
                        "file:///savepoints/s",
                        entry.get("claim", False),
                        entry.get("allow_non_restored", False),
                    )
                )
            case {"checkpoint": number}:
                self.next_id = number
                running = (ExecutionChange(attempt, ExecutionState.RUNNING) for attempt in self.attempts())
                self.feed(ExecutionsChanged(tuple(running)))
                self.feed(CheckpointRequested(f"checkpoint-{number}"))  # type: ignore[arg-type]
            case {"add_hook": hook_id}:
                try:
                    got["accepted"] = self.core.hooks.add(hook_id)
                except ValueError:
                    got["error"] = True
            case {"shutdown": status}:
                self.feed(Shutdown(JobStatus(status)))
            case _:
                raise NotImplementedError(f"step {sorted(step)}")
        return got | self.observed()

    def observed(self) -> dict[str, Any]:
        retained = self.core.completed_store.checkpoints
        got: dict[str, Any] = {
            "retained": [checkpoint.checkpoint_id for checkpoint in retained],
            "next_id": self.next_id,
            "hook_calls": self.hook_calls,
            "hook_states": {s.hook_id: s.data.decode() for s in retained[-1].master_states} if retained else {},
            "max_parallelism": {str(v.vertex_id): v.max_parallelism for v in self.core.executions.vertices},
        }
        if not self.answers:
            return got
        answer = self.answers[-1]
        if isinstance(answer, RestoreFailed):
            return got | {"error": True, "restored": None}
        with_state: dict[str, list[int]] = {}
        for task, state in answer.assignments.items():
            if state.operators:
                with_state.setdefault(str(task.vertex_id), []).append(task.subtask_index)
        return got | {
            # 0 stands for "none" in the answer, but is an id like any other in the scenarios
            "restored": None if self.core.completed_store.latest() is None else answer.checkpoint_id,
            "with_state": with_state,
            "sources": _sources_of(answer),
            "identity": self.is_identity(answer),
        }

    def is_identity(self, answer: StateRestored) -> bool:
        """Every subtask got exactly what it had, and nothing else."""
        found = self.core.completed_store.find(answer.checkpoint_id)
        if found is None:
            return False
        wanted = {
            (operator.operator_id, subtask): state
            for operator in found.operators
            for subtask, state in operator.subtasks.items()
        }
        assigned = {
            (operator_id, task.subtask_index): state
            for task, snapshot in answer.assignments.items()
            for operator_id, state in snapshot.operators.items()
        }
        return wanted == assigned


def _same(key: str, expected: Any, got: dict[str, Any]) -> bool:
    if key == "hook_calls":
        return _same_calls(expected, got[key])
    if key in ("assigned", "tasks_with_state"):
        return "with_state" in got and _same_assignment(expected, got["with_state"], got["sources"])
    if key == "max_parallelism" and isinstance(expected, dict):
        return all(got[key].get(name) == value for name, value in expected.items())
    return bool(got.get(key) == expected)


def _same_calls(expected: list[dict[str, Any]], calls: list[dict[str, Any]]) -> bool:
    """As a set; a key that a call does not have (the checkpoint of a reset) is null there."""
    left = list(calls)
    for wanted in expected:
        found = next((call for call in left if all(call.get(key) == value for key, value in wanted.items())), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _sources_of(answer: StateRestored) -> dict[str, dict[int, list[int]]]:
    """By vertex and new subtask: the old subtasks whose keyed state it reads. Keyed state is what has one place
    only."""
    found: dict[str, dict[int, list[int]]] = {}
    for task, snapshot in answer.assignments.items():
        for state in snapshot.operators.values():
            for part in state.managed_keyed:
                assert isinstance(part.handle, SegmentStateHandle)
                _, old, _ = part.handle.path.rsplit("-", 2)
                found.setdefault(str(task.vertex_id), {}).setdefault(task.subtask_index, []).append(int(old))
    return found


def _same_assignment(expected: Any, with_state: dict[str, list[int]], sources: dict[str, dict[int, list[int]]]) -> bool:
    """Accepts whether anything, how many subtasks, which operators, or (by operator) how many subtasks, which, or whose
    state they read."""
    if isinstance(expected, bool):
        return expected == bool(with_state)
    if isinstance(expected, int):
        return expected == sum(len(subtasks) for subtasks in with_state.values())
    if isinstance(expected, list):
        return sorted(expected) == sorted(with_state)
    return all(
        _same_subtasks(wanted, with_state.get(name, []), sources.get(name, {})) for name, wanted in expected.items()
    )


def _same_subtasks(wanted: Any, found: list[int], sources: dict[int, list[int]]) -> bool:
    if isinstance(wanted, bool):
        return wanted == bool(found)
    if isinstance(wanted, int):
        return wanted == len(found)
    values = wanted.values() if isinstance(wanted, dict) else wanted or ()
    if any(isinstance(value, list) for value in values):
        numbered = wanted.items() if isinstance(wanted, dict) else enumerate(wanted)
        return {int(new): sorted(old) for new, old in numbered if old} == {n: sorted(old) for n, old in sources.items()}
    if isinstance(wanted, dict):
        return sorted(int(subtask) for subtask, value in wanted.items() if value) == sorted(found)
    return sorted(wanted or ()) == sorted(found)


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked."""
    harness = Harness(scenario.get("config", {}))
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            if expected != ANY and not _same(key, expected, got):
                shown = got.get("with_state") if key in ("assigned", "tasks_with_state") else got.get(key)
                failures.append(difference(number, key, expected, shown))
    return failures
