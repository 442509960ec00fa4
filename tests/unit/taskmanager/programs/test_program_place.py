"""The place of a program in a task with rows: what the task gets of its words, and what the program is told."""

from __future__ import annotations

from typing import Any

from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.credentials import sign_ticket
from snapline.taskmanager.programs.offered_places import MAX_UNTAKEN, OfferedPlaces
from snapline.taskmanager.programs.program_place import (
    MAX_UNPROCESSED,
    EndCame,
    NotificationTaken,
    ProgramFailed,
    ProgramPlace,
    RowsCame,
    SayToProgram,
    SnapshotCame,
    SnapshotDeclined,
    WatermarkCame,
)

LIMIT: Any = 200
SLOT = "the id of an allocation"


class Place:
    """A place with its program."""

    def __init__(self, shape=pb.TASK_SHAPE_OPERATOR, key_groups=range(0)):
        self.run = pb.RunTask(attempt_id="a", task="t", job_id="j", shape=shape)
        self.core = ProgramPlace(self.run, LIMIT, key_groups)
        assert [SayToProgram(pb.ToProgram(run_task=self.run))] == self.core.joined()

    def runs(self):
        assert [] == self.says(task_running=pb.TaskRunning(attempt_id="a"))
        return self

    def says(self, **message):
        return self.core.said(pb.FromProgram(**message))

    def complaint(self, **message):
        """The line that it is told, and nothing else happens."""
        [effect] = self.says(**message)
        return effect.message.complaint.detail

    def rows(self, count=1):
        for _ in range(count):
            self.core.give_rows(b"x")

    def acknowledges(self, checkpoint_id, *states):
        said = pb.AcknowledgeCheckpoint(attempt_id="a", checkpoint_id=checkpoint_id, state=states)
        return self.says(acknowledge_checkpoint=said)


def processed(number):
    return pb.RowsProcessed(attempt_id="a", number=number)


def test_rows_watermarks_barriers_and_the_end_keep_their_order():
    """What the task gets is what the program said, in its order; the answer to a checkpoint is a barrier."""
    place = Place().runs()
    place.rows(2)
    place.core.give_watermark(7, is_idle=False)
    place.core.ask_for_snapshot(1, 0, pb.SNAPSHOT_KIND_CHECKPOINT)
    state = pb.NamedState(name="n", elements=[b"1"])
    assert [RowsCame(b"out")] == place.says(rows=pb.Rows(attempt_id="a", arrow=b"out"))
    assert [] == place.says(rows_processed=processed(2))
    assert [WatermarkCame(7, False)] == place.says(watermark=pb.Watermark(attempt_id="a", timestamp_ms=7))
    assert [SnapshotCame(1, (state,))] == place.acknowledges(1, state)
    place.core.settle(1, is_complete=True)
    handled = pb.NotificationHandled(attempt_id="a", checkpoint_id=1)
    assert [NotificationTaken(1)] == place.says(notification_handled=handled)
    place.core.end_input()
    assert [EndCame()] == place.says(end_of_input=pb.EndOfInput(attempt_id="a"))


def test_no_more_rows_are_given_than_may_wait():
    """A program that does not process its rows has no room; one batch that it has processed makes some."""
    place = Place()
    assert not place.core.has_room
    place.runs()
    place.rows(MAX_UNPROCESSED)
    assert not place.core.has_room
    place.says(rows_processed=processed(1))
    assert place.core.has_room


def test_what_is_wrong_is_told_and_has_no_effect():
    """Another attempt, before it runs, rows after the end, a watermark that is none, what was not asked: a line
    each."""
    place = Place()
    assert "rows was said before task_running" in place.complaint(rows=pb.Rows(attempt_id="a"))
    place.runs()
    assert "rows names attempt 'b', and the present one is a" in place.complaint(rows=pb.Rows(attempt_id="b"))
    assert "task_running was said already" in place.complaint(task_running=pb.TaskRunning(attempt_id="a"))
    assert "rows_processed names 1, and rows 1 to 0 are" in place.complaint(rows_processed=processed(1))
    assert "watermark 3 answers none" in place.complaint(watermark=pb.Watermark(attempt_id="a", timestamp_ms=3))
    assert "more rows may come" in place.complaint(end_of_input=pb.EndOfInput(attempt_id="a"))
    assert "is for tasks without rows" in place.complaint(task_finished=pb.TaskFinished(attempt_id="a"))
    [unasked] = place.acknowledges(5)
    assert "checkpoint 5, which the program was not asked for" in unasked.message.complaint.detail
    told = place.complaint(notification_handled=pb.NotificationHandled(attempt_id="a", checkpoint_id=5))
    assert "checkpoint 5, of which the program was not told" in told
    sink = Place(pb.TASK_SHAPE_SINK).runs()
    assert "a sink, which puts none out" in sink.complaint(rows=pb.Rows(attempt_id="a"))


def test_a_checkpoint_that_does_not_cover_its_rows_is_declined():
    """An answer before the rows are processed would lose them; so would one with too much state, or foreign keys."""
    place = Place(key_groups=range(10, 20)).runs()
    place.rows()
    place.core.ask_for_snapshot(1, 0, pb.SNAPSHOT_KIND_CHECKPOINT)
    complaint, declined = place.acknowledges(1)
    assert SnapshotDeclined(1, "it was acknowledged before rows_processed of 1") == declined
    assert "checkpoint 1 is declined" in complaint.message.complaint.detail
    place.says(rows_processed=processed(1))
    keyed: Any = {"name": "n", "redistribution": pb.REDISTRIBUTION_BY_KEY}
    wrong = [
        (pb.NamedState(name="n", elements=[b"x" * LIMIT]), "has 233 bytes, and 200 are allowed"),
        (
            pb.NamedState(**keyed, elements=[b"1"], key_groups=[3]),
            "an element of key group 3, and this task has 10 to 19",
        ),
        (pb.NamedState(**keyed, elements=[b"1"]), "has 1 elements and 0 key groups"),
    ]
    for checkpoint_id, (state, why) in enumerate(wrong, 2):
        place.core.ask_for_snapshot(checkpoint_id, 0, pb.SNAPSHOT_KIND_CHECKPOINT)
        _, declined = place.acknowledges(checkpoint_id, state)
        assert why in declined.reason
        [second] = place.acknowledges(checkpoint_id)
        assert "the second answer" in second.message.complaint.detail


def test_a_program_that_leaves_takes_the_attempt_with_it_once_it_runs():
    """Before, another one may have the place; after, nobody knows what it had done."""
    place = Place()
    assert [] == place.core.left("its stream ended")
    assert [SayToProgram(pb.ToProgram(run_task=place.run))] == place.core.joined()
    place.runs()
    assert [ProgramFailed("its stream ended")] == place.core.left("its stream ended")
    failing = Place()
    said = pb.TaskFailed(attempt_id="a", reason="no model", is_final=True)
    assert [ProgramFailed("it failed: no model", "", True)] == failing.says(task_failed=said)


class Stream:
    """A program's stream that keeps what is said."""

    def __init__(self):
        self.said = []
        self.ended = ""

    def say(self, message):
        self.said.append(message)

    def end(self, reason):
        self.ended = reason


def register(ticket, version=1):
    return pb.Register(protocol_version=version, job="j", task="t", ticket=ticket)


def test_a_place_is_for_one_program_with_a_ticket():
    """Another version, no ticket, one that was changed, a task that is not here: refused in a line; a second program
    finds no place until the first has left."""
    places: Any = OfferedPlaces()
    good = sign_ticket(SLOT, "j", "t", "a")
    assert "speaks version 9" in places.find(register(good, version=9)).detail
    assert (True, pb.REJECTION_REASON_NO_PLACE) == (
        places.find(register(good)).try_again,
        places.find(register(good)).reason,
    )
    place = places.offer(SLOT, Place().run, range(0), lambda: None)
    for other in (
        "",
        "j:74:",
        "\ud7ff:zz:",
        sign_ticket("", "j", "t", "a"),
        sign_ticket("another slot", "j", "t", "a"),
        sign_ticket(SLOT, "j", "t", "an attempt that is over"),
    ):
        assert "opens no task that is here" in places.find(register(other)).detail
    [found] = places.find(register(good))
    first, second = Stream(), Stream()
    assert (place, True, False) == (found, found.join(first), found.join(second))
    place.left(first, "gone")
    assert found.join(second)
    place.close("the attempt is over")
    assert ("", "the attempt is over") == (first.ended, second.ended)
    assert places.find(register(good)).try_again


def test_a_task_that_does_not_take_holds_the_stream_up_until_it_is_closed():
    """So much may wait; what is said beyond waits with the stream, and ends with the place."""
    from concurrent.futures import ThreadPoolExecutor

    place: Any = OfferedPlaces().offer(SLOT, Place(pb.TASK_SHAPE_SOURCE).run, range(0), lambda: None)
    stream = Stream()
    place.join(stream)
    place.said(stream, pb.FromProgram(task_running=pb.TaskRunning(attempt_id="a")))
    for number in range(MAX_UNTAKEN):
        place.said(stream, pb.FromProgram(rows=pb.Rows(attempt_id="a", arrow=b"%d" % number)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(place.said, stream, pb.FromProgram(rows=pb.Rows(attempt_id="a", arrow=b"last")))
        assert RowsCame(b"0") == place.take()
        waiting.result(10)
        waiting = pool.submit(place.said, stream, pb.FromProgram(rows=pb.Rows(attempt_id="a", arrow=b"never")))
        place.close("the attempt is over")
        waiting.result(10)
    assert [b"%d" % number for number in range(1, MAX_UNTAKEN)] + [b"last"] == [
        place.take().arrow for _ in range(MAX_UNTAKEN)
    ]
    assert place.take() is None


def test_a_ticket_is_for_one_task_of_one_job_in_one_slot():
    """It names task and job, any letters included; a program gets the places of that slot alone."""
    places: Any = OfferedPlaces()
    run = pb.RunTask(attempt_id="a", job_id="j1", task="größe: 1", shape=pb.TASK_SHAPE_SINK)
    here, there = (places.offer(slot, run, range(0), lambda: None) for slot in ("here", "there"))
    ticket = sign_ticket("here", "j1", "größe: 1", "a")
    assert ([here], []) == (places.opened_by(ticket), places.opened_by(ticket.replace("j1", "j2")))
    assert [there] == places.opened_by(sign_ticket("there", "j1", "größe: 1", "a"))
