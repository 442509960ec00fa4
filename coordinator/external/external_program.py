"""ExternalProgram: one program outside, from its registration to the end of its stream.

To the JobMaster a program is a TaskManager of one slot, which only one external task can use: it registers, offers the
slot, is given a task, watched by heartbeats and lost like any other. To the program the JobMaster is the few messages
of protos/external.proto. This core stands between them. It decides which messages of the program make sense: what names
another attempt than its present one, a checkpoint that it was not asked for, or one that it has answered, goes no
further, so that a program that is wrong, late or lies harms nobody but itself. What is only late is dropped without a
word; what is wrong is answered with Complaint; what makes no sense at all ends the stream.

It knows no clock: the JobMaster watches. It has no counterpart in Flink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from snapline.dataflow.elements import CheckpointOptions, SnapshotType
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import AllocationID, CheckpointID, ExecutionAttemptID, JobID, OperatorID, ResourceID
from snapline.dataflow.snapshot.handles import OperatorSubtaskState
from snapline.dataflow.snapshot.program_state import StateRefused, located, named_states, task_state
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    CancelTask,
    DeclineCheckpoint,
    Disconnect,
    ExecutionState,
    FreeSlot,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    OfferSlots,
    RegisterTaskExecutorAtJobMaster,
    RegistrationRejected,
    RegistrationSuccess,
    SlotOffer,
    SlotOffersAnswered,
    SubmitTasks,
    TaskDeploymentDescriptor,
    TaskManagerInfo,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.dataflow.wire.program_limits import MAX_DETAILS, MAX_LINE, PROTOCOL_VERSION
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.machine import CollectedEffects, check
from snapline.runtime.cores.request_bounds import refuse_size

MAX_NAME = 60
"""Letters of what a program calls itself."""
NO_ADDRESS = "external"
"""Stands for the data server that a program does not have."""

_KINDS = {
    SnapshotType.SAVEPOINT: pb.SNAPSHOT_KIND_SAVEPOINT,
    SnapshotType.SAVEPOINT_SUSPEND: pb.SNAPSHOT_KIND_STOP,
    SnapshotType.SAVEPOINT_TERMINATE: pb.SNAPSHOT_KIND_STOP,
}

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramSaid:
    """A message of the program."""

    message: pb.FromProgram


@dataclass(frozen=True, slots=True)
class JobFound:
    """The answer to FindJob: the job is led here."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class JobNotFound:
    """The answer to FindJob: the program cannot take part."""

    rejected: pb.Rejected


@dataclass(frozen=True, slots=True)
class JobMasterSaid:
    """A message of the JobMaster, as it sends them to TaskManagers."""

    message: Any


ProgramEvent = ProgramSaid | JobFound | JobNotFound | JobMasterSaid

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindJob:
    """Look for the job with this id or name, and whether it has such an external task."""

    job: str
    task: str


@dataclass(frozen=True, slots=True)
class TellProgram:
    """Send it to the program."""

    message: pb.ToProgram


@dataclass(frozen=True, slots=True)
class TellJobMaster:
    """Send it to the JobMaster, as a TaskManager does."""

    message: Any


@dataclass(frozen=True, slots=True)
class EndProgram:
    """End the stream, after what was said before."""

    reason: str
    is_fault: bool = False
    """The conversation made no sense."""


ProgramEffect = FindJob | TellProgram | TellJobMaster | EndProgram


class _Phase(Enum):
    NEW = "it has not registered"
    LOOKING = "its job is looked for"
    REGISTERING = "it waits for a place"
    PLACED = "it has a place"
    ENDED = "its stream has ended"


@dataclass(slots=True)
class _Attempt:
    """The attempt that the program has."""

    attempt_id: ExecutionAttemptID
    operator_id: OperatorID
    directory: str
    """What relative paths of its job's files lie below."""
    is_running: bool = False
    is_canceling: bool = False
    stops_with: CheckpointID | None = None
    """The savepoint that the job stops with."""
    is_stopped: bool = False
    """That savepoint is complete: the attempt has finished when it is cancelled."""
    asked: dict[CheckpointID, str] = field(default_factory=dict)
    """Checkpoints without an answer, and the directory of the program's files in each, as handles name it; empty: it
    may have none."""
    answered: set[CheckpointID] = field(default_factory=set)
    """Checkpoints with an answer, which have neither completed nor been aborted."""
    last_asked: CheckpointID = CheckpointID(0)


@dataclass(frozen=True, slots=True)
class ProgramIdentity:
    """What the shell draws for a program."""

    resource_id: ResourceID
    give: Callable[[JobID, ResourceID, str], AllocationID]
    """Returns the id of the slot of a program for an external task of a job."""
    incarnation: str
    version: str
    """The version of this Snapline."""
    max_state_bytes: int


class ExternalProgram:
    """One program on one stream."""

    def __init__(self, identity: ProgramIdentity) -> None:
        """Begin with a program that has said nothing yet."""
        self._identity = identity
        self._phase = _Phase.NEW
        self._register = pb.Register()
        """What the program has said of itself."""
        self._job_id = JobID("")
        self._allocation_id = AllocationID("")
        self._heartbeat = RegistrationSuccess(0, 0)
        self._heartbeats_asked = 0
        self._attempt: _Attempt | None = None
        self._out: CollectedEffects[ProgramEffect] = CollectedEffects()

    @property
    def resource_id(self) -> ResourceID:
        """The name of the program in lists and logs; what the program calls itself is a part of it."""
        named = "".join(letter for letter in self._register.program if letter.isalnum() or letter in "-_.")[:MAX_NAME]
        return ResourceID(f"{self._identity.resource_id}-{named}") if named else self._identity.resource_id

    def handle(self, event: ProgramEvent) -> list[ProgramEffect]:
        """Take one event, and return what is to be done."""
        if self._phase is not _Phase.ENDED:
            match event:
                case ProgramSaid(message):
                    self._program_said(message)
                case JobFound(job_id) if self._phase is _Phase.LOOKING:
                    self._begin(job_id)
                case JobNotFound(rejected) if self._phase is _Phase.LOOKING:
                    self._reject(rejected)
                case JobMasterSaid(message):
                    self._job_master_said(message)
        return self._out.take()

    # --- registration -------------------------------------------------------------------------------------------------

    def _registered(self, register: pb.Register) -> None:
        if self._phase is not _Phase.NEW:
            self._end("Register was said already: one stream is one program, open another one", is_fault=True)
            return
        if too_large := refuse_size(register):
            self._end(too_large, is_fault=True)
            return
        self._register = register
        if register.protocol_version != PROTOCOL_VERSION:
            detail = f"the program speaks version {register.protocol_version} of external.proto, and this coordinator {PROTOCOL_VERSION}"
            self._reject(pb.Rejected(reason=pb.REJECTION_REASON_OTHER_VERSION, detail=detail))
            return
        self._phase = _Phase.LOOKING
        self._out.append(FindJob(register.job, register.task))

    def _begin(self, job_id: JobID) -> None:
        self._phase, self._job_id = _Phase.REGISTERING, job_id
        info = TaskManagerInfo(
            resource_id=self.resource_id,
            exchange_address=NO_ADDRESS,
            slots=1,
            version=self._identity.version,
            host=self._register.host[:MAX_LINE],
            pid=self._register.pid,
            incarnation=self._identity.incarnation,
        )
        self._tell_job_master(RegisterTaskExecutorAtJobMaster(job_id, info))

    def _reject(self, rejected: pb.Rejected) -> None:
        self._out.append(TellProgram(pb.ToProgram(rejected=rejected)))
        self._end(rejected.detail)

    def _offers_answered(self, accepted: bool) -> None:
        if not accepted:
            detail = f"the job has all programs that its external task {self._register.task!r} needs: try again when one has left"
            self._tell_job_master(Disconnect("it is not needed"))
            self._reject(pb.Rejected(reason=pb.REJECTION_REASON_NO_PLACE, detail=detail, try_again=True))
            return
        self._phase = _Phase.PLACED
        registered = pb.Registered(
            protocol_version=PROTOCOL_VERSION,
            job_id=self._job_id,
            resource_id=self.resource_id,
            heartbeat_interval_ms=self._heartbeat.heartbeat_interval_ms,
            heartbeat_timeout_ms=self._heartbeat.heartbeat_timeout_ms,
            max_state_bytes=self._identity.max_state_bytes,
        )
        self._out.append(TellProgram(pb.ToProgram(registered=registered)))

    # --- the JobMaster ------------------------------------------------------------------------------------------------

    def _job_master_said(self, message: Any) -> None:
        match message:
            case RegistrationSuccess():
                self._heartbeat = message
                named = self._register.task
                self._allocation_id = self._identity.give(self._job_id, self.resource_id, named)
                offer = SlotOffer(self._allocation_id, 0, named)
                self._tell_job_master(OfferSlots(self._job_id, self.resource_id, (offer,)))
            case RegistrationRejected(reason):
                self._reject(pb.Rejected(reason=pb.REJECTION_REASON_UNKNOWN_JOB, detail=reason, try_again=True))
            case SlotOffersAnswered(_, accepted, _) if self._phase is _Phase.REGISTERING:
                self._offers_answered(self._allocation_id in accepted)
            case SubmitTasks(tasks):
                for task in tasks:
                    self._run(task)
            case CancelTask(attempt_id):
                if (attempt := self._present(attempt_id)) is not None and not attempt.is_canceling:
                    self._cancel(attempt, "the job restarts or ends")
            case HeartbeatRequest():
                self._heartbeats_asked += 1
                self._out.append(TellProgram(pb.ToProgram(heartbeat=pb.Heartbeat())))
            case TriggerCheckpoint(_, attempt_id, checkpoint_id, timestamp_ms, options):
                self._trigger(attempt_id, checkpoint_id, timestamp_ms, options)
            case NotifyCheckpointComplete(_, attempt_id, checkpoint_id):
                self._completed(attempt_id, checkpoint_id)
            case NotifyCheckpointAborted(_, attempt_id, checkpoint_id, latest_id):
                self._aborted(attempt_id, checkpoint_id, latest_id)
            case FreeSlot():
                self._tell_job_master(Disconnect("its slot was given back"))
                self._say_goodbye("the job does not need this program any more")
            case Disconnect(reason):
                self._say_goodbye(reason)

    def _present(self, attempt_id: ExecutionAttemptID) -> _Attempt | None:
        attempt = self._attempt
        return attempt if attempt is not None and attempt.attempt_id == attempt_id else None

    def _run(self, task: TaskDeploymentDescriptor) -> None:
        if task.restore_state.is_task_finished:  # it had, in the checkpoint: it only ends again, and nobody is asked
            self._state_changed(task.attempt_id, ExecutionState.RUNNING)
            self._state_changed(task.attempt_id, ExecutionState.FINISHED)
            return
        operator = task.operators[0]
        restored = task.restore_state.operators.get(operator.operator_id, OperatorSubtaskState())
        try:
            state = named_states(restored, task.checkpoint_directory)
        except StateRefused as refusal:
            failure = SerializedFailure(
                f"external task {self._register.task!r} cannot be restored: {refusal}",
                retryable=False,
                error_type="StateRefused",
                operator_uid=operator.uid,
            )
            self._state_changed(task.attempt_id, ExecutionState.FAILED, failure)
            return
        self._attempt = _Attempt(task.attempt_id, operator.operator_id, task.checkpoint_directory)
        self._state_changed(task.attempt_id, ExecutionState.INITIALIZING)
        run = pb.RunTask(
            attempt_id=str(task.attempt_id),
            subtask_index=task.attempt_id.subtask_index,
            parallelism=task.parallelism,
            attempt_number=task.attempt_id.attempt_number,
            job_id=task.job_id,
            job_name=task.job_name,
            task=self._register.task,
            restored_checkpoint_id=task.restore_checkpoint_id,
            state=state,
            configuration=dict(task.configuration),
        )
        self._out.append(TellProgram(pb.ToProgram(run_task=run)))

    def _cancel(self, attempt: _Attempt, reason: str) -> None:
        attempt.is_canceling = True
        cancel = pb.CancelTask(attempt_id=str(attempt.attempt_id), reason=reason)
        self._out.append(TellProgram(pb.ToProgram(cancel_task=cancel)))

    def _trigger(
        self, attempt_id: ExecutionAttemptID, checkpoint_id: CheckpointID, timestamp_ms: int, options: CheckpointOptions
    ) -> None:
        attempt = self._present(attempt_id)
        if attempt is None or attempt.is_canceling or not attempt.is_running:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
            self._tell_job_master(
                DeclineCheckpoint(self._job_id, attempt_id, checkpoint_id, reason, timestamp_ms=timestamp_ms)
            )
            return
        kind, location = options.snapshot_type, options.target_location.rstrip("/")
        location = f"{location}/{self._identity.resource_id}" if location and attempt.directory else ""
        attempt.asked[checkpoint_id] = location
        attempt.last_asked = max(attempt.last_asked, checkpoint_id)
        if kind.is_synchronous:
            attempt.stops_with = checkpoint_id
        trigger = pb.TriggerCheckpoint(
            attempt_id=str(attempt_id),
            checkpoint_id=checkpoint_id,
            timestamp_ms=timestamp_ms,
            kind=_KINDS.get(kind, pb.SNAPSHOT_KIND_CHECKPOINT),
            upload_location=located(location, attempt.directory) if location else "",
        )
        self._out.append(TellProgram(pb.ToProgram(trigger_checkpoint=trigger)))

    def _completed(self, attempt_id: ExecutionAttemptID, checkpoint_id: CheckpointID) -> None:
        attempt = self._present(attempt_id)
        if attempt is None:
            return
        attempt.asked = {each: location for each, location in attempt.asked.items() if each > checkpoint_id}
        attempt.answered = {each for each in attempt.answered if each > checkpoint_id}
        complete = pb.NotifyCheckpointComplete(attempt_id=str(attempt_id), checkpoint_id=checkpoint_id)
        self._out.append(TellProgram(pb.ToProgram(notify_checkpoint_complete=complete)))
        if attempt.stops_with == checkpoint_id:
            attempt.is_stopped = True
            if not attempt.is_canceling:
                self._cancel(attempt, "the job stops with a savepoint")

    def _aborted(self, attempt_id: ExecutionAttemptID, checkpoint_id: CheckpointID, latest_id: CheckpointID) -> None:
        attempt = self._present(attempt_id)
        if attempt is None:
            return
        attempt.asked.pop(checkpoint_id, None)
        attempt.answered.discard(checkpoint_id)
        if attempt.stops_with == checkpoint_id:
            attempt.stops_with = None
        aborted = pb.NotifyCheckpointAborted(
            attempt_id=str(attempt_id), checkpoint_id=checkpoint_id, latest_completed_id=latest_id
        )
        self._out.append(TellProgram(pb.ToProgram(notify_checkpoint_aborted=aborted)))

    # --- the program --------------------------------------------------------------------------------------------------

    def _program_said(self, message: pb.FromProgram) -> None:
        kind = message.WhichOneof("message")
        if kind == "register":
            self._registered(message.register)
        elif kind is None:
            if message.ByteSize() == 0:
                self._end("a message is empty: say one of those of FromProgram", is_fault=True)
        elif kind == "heartbeat" and self._phase is not _Phase.NEW:
            self._answer_heartbeat()
        elif self._phase is not _Phase.PLACED:
            self._end(f"{kind} was said, and {self._phase.value}: wait for Registered", is_fault=True)
        else:
            said = getattr(message, kind)
            if self._attempt is None or said.attempt_id != str(self._attempt.attempt_id):
                self._complain(
                    f"{kind} names attempt {said.attempt_id[:MAX_LINE]!r}, {self._present_is()}: nothing was done"
                )
            else:
                self._attempt_said(said)

    def _attempt_said(self, said: Any) -> None:
        """Take a message that the program says of its present attempt."""
        match said:
            case pb.TaskRunning():
                self._task_running(said)
            case pb.AcknowledgeCheckpoint():
                self._acknowledged(said)
            case pb.DeclineCheckpoint():
                self._declined(said)
            case pb.TaskFinished():
                self._finished(said)
            case pb.TaskFailed():
                self._failed(said)
            case pb.TaskCanceled():
                self._canceled(said)
            case _:
                self._complain(f"{type(said).__name__} is for tasks with rows, and this one has none: nothing was done")

    def _present_is(self) -> str:
        return "and there is none" if self._attempt is None else f"and the present one is {self._attempt.attempt_id}"

    def _answer_heartbeat(self) -> None:
        if self._heartbeats_asked:
            self._heartbeats_asked -= 1
            executions = () if self._attempt is None else (self._attempt.attempt_id,)
            self._tell_job_master(HeartbeatResponse(executions=executions))

    def _task_running(self, said: pb.TaskRunning) -> None:
        attempt = self._attempt_now
        if attempt.is_running:
            self._complain(f"task_running was said already for attempt {said.attempt_id}")
        elif not attempt.is_canceling:
            attempt.is_running = True
            self._state_changed(attempt.attempt_id, ExecutionState.RUNNING)

    @property
    def _attempt_now(self) -> _Attempt:
        return check(self._attempt, "a message of an attempt is looked at only while there is one")

    def _takes_answer(self, kind: str, checkpoint_id: int) -> CheckpointID | None:
        """Whether the checkpoint waits for an answer; None: not, and that was said if the program is wrong."""
        attempt, wanted = self._attempt_now, CheckpointID(checkpoint_id)
        if wanted in attempt.asked:
            attempt.asked.pop(wanted)
            attempt.answered.add(wanted)
            return wanted
        if wanted in attempt.answered:
            self._complain(f"{kind} is the second answer to checkpoint {checkpoint_id}: the first one counts")
        elif not 0 < checkpoint_id <= attempt.last_asked:
            self._complain(
                f"{kind} names checkpoint {checkpoint_id}, which the program was not asked for: nothing was done"
            )
        return None

    def _acknowledged(self, said: pb.AcknowledgeCheckpoint) -> None:
        attempt = self._attempt_now
        location = attempt.asked.get(CheckpointID(said.checkpoint_id), "")
        checkpoint_id = self._takes_answer("acknowledge_checkpoint", said.checkpoint_id)
        if checkpoint_id is None:
            return
        try:
            state = task_state(attempt.operator_id, said.state, self._identity.max_state_bytes, location)
        except StateRefused as refusal:
            self._complain(f"checkpoint {checkpoint_id} is declined: {refusal}")
            self._decline(attempt, checkpoint_id, str(refusal))
            return
        self._tell_job_master(AcknowledgeCheckpoint(self._job_id, attempt.attempt_id, checkpoint_id, state=state))

    def _declined(self, said: pb.DeclineCheckpoint) -> None:
        checkpoint_id = self._takes_answer("decline_checkpoint", said.checkpoint_id)
        if checkpoint_id is not None:
            self._decline(self._attempt_now, checkpoint_id, said.reason[:MAX_LINE])

    def _decline(self, attempt: _Attempt, checkpoint_id: CheckpointID, detail: str) -> None:
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        named = f"external task {self._register.task!r} ({self.resource_id}): {detail}"
        self._tell_job_master(DeclineCheckpoint(self._job_id, attempt.attempt_id, checkpoint_id, reason, named))

    def _finished(self, said: pb.TaskFinished) -> None:
        attempt = self._attempt_now
        if not attempt.is_running:
            self._complain(f"task_finished was said before task_running for attempt {said.attempt_id}")
            return
        self._attempt = None
        self._state_changed(attempt.attempt_id, ExecutionState.FINISHED)

    def _failed(self, said: pb.TaskFailed) -> None:
        attempt = self._attempt_now
        self._attempt = None
        failure = SerializedFailure(
            f"external task {self._register.task!r} ({self.resource_id}) failed: {said.reason[:MAX_LINE] or 'it did not say why'}",
            Blame.USER,
            retryable=not said.is_final,
            error_type="ExternalTaskFailed",
            traceback=said.details[:MAX_DETAILS],
            operator_uid=self._register.task,
        )
        self._state_changed(attempt.attempt_id, ExecutionState.FAILED, failure)

    def _canceled(self, said: pb.TaskCanceled) -> None:
        attempt = self._attempt_now
        if not attempt.is_canceling:
            self._complain(
                f"task_canceled was said, and nobody has cancelled attempt {said.attempt_id}: say task_failed"
            )
            return
        self._attempt = None
        self._state_changed(
            attempt.attempt_id, ExecutionState.FINISHED if attempt.is_stopped else ExecutionState.CANCELED
        )

    # --- words --------------------------------------------------------------------------------------------------------

    def _state_changed(
        self, attempt_id: ExecutionAttemptID, state: ExecutionState, failure: SerializedFailure | None = None
    ) -> None:
        self._tell_job_master(TaskStateChanged(self._job_id, attempt_id, state, failure))

    def _tell_job_master(self, message: Any) -> None:
        self._out.append(TellJobMaster(message))

    def _complain(self, detail: str) -> None:
        self._out.append(TellProgram(pb.ToProgram(complaint=pb.Complaint(detail=detail))))

    def _say_goodbye(self, reason: str) -> None:
        self._out.append(TellProgram(pb.ToProgram(goodbye=pb.Goodbye(reason=reason))))
        self._end(reason)

    def _end(self, reason: str, *, is_fault: bool = False) -> None:
        self._phase = _Phase.ENDED
        self._out.append(EndProgram(reason, is_fault))
