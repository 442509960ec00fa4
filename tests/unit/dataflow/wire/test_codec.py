"""The codec: whatever can be said in snapline.dataflow.wire.messages comes back as it was, and what is incomplete is
refused by name."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapline.dataflow.elements import CheckpointOptions
from snapline.dataflow.failures import CheckpointFailureReason, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    JobID,
    JobVertexID,
    LeaderSessionID,
    OperatorID,
    ResourceID,
)
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    OperatorSubtaskState,
    SegmentStateHandle,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire import codec as wire
from snapline.dataflow.wire import messages
from snapline.dataflow.wire.envelope_bytes import serialize_envelope
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ForTasks,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.dataflow.wire.number_bounds import bounds_of
from snapline.protos import checkpoint_pb2, client_pb2, cluster_pb2, job_pb2
from snapline.taskmanager.task.task_failure import MAX_SUMMARY, MAX_TRACEBACK

JOB = JobID("a" * 32)
ATTEMPT = ExecutionAttemptID("graph", JobVertexID("c" * 32), 3, 1)
SESSION = LeaderSessionID("session")


# --- values of any declared type --------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
SMALL_INTS = st.integers(0, 2**31 - 1)
POSITIVE = {"checkpoint_id", "restore_checkpoint_id"}


def values(hint: Any, name: str = "", of: str = "") -> st.SearchStrategy:
    """A strategy for anything that a field may be declared as."""
    if hint is StreamStateHandle:
        segments = st.builds(SegmentStateHandle, NAMES.filter(bool), SMALL_INTS, SMALL_INTS)
        return st.one_of(st.builds(ByteStreamStateHandle, st.binary(max_size=8)), segments)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values(argument) for argument in arguments])
    if origin is Mapping:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if arguments and type(None) in arguments:
        return st.none() | values(arguments[0])
    if hasattr(hint, "__supertype__"):
        return st.integers(1, 2**40) if hint.__supertype__ is int else NAMES.filter(bool)
    if hint is bool:
        return st.booleans()
    if hint is int:
        least, most = bounds_of(f"{of}.{name}", 32) or (0, 0)
        return st.integers(max(least, name in POSITIVE), min(most, 2**31 - 1))
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is str:
        return NAMES.filter(bool) if name == "execution_graph_id" else NAMES
    if hint is bytes:
        return st.binary(max_size=8)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    names = hint._fields if hasattr(hint, "_fields") else [f.name for f in dataclasses.fields(hint)]
    return st.builds(hint, **{field: values(hints[field], field, hint.__name__) for field in names})


@pytest.mark.parametrize("message_type", wire.CONTROL_MESSAGES.values(), ids=wire.CONTROL_MESSAGES)
def test_every_control_message_survives_the_wire(message_type):
    """Encode, serialise, parse, decode: equal to what was said."""

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(values(message_type), max_size=2))
    def check(said):
        data = wire.encode_envelope(SESSION, said).SerializeToString()
        assert wire.decode_envelope(cluster_pb2.Envelope.FromString(data)) == (SESSION, said)

    check()


@pytest.mark.parametrize("message_type", wire.CONTROL_MESSAGES.values(), ids=wire.CONTROL_MESSAGES)
def test_an_envelope_as_bytes_is_the_same_envelope(message_type):
    """Also where what a wave of messages shares is serialized once: neighbours of one wave, of another, and the first
    again."""

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(values(message_type), min_size=1, max_size=3), values(ExecutionAttemptID))
    def check(said, attempt_id):
        if hasattr(said[0], "attempt_id"):
            said.insert(1, dataclasses.replace(said[0], attempt_id=attempt_id))
        said.append(said[0])
        envelope = cluster_pb2.Envelope.FromString(serialize_envelope(SESSION, said))
        assert envelope == wire.encode_envelope(SESSION, said)

    check()


@pytest.mark.parametrize("message_type", [TriggerCheckpoint, NotifyCheckpointComplete, NotifyCheckpointAborted])
def test_what_is_for_many_tasks_is_a_message_for_each(message_type):
    """Between other messages, in order, and whosever message the template is."""

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(values(message_type), values(message_type), st.lists(values(ExecutionAttemptID), max_size=4))
    def check(template, other, attempt_ids):
        said = [other, ForTasks(template, tuple(attempt_ids)), other]
        envelope = cluster_pb2.Envelope.FromString(serialize_envelope(SESSION, said))
        each = [dataclasses.replace(template, attempt_id=attempt_id) for attempt_id in attempt_ids]
        assert wire.decode_envelope(envelope) == (SESSION, [other, *each, other])

    check()


def test_only_a_checkpoint_message_is_for_many_tasks():
    """It is refused by name."""
    with pytest.raises(wire.WireError, match="AcknowledgeCheckpoint cannot be sent to many tasks as one"):
        serialize_envelope(SESSION, [ForTasks(AcknowledgeCheckpoint(JOB, ATTEMPT, CheckpointID(1)), (ATTEMPT,))])


@settings(max_examples=60, deadline=None)
@given(values(JobGraph).map(lambda graph: dataclasses.replace(graph, job_id=JOB)))
def test_a_job_graph_survives_the_wire(graph):
    """What a client submits is what the coordinator gets."""
    data = wire.encode_job_graph(graph).SerializeToString()
    assert wire.decode_job_graph(job_pb2.JobGraph.FromString(data)) == graph


def test_a_message_that_only_a_newer_version_knows_is_passed_over():
    """The others of its envelope arrive; an empty message is still refused."""
    envelope = wire.encode_envelope(SESSION, [messages.Disconnect("a"), messages.Disconnect("b")])
    unknown = bytes([0xFA, 0x3E, 0x02, 0x08, 0x01])  # field 1007, a message of two bytes
    envelope.messages[0].CopyFrom(cluster_pb2.ControlMessage.FromString(unknown))
    parsed = cluster_pb2.Envelope.FromString(envelope.SerializeToString())
    assert wire.decode_envelope(parsed) == (SESSION, [messages.Disconnect("b")])
    envelope.messages.add()
    with pytest.raises(wire.WireError, match=r"ControlMessage\.message is missing"):
        wire.decode_envelope(envelope)


def test_a_job_graph_without_a_savepoint_need_not_say_so():
    """Clients in other languages leave the whole message out."""
    graph = JobGraph(JOB, "job", (), ())
    message = wire.encode_job_graph(graph)
    assert not message.HasField("savepoint_restore")
    assert wire.decode_job_graph(message) == graph


def test_every_message_of_the_contract_can_travel():
    """Nobody adds a message to snapline.dataflow.wire.messages and forgets the wire."""
    parts = {
        "AllocationSite", "CheckpointMetrics", "ExecutionReport", "ExecutionState", "Fenced", "ForTasks", "HeapType", "InputGateDescriptor", "JobStatus", "OperatorDescriptor",
        "ProcessFigures", "QueueFigures", "ResultPartitionDescriptor", "ShuffleDescriptor", "SlotOffer", "SlotStatus", "SlotsHeld", "TaskDeploymentDescriptor",
        "TaskManagerInfo", "TaskMetrics", "ThreadStack",
    }  # fmt: skip
    declared = {
        name
        for name, member in inspect.getmembers(messages, inspect.isclass)
        if member.__module__ == messages.__name__ and name not in parts
    }
    assert declared == {message_type.__name__ for message_type in wire.CONTROL_MESSAGES.values()}


def test_every_status_and_state_has_a_number():
    """The client service speaks of jobs and subtasks by number."""
    assert [wire.decode_job_status(wire.encode_job_status(status)) for status in messages.JobStatus] == list(
        messages.JobStatus
    )
    assert [wire.decode_state(wire.encode_state(state)) for state in messages.ExecutionState] == list(
        messages.ExecutionState
    )
    with pytest.raises(wire.WireError, match=r"JobOverview.status is missing"):
        wire.decode_job_status(client_pb2.JobOverview().status)
    with pytest.raises(wire.WireError, match=r"SubtaskDetails.state has the unknown value 99"):
        wire.decode_state(99)


def test_an_acknowledgement_says_how_much_state_it_refers_to():
    """Inline and segment bytes, summed for readers that do not look into the handles."""
    keyed = (
        KeyedStateHandle(KeyGroupRange(0, 3), ByteStreamStateHandle(b"12345")),
        KeyedStateHandle(
            KeyGroupRange(4, 7), SegmentStateHandle("chk-5/segment", 100, 37, 2**64 - 1, bytes(range(32)))
        ),
    )
    state = TaskStateSnapshot({OperatorID("d" * 32): OperatorSubtaskState(managed_keyed=keyed)})
    envelope = wire.encode_envelope(SESSION, [AcknowledgeCheckpoint(JOB, ATTEMPT, CheckpointID(5), state=state)])
    assert envelope.messages[0].acknowledge_checkpoint.state_size_bytes == 42 == state.state_size_bytes


def test_an_acknowledgement_without_state_carries_none():
    """Absent, not empty: ten thousand stateless subtasks should cost nothing."""
    message = wire.encode_envelope(SESSION, [AcknowledgeCheckpoint(JOB, ATTEMPT, CheckpointID(5))]).messages[0]
    assert not message.acknowledge_checkpoint.HasField("state")
    assert not message.acknowledge_checkpoint.HasField("metrics")


@pytest.mark.parametrize("field", ["parallelism", "max_parallelism"])
def test_a_job_of_five_million_subtasks_is_refused_where_it_is_decoded(field):
    """84 bytes would take the memory of one leader after another."""
    vertex = {"vertex_id": "v", "parallelism": 1, "max_parallelism": 128, field: 5_000_000}
    message = job_pb2.JobGraph(job_id="j", vertices=[vertex], savepoint_restore={})

    with pytest.raises(wire.WireError, match=f"JobVertex.{field} has to lie between 1 and 32768, not 5000000"):
        wire.decode_job_graph(message)


@pytest.mark.parametrize(
    "job_id", ["", ".", "..", "../../evil", "/etc/evil", "a\x1b[2Jb", "a\nb", "a\n", "a,b", "con:1", "x" * 65, "\u00e9"]
)
def test_an_id_that_is_no_name_of_a_file_is_refused_where_it_is_decoded(job_id):
    """Its escapes reached terminals, and its slashes paths."""
    with pytest.raises(wire.WireError, match="is no id of a job: it has up to 64 letters") as raised:
        wire.decode_job_graph(job_pb2.JobGraph(job_id=job_id))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("job_id", ["0123456789abcdef" * 2, "job-1_a.b", "x" * 64, "..."])
def test_an_id_of_letters_and_digits_is_one_of_a_job(job_id):
    """What is drawn, and what a program calls its own."""
    message = job_pb2.JobGraph(job_id=job_id, savepoint_restore={})
    assert job_id == wire.decode_job_graph(message).job_id


# --- what is refused --------------------------------------------------------------------------------------------------


def acknowledgement(**fields) -> cluster_pb2.ControlMessage:
    attempt = checkpoint_pb2.ExecutionAttemptID(execution_graph_id="graph", vertex_id="vertex")
    complete: dict[str, Any] = {"job_id": "job", "checkpoint_id": 5, "attempt_id": attempt}
    kept = {key: value for key, value in (complete | fields).items() if value is not None}
    return cluster_pb2.ControlMessage(acknowledge_checkpoint=checkpoint_pb2.AcknowledgeCheckpoint(**kept))


NAMELESS_STATE = checkpoint_pb2.TaskStateSnapshot(operators=[checkpoint_pb2.TaskStateSnapshot.Entry()])
TWICE = checkpoint_pb2.TaskStateSnapshot(operators=[checkpoint_pb2.TaskStateSnapshot.Entry(operator_id="x")] * 2)


def state_with(handle: checkpoint_pb2.KeyedStateHandle) -> checkpoint_pb2.TaskStateSnapshot:
    state = checkpoint_pb2.OperatorSubtaskState(managed_keyed=[handle])
    return checkpoint_pb2.TaskStateSnapshot(
        operators=[checkpoint_pb2.TaskStateSnapshot.Entry(operator_id="x", state=state)]
    )


NO_RANGE = checkpoint_pb2.KeyedStateHandle(handle={"inline": {"data": b""}})
NO_PLACE = checkpoint_pb2.KeyedStateHandle(key_group_range={"start": 0, "end": 1})
BACKWARDS = checkpoint_pb2.KeyedStateHandle(key_group_range={"start": -5, "end": 1}, handle={"inline": {"data": b""}})
FAR_OFF = checkpoint_pb2.ExecutionAttemptID(execution_graph_id="g", vertex_id="v", subtask_index=5_000_000)
NEGATIVE = checkpoint_pb2.KeyedStateHandle(
    key_group_range={"start": 0, "end": 1}, handle={"segment": {"path": "p", "offset": -1, "size": 3}}
)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (cluster_pb2.ControlMessage(), "ControlMessage.message is missing"),
        (acknowledgement(job_id=None), "AcknowledgeCheckpoint.job_id is missing"),
        (acknowledgement(attempt_id=None), "AcknowledgeCheckpoint.attempt_id is missing"),
        (
            acknowledgement(attempt_id=checkpoint_pb2.ExecutionAttemptID()),
            "ExecutionAttemptID.execution_graph_id is missing",
        ),
        (acknowledgement(checkpoint_id=None), "AcknowledgeCheckpoint.checkpoint_id has to be positive, got 0"),
        (acknowledgement(state=NAMELESS_STATE), "TaskStateSnapshot.Entry.operator_id is missing"),
        (acknowledgement(state=TWICE), "TaskStateSnapshot.operators names the operator x twice"),
        (acknowledgement(state=state_with(NO_RANGE)), "KeyedStateHandle.key_group_range is missing"),
        (acknowledgement(state=state_with(NO_PLACE)), "StreamStateHandle.location is missing"),
        (acknowledgement(state=state_with(NEGATIVE)), "SegmentStateHandle.offset of p is negative"),
        (acknowledgement(state=state_with(BACKWARDS)), "KeyGroupRange.start has to lie between 0 and 32767, not -5"),
        (
            acknowledgement(attempt_id=FAR_OFF),
            "ExecutionAttemptID.subtask_index has to lie between 0 and 32767, not 5000000",
        ),
        (
            cluster_pb2.ControlMessage(declare_required_slots={"job_id": "j", "required": -1}),
            "DeclareRequiredSlots.required has to lie between 0 and 1048576, not -1",
        ),
        (
            cluster_pb2.ControlMessage(
                register_task_executor={"info": {"resource_id": "tm", "slots": 20_000_000}},
            ),
            "TaskManagerInfo.slots has to lie between 1 and 16384, not 20000000",
        ),
        (cluster_pb2.ControlMessage(cancel_task={}), "CancelTask.attempt_id is missing"),
        (cluster_pb2.ControlMessage(slot_report={}), "SlotReport.resource_id is missing"),
        (cluster_pb2.ControlMessage(register_task_executor={}), "RegisterTaskExecutor.info is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_named(message, error):
    """The error says message and field, so that the author of the other side knows what to send."""
    with pytest.raises(wire.WireError, match=error):
        wire.decode_control_message(message)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            cluster_pb2.ControlMessage(
                register_task_executor={"info": {"resource_id": "tm", "slots": 1, "host": LONG}}
            ),
            "TaskManagerInfo.host has 100000 characters; 8192 are the most that it may have",
        ),
        (cluster_pb2.ControlMessage(slot_report={"resource_id": LONG}), "SlotReport.resource_id has 100000 characters"),
        (acknowledgement(job_id=LONG), "AcknowledgeCheckpoint.job_id has 100000 characters"),
        (
            acknowledgement(attempt_id={"execution_graph_id": LONG, "vertex_id": "v"}),
            "ExecutionAttemptID has 100001 characters; 1024 are the most that it may have",
        ),
        (
            acknowledgement(
                state=state_with(
                    checkpoint_pb2.KeyedStateHandle(key_group_range={"end": 1}, handle={"segment": {"path": LONG}})
                )
            ),
            "SegmentStateHandle.path has 100000 characters",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_kept_of_a_process_is_no_longer_than_a_page(message, error):
    """A thousand registrations, and as many attempts as a coordinator remembers, could be of a hundred megabytes."""
    with pytest.raises(wire.WireError, match=error):
        wire.decode_control_message(message)


def test_why_something_has_failed_is_cut_short():
    """It is for people, and sixteen failures of a job are kept; what an honest TaskManager says fits."""
    attempt = checkpoint_pb2.ExecutionAttemptID(execution_graph_id="graph", vertex_id="vertex")
    failure = {"summary": LONG, "traceback": 3 * LONG, "blame": job_pb2.BLAME_USER}
    said = [
        cluster_pb2.ControlMessage(
            task_state_changed={
                "job_id": "j",
                "attempt_id": attempt,
                "state": "EXECUTION_STATE_FAILED",
                "failure": failure,
            }
        ),
        cluster_pb2.ControlMessage(disconnect={"reason": LONG}),
        cluster_pb2.ControlMessage(
            decline_checkpoint={"job_id": "j", "attempt_id": attempt, "checkpoint_id": 1, "reason": 11, "detail": LONG}
        ),
    ]
    failed, left, declined = map(wire.decode_control_message, said)

    assert (len(failed.failure.summary), len(failed.failure.traceback)) == (1 << 14, 1 << 17)
    assert len(left.reason) == len(declined.detail) == 1 << 13
    assert MAX_SUMMARY < 1 << 14 and MAX_TRACEBACK < 1 << 17


def test_an_enum_value_of_a_newer_version_is_refused():
    """Never silently taken for something else."""
    envelope = wire.encode_envelope(
        SESSION,
        [
            TaskStateChanged(JOB, ATTEMPT, messages.ExecutionState.FAILED, SerializedFailure("it broke")),
            DeclineCheckpoint(JOB, ATTEMPT, CheckpointID(1), CheckpointFailureReason.CHECKPOINT_DECLINED),
            TriggerCheckpoint(JOB, ATTEMPT, CheckpointID(1), 0, CheckpointOptions()),
        ],
    )
    changed, declined, triggered = envelope.messages
    changed.task_state_changed.failure.blame = 77  # type: ignore[assignment]
    with pytest.raises(wire.WireError, match=r"SerializedFailure.blame has the unknown value 77"):
        wire.decode_control_message(changed)
    declined.decline_checkpoint.reason = 0  # type: ignore[assignment]
    with pytest.raises(wire.WireError, match=r"DeclineCheckpoint.reason is missing"):
        wire.decode_control_message(declined)
    triggered.trigger_checkpoint.options.alignment = 9  # type: ignore[assignment]
    with pytest.raises(wire.WireError, match=r"CheckpointOptions.alignment has the unknown value 9"):
        wire.decode_control_message(triggered)


def test_an_envelope_is_refused_as_a_whole():
    """No message of it is delivered when one is incomplete: order must not have holes."""
    envelope = cluster_pb2.Envelope(leader_session_id="s", messages=[acknowledgement(), acknowledgement(job_id=None)])
    with pytest.raises(wire.WireError):
        wire.decode_envelope(envelope)


def test_values_that_cannot_travel_are_refused_where_they_are_sent():
    """A programming error shows up at the sender, with the name of the message."""
    with pytest.raises(wire.WireError, match="str is no control message"):
        wire.encode_envelope(SESSION, ["hello"])
    too_large = messages.SlotOffer(AllocationID("allocation"), 2**40)
    with pytest.raises(wire.WireError, match="OfferSlots cannot be sent"):
        wire.encode_envelope(SESSION, [messages.OfferSlots(JOB, ResourceID("tm"), (too_large,))])
