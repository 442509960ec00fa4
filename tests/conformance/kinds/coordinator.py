"""Adapter: scenarios of kind `coordinator` against snapline.coordinator.checkpoint.checkpoint_coordinator.

The harness is the shell: it keeps the clock and the timers, answers effects at once (or later, with `defer` and manual
hooks), and notes what the tasks, the requests and the job are told. A scenario's `unlimited` tolerance is the
configuration's.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    CloseMasterHook,
    DiscardCheckpoint,
    DiscardState,
    DrawCheckpointId,
    FailJob,
    FailTask,
    MessageRefused,
    RemoveCompletedCheckpoint,
    StoreCompletedCheckpoint,
    TriggerMasterHook,
)
from snapline.coordinator.checkpoint.events import (
    AbortPendingCheckpoints,
    AcknowledgesReceived,
    CheckpointIdDrawn,
    CheckpointIdFailed,
    CheckpointRequested,
    CheckpointStored,
    CheckpointStoreFailed,
    CompletedCheckpointRemoved,
    DeclineReceived,
    ExecutionChange,
    ExecutionsChanged,
    MasterHookAnswered,
    MasterHookFailed,
    Shutdown,
    StartCheckpointScheduler,
    StopCheckpointScheduler,
    TaskFailed,
)
from snapline.coordinator.checkpoint.failure_manager import UNLIMITED_TOLERABLE_FAILURES
from snapline.coordinator.checkpoint.properties import CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobVertex, OperatorNode
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID, JobID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    MasterState,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ForTasks,
    JobStatus,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, StartTimer, TimerFired, check
from tests.conformance.kinds.explicit_roles import ExplicitRolesPlanCalculator, TaskRoles
from tests.conformance.kinds.properties import reason_of, state_of
from tests.conformance.kinds.request_decider import FLINK_MAX_QUEUED_PERIODIC
from tests.conformance.replay import ANY, difference

JOB, OTHER_JOB = JobID("job"), JobID("other")
TYPES = {
    "checkpoint": SnapshotType.CHECKPOINT,
    "savepoint": SnapshotType.SAVEPOINT,
    "sync_savepoint": SnapshotType.SAVEPOINT_SUSPEND,
}
TYPE_NAMES = {
    SnapshotType.CHECKPOINT: "CHECKPOINT",
    SnapshotType.SAVEPOINT: "SAVEPOINT",
    SnapshotType.SAVEPOINT_SUSPEND: "SYNC_SAVEPOINT",
}


def attempt_of(task: str) -> ExecutionAttemptID:
    return ExecutionAttemptID("graph", JobVertexID(task), 0, 0)


def snapshot_of(task: str, state: str | None) -> TaskStateSnapshot:
    """A snapshot whose one file carries the name of the scenario's state handle."""
    if state is None:
        return TaskStateSnapshot()
    part = KeyedStateHandle(KeyGroupRange(0, 127), SegmentStateHandle(state, 0, 1))
    return TaskStateSnapshot({OperatorID(task): OperatorSubtaskState(managed_keyed=(part,))})


def names_in(states: Any) -> list[str]:
    return [
        handle.path
        for state in states
        for operator in state.operators.values()
        for handle in operator.stream_handles
        if isinstance(handle, SegmentStateHandle)
    ]


class Harness:
    """The shell around one coordinator."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.now_ms = config.get("start_ms", 1_000_000)
        tolerable = config.get("tolerable_failures", "unlimited")
        interval_ms = config.get("interval_ms", 10_000)
        self.initial_delay_ms = config.get("initial_delay_ms", max(interval_ms, config.get("min_pause_ms", 0)))
        self.next_id = config.get("first_id", 1)
        self.stop_during_id = config.get("stop_during_id", False)
        self.hook_config = {hook["id"]: hook for hook in config.get("hooks", ())}
        hooks = MasterHooks()
        for hook_id in self.hook_config:
            hooks.add(hook_id)
        tasks = config["tasks"]
        vertices = [
            JobVertex(
                JobVertexID(t["id"]), t["id"], 1, 128, (OperatorNode(OperatorID(t["id"]), t["id"], t["id"], b""),)
            )
            for t in tasks
        ]
        roles = {}
        for task in tasks:
            names = task.get("roles", ("trigger", "ack", "commit"))
            roles[ExecutionVertexID(JobVertexID(task["id"]), 0)] = TaskRoles(
                "trigger" in names, "ack" in names, "commit" in names
            )
        self.core = CheckpointCoordinator(
            JOB,
            "conformance",
            CheckpointCoordinatorConfiguration(
                interval_ms=interval_ms,
                timeout_ms=config.get("timeout_ms", 600_000),
                min_pause_ms=config.get("min_pause_ms", 0),
                max_concurrent_checkpoints=config.get("max_concurrent", 1),
                max_queued_requests=config.get("max_queued", 1000),
                max_queued_periodic_requests=config.get("max_queued_periodic", FLINK_MAX_QUEUED_PERIODIC),
                max_retained_checkpoints=config.get("max_retained", 1),
                retention=CheckpointRetentionPolicy(config.get("retention", "NEVER_RETAIN_AFTER_TERMINATION")),
                unaligned=config.get("unaligned", False),
                tolerable_failures=UNLIMITED_TOLERABLE_FAILURES if tolerable == "unlimited" else tolerable,
            ),
            vertices,
            (),
            store_survives_suspension=config.get("impl") == "ha",
            master_hooks=hooks,
            plan_calculator=ExplicitRolesPlanCalculator(roles),
        )
        self.timers: dict[Hashable, tuple[int, int]] = {}
        self.armed = 0
        self.deferring = False
        self.deferred: list[Any] = []
        self.id_fails = self.store_fails = False
        self.periodic_count = 0
        self.names: dict[str, str] = {}
        """Names of the core's own requests."""
        self.requests: dict[str, str] = {}
        self.open_hooks: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.new_step()
        self.feed(
            ExecutionsChanged(
                tuple(
                    ExecutionChange(attempt_of(t["id"]), state_of(t.get("state", "RUNNING")))
                    for t in tasks
                    if t.get("state") != "NONE"
                )
            )
        )

    def new_step(self) -> None:
        self.seen = {
            "sent": {},
            "requests": {},
            "discarded": [],
            "job_failures": [],
            "hook_calls": [],
            "trigger_options": None,
            "refused": [],
            "store_failed": False,
        }

    # --- the shell

    def feed(self, event: Any) -> None:
        for effect in self.core.handle(event, self.now_ms):
            self.perform(effect)

    def perform(self, effect: Any) -> None:
        match effect:
            case DrawCheckpointId() | StoreCompletedCheckpoint() if self.deferring:
                self.deferred.append(effect)
            case DrawCheckpointId(request_id):
                self.draw(request_id)
            case StoreCompletedCheckpoint(checkpoint):
                failed, self.store_fails = self.store_fails, False
                self.seen["store_failed"] |= failed
                checkpoint_id = checkpoint.checkpoint_id
                self.feed(
                    CheckpointStoreFailed(checkpoint_id, "told to") if failed else CheckpointStored(checkpoint_id)
                )
            case StartTimer(key, at_ms):
                self.armed += 1
                self.timers[key] = (at_ms, self.armed)
            case CancelTimer(key):
                self.timers.pop(key, None)
            case ForTasks(TriggerCheckpoint(_, _, checkpoint_id, _, options), attempts):
                self.sent("trigger", checkpoint_id, attempts)
                self.seen["trigger_options"] = {
                    "type": TYPE_NAMES.get(options.snapshot_type, options.snapshot_type.name),
                    "unaligned": options.is_unaligned,
                }
            case ForTasks(NotifyCheckpointComplete(_, _, checkpoint_id), attempts):
                self.sent("complete", checkpoint_id, attempts)
            case ForTasks(NotifyCheckpointAborted(_, _, checkpoint_id), attempts):
                self.sent("abort", checkpoint_id, attempts)
            case CheckpointRequestCompleted(request_id):
                self.answered(request_id, "completed")
            case CheckpointRequestFailed(request_id, reason):
                self.answered(request_id, f"failed:{reason.name}")
            case DiscardCheckpoint(states=states) | DiscardState(states=states):
                self.seen["discarded"] += names_in(states)
            case RemoveCompletedCheckpoint(checkpoint, discard):
                if discard:
                    self.seen["discarded"] += list(checkpoint.file_paths())
                self.feed(CompletedCheckpointRemoved(checkpoint.checkpoint_id))
            case FailJob():
                self.seen["job_failures"].append({"kind": "job"})
            case FailTask(attempt):
                self.seen["job_failures"].append({"kind": "task", "task": str(attempt.vertex_id)})
            case MessageRefused():
                self.seen["refused"].append(effect)
            case TriggerMasterHook(hook_id, checkpoint_id):
                self.seen["hook_calls"].append({"hook": hook_id, "call": "trigger", "cp": checkpoint_id})
                config = self.hook_config[hook_id]
                if config.get("mode") == "manual":
                    self.open_hooks[hook_id] = checkpoint_id
                else:
                    self.feed(MasterHookAnswered(hook_id, checkpoint_id, master_state(hook_id, config.get("state"))))
            case CloseMasterHook(hook_id):
                self.seen["hook_calls"].append({"hook": hook_id, "call": "close"})
            case _:
                pass

    def draw(self, request_id: Any) -> None:
        drawn, self.next_id = self.next_id, self.next_id + 1
        if self.stop_during_id:
            self.feed(StopCheckpointScheduler())
        failed, self.id_fails = self.id_fails, False
        self.feed(CheckpointIdFailed(request_id, "told to") if failed else CheckpointIdDrawn(request_id, drawn))

    def run_deferred(self) -> None:
        self.deferring = False
        while self.deferred:
            self.perform(self.deferred.pop(0))

    def sent(self, what: str, checkpoint_id: int, attempts: Any) -> None:
        tasks = sorted(str(attempt.vertex_id) for attempt in attempts)
        if tasks:
            self.seen["sent"].setdefault(what, {})[checkpoint_id] = tasks

    def name_of(self, request_id: str) -> str:
        if request_id.startswith("periodic-") and request_id not in self.names:
            self.periodic_count += 1
            self.names[request_id] = f"p{self.periodic_count}"
        return self.names.get(request_id, request_id)

    def answered(self, request_id: str, outcome: str) -> None:
        name = self.name_of(request_id)
        self.requests[name] = outcome
        self.seen["requests"][name] = outcome

    def note_new(self, request_id: str) -> None:
        name = self.name_of(request_id)
        self.requests.setdefault(name, "pending")
        self.seen["requests"].setdefault(name, "pending")

    def advance(self, by_ms: int) -> None:
        until = self.now_ms + by_ms
        while True:
            due = min(((at, order, key) for key, (at, order) in self.timers.items()), key=lambda t: t[:2], default=None)
            if due is None or due[0] > until:
                break
            self.now_ms = max(self.now_ms, due[0])
            del self.timers[due[2]]
            before = self.core._sequence
            name = f"periodic-{before + 1}"
            self.feed(TimerFired(due[2]))
            if self.core._sequence != before and name not in self.names:
                self.note_new(name)
        self.now_ms = until

    # --- the steps

    def play(self, step: dict[str, Any]) -> bool:
        """Returns whether the step raised."""
        self.new_step()
        try:
            self.step(step)
        except InvariantViolation:
            return True
        return "decline" in step and any(
            not refused.known and step["decline"].get("job") == "other" for refused in self.seen["refused"]
        )

    def step(self, step: dict[str, Any]) -> None:
        match step:
            case {"trigger": request}:
                self.trigger(request)
            case {"run": _}:
                self.run_deferred()
            case {"ack": ack}:
                message = AcknowledgeCheckpoint(
                    OTHER_JOB if ack.get("job") == "other" else JOB,
                    attempt_of(ack["task"]),
                    ack["cp"],
                    state=snapshot_of(ack["task"], ack.get("state")),
                )
                self.feed(AcknowledgesReceived((message,)))
            case {"decline": decline}:
                reason = decline.get("reason")
                if reason is None:
                    why = CheckpointFailureReason.CHECKPOINT_DECLINED
                elif reason == "OTHER":
                    why = CheckpointFailureReason.JOB_FAILURE
                else:
                    why = reason_of(reason)
                job = OTHER_JOB if decline.get("job") == "other" else JOB
                self.feed(DeclineReceived(DeclineCheckpoint(job, attempt_of(decline["task"]), decline["cp"], why)))
            case {"advance": by_ms}:
                self.advance(by_ms)
            case {"start_scheduler": _} | {"job_status": "RUNNING"}:
                self.feed(StopCheckpointScheduler())  # as Flink does first, where nothing can come in between
                self.feed(StartCheckpointScheduler(self.initial_delay_ms))
            case {"stop_scheduler": _} | {"job_status": "INITIALIZING"}:
                self.feed(StopCheckpointScheduler())
            case {"job_status": status}:
                check(status in JobStatus.__members__, f"there is no job status {status}")
                self.feed(StopCheckpointScheduler())
            case {"shutdown": status}:
                self.feed(Shutdown(JobStatus(status)))
            case {"task_state": states}:
                changes = (ExecutionChange(attempt_of(task), state_of(state)) for task, state in states.items())
                self.feed(ExecutionsChanged(tuple(changes)))
            case {"fail_task": task}:
                self.feed(TaskFailed(attempt_of(task)))
            case {"abort_all": reason}:
                self.feed(AbortPendingCheckpoints(reason_of(reason)))
            case {"id_counter_fails_next": _}:
                self.id_fails = True
            case {"store_fails_next": _}:
                self.store_fails = True
            case {"complete_hook": answer}:
                checkpoint_id = self.open_hooks.pop(answer["hook"])
                state = master_state(answer["hook"], answer.get("state"))
                self.feed(MasterHookAnswered(answer["hook"], checkpoint_id, state))
            case {"fail_hook": answer}:
                self.feed(MasterHookFailed(answer["hook"], self.open_hooks.pop(answer["hook"]), "told to"))
            case _:
                raise NotImplementedError(f"step {sorted(step)}")

    def trigger(self, request: dict[str, Any]) -> None:
        kind = TYPES[request.get("type", "checkpoint")]
        target = f"file:///savepoints/{request['as']}" if kind.is_savepoint else ""
        self.deferring = self.deferring or bool(request.get("defer"))
        event = CheckpointRequested(request["as"], kind, target, is_periodic=request.get("periodic", False))
        self.feed(event)
        self.note_new(request["as"])
        if not request.get("defer"):
            self.run_deferred()


def master_state(hook_id: str, state: str | None) -> MasterState | None:
    return None if state is None else MasterState(hook_id, 1, str(state).encode())


def replay(scenario: dict[str, Any]) -> list[str]:
    """All expectations of the steps up to the first failure, and the final ones."""
    harness = Harness(scenario.get("config", {}))
    expected = Expected()
    for number, step in enumerate(scenario["steps"]):
        raised = harness.play(step)
        failures = compare(number, expected.after(step.get("expect", {})), harness, raised)
        if failures:
            return failures
    final = scenario.get("final", {})
    got = observed(harness)
    return [difference("final", key, final[key], got[key]) for key in final if final[key] not in (ANY, got[key])]


DEFAULTS: dict[str, Any] = {
    "pending": [],
    "retained": [],
    "queued": 0,
    "triggering": False,
    "sent": {},
    "requests": {},
    "discarded": [],
    "job_failures": [],
    "error": False,
}
"""What an omitted key means at first. The first four stay as they were last stated, the others are none again in each
step."""
KEPT = ("pending", "retained", "queued", "triggering")


class Expected:
    """What holds after a step that states some keys. A key that was stated as `*` is unchecked until it is stated
    again."""

    def __init__(self) -> None:
        self.stated: dict[str, Any] = dict(DEFAULTS)

    def after(self, expect: dict[str, Any]) -> dict[str, Any]:
        now = {
            key: expect.get(key, ANY if self.stated[key] == ANY else self.stated[key] if key in KEPT else default)
            for key, default in DEFAULTS.items()
        }
        self.stated = now
        return now | {key: value for key, value in expect.items() if key not in DEFAULTS}


def observed(harness: Harness) -> dict[str, Any]:
    core = harness.core
    return {
        "pending": [pending.checkpoint_id for pending in core.pending_checkpoints],
        "retained": [checkpoint.checkpoint_id for checkpoint in core.completed_store.checkpoints],
        "queued": core.queued_request_count,
        "triggering": core.is_triggering,
    }


def compare(number: int, expect: dict[str, Any], harness: Harness, raised: bool) -> list[str]:
    """Every stated and every omitted key of one step."""
    seen = harness.seen
    got = observed(harness) | {
        "sent": seen["sent"],
        "requests": seen["requests"],
        "discarded": sorted(seen["discarded"]),
        "job_failures": seen["job_failures"],
        "error": raised,
        "returns": all(refused.known for refused in seen["refused"]),
        "hook_calls": seen["hook_calls"],
        "periodic_timer": harness.core.is_periodic_checkpointing_started,
    }
    failures = []
    for key, wanted in expect.items():
        if wanted == ANY:
            continue
        value = got.get(key)
        if key == "sent":
            wanted = {what: {cp: sorted(tasks) for cp, tasks in by_id.items()} for what, by_id in wanted.items()}
        elif key == "discarded":
            wanted = sorted(wanted)
        elif key == "trigger_options":  # only the options that are stated
            options = seen["trigger_options"] or {}
            value = {option: options.get(option) for option in wanted}
        elif key == "error" and wanted and seen["store_failed"]:
            value = True  # the caller of Flink's coordinator is told by an exception, ours by the failed request
        if wanted != value:
            failures.append(difference(number, key, wanted, value))
    return failures
