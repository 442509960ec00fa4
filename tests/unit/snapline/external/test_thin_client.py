"""The Python client of programs outside: what it needs, what it answers, and when a task's methods are called."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from snapline.external import CheckpointDeclined, ExternalTask, FailedForGood, participation
from snapline.external.conversation import LONGEST_PAUSE, Conversation
from snapline.external.participation import _converse
from snapline.protos import external_pb2 as pb
from snapline.runtime.rpc.security import Security

ROOT = Path(__file__).resolve().parents[4]
ALONE = """
import sys

class OnlyWhatItNeeds:
    def find_spec(self, name, path=None, target=None):
        allowed = ("snapline", "grpc", "google", "typing_extensions")
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ImportError(f"{name} is not grpcio, protobuf or ours")

sys.meta_path.insert(0, OnlyWhatItNeeds())
from snapline.external import ExternalTask, ParticipationRefused, participate
try:
    participate(ExternalTask(), job="x", task_name="y", coordinator="127.0.0.1:1", give_up_after=0)
except ParticipationRefused as refused:
    print(refused)
"""


def test_it_needs_grpc_and_protobuf_alone():
    """A process in which nothing else can be imported dials a coordinator."""
    found = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "127.0.0.1:1 has not let the program in for 0 s: UNAVAILABLE" in found.stdout, found.stderr


class Noted(ExternalTask):
    """Notes what is called, and raises what it is told to."""

    def __init__(self):
        self.calls: list[Any] = []
        self.raises: Exception | None = None
        self.pause: float | None = 1.0

    def _note(self, *call):
        self.calls.append(call)
        if self.raises is not None:
            raise self.raises

    def begin(self, context):
        self._note("begin", context.state, context.subtask_index)

    def work(self):
        self._note("work")
        return self.pause

    def snapshot(self, checkpoint_id):
        self._note("snapshot", checkpoint_id)
        return {"all": [b"a"]}

    def complete(self, checkpoint_id):
        self._note("complete", checkpoint_id)

    def aborted(self, checkpoint_id):
        self._note("aborted", checkpoint_id)

    def end(self, reason):
        self.calls.append(("end", reason))


CANCEL = pb.ToProgram(cancel_task=pb.CancelTask(attempt_id="a0", reason="why"))


def running():
    """A task in its first attempt, and its conversation."""
    task = Noted()
    conversation = Conversation(task)
    run = pb.RunTask(attempt_id="a0", subtask_index=1, state=[pb.NamedState(name="n", elements=[b"x"])])
    assert conversation.handle(pb.ToProgram(run_task=run)) == [
        pb.FromProgram(task_running=pb.TaskRunning(attempt_id="a0"))
    ]
    assert task.calls == [("begin", {"n": [b"x"]}, 1)]
    task.calls.clear()
    return task, conversation


def trigger(checkpoint_id, attempt_id="a0"):
    return pb.ToProgram(trigger_checkpoint=pb.TriggerCheckpoint(attempt_id=attempt_id, checkpoint_id=checkpoint_id))


def kind_of(answers):
    """The kind of the one answer, and the answer."""
    (answer,) = answers
    kind = answer.WhichOneof("message")
    return kind, getattr(answer, kind)


def test_a_checkpoint_is_answered_with_the_state():
    """Or declined, when the task says so; both name the attempt and the checkpoint."""
    task, conversation = running()
    task.redistribution = {"all": "union"}
    state = pb.NamedState(name="all", elements=[b"a"], redistribution=pb.REDISTRIBUTION_UNION)
    acknowledged = pb.AcknowledgeCheckpoint(attempt_id="a0", checkpoint_id=4, state=[state])
    assert kind_of(conversation.handle(trigger(4))) == ("acknowledge_checkpoint", acknowledged)
    task.raises = CheckpointDeclined("an upload")
    declined = pb.DeclineCheckpoint(attempt_id="a0", checkpoint_id=5, reason="an upload")
    assert kind_of(conversation.handle(trigger(5))) == ("decline_checkpoint", declined)
    assert conversation.is_running


def test_what_a_method_raises_ends_the_attempt():
    """With the exception's line and its traceback; the task is told that it ends."""
    for said in (
        trigger(1),
        pb.ToProgram(notify_checkpoint_complete=pb.NotifyCheckpointComplete(attempt_id="a0", checkpoint_id=1)),
        pb.ToProgram(notify_checkpoint_aborted=pb.NotifyCheckpointAborted(attempt_id="a0", checkpoint_id=1)),
        pb.ToProgram(run_task=pb.RunTask(attempt_id="a0")),
    ):
        task, conversation = running()
        task.raises = ValueError("no disk")
        kind, failed = kind_of(conversation.handle(said))
        assert (kind, failed.attempt_id, failed.reason) == ("task_failed", "a0", "ValueError: no disk")
        assert "raise self.raises" in failed.details
        assert task.calls[-1] == ("end", "it failed: no disk")
        assert not conversation.is_running
    task, conversation = running()
    task.raises = ValueError("no disk")
    assert kind_of(conversation.work()[1])[0] == "task_failed"


def test_an_end_that_raises_ends_the_attempt_and_not_the_program(caplog):
    """Cancelled, failed or cut off: what the coordinator waits for is said, and the log says what was wrong. The
    exception went out of participate, and so the program ended."""
    for said, answers in (
        (lambda conversation: conversation.handle(CANCEL), ["task_canceled"]),
        (lambda conversation: conversation.handle(trigger(1)), ["task_failed"]),
        (lambda conversation: conversation.lost("the stream is over") or [], []),
    ):
        task, conversation = running()
        task.raises = ValueError("no disk")
        task.end = partial(task._note, "end")
        assert [answer.WhichOneof("message") for answer in said(conversation)] == answers
        assert not conversation.is_running
        assert caplog.messages == ["end of Noted has raised ValueError: no disk"]
        caplog.clear()


def test_a_failure_that_would_come_again_is_said_to_be_final():
    """The job is not restarted for it."""
    task = Noted()
    conversation = Conversation(task)
    task.raises = FailedForGood("this state is of another program")
    (failed,) = conversation.handle(pb.ToProgram(run_task=pb.RunTask(attempt_id="a")))
    assert failed.task_failed.is_final
    assert failed.task_failed.reason == "FailedForGood: this state is of another program"


def test_a_task_without_work_has_finished():
    """It says so once, and is asked for nothing more."""
    task, conversation = running()
    assert conversation.work() == (1.0, [])
    task.pause = None
    finished = pb.FromProgram(task_finished=pb.TaskFinished(attempt_id="a0"))
    assert conversation.work() == (None, [finished])
    assert conversation.handle(trigger(1)) == []


def test_no_step_is_done_after_the_snapshot_that_the_job_stops_with():
    """Its effects would be in no snapshot, and come again in the job that goes on from there; a source went on putting
    out rows. When the savepoint is aborted, the task goes on."""
    task, conversation = running()
    heard: queue.Queue[pb.ToProgram | str] = queue.Queue()
    stop = pb.TriggerCheckpoint(attempt_id="a0", checkpoint_id=4, kind=pb.SNAPSHOT_KIND_STOP)
    assert kind_of(conversation.handle(pb.ToProgram(trigger_checkpoint=stop)))[0] == "acknowledge_checkpoint"
    assert kind_of(conversation.handle(trigger(5)))[0] == "acknowledge_checkpoint"
    assert conversation.work() == (LONGEST_PAUSE, [])
    assert task.calls == [("snapshot", 4), ("snapshot", 5)]
    aborted = pb.NotifyCheckpointAborted(attempt_id="a0", checkpoint_id=4)
    heard.put(pb.ToProgram(notify_checkpoint_aborted=aborted))
    task.work = lambda: heard.put("closed") or 1.0  # type: ignore[func-returns-value]
    assert _converse(conversation, heard, queue.SimpleQueue()) == "closed"


def test_what_is_for_another_attempt_is_not_heard():
    """A trigger or cancellation that was on its way does not touch the present attempt."""
    task, conversation = running()
    assert conversation.handle(trigger(1, "a9")) == []
    assert conversation.handle(pb.ToProgram(cancel_task=pb.CancelTask(attempt_id="a9"))) == []
    assert task.calls == []
    answer = conversation.handle(pb.ToProgram(cancel_task=pb.CancelTask(attempt_id="a0", reason="why")))
    assert kind_of(answer)[0] == "task_canceled"
    assert task.calls == [("end", "why")]


def test_unknown_and_plain_messages():
    """What a later version says is no concern; a heartbeat is answered; complaints and the last word are kept."""
    task, conversation = running()
    later = pb.ToProgram.FromString(b"\xfa\x06\x02hi")
    assert conversation.handle(later) == []
    assert kind_of(conversation.handle(pb.ToProgram(heartbeat=pb.Heartbeat())))[0] == "heartbeat"
    conversation.handle(pb.ToProgram(complaint=pb.Complaint(detail="wrong")))
    conversation.handle(pb.ToProgram(goodbye=pb.Goodbye(reason="over")))
    assert (conversation.complaints, conversation.ended) == (["wrong"], pb.Goodbye(reason="over"))
    conversation.lost("over")
    assert task.calls == [("end", "over")]


def test_it_leaves_at_a_goodbye():
    """A TaskManager waits for it to leave, seconds long: it does not wait for the end of the stream in turn."""
    _, conversation = running()
    heard: queue.Queue[pb.ToProgram | str] = queue.Queue()
    heard.put(pb.ToProgram(goodbye=pb.Goodbye(reason="the attempt is over")))
    heard.put("the stream has ended later")
    assert _converse(conversation, heard, queue.SimpleQueue()) == "the attempt is over"
    assert heard.qsize() == 1


@pytest.mark.parametrize(("registered", "says"), [(True, "0.002"), (False, "0.001")])
def test_a_stream_on_which_nothing_is_said_is_over(registered, says):
    """After the heartbeat timeout that Registered names, and before that as soon as a TaskManager does not answer:
    silence means dead, on both sides. A task that has nothing to do waited for ever."""
    _, conversation = running()
    if registered:
        conversation.handle(pb.ToProgram(registered=pb.Registered(heartbeat_timeout_ms=2)))
    began = time.monotonic()
    heard: queue.Queue[pb.ToProgram | str] = queue.Queue()
    assert (
        _converse(conversation, heard, queue.SimpleQueue(), lambda: began, 0.001) == f"nothing was heard for {says} s"
    )


@pytest.mark.parametrize(("ticket", "pinged"), [("", True), ("forged", False)])
def test_only_a_coordinator_is_pinged(monkeypatch, ticket, pinged):
    """Arrow's server at a TaskManager ended the stream at the fourth ping, because too many came while it had nothing
    to say: after 80 seconds, where heartbeats are further apart than that."""
    asked: list[Any] = []

    def dial(address, options):
        asked.extend(name for name, _ in options)
        raise ValueError("it is enough to know the options")

    monkeypatch.setattr(grpc, "insecure_channel", dial)
    register = pb.Register(ticket=ticket)
    with pytest.raises(ValueError, match="enough to know"):
        participation._one_stream(Conversation(Noted()), register, "127.0.0.1:1", Security(), "")
    assert ("grpc.keepalive_time_ms" in asked) is pinged


@pytest.mark.parametrize("wrong", [["x"], [5], [bytearray(b"x")], [b"x", None], b"x"], ids=repr)
def test_state_that_is_no_list_of_bytes_fails_its_task(wrong):
    """An element of another type was left out, and the state was gone after the next restore."""
    task, conversation = running()
    task.snapshot = lambda checkpoint_id: {"kept": wrong}

    (failed,) = conversation.handle(trigger(1))
    assert failed.task_failed.reason.startswith(
        "TypeError: state 'kept': its elements are a list of bytes, and one is "
    )


def test_a_redistribution_that_there_is_not_fails_its_job():
    """With the words that there are, where it was a KeyError, and the job was restarted again and again."""
    task, conversation = running()
    task.redistribution = {"all": "unoin"}
    (failed,) = conversation.handle(trigger(1))
    assert failed.task_failed.is_final
    assert failed.task_failed.reason == (
        "FailedForGood: state 'all' has the redistribution 'unoin': choose from split, union, broadcast, by_key"
    )


def test_elements_may_come_one_by_one():
    """A generator of elements is read once, and all of them are in the state."""
    task, conversation = running()
    task.snapshot = lambda checkpoint_id: {"kept": (each for each in (b"a", b"b"))}

    (answer,) = conversation.handle(trigger(1))
    assert [b"a", b"b"] == list(answer.acknowledge_checkpoint.state[0].elements)


def test_a_failure_that_no_message_can_carry_is_spelled_out():
    """Halves of characters, as names of files that are no UTF-8 have, end the attempt and not the program."""
    task, conversation = running()
    task.raises = ValueError("no file a\ud800")

    (failed,) = conversation.handle(trigger(1))
    assert failed.task_failed.reason == r"ValueError: no file a\ud800"


@pytest.mark.parametrize(("pause", "said"), [(float("inf"), LONGEST_PAUSE), (float("nan"), LONGEST_PAUSE), (0.5, 0.5)])
def test_a_pause_has_an_end(pause, said):
    """A task that has nothing to do for ever waits as long as a program can, and its messages still come."""
    task, conversation = running()
    task.pause = pause

    assert (said, []) == conversation.work()


def test_a_pause_that_is_no_number_fails_the_attempt():
    """The task is told what is wrong, and the program goes on."""
    task, conversation = running()
    task.pause = "a while"

    assert conversation.work()[1][0].task_failed.reason.startswith("TypeError: ")
