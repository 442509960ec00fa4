"""The world of the CheckpointCoordinator: one job, its tasks, a clock, a durable store and an id counter.

Commands (`task` is vertex/subtask or `all`, times are `500ms` or `3s`, `cp=N` a checkpoint):

    job src=2 sink=1 edge=src-sink:hash interval=10s hook=h   the job, not running; settings as in
    CheckpointCoordinatorConfiguration deploy [task]                    a new attempt, RUNNING            finish task |
    crash task start [delay=10s] | stop         the periodic trigger trigger NAME | savepoint NAME | stop-with-savepoint
    NAME [drain] id | id-fails                    answer the id that is being drawn ack cp=N task [files=a,b] [finished]
    decline cp=N task [REASON] stored | store-fails [unknown|other]      answer the store          removed    answer all
    removals end-of-data task                 the task has no more data restore NAME | restore-from NAME cp=N [claim]
    recovered | counted: answers tick 500ms                       time passes, timers fire shutdown STATUS | leader
    the coordinator ends; another one starts on the same durable store stabilize                        everything
    outstanding is answered, every pending checkpoint acknowledged said                             what the log was
    told since the last look status                           what is pending, retained and counted
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any

from snapline.coordinator.checkpoint import effects as asked
from snapline.coordinator.checkpoint import events as told
from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.coordinator.checkpoint.properties import CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.publication import NO_LIMIT
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex, OperatorNode
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, ExecutionVertexID, JobID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.partitioning import Partitioning
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

JOB = JobID("job")
MAX_PARALLELISM = 8
SETTINGS = {field.name: field.type for field in fields(CheckpointCoordinatorConfiguration)}
SHORT = {
    "interval": "interval_ms",
    "timeout": "timeout_ms",
    "min-pause": "min_pause_ms",
    "max-concurrent": "max_concurrent_checkpoints",
    "max-retained": "max_retained_checkpoints",
    "tolerable": "tolerable_failures",
    "aligned-timeout": "aligned_checkpoint_timeout_ms",
}


def _ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s|m)?", text)
    if match is None:
        raise ValueError(f"no duration: {text}")
    return int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, None: 1}[match[2]]


class CoordinatorWorld:
    """See the module."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.vertices: tuple[JobVertex, ...] = ()
        self.edges: tuple[JobEdge, ...] = ()
        self.configuration = CheckpointCoordinatorConfiguration()
        self.hooks: list[str] = []
        self.core: CheckpointCoordinator | None = None
        self.attempts: dict[ExecutionVertexID, int] = {}
        self.leader = 1
        self.next_id = 1
        self.durable: dict[CheckpointID, CompletedCheckpoint] = {}
        self.snapshots: dict[CheckpointID, CompletedCheckpoint] = {}
        """Everything that ever had its metadata written."""
        self.timers: dict[Hashable, tuple[int, int]] = {}
        self.armed = 0
        self.outstanding: list[Any] = []
        self.said: list[str] = []
        """For the log, since it was looked at."""

    # --- commands

    def command(self, line: str) -> list[str]:
        verb, *words = line.split()
        handler: Callable[[list[str]], list[str]] | None = getattr(self, f"do_{verb.replace('-', '_')}", None)
        if handler is None:
            raise ValueError("no such command")
        return handler(words)

    def do_job(self, words: list[str]) -> list[str]:
        vertices, edges, settings = [], [], dict[str, Any]()
        for word in words:
            name, _, value = word.partition("=")
            if name == "edge":
                source, target, kind = re.split("[-:]", value)
                operator = OperatorID(f"op-{source}")
                edges.append(JobEdge(value, JobVertexID(source), operator, JobVertexID(target), 0, Partitioning(kind)))
            elif name == "hook":
                self.hooks.append(value)
            elif name == "retention":
                settings["retention"] = CheckpointRetentionPolicy(value)
            elif name == "unaligned":
                settings["unaligned"] = True
            elif SHORT.get(name, name) in SETTINGS:
                key = SHORT.get(name, name)
                settings[key] = _ms(value) if key.endswith("_ms") else int(value)
            else:
                node = OperatorNode(OperatorID(f"op-{name}"), name, name, b"")
                vertices.append(JobVertex(JobVertexID(name), name, int(value), MAX_PARALLELISM, (node,)))
        self.vertices, self.edges = tuple(vertices), tuple(edges)
        self.configuration = CheckpointCoordinatorConfiguration(**settings)
        self.new_core()
        return []

    def new_core(self) -> None:
        hooks = MasterHooks()
        for hook in self.hooks:
            hooks.add(hook)
        self.core = CheckpointCoordinator(
            JOB,
            "story",
            self.configuration,
            self.vertices,
            self.edges,
            store_survives_suspension=True,
            master_hooks=hooks,
        )

    def do_leader(self, _: list[str]) -> list[str]:
        self.leader += 1
        self.timers.clear()
        self.outstanding.clear()
        self.attempts.clear()
        self.new_core()
        return []

    def do_deploy(self, words: list[str]) -> list[str]:
        changes = []
        for task in self.tasks(words):
            self.attempts[task] = self.attempts.get(task, -1) + 1
            changes.append(told.ExecutionChange(self.attempt(task), ExecutionState.RUNNING))
        return self.tell(told.ExecutionsChanged(tuple(changes)))

    def do_crash(self, words: list[str]) -> list[str]:
        return self.change(words, ExecutionState.FAILED)

    def do_finish(self, words: list[str]) -> list[str]:
        return self.change(words, ExecutionState.FINISHED)

    def change(self, words: list[str], state: ExecutionState) -> list[str]:
        changes = tuple(told.ExecutionChange(self.attempt(task), state) for task in self.tasks(words))
        return self.tell(told.ExecutionsChanged(changes))

    def do_start(self, words: list[str]) -> list[str]:
        delay = next((w[6:] for w in words if w.startswith("delay=")), None)
        delay_ms = self.configuration.effective_interval_ms if delay is None else _ms(delay)
        return self.tell(told.StartCheckpointScheduler(delay_ms))

    def do_stop(self, _: list[str]) -> list[str]:
        return self.tell(told.StopCheckpointScheduler())

    def do_trigger(self, words: list[str]) -> list[str]:
        return self.tell(told.CheckpointRequested(CheckpointRequestID(words[0])))

    def do_savepoint(self, words: list[str]) -> list[str]:
        target = f"file:///savepoints/{words[0]}"
        return self.tell(told.CheckpointRequested(CheckpointRequestID(words[0]), SnapshotType.SAVEPOINT, target))

    def do_stop_with_savepoint(self, words: list[str]) -> list[str]:
        target = f"file:///savepoints/{words[0]}"
        return self.tell(told.StopWithSavepointRequested(CheckpointRequestID(words[0]), target, drain="drain" in words))

    def do_id(self, _: list[str]) -> list[str]:
        effect = self.take(asked.DrawCheckpointId)
        drawn, self.next_id = self.next_id, self.next_id + 1
        return self.tell(told.CheckpointIdDrawn(effect.request_id, CheckpointID(drawn)))

    def do_id_fails(self, _: list[str]) -> list[str]:
        effect = self.take(asked.DrawCheckpointId)
        return self.tell(told.CheckpointIdFailed(effect.request_id, "no connection"))

    def do_hook(self, words: list[str]) -> list[str]:
        effect = self.take(asked.TriggerMasterHook)
        if "fails" in words:
            return self.tell(told.MasterHookFailed(effect.hook_id, effect.checkpoint_id, "told to"))
        return self.tell(told.MasterHookAnswered(effect.hook_id, effect.checkpoint_id))

    def do_ack(self, words: list[str]) -> list[str]:
        checkpoint_id = self.checkpoint_id(words)
        names = next((w[6:].split(",") for w in words if w.startswith("files=")), [])
        messages = []
        for task in self.tasks(words[1:2]):
            state = self.snapshot(task, names, finished="finished" in words)
            messages.append(AcknowledgeCheckpoint(JOB, self.attempt(task), checkpoint_id, state=state))
        return self.tell(told.AcknowledgesReceived(tuple(messages)))

    def do_decline(self, words: list[str]) -> list[str]:
        reason = CheckpointFailureReason[words[2] if len(words) > 2 else "CHECKPOINT_DECLINED"]
        (task,) = self.tasks(words[1:2])
        message = DeclineCheckpoint(JOB, self.attempt(task), self.checkpoint_id(words), reason)
        return self.tell(told.DeclineReceived(message))

    def do_end_of_data(self, words: list[str]) -> list[str]:
        return self.tell(told.EndOfDataReceived(tuple(self.attempt(task) for task in self.tasks(words))))

    def do_stored(self, _: list[str]) -> list[str]:
        effect = self.take((asked.StoreCompletedCheckpoint, asked.VerifyStoredCheckpoint))
        checkpoint = effect.checkpoint
        self.snapshots[checkpoint.checkpoint_id] = checkpoint
        if getattr(effect, "register", True):
            self.durable[checkpoint.checkpoint_id] = checkpoint
        return self.tell(told.CheckpointStored(checkpoint.checkpoint_id))

    def do_store_fails(self, words: list[str]) -> list[str]:
        effect = self.take((asked.StoreCompletedCheckpoint, asked.VerifyStoredCheckpoint))
        return self.tell(
            told.CheckpointStoreFailed(
                effect.checkpoint.checkpoint_id,
                "disk full",
                outcome_unknown="unknown" in words,
                published_by_other="other" in words,
            )
        )

    def do_removed(self, _: list[str]) -> list[str]:
        lines = []
        for effect in [e for e in self.outstanding if isinstance(e, asked.RemoveCompletedCheckpoint)]:
            self.outstanding.remove(effect)
            self.durable.pop(effect.checkpoint.checkpoint_id, None)
            lines += self.tell(told.CompletedCheckpointRemoved(effect.checkpoint.checkpoint_id))
        return lines

    def do_restore(self, words: list[str]) -> list[str]:
        return self.tell(told.RestoreLatest(CheckpointRequestID(words[0])))

    def do_restore_from(self, words: list[str]) -> list[str]:
        snapshot = self.snapshots[self.checkpoint_id(words)]
        return self.tell(
            told.RestoreSavepoint(
                CheckpointRequestID(words[0]), snapshot.metadata, snapshot.location, claim="claim" in words
            )
        )

    def do_recovered(self, words: list[str]) -> list[str]:
        self.take(asked.RecoverCompletedCheckpoints)
        if "fails" in words:
            return self.tell(told.CompletedCheckpointsRecoveryFailed("chk-2/_metadata is damaged"))
        return self.tell(told.CompletedCheckpointsRecovered(tuple(reversed(self.durable.values()))))

    def do_counted(self, _: list[str]) -> list[str]:
        effect = self.take(asked.SetCheckpointIdCount)
        self.next_id = int(effect.next_id)
        return self.tell(told.CheckpointIdCountSet(effect.request_id))

    def do_tick(self, words: list[str]) -> list[str]:
        until, lines = self.now_ms + _ms(words[0]), list[str]()
        while True:
            due = min(((at, order, key) for key, (at, order) in self.timers.items()), key=lambda t: t[:2], default=None)
            if due is None or due[0] > until:
                self.now_ms = until
                return lines
            self.now_ms = max(self.now_ms, due[0])
            del self.timers[due[2]]
            lines += [f"at {self.now_ms} ms: {line}" for line in self.tell(TimerFired(due[2]))]

    def do_shutdown(self, words: list[str]) -> list[str]:
        return self.tell(told.Shutdown(JobStatus(words[0])))

    def do_stabilize(self, _: list[str]) -> list[str]:
        answers: dict[type, Callable[[list[str]], list[str]]] = {
            asked.DrawCheckpointId: self.do_id,
            asked.StoreCompletedCheckpoint: self.do_stored,
            asked.VerifyStoredCheckpoint: self.do_stored,
            asked.RemoveCompletedCheckpoint: self.do_removed,
            asked.RecoverCompletedCheckpoints: self.do_recovered,
            asked.SetCheckpointIdCount: self.do_counted,
            asked.TriggerMasterHook: self.do_hook,
        }
        lines: list[str] = []
        for _round in range(100):
            if self.outstanding:
                lines += answers[type(self.outstanding[0])]([])
            else:
                waiting = [(p.checkpoint_id, a) for p in self.live.pending_checkpoints for a in p.unacknowledged_tasks]
                if not waiting:
                    return lines
                messages = tuple(AcknowledgeCheckpoint(JOB, attempt, number) for number, attempt in waiting)
                lines += self.tell(told.AcknowledgesReceived(messages))
        raise ValueError("does not come to rest")

    def do_said(self, _: list[str]) -> list[str]:
        said, self.said = self.said, []
        return said or ["nothing"]

    def do_status(self, _: list[str]) -> list[str]:
        core = self.live
        counts = core.stats.create_snapshot().counts
        pending = [
            f"{p.checkpoint_id} ({p.status.value}, {len(p.unacknowledged_tasks)} to go)"
            for p in core.pending_checkpoints
        ]
        return [
            f"pending: {', '.join(pending) or 'none'}; queued: {core.queued_request_count}; triggering: {core.is_triggering}",
            f"retained: {[c.checkpoint_id for c in core.completed_store.checkpoints]}; durable: {sorted(self.durable)}",
            f"total {counts.total}, completed {counts.completed}, failed {counts.failed}, restored {counts.restored}",
        ]

    # --- the shell

    @property
    def live(self) -> CheckpointCoordinator:
        if self.core is None:
            raise ValueError("there is no job yet")
        return self.core

    def tell(self, event: Any) -> list[str]:
        return [line for effect in self.live.handle(event, self.now_ms) if (line := self.perform(effect))]

    def take(self, kinds: Any) -> Any:
        for effect in self.outstanding:
            if isinstance(effect, kinds):
                self.outstanding.remove(effect)
                return effect
        raise ValueError("nothing of the kind is outstanding")

    def tasks(self, words: list[str]) -> list[ExecutionVertexID]:
        wanted = words[0] if words else "all"
        everything = [ExecutionVertexID(v.vertex_id, i) for v in self.vertices for i in range(v.parallelism)]
        found = [t for t in everything if wanted in ("all", t.vertex_id, f"{t.vertex_id}/{t.subtask_index}")]
        if not found:
            raise ValueError(f"no task {wanted}")
        return found

    def attempt(self, task: ExecutionVertexID) -> ExecutionAttemptID:
        graph = f"leader{self.leader}"
        return ExecutionAttemptID(graph, task.vertex_id, task.subtask_index, self.attempts.get(task, 0))

    @staticmethod
    def checkpoint_id(words: list[str]) -> CheckpointID:
        return CheckpointID(int(next(w[3:] for w in words if w.startswith("cp="))))

    def snapshot(self, task: ExecutionVertexID, names: list[str], *, finished: bool) -> TaskStateSnapshot:
        if not names:
            return TaskStateSnapshot(is_task_finished=finished)
        parallelism = next(v.parallelism for v in self.vertices if v.vertex_id == task.vertex_id)
        keys = compute_key_group_range_for_operator_index(MAX_PARALLELISM, parallelism, task.subtask_index)
        parts = tuple(
            KeyedStateHandle(keys, SegmentStateHandle(n, 0, 1), shared_key=n if n.startswith("shared/") else "")
            for n in names
        )
        operator = OperatorID(f"op-{task.vertex_id}")
        return TaskStateSnapshot({operator: OperatorSubtaskState(managed_keyed=parts)}, finished)

    def perform(self, effect: Any) -> str:
        answered = (
            asked.DrawCheckpointId,
            asked.StoreCompletedCheckpoint,
            asked.VerifyStoredCheckpoint,
            asked.RemoveCompletedCheckpoint,
            asked.RecoverCompletedCheckpoints,
            asked.SetCheckpointIdCount,
            asked.TriggerMasterHook,
        )
        if isinstance(effect, answered):
            self.outstanding.append(effect)
        match effect:
            case StartTimer(key, at_ms):
                self.armed += 1
                self.timers[key] = (at_ms, self.armed)
                return f"timer {_timer(key)} at {at_ms} ms"
            case CancelTimer(key):
                self.timers.pop(key, None)
                return f"cancel timer {_timer(key)}"
            case asked.PersistStatistics():
                return ""
            case asked.ReportCheckpoint(said, details, is_warning):
                level = "WARN" if is_warning else "INFO"
                self.said.append(
                    " ".join([level, said, *(f"{name}={value}" for name, value in details if value != "")])
                )
                return ""
            case _:
                return describe(effect)


def _timer(key: Any) -> str:
    return f"timeout of {key.checkpoint_id}" if isinstance(key, asked.CheckpointTimeoutKey) else "periodic"


def _attempts(attempts: tuple[ExecutionAttemptID, ...]) -> str:
    names = [
        f"{a.vertex_id}/{a.subtask_index}" + (f"#{a.attempt_number}" if a.attempt_number else "") for a in attempts
    ]
    return ", ".join(names) or "nobody"


def _detail(text: str) -> str:
    return f": {text}" if text else ""


def describe(effect: Any) -> str:
    """One line for what the core asks for."""
    match effect:
        case ForTasks(TriggerCheckpoint(_, _, number, _, options), attempts):
            kind = f" {options.snapshot_type.value}" if options.snapshot_type is not SnapshotType.CHECKPOINT else ""
            return f"trigger {number}{kind} ({options.alignment.value}) -> {_attempts(attempts)}"
        case ForTasks(NotifyCheckpointComplete(_, _, number, _, subsumed), attempts):
            return f"complete {number}" + (f" (subsumed {subsumed})" if subsumed else "") + f" -> {_attempts(attempts)}"
        case ForTasks(NotifyCheckpointAborted(_, _, number, latest), attempts):
            return f"aborted {number} (latest completed {latest}) -> {_attempts(attempts)}"
        case asked.DrawCheckpointId(request):
            return f"draw id for {request}"
        case asked.SetCheckpointIdCount(_, next_id):
            return f"set next id {next_id}"
        case asked.TriggerMasterHook(hook, number):
            return f"ask hook {hook} for {number}"
        case asked.RestoreMasterHook(hook, number, state):
            return f"restore hook {hook} from {number}: {state}"
        case asked.ResetMasterHook(hook):
            return f"reset hook {hook}"
        case asked.CloseMasterHook(hook):
            return f"close hook {hook}"
        case asked.StoreCompletedCheckpoint(checkpoint, write_metadata, register):
            what = [name for name, wanted in (("metadata", write_metadata), ("pointer", register)) if wanted]
            return f"store {checkpoint.checkpoint_id} in {checkpoint.location} ({' and '.join(what)})"
        case asked.VerifyStoredCheckpoint(checkpoint):
            return f"find out whether {checkpoint.checkpoint_id} is stored"
        case asked.RemoveCompletedCheckpoint(checkpoint, discard):
            return f"remove {checkpoint.checkpoint_id}: pointer{' and files' if discard else ', keep files'}"
        case asked.RecoverCompletedCheckpoints():
            return "read the completed checkpoints"
        case asked.DiscardCheckpoint(_, location, _, paths):
            return f"delete {', '.join([location, *paths] if location else paths) or 'nothing'}"
        case asked.DiscardState(number, _, paths):
            return f"state that belongs to nothing ({number}): delete {', '.join(paths) or 'no file yet'}"
        case asked.DeleteLeftovers(files, locations, before):
            kept = ", ".join(sorted([*locations, *files])) or "nothing"
            older = "of all checkpoints" if before == NO_LIMIT else f"older than checkpoint {before}"
            return f"delete leftovers {older}, keep {kept}"
        case asked.CheckpointRequestCompleted(request, number, location):
            return f"{request} completed: {number} in {location}"
        case asked.CheckpointRequestFailed(request, reason, detail):
            return f"{request} failed {reason.name}{_detail(detail)}"
        case asked.StateRestored(request, number, assignments):
            parts = [
                f"{task.vertex_id}/{task.subtask_index} {'finished' if state.is_task_finished else ''}{_files(state)}"
                for task, state in assignments.items()
            ]
            return f"{request} restored {number}: {'; '.join(parts) or 'nothing'}"
        case asked.RestoreFailed(request, detail, retryable):
            return f"{request} not restored{' for now' if retryable else ''}: {detail}"
        case asked.FailJob(reason, detail):
            return f"FAIL THE JOB {reason.name}: {detail}"
        case asked.FailTask(attempt, reason, detail):
            return f"FAIL {_attempts((attempt,))} {reason.name}: {detail}"
        case asked.MessageRefused(number, attempt, detail, known):
            return f"refused{' (late)' if known else ''}: {number} from {_attempts((attempt,))}: {detail}"
        case asked.ReleaseCompletedCheckpoints():
            return "let go of the store"
        case asked.ShutdownIdCounter(status):
            return f"id counter ends with {status.value}"
        case asked.DeleteStagedRows():
            return "what was staged for the job may go"
        case asked.CoordinatorShutDown(status):
            return f"over: {status.value}"
        case _:
            raise ValueError(f"cannot describe {effect}")


def _files(state: TaskStateSnapshot) -> str:
    paths = [
        handle.path
        for operator in state.operators.values()
        for handle in operator.stream_handles
        if isinstance(handle, SegmentStateHandle)
    ]
    return ", ".join(paths)
