"""One program outside: what of its words reaches the JobMaster, and what it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.coordinator.external.external_program import (
    EndProgram,
    ExternalProgram,
    FindJob,
    JobFound,
    JobMasterSaid,
    JobNotFound,
    ProgramIdentity,
    ProgramSaid,
    TellJobMaster,
    TellProgram,
)
from snapline.dataflow.elements import AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    JobID,
    JobVertexID,
    OperatorID,
    ResourceID,
)
from snapline.dataflow.snapshot.handles import (
    OperatorStateMode,
    SegmentStateHandle,
    TaskStateSnapshot,
)
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
    OperatorDescriptor,
    RegisterTaskExecutorAtJobMaster,
    RegistrationRejected,
    RegistrationSuccess,
    SlotOffer,
    SlotOffersAnswered,
    SubmitTasks,
    TaskDeploymentDescriptor,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.protos import external_pb2 as pb

JOB = JobID("f" * 32)
SLOT = AllocationID("slot")
OPERATOR = OperatorID("0" * 32)
LIMIT = 200


def attempt(number=0):
    return ExecutionAttemptID("graph", JobVertexID("v" * 32), 1, number)


FIRST = str(attempt())


def task(number=0, restored=0, state=None):
    """What the JobMaster deploys."""
    return TaskDeploymentDescriptor(
        job_id=JOB,
        job_name="fleet",
        attempt_id=attempt(number),
        allocation_id=SLOT,
        task_name="orders (2/2)",
        parallelism=2,
        max_parallelism=128,
        operators=(OperatorDescriptor(OPERATOR, "orders", "orders", b""),),
        input_gates=(),
        result_partitions=(),
        restore_checkpoint_id=CheckpointID(restored),
        restore_state=state or TaskStateSnapshot(),
    )


def trigger(checkpoint_id, number=0, kind=SnapshotType.CHECKPOINT):
    options = CheckpointOptions(kind, AlignmentType.ALIGNED)
    return TriggerCheckpoint(JOB, attempt(number), CheckpointID(checkpoint_id), 5, options)


def complete(checkpoint_id):
    return NotifyCheckpointComplete(JOB, attempt(), CheckpointID(checkpoint_id), 5)


class Story:
    """A program and what it and its JobMaster were told."""

    def __init__(self):
        identity = ProgramIdentity(ResourceID("external-1"), lambda *_: SLOT, "secret", "0.1.0", LIMIT)
        self.core = ExternalProgram(identity)

    def _take(self, event):
        effects = self.core.handle(event)
        told = [getattr(e.message, e.message.WhichOneof("message")) for e in effects if isinstance(e, TellProgram)]
        return [e.message for e in effects if isinstance(e, TellJobMaster)], told, effects

    def says(self, **message):
        """The program does: what reaches the JobMaster, and what the program is answered."""
        to_master, told, _ = self._take(ProgramSaid(pb.FromProgram(**message)))
        return to_master, told

    def hears(self, message):
        """The JobMaster says it: what it is answered, and what the program is told."""
        to_master, told, _ = self._take(JobMasterSaid(message))
        return to_master, told

    def ends(self, event):
        """The event ends the stream: why, and whether that is a fault."""
        last = self.core.handle(event)[-1]
        assert isinstance(last, EndProgram)
        return last.reason, last.is_fault

    def registers(self, version=1):
        register = pb.Register(protocol_version=version, job="fleet", task="orders", host="h", pid=7)
        return self.core.handle(ProgramSaid(pb.FromProgram(register=register)))

    def placed(self):
        assert self.registers() == [FindJob("fleet", "orders")]
        self._take(JobFound(JOB))
        self.hears(RegistrationSuccess(10, 50))
        self.hears(SlotOffersAnswered(JOB, (SLOT,), ()))
        return self

    def running(self):
        self.placed()
        self.hears(SubmitTasks((task(),)))
        self.says(task_running=pb.TaskRunning(attempt_id=FIRST))
        return self


def acknowledge(checkpoint_id, *elements, attempt_id=FIRST):
    state = [pb.NamedState(name="n", elements=elements)] if elements else []
    return pb.AcknowledgeCheckpoint(attempt_id=attempt_id, checkpoint_id=checkpoint_id, state=state)


def test_a_program_is_a_task_manager_of_one_slot():
    """It registers, offers its slot for one external task, and is told its terms."""
    story = Story()
    assert story.registers() == [FindJob("fleet", "orders")]
    (registration,), told, _ = story._take(JobFound(JOB))
    assert isinstance(registration, RegisterTaskExecutorAtJobMaster) and told == []
    assert (registration.info.resource_id, registration.info.slots, registration.info.pid) == ("external-1", 1, 7)
    offer = OfferSlots(JOB, ResourceID("external-1"), (SlotOffer(SLOT, 0, "orders"),))
    assert story.hears(RegistrationSuccess(10, 50)) == ([offer], [])
    registered = pb.Registered(
        protocol_version=1,
        job_id=JOB,
        resource_id="external-1",
        heartbeat_interval_ms=10,
        heartbeat_timeout_ms=50,
        max_state_bytes=LIMIT,
    )
    assert story.hears(SlotOffersAnswered(JOB, (SLOT,), ())) == ([], [registered])


def test_a_program_that_has_a_name_is_shown_by_it():
    """It is a part of the resource id, without what could be mistaken for something else."""
    story = Story()
    register = pb.Register(protocol_version=1, job="fleet", task="orders", program="eu-1 \n/x")
    story.core.handle(ProgramSaid(pb.FromProgram(register=register)))
    (registration,), _, _ = story._take(JobFound(JOB))
    assert registration.info.resource_id == "external-1-eu-1x"


@pytest.mark.parametrize("field", ["job", "task", "program", "host", "ticket"])
def test_what_a_program_says_of_itself_is_a_page_at_most(field):
    """Fifty megabytes were repeated in the answer, and a name or host kept the coordinator from all others for 16 s."""
    story = Story()
    register = pb.Register(protocol_version=1)
    setattr(register, field, "x" * 9_000)
    reason, is_fault = story.ends(ProgramSaid(pb.FromProgram(register=register)))
    assert (f"Register.{field} has 9000 characters; 8192 are the most that it may have", True) == (reason, is_fault)
    assert "external-1" == story.core.resource_id


def test_an_attempt_begins_with_state_and_ends_as_it_says():
    """Deployed, running, finished; and the state comes as it was acknowledged."""
    story = Story().running()
    story.hears(trigger(1))
    (acknowledged,), _ = story.says(acknowledge_checkpoint=acknowledge(1, b"a", b"", b"bc"))
    part = acknowledged.state.operators[OPERATOR].managed_operator[0]
    assert (part.handle.data, part.entries[0].mode) == (b"abc", OperatorStateMode.SPLIT_DISTRIBUTE)
    assert part.entries[0].offsets == ((0, 1), (1, 0), (1, 2))
    changed = TaskStateChanged(JOB, attempt(), ExecutionState.FINISHED)
    assert story.says(task_finished=pb.TaskFinished(attempt_id=FIRST)) == ([changed], [])
    changes, (run,) = story.hears(SubmitTasks((task(1, 1, acknowledged.state),)))
    assert changes == [TaskStateChanged(JOB, attempt(1), ExecutionState.INITIALIZING)]
    assert (run.attempt_number, run.subtask_index, run.parallelism, run.restored_checkpoint_id) == (1, 1, 2, 1)
    assert [(each.name, list(each.elements)) for each in run.state] == [("n", [b"a", b"", b"bc"])]


def test_heartbeats_are_the_programs_own():
    """The JobMaster hears one for each that it asked for and the program answered; none that nobody asked for."""
    story = Story().running()
    assert story.hears(HeartbeatRequest()) == ([], [pb.Heartbeat()])
    beat: Any = ([HeartbeatResponse(executions=(attempt(),))], [])
    assert story.says(heartbeat=pb.Heartbeat()) == beat
    assert story.says(heartbeat=pb.Heartbeat()) == ([], [])


def test_a_program_that_is_cancelled_may_run_again():
    """CancelTask is said once; the answer ends the attempt, and the program keeps its place."""
    story = Story().running()
    assert story.hears(CancelTask(attempt()))[1][0].attempt_id == FIRST
    assert story.hears(CancelTask(attempt())) == ([], [])
    canceled = TaskStateChanged(JOB, attempt(), ExecutionState.CANCELED)
    assert story.says(task_canceled=pb.TaskCanceled(attempt_id=FIRST)) == ([canceled], [])
    assert story.hears(SubmitTasks((task(1),)))[1][0].attempt_number == 1


def test_a_job_that_stops_with_a_savepoint_cancels_and_finishes():
    """The program is cancelled once the savepoint is complete, and its attempt has finished then."""
    story = Story().running()
    (asked,) = story.hears(trigger(1, kind=SnapshotType.SAVEPOINT_SUSPEND))[1]
    assert asked.kind == pb.SNAPSHOT_KIND_STOP
    story.says(acknowledge_checkpoint=acknowledge(1))
    notified, canceled = story.hears(complete(1))[1]
    assert (notified.checkpoint_id, canceled.reason) == (1, "the job stops with a savepoint")
    (changed,), _ = story.says(task_canceled=pb.TaskCanceled(attempt_id=FIRST))
    assert changed.state is ExecutionState.FINISHED


def complaint(answer):
    """The one that the program got, and nothing reached the JobMaster."""
    to_master, (told,) = answer
    assert to_master == []
    return told.detail


def test_what_is_wrong_is_complained_about_and_goes_no_further():
    """One line each, with what is wrong in it."""
    story = Story().running()
    story.hears(trigger(3))
    assert "names attempt 'x'" in complaint(story.says(acknowledge_checkpoint=acknowledge(3, attempt_id="x")))
    assert "checkpoint 4, which the program was not asked for" in complaint(
        story.says(acknowledge_checkpoint=acknowledge(4))
    )
    assert "checkpoint -1, which" in complaint(story.says(acknowledge_checkpoint=acknowledge(-1)))
    assert "was said already" in complaint(story.says(task_running=pb.TaskRunning(attempt_id=FIRST)))
    assert "say task_failed" in complaint(story.says(task_canceled=pb.TaskCanceled(attempt_id=FIRST)))
    assert len(story.says(acknowledge_checkpoint=acknowledge(3))[0]) == 1
    assert "second answer to checkpoint 3" in complaint(story.says(acknowledge_checkpoint=acknowledge(3)))


def test_what_is_only_late_is_dropped_without_a_word():
    """An answer that crosses the end of its checkpoint on the way is nobody's fault."""
    story = Story().running()
    story.hears(trigger(1))
    story.hears(NotifyCheckpointAborted(JOB, attempt(), CheckpointID(1), CheckpointID(0), 5))
    assert story.says(acknowledge_checkpoint=acknowledge(1)) == ([], [])
    story.hears(trigger(2))
    story.hears(complete(2))
    assert story.says(decline_checkpoint=pb.DeclineCheckpoint(attempt_id=FIRST, checkpoint_id=2)) == ([], [])


def test_state_over_the_limit_declines_the_checkpoint():
    """With both sizes and the setting in the line; empty elements are not free."""
    for elements in ([b"x" * LIMIT], [b""] * 20):
        story = Story().running()
        story.hears(trigger(1))
        (declined,), (told,) = story.says(acknowledge_checkpoint=acknowledge(1, *elements))
        assert declined.reason is CheckpointFailureReason.CHECKPOINT_DECLINED
        assert "and 200 are allowed (external.state.max-bytes of the coordinator)" in declined.detail
        assert "checkpoint 1 is declined: its state has " in told.detail


def test_a_state_needs_a_name_of_its_own():
    """Two of one name could not be told apart when they are restored."""
    story = Story().running()
    story.hears(trigger(1))
    twice = pb.AcknowledgeCheckpoint(attempt_id=FIRST, checkpoint_id=1, state=[pb.NamedState(name="n")] * 2)
    (declined,), (told,) = story.says(acknowledge_checkpoint=twice)
    assert isinstance(declined, DeclineCheckpoint) and "no name of its own: 'n'" in told.detail


def test_a_decline_and_a_failure_carry_the_programs_words():
    """Who it was and why stand in one line each; what the JobMaster must not repeat is marked."""
    story = Story().running()
    story.hears(trigger(1))
    declined = pb.DeclineCheckpoint(attempt_id=FIRST, checkpoint_id=1, reason="busy")
    (to_master,), _ = story.says(decline_checkpoint=declined)
    assert to_master.detail == "external task 'orders' (external-1): busy"
    (changed,), _ = story.says(task_failed=pb.TaskFailed(attempt_id=FIRST, reason="disk", is_final=True))
    assert changed.failure.summary == "external task 'orders' (external-1) failed: disk"
    assert not changed.failure.retryable


def test_a_task_that_is_not_running_declines_for_the_program():
    """Nobody is asked who has not begun, or is being cancelled."""
    story = Story().placed()
    story.hears(SubmitTasks((task(),)))
    (declined,), told = story.hears(trigger(1))
    assert (declined.reason, told) == (CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY, [])


def test_a_task_that_had_finished_only_ends_again():
    """Its state is in no checkpoint any more: the program, begun anew, would do everything once more."""
    changes, told = Story().placed().hears(SubmitTasks((task(1, 4, TaskStateSnapshot(is_task_finished=True)),)))
    assert [each.state for each in changes] == [ExecutionState.RUNNING, ExecutionState.FINISHED]
    assert told == []


def uploads(*elements, attempt_id=FIRST, checkpoint_id=1, **more):
    state = pb.NamedState(name="n", uploaded=[pb.UploadedElement(**each) for each in elements], **more)
    return pb.AcknowledgeCheckpoint(attempt_id=attempt_id, checkpoint_id=checkpoint_id, state=[state])


def triggered_with_location(story, target):
    """Deploy it in a job whose files have a place, and ask it for a checkpoint that lies at the target."""
    story.placed().hears(SubmitTasks((replace(task(), checkpoint_directory="/base/job"),)))
    story.says(task_running=pb.TaskRunning(attempt_id=FIRST))
    options = CheckpointOptions(SnapshotType.CHECKPOINT, AlignmentType.ALIGNED, target_location=target)
    _, (asked,) = story.hears(TriggerCheckpoint(JOB, attempt(), CheckpointID(1), 5, options))
    return asked.upload_location


@pytest.mark.parametrize(
    ("target", "location", "path"),
    [
        ("chk-1", "/base/job/chk-1/external-1", "chk-1/external-1/f.bin"),
        ("s3://b/savepoint-1", "s3://b/savepoint-1/external-1", "s3://b/savepoint-1/external-1/f.bin"),
    ],
)
def test_state_may_be_uploaded_to_a_place_of_the_checkpoint(target, location, path):
    """It is told where, says what lies there beside what it sends, and the next attempt is told the whole path. All
    this counts for its limit is what was said."""
    story = Story()
    assert triggered_with_location(story, target) == location
    digests = b"d" * 32
    said = uploads({"file": "f.bin", "offset": 3, "size": 1_000, "digests": digests}, elements=[b"a"])
    (acknowledged,), told = story.says(acknowledge_checkpoint=said)
    assert told == []
    inline, file = acknowledged.state.operators[OPERATOR].managed_operator
    assert (inline.handle.data, file.handle) == (b"a", SegmentStateHandle(path, 3, 1_000, digests=digests))
    assert file.entries[0].offsets == ((0, 1_000),)
    story.says(task_finished=pb.TaskFinished(attempt_id=FIRST))
    again = replace(task(1, 1, acknowledged.state), checkpoint_directory="/base/job")
    _, (run,) = story.hears(SubmitTasks((again,)))
    element = pb.UploadedElement(file=f"{location}/f.bin", offset=3, size=1_000, digests=digests)
    assert [(list(each.elements), list(each.uploaded)) for each in run.state] == [([b"a"], [element])]


@pytest.mark.parametrize(
    ("element", "said"),
    [
        ({"file": "../other/_metadata", "size": 1}, "say its name below upload_location"),
        ({"file": "a/b", "size": 1}, "say its name below upload_location"),
        ({"file": "", "size": 1}, "say its name below upload_location"),
        ({"file": "f", "size": -1}, "is negative"),
        ({"file": "f", "size": 1, "digests": b"short"}, "has 5 bytes of digests, not 32"),
        ({"file": "f" * 190, "size": 1}, "and 200 are allowed (external.state.max-bytes of the coordinator)"),
    ],
)
def test_files_that_a_program_cannot_have_uploaded_decline_the_checkpoint(element, said):
    """In one line, to the program and to the JobMaster."""
    story = Story()
    triggered_with_location(story, "chk-1")
    (declined,), (complaint,) = story.says(acknowledge_checkpoint=uploads(element))
    assert isinstance(declined, DeclineCheckpoint)
    assert said in declined.detail and said in complaint.detail and "\n" not in complaint.detail


def test_a_program_that_was_given_no_place_for_files_has_none():
    """A checkpoint that lies nowhere."""
    story = Story().running()
    story.hears(trigger(1))
    (declined,), _ = story.says(acknowledge_checkpoint=uploads({"file": "f", "size": 1}))
    assert "was given no place for files" in declined.detail


def test_what_makes_no_sense_ends_the_stream():
    """Twice registered, not registered, nothing said, and another version."""
    again = pb.FromProgram(register=pb.Register(protocol_version=1))
    assert Story().running().ends(ProgramSaid(again)) == (
        "Register was said already: one stream is one program, open another one",
        True,
    )
    early = pb.FromProgram(task_running=pb.TaskRunning(attempt_id="a"))
    assert Story().ends(ProgramSaid(early)) == (
        "task_running was said, and it has not registered: wait for Registered",
        True,
    )
    assert Story().ends(ProgramSaid(pb.FromProgram()))[1]
    effects: Any = Story().registers(version=2)
    assert effects[0].message.rejected.reason == pb.REJECTION_REASON_OTHER_VERSION
    assert "speaks version 2 of external.proto, and this coordinator 1" in effects[1].reason


def test_who_finds_no_place_is_told_whether_to_try_again():
    """No job, no slot, a job that is closing."""
    story = Story()
    story.registers()
    nowhere = pb.Rejected(reason=pb.REJECTION_REASON_UNKNOWN_JOB, detail="no job", try_again=True)
    first: Any = story.core.handle(JobNotFound(nowhere))[0]
    assert first.message.rejected == nowhere
    story = Story()
    story.registers()
    story.core.handle(JobFound(JOB))
    story.hears(RegistrationSuccess(10, 50))
    (disconnect,), (rejected,) = story.hears(SlotOffersAnswered(JOB, (), (SLOT,)))
    assert isinstance(disconnect, Disconnect)
    assert (rejected.reason, rejected.try_again) == (pb.REJECTION_REASON_NO_PLACE, True)
    story = Story()
    story.registers()
    story.core.handle(JobFound(JOB))
    assert story.hears(RegistrationRejected("the job is SUSPENDED"))[1][0].try_again


def test_a_goodbye_is_the_last_word():
    """After it neither side is heard."""
    for message in (Disconnect("the job is FINISHED"), FreeSlot(SLOT, "idle")):
        story = Story().running()
        told = story.hears(message)[1]
        assert isinstance(told[-1], pb.Goodbye)
        assert story.says(task_finished=pb.TaskFinished(attempt_id=FIRST)) == ([], [])
        assert story.hears(trigger(1)) == ([], [])


ATTEMPTS = [str(attempt(number)) for number in range(3)] + ["", "x"]
SAID = st.one_of(
    st.builds(lambda a: {"task_running": pb.TaskRunning(attempt_id=a)}, st.sampled_from(ATTEMPTS)),
    st.builds(lambda a: {"task_finished": pb.TaskFinished(attempt_id=a)}, st.sampled_from(ATTEMPTS)),
    st.builds(lambda a: {"task_failed": pb.TaskFailed(attempt_id=a)}, st.sampled_from(ATTEMPTS)),
    st.builds(lambda a: {"task_canceled": pb.TaskCanceled(attempt_id=a)}, st.sampled_from(ATTEMPTS)),
    st.builds(
        lambda a, c, e: {"acknowledge_checkpoint": acknowledge(c, *e, attempt_id=a)},
        st.sampled_from(ATTEMPTS),
        st.integers(-1, 6),
        st.lists(st.sampled_from([b"", b"a", b"b" * LIMIT]), max_size=3),
    ),
    st.builds(
        lambda a, c: {"decline_checkpoint": pb.DeclineCheckpoint(attempt_id=a, checkpoint_id=c)},
        st.sampled_from(ATTEMPTS),
        st.integers(-1, 6),
    ),
    st.just({"heartbeat": pb.Heartbeat()}),
)
HEARD = st.one_of(
    st.builds(lambda c, n: trigger(c, n), st.integers(1, 5), st.integers(0, 2)),
    st.builds(lambda c: complete(c), st.integers(1, 5)),
    st.builds(lambda n: CancelTask(attempt(n)), st.integers(0, 2)),
    st.builds(lambda n: SubmitTasks((task(n),)), st.integers(0, 2)),
    st.just(HeartbeatRequest()),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(SAID.map(lambda m: ("says", m)), HEARD.map(lambda m: ("hears", m))), max_size=40))
def test_a_liar_reaches_nobody(steps):
    """Whatever a program says, in whatever order: only answers that were asked for, of the attempt that it has, once
    each and within the limit, and one end of each attempt, come to the JobMaster."""
    story = Story().placed()
    deployed: Any = None
    open_: set[int] = set()
    over: set[Any] = set()
    for who, message in steps:
        if who == "hears":
            if isinstance(message, SubmitTasks):
                if deployed is not None or message.tasks[0].attempt_id in over:
                    continue  # a JobMaster gives a slot one attempt at a time, and none twice
                deployed = message.tasks[0].attempt_id
                open_ = set()
            to_master, told = story.hears(message)
            for each in told:
                if isinstance(each, pb.TriggerCheckpoint):
                    open_.add(each.checkpoint_id)
        else:
            to_master, _ = story.says(**message)
        for each in to_master:
            if isinstance(each, TaskStateChanged):
                assert each.attempt_id == deployed
                if each.state.is_terminal:
                    over.add(deployed)
                    deployed = None
            elif isinstance(each, AcknowledgeCheckpoint) or (who == "says" and isinstance(each, DeclineCheckpoint)):
                assert each.attempt_id == deployed
                assert each.checkpoint_id in open_
                open_.remove(each.checkpoint_id)
                if isinstance(each, AcknowledgeCheckpoint):
                    assert each.state.state_size_bytes <= LIMIT
