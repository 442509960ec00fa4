"""The stream of a program with rows, on a real exchange: who is let in, and who is given up."""

from __future__ import annotations

import contextlib
import queue
import threading
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from snapline.external import participation
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.credentials import sign_ticket
from snapline.runtime.cores.message_budget import MessageBudget
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from snapline.taskmanager.network.flight import program_stream
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange
from snapline.taskmanager.network.flight.program_stream import ProgramStream
from snapline.taskmanager.programs import offered_places
from snapline.taskmanager.programs.offered_places import OfferedPlaces, PlaceSettings, WaitEnded
from snapline.taskmanager.programs.program_place import ProgramFailed, RowsCame, WatermarkCame
from tests.services.cluster import wait_until

SECRET, SLOT = "exchange", "the id of an allocation"
RUN = pb.RunTask(attempt_id="a", job_id="j", task="t", shape=pb.TASK_SHAPE_SINK)


@pytest.fixture
def exchange(request):
    """An exchange that misses a program after 400 ms, or after as long as a test says that is about something else."""
    timeout_ms = getattr(request, "param", 400)
    programs = PlaceSettings(heartbeat_interval_ms=50, heartbeat_timeout_ms=timeout_ms)
    settings = ExchangeSettings(security=ExchangeSecurity((SECRET,)), programs=programs)
    with FlightExchange(settings) as exchange:
        yield exchange


class Program:
    """One that says what a test wants."""

    def __init__(self, exchange, ticket, command=b"", name="mine", *, says_nothing=False):
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.channel = open_channel(exchange.address, Security())
        self.call = participation._exchange(self.channel, ticket, iter(self.said.get, None))
        if command:
            self.call = self.channel.stream_stream(
                "/arrow.flight.protocol.FlightService/DoExchange",
                request_serializer=pb.FlightFrame.SerializeToString,
                response_deserializer=pb.FlightFrame.FromString,
            )(
                iter([pb.FlightFrame(flight_descriptor=pb.FlightTarget(type=2, cmd=command))]),
                metadata=(("authorization", f"Ticket {ticket}"),),
            )
        if not says_nothing:
            self.say(register=pb.Register(protocol_version=1, ticket=ticket, program=name))

    def say(self, **message):
        self.said.put(pb.FromProgram(**message))

    def hear(self, kind):
        """The next message of this kind."""
        return next(getattr(message, kind) for message in self.call if message.HasField(kind))

    def close(self):
        self.said.put(None)
        self.call.cancel()
        self.channel.close()


@pytest.fixture
def program(exchange):
    opened = []

    def connect(*arguments, **options):
        opened.append(Program(exchange, *arguments, **options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_a_ticket_opens_the_place_of_its_task_and_nothing_else(exchange, program):
    """A program with the ticket is let in by its name; another ticket is none, as one that is signed with what all
    TaskManagers know was; and a good one opens no edge of the job."""
    exchange.programs.offer(SLOT, RUN, range(0), lambda: None)
    good = sign_ticket(SLOT, "j", "t", "a")
    one = program(good)
    assert one.hear("registered").resource_id.endswith("-mine")
    assert one.hear("run_task") == RUN
    for forged in (
        sign_ticket(SECRET, "j", "t", "a"),
        sign_ticket("", "j", "t", "a"),
        sign_ticket(SLOT, "j", "other", "a"),
        sign_ticket(SLOT, "j", "t", "an attempt that is over"),
        "j:74",
        "",
    ):
        with pytest.raises(grpc.RpcError) as refused:
            program(forged).hear("registered")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "the ticket opens no task that is here just now" in str(refused.value.details())
    with pytest.raises(grpc.RpcError) as refused:
        next(program(good, b"snapline.exchange/1 edge").call)
    assert "a ticket opens the stream of its program alone" in str(refused.value.details())


def test_a_program_that_never_registers_loses_its_connection(exchange, program):
    """Nobody watched it before, so that its thread was held for ever."""
    exchange.programs.offer(SLOT, RUN, range(0), lambda: None)
    silent = program(sign_ticket(SLOT, "j", "t", "a"), says_nothing=True)
    with pytest.raises(grpc.RpcError):
        list(silent.call)
    wait_until(lambda: exchange.number_of_streams == (0, 0), "the end of the stream")


def test_what_a_program_says_of_itself_is_a_page_at_most(exchange, program):
    """A name of a hundred megabytes was looked at letter by letter."""
    exchange.programs.offer(SLOT, RUN, range(0), lambda: None)
    ticket = sign_ticket(SLOT, "j", "t", "a")
    heard = program(ticket, name="x" * 9_000).hear("goodbye")
    assert "Register.program has 9000 characters; 8192 are the most that it may have" == heard.reason


def test_a_program_that_stops_reading_loses_its_connection_alone(exchange, program):
    """Rows that it does not take fill its stream; after the timeout its task is told, and its place is free."""
    woken = threading.Event()
    place = exchange.programs.offer(SLOT, RUN, range(0), woken.set)
    other = exchange.programs.offer(SLOT, RUN, range(0), lambda: None)
    ticket = sign_ticket(SLOT, "j", "t", "a")
    programs = []
    for _ in range(2):  # the first one has the first place
        programs.append(program(ticket))
        programs[-1].hear("run_task")
        programs[-1].say(task_running=pb.TaskRunning(attempt_id="a"))
    fine = programs[1]
    while not place.is_running:
        woken.wait(5)
        woken.clear()
    for _ in range(4):
        place.give_rows(b"x" * 4_000_000, ())

    def answer() -> None:
        with contextlib.suppress(grpc.RpcError):  # the connection may be closed before the last word is read
            for each in fine.call:
                if each.HasField("heartbeat"):
                    fine.say(heartbeat=pb.Heartbeat())

    answering = threading.Thread(target=answer)
    answering.start()
    assert ProgramFailed("no heartbeat for 400 ms") == place.wait(60_000)
    assert not other.has_output
    other.close("the attempt is over")
    answering.join(30)
    assert not answering.is_alive()


@pytest.mark.parametrize("exchange", [600_000], indirect=True)
def test_a_program_that_talks_and_does_not_read_is_given_up(exchange, program, monkeypatch):
    """What it says makes no sense and is answered; the answers that it does not read have a bound."""
    monkeypatch.setattr(program_stream, "END_SECONDS", 0.1)
    place = exchange.programs.offer(SLOT, RUN, range(0), lambda: None)
    deaf = program(sign_ticket(SLOT, "j", "t", "a"))
    deaf.hear("run_task")
    deaf.say(task_running=pb.TaskRunning(attempt_id="a"))
    for _ in range(20_000):
        deaf.say(rows_processed=pb.RowsProcessed(attempt_id="x" * 1_000))
    assert ProgramFailed("1000 messages wait for it, which it does not read") == place.wait(60_000)


def test_a_silent_program_is_told_so_before_its_connection_ends(monkeypatch):
    """It may hang for a moment only: the goodbye is under way before the connection is cut."""
    monkeypatch.setattr(program_stream, "END_SECONDS", 0.1)
    places = OfferedPlaces(PlaceSettings(heartbeat_interval_ms=10, heartbeat_timeout_ms=50))
    place = places.offer(SLOT, RUN, range(0), lambda: None)
    happened: list[str] = []
    cut = threading.Event()
    now = [0.0]
    monkeypatch.setattr(program_stream, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ticket = sign_ticket(SLOT, "j", "t", "a")
    chunks = [
        pb.FromProgram(register=pb.Register(protocol_version=1, ticket=ticket)),
        pb.FromProgram(task_running=pb.TaskRunning(attempt_id="a")),
    ]

    class Silent:
        def read_chunk(self):
            if chunks:
                return SimpleNamespace(app_metadata=pa.py_buffer(chunks.pop(0).SerializeToString()))
            now[0] = 1.0  # it is silent from here on
            cut.wait(60)
            raise StopIteration

        def write_metadata(self, data):
            happened.append(str(pb.ToProgram.FromString(data).WhichOneof("message")))

    def end_connection():
        happened.append("cut")
        cut.set()

    ProgramStream(places, end_connection).serve(Silent(), Silent())
    assert ["goodbye", "cut"] == [each for each in happened if each in ("goodbye", "cut")]
    assert ProgramFailed("no heartbeat for 50 ms") == place.take()


def test_a_stream_that_breaks_while_it_registers_leaves_no_thread(monkeypatch):
    """The watcher begins before the first word, and ends also where no place is looked for to the end."""
    places = OfferedPlaces()
    monkeypatch.setattr(places, "find", lambda *_: 1 / 0)
    register = pb.FromProgram(register=pb.Register(protocol_version=1)).SerializeToString()
    reader = SimpleNamespace(read_chunk=lambda: SimpleNamespace(app_metadata=pa.py_buffer(register)))
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        ProgramStream(places, lambda: None).serve(reader, None)
    assert not [each.name for each in set(threading.enumerate()) - before if each.name == "program-watch"]


def test_the_place_of_an_attempt_that_has_failed_is_for_nobody():
    """Its program is gone, and the task has not taken the place back yet: the next program waits for the next one."""
    places = OfferedPlaces()
    place = places.offer(SLOT, RUN, range(0), lambda: None)
    first, second = (ProgramStream(places, lambda: None) for _ in range(2))
    assert place.join(first)
    place.said(first, pb.FromProgram(task_running=pb.TaskRunning(attempt_id="a")))
    place.left(first, "it is gone")
    assert not place.join(second)


class Talking:
    """The stream of a program that has a place (StreamOfProgram)."""

    def __init__(self, place):
        self.place = place
        assert place.join(self)
        self.say(task_running=pb.TaskRunning(attempt_id="a"))

    def say(self, message=None, **said):
        if message is None:
            self.place.said(self, pb.FromProgram(**said))

    def end(self, reason):
        self.place.left(self, reason)


def test_a_task_ends_though_its_program_never_stops_talking():
    """A task that waited for the answer to a checkpoint, and heard ever more watermarks instead, saw that it is
    cancelled only when nothing else was there to be heard."""
    run = pb.RunTask(attempt_id="a", job_id="j", task="t", shape=pb.TASK_SHAPE_SOURCE)
    place = OfferedPlaces().offer(SLOT, run, range(0), lambda: None)
    talking = Talking(place)
    place.ask_for_snapshot(1, 0, stops=False)
    for _ in range(3):
        talking.say(watermark=pb.Watermark(attempt_id="a"))
    assert isinstance(place.wait(60_000), WatermarkCame)
    place.cancel()
    with pytest.raises(WaitEnded):
        place.wait(60_000)
    place.close("the attempt is over")


def test_rows_that_wait_for_their_task_have_a_bound_in_bytes(monkeypatch):
    """Sixteen messages of as many bytes as a message may have were four gigabytes, and more."""
    monkeypatch.setattr(offered_places, "MAX_UNTAKEN_BYTES", 100)
    run = pb.RunTask(attempt_id="a", job_id="j", task="t", shape=pb.TASK_SHAPE_SOURCE)
    place: Any = OfferedPlaces().offer(SLOT, run, range(0), lambda: None)
    talking, rows = Talking(place), pb.Rows(attempt_id="a", arrow=b"x" * 60)
    thread = threading.Thread(target=lambda: [talking.say(rows=rows) for _ in range(5)])
    thread.start()
    wait_until(lambda: place._changed._waiters or not thread.is_alive(), "that it waits, or is done")
    assert (True, 2) == (thread.is_alive(), len(place._to_task))
    assert [RowsCame(b"x" * 60)] * 5 == [place.wait(60_000) for _ in range(5)]
    thread.join(60)
    assert not thread.is_alive()


def test_a_program_that_floods_is_read_more_slowly(exchange, program, monkeypatch):
    """Who says more than its budget is not read until that is over, and a task that ends does not wait for it."""
    monkeypatch.setattr(MessageBudget, "spend", lambda self, messages, now_s: 3600.0)
    place = exchange.programs.offer(SLOT, RUN, range(0), lambda: None)
    flooding = program(sign_ticket(SLOT, "j", "t", "a"))
    flooding.hear("run_task")
    for _ in range(2):
        flooding.say(rows_processed=pb.RowsProcessed(attempt_id="x"))
    assert "rows_processed names attempt" in flooding.hear("complaint").detail
    place.close("the attempt is over")
    heard = [each.WhichOneof("message") for each in flooding.call]
    assert [each for each in heard if each != "heartbeat"] == ["goodbye"]
