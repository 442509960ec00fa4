"""What only the exchange by sockets of the host has: who is let in, what is kept for a peer that does not read, and
what the bytes of a message may be."""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from snapline.runtime.logs import make_logger
from snapline.taskmanager.network.channels.exchange_contract import ResultSubpartition
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange
from snapline.taskmanager.network.flight.frames import (
    OpenChannel,
    ProtocolError,
    encode_upstream,
    stream_descriptor,
)
from snapline.taskmanager.network.host import host_server
from snapline.taskmanager.network.host.host_server import connect_on_host
from snapline.taskmanager.network.host.socket_messages import (
    MAX_BYTES,
    SocketReader,
    SocketWriter,
    metadata_message,
)
from tests.contract.exchange_channels import EDGE, PATIENCE_SECONDS, PRODUCER, TaskSide, batch
from tests.services.cluster import wait_until

SETTINGS = ExchangeSettings(request_backoff_max_ms=2000)


@pytest.fixture
def producers() -> Iterator[FlightExchange]:
    with FlightExchange(SETTINGS) as exchange:
        yield exchange


@pytest.fixture
def consumers() -> Iterator[FlightExchange]:
    with FlightExchange(SETTINGS) as exchange:
        yield exchange


@contextlib.contextmanager
def pair_of_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(PATIENCE_SECONDS)
        yield ours, theirs


def threads_on_host() -> int:
    return sum(thread.name == "exchange-host-stream" for thread in threading.enumerate())


def read_one(producers: FlightExchange, consumers: FlightExchange) -> None:
    """A row arrives, whichever way."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    subpartition.add(batch(1))
    task = TaskSide(consumers)
    assert task.read(task.open(producers.address), 1) == [1]
    task.release()


# --- who is let in ----------------------------------------------------------------------------------------------------


def test_processes_of_one_user_on_one_host_use_its_sockets(
    producers: FlightExchange, consumers: FlightExchange
) -> None:
    """No connection of the network is made."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    subpartition.add(batch(1))
    task = TaskSide(consumers)
    assert task.read(task.open(producers.address), 1) == [1]

    assert threads_on_host() == 1
    task.release()


def test_another_user_is_neither_let_in_nor_read(
    producers: FlightExchange, consumers: FlightExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a listener of somebody else says is not believed: rows come over Flight, which asks for more."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert connect_on_host(producers.address, EDGE, ExchangeSecurity()) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(PATIENCE_SECONDS)
        stranger.connect(host_server._name(producers.address))
        assert stranger.recv(1) == b""

    read_one(producers, consumers)


def test_a_taken_name_is_left_to_its_owner(consumers: FlightExchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TaskManager does not listen on the host then, and rows come over Flight."""
    monkeypatch.setattr(host_server, "_name", lambda _: "\0snapline-exchange/of-somebody-else")
    with FlightExchange(SETTINGS), FlightExchange(SETTINGS) as second:
        assert second._server._on_host is not None
        assert second._server._on_host._listener is None
        monkeypatch.undo()
        read_one(second, consumers)


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (b"", "did not say who it is"),
        (b"\xff" * 64, "did not say who it is"),
        (metadata_message(b"x" * (host_server.MAX_GREETING_BYTES + 1)), "did not say who it is"),
        (metadata_message(b"secret\n"), "did not say who it is"),
        (metadata_message(bytes(32) + stream_descriptor(EDGE)) + metadata_message(b""), "wrong or missing token"),
        (metadata_message(bytes(32) + stream_descriptor(EDGE)) + metadata_message(bytes(32)), "wrong or missing token"),
    ],
    ids=["silence", "noise", "too long", "too short", "no proof", "a wrong proof"],
)
def test_who_does_not_say_who_he_is_is_closed(greeting: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is silent, says too much or does not know the secret, which stands in the log; others read on."""
    monkeypatch.setattr(host_server, "GREETING_SECONDS", 0.2 if not greeting else 600.0)
    settings = ExchangeSettings(security=ExchangeSecurity(("secret",)))
    log = io.StringIO()
    logger = make_logger("taskmanager", stream=log)
    with FlightExchange(settings, logger) as producers, FlightExchange(settings) as consumers:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(PATIENCE_SECONDS)
            stranger.connect(host_server._name(producers.address))
            stranger.sendall(greeting)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1 << 16):
                    pass
        read_one(producers, consumers)
    (line,) = log.getvalue().splitlines()
    assert (f"user {os.geteuid()} of this host" in line, f"process {os.getpid()}: " in line, why in line) == (
        True,
    ) * 3, line


def greeted(producers: FlightExchange, stack: contextlib.ExitStack) -> socket.socket:
    """A connection that was let in."""
    stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    stranger.settimeout(PATIENCE_SECONDS)
    stranger.connect(host_server._name(producers.address))
    reader = SocketReader(stranger)
    host_server._prove(reader, producers.address, stream_descriptor(EDGE), ("secret",))
    assert reader.read_chunk().app_metadata == b""
    stranger.settimeout(PATIENCE_SECONDS)
    return stranger


def ends(stranger: socket.socket) -> None:
    """The other side hangs up."""
    with contextlib.suppress(ConnectionError):
        while stranger.recv(1 << 16):
            pass


def compressed(count: int) -> bytes:
    """A message with a batch of so many bytes, all alike."""
    with pair_of_sockets() as (ours, theirs):
        rows = pa.record_batch({"n": np.zeros(count, np.int8)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(rows)
        SocketWriter(theirs)._write(4, b"", sink.getvalue())
        return ours.recv(1 << 16)


def test_a_greeting_has_no_rows() -> None:
    """Few bytes of compressed rows were made hundreds of megabytes of before the secret was looked at."""
    settings = ExchangeSettings(security=ExchangeSecurity(("secret",)))
    log = io.StringIO()
    with FlightExchange(settings, make_logger("taskmanager", stream=log)) as producers:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(PATIENCE_SECONDS)
            stranger.connect(host_server._name(producers.address))
            content = compressed(1 << 26)
            before = pa.default_memory_pool().max_memory()
            stranger.sendall(content)
            ends(stranger)
        assert len(content) < host_server.MAX_GREETING_BYTES
        assert pa.default_memory_pool().max_memory() == before
    assert "a batch where none is taken" in log.getvalue()


def test_a_greeting_that_never_ends_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever sends a byte now and then, or schemas and no greeting, holds a newcomer's place for ever."""
    monkeypatch.setattr(host_server, "GREETING_SECONDS", 1.0)
    with FlightExchange(SETTINGS) as producers, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(host_server._name(producers.address))
        stranger.settimeout(0.1)
        message = metadata_message(b"x" * 10_000)
        for sent in range(len(message)):
            try:
                stranger.send(message[sent : sent + 1])
                if stranger.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert sent < PATIENCE_SECONDS * 10


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\xff" * 30, "unknown kind ff"),
        (encode_upstream(OpenChannel(1, 0, 0, PRODUCER, "consumer")), "carries at least one"),
        (encode_upstream(OpenChannel(1, 0, 1, PRODUCER, "consumer")), "is open already"),
        (bytes(host_server.MAX_REQUEST_BYTES + 1), "are the most"),
    ],
    ids=["noise", "no credit", "the same again", "too long"],
)
def test_nonsense_of_who_was_let_in_is_one_line(message: bytes, why: str) -> None:
    """Each message was a traceback in the log, as many as came, and one of a gigabyte was read."""
    settings = ExchangeSettings(security=ExchangeSecurity(("secret",)))
    log = io.StringIO()
    with (
        FlightExchange(settings, make_logger("taskmanager", stream=log)) as producers,
        FlightExchange(settings) as consumers,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(5):
            stranger = greeted(producers, stack)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(metadata_message(message) * 2)
            ends(stranger)
        read_one(producers, consumers)
    assert why in log.getvalue()
    assert all("its stream was ended" in line for line in log.getvalue().splitlines()), log.getvalue()


@pytest.mark.parametrize(
    "says",
    [b"", b"\xff" * 64, metadata_message(b"token"), metadata_message(bytes(64)) + metadata_message(b"")],
    ids=["nothing", "noise", "a refusal", "a proof that is none"],
)
def test_who_listens_in_the_place_of_a_task_manager_learns_nothing_and_keeps_no_rows_back(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come over Flight then; the tasks of this host failed before, and the squatter was told the secret."""
    settings = ExchangeSettings(request_backoff_max_ms=2000, security=ExchangeSecurity(("secret",)))
    heard: list[bytes] = []
    with FlightExchange(settings) as consumers, squatted(settings, monkeypatch) as (producers, squatter):

        def answer() -> None:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                while True:
                    connection = stack.enter_context(squatter.accept()[0])
                    connection.sendall(says)
                    heard.append(connection.recv(1 << 16))

        with answering(answer, squatter):
            read_one(producers, consumers)
    assert heard
    assert not any(b"secret" in each for each in heard)


def test_who_hands_a_greeting_on_to_another_task_manager_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other one proves is of its own address: a process between the two would have read the rows."""
    settings = ExchangeSettings(request_backoff_max_ms=2000, security=ExchangeSecurity(("secret",)))
    answers: list[bytes] = []
    with (
        FlightExchange(settings) as another,
        FlightExchange(settings) as consumers,
    ):
        elsewhere = host_server._name(another.address)
        with squatted(settings, monkeypatch) as (producers, squatter):

            def hand_on() -> None:
                with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                    while True:
                        connection = stack.enter_context(squatter.accept()[0])
                        onward = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                        onward.settimeout(PATIENCE_SECONDS)
                        onward.connect(elsewhere)
                        onward.sendall(connection.recv(1 << 16))
                        answers.append(onward.recv(1 << 16))
                        connection.sendall(answers[-1])

            with answering(hand_on, squatter):
                read_one(producers, consumers)
    assert answers
    assert all(len(each) > 64 for each in answers), "another TaskManager has proven itself"


@contextlib.contextmanager
def squatted(
    settings: ExchangeSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FlightExchange, socket.socket]]:
    """A TaskManager, and the socket that listens in its place."""
    with monkeypatch.context() as apart:
        apart.setattr(host_server, "_name", lambda address: f"\0snapline-exchange/squatted/{address}")
        producers = FlightExchange(settings)
    with producers, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(host_server._name(producers.address))
        squatter.listen()
        yield producers, squatter


@contextlib.contextmanager
def answering(answer: Callable[[], None], squatter: socket.socket) -> Iterator[None]:
    """A thread that answers on the socket, until the end."""
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        squatter.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_who_takes_all_places_of_newcomers_keeps_no_rows_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come over Flight, where the tasks failed before."""
    monkeypatch.setattr(host_server, "MAX_NEWCOMERS", 1)
    with (
        FlightExchange(SETTINGS) as producers,
        FlightExchange(SETTINGS) as consumers,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger,
    ):
        stranger.connect(host_server._name(producers.address))
        wait_until(lambda: threads_on_host() == 1, "the stranger is served")
        read_one(producers, consumers)


def test_a_host_without_another_thread_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes meanwhile is closed; it was the end of the thread that accepts, and nobody came in any more."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "exchange-host-stream":
            raise RuntimeError("can't start new thread")
        start(thread)

    with FlightExchange(SETTINGS) as producers, FlightExchange(SETTINGS) as consumers:
        with monkeypatch.context() as without_threads:
            without_threads.setattr(threading.Thread, "start", refuse)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as early:
                early.settimeout(PATIENCE_SECONDS)
                early.connect(host_server._name(producers.address))
                with contextlib.suppress(ConnectionError):
                    assert early.recv(1) == b""
        connected = connect_on_host(producers.address, EDGE, ExchangeSecurity())
        assert connected is not None
        connected[0].close()
        read_one(producers, consumers)


def test_so_many_may_be_silent_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would take every thread and file of the process."""
    monkeypatch.setattr(host_server, "MAX_NEWCOMERS", 2)
    with FlightExchange(SETTINGS) as producers, contextlib.ExitStack() as stack:
        for number in range(3):
            stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            stranger.settimeout(PATIENCE_SECONDS)
            stranger.connect(host_server._name(producers.address))
            if number < 2:
                wait_until(lambda number=number: threads_on_host() == number + 1, "the stranger is served")  # type: ignore[misc]
        assert stranger.recv(1) == b""
        assert threads_on_host() == 2
    wait_until(lambda: threads_on_host() == 0, "the strangers are gone")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_greeting_that_breaks_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else, after as many as may be silent, nobody of this host would be let in any more."""

    def broken(self: ExchangeSecurity) -> ExchangeSecurity:
        raise ValueError("a defect")

    with FlightExchange(SETTINGS) as producers, FlightExchange(SETTINGS) as consumers:
        with monkeypatch.context() as patched, contextlib.ExitStack() as stack:
            patched.setattr(host_server, "MAX_NEWCOMERS", 2)
            patched.setattr(ExchangeSecurity, "current", broken)
            for _ in range(3):
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                stranger.settimeout(PATIENCE_SECONDS)
                stranger.connect(host_server._name(producers.address))
                assert stranger.recv(1) == b""
            server = producers._server._on_host
            assert server is not None
            wait_until(lambda: server._newcomers == 0, "the strangers are forgotten")
        read_one(producers, consumers)


def test_another_version_is_named(producers: FlightExchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the consumer's side, because its task fails."""
    monkeypatch.setattr(host_server, "stream_descriptor", lambda edge_id: f"snapline.exchange/99 {edge_id}".encode())

    with pytest.raises(ProtocolError, match="run one version of Snapline everywhere"):
        connect_on_host(producers.address, EDGE, ExchangeSecurity())


# --- a peer that does not read ----------------------------------------------------------------------------------------


def test_what_the_peer_does_not_take_follows_when_it_does() -> None:
    """Batches larger than the socket holds: the producer's thread does not wait, and each row arrives once."""
    settings = ExchangeSettings(credits_per_channel=64, max_queued_batches=64, max_queued_bytes=1 << 30)
    big = [pa.record_batch({"n": np.full(400_000, number, dtype=np.int64)}) for number in range(20)]
    with FlightExchange(settings) as producers, FlightExchange(settings) as consumers:
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        task = TaskSide(consumers)
        channel = task.open(producers.address)
        for each in big:
            subpartition.add(each)

        received = [task.poll(channel).element for _ in big]

        assert received == big
        task.release()


def test_several_producers_write_one_stream(consumers: FlightExchange) -> None:
    """Each thread writes what it finds, and their messages do not mix."""
    settings = ExchangeSettings(credits_per_channel=8, max_queued_batches=8)
    rounds, number_of_producers = 200, 4
    with FlightExchange(settings) as producers:
        task = TaskSide(consumers)
        channels = []
        threads = []
        for number in range(number_of_producers):
            name = f"graph_source_{number}_0"
            (subpartition,) = producers.create_result_partition(name, EDGE, 1)
            room = threading.Event()
            subpartition.set_availability_listener(room.set)

            def produce(subpartition: ResultSubpartition = subpartition, room: threading.Event = room) -> None:
                for each in range(rounds):
                    while not subpartition.is_available:
                        room.wait(PATIENCE_SECONDS)
                        room.clear()
                    subpartition.add(batch(each, rows=1 + each * 50))

            threads.append(threading.Thread(target=produce))
            channels.append(task.open(producers.address, producer=name))
        for thread in threads:
            thread.start()
        for channel in channels:
            assert task.read(channel, rounds) == list(range(rounds))
        for thread in threads:
            thread.join()
        task.release()


# --- messages ---------------------------------------------------------------------------------------------------------


def messages() -> tuple[bytes, list[tuple[bytes, pa.RecordBatch | None]]]:
    """The bytes of a stream with every kind of message, and what they say."""
    written: list[tuple[bytes, pa.RecordBatch | None]] = [
        (b"before the schema", None),
        *((f"batch {rows}".encode(), batch(rows, rows)) for rows in (1, 3, 100_000)),
        (b"no rows", batch(1).slice(0, 0)),
        (b"", None),
        (b"m" * 100_000, None),
    ]
    with pair_of_sockets() as (ours, theirs):
        received = bytearray()
        reading = threading.Thread(target=lambda: received.extend(iter_bytes(ours)))
        reading.start()
        writer = SocketWriter(theirs)
        writer.begin(batch(1).schema)
        for metadata, content in written:
            if content is None:
                writer.write_metadata(metadata)
            else:
                writer.write_with_metadata(content, metadata)
            writer.flush()
        writer.close()
        reading.join()
    return bytes(received), written


def iter_bytes(connection: socket.socket) -> bytes:
    received = bytearray()
    while piece := connection.recv(1 << 16):
        received += piece
    return bytes(received)


def read_all(content: bytes, cuts: list[int]) -> list[tuple[bytes, pa.RecordBatch | None]]:
    """What a reader makes of the bytes, which come in these pieces."""
    with pair_of_sockets() as (ours, theirs):

        def send() -> None:
            with theirs, contextlib.suppress(OSError):
                for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
                    theirs.sendall(content[begin:end])

        sending = threading.Thread(target=send)
        sending.start()
        reader, read = SocketReader(ours), []
        try:
            while True:
                chunk = reader.read_chunk()
                read.append((bytes(chunk.app_metadata), chunk.data))
        except StopIteration:
            return read
        finally:
            reader.close()
            sending.join()


def test_messages_may_come_in_any_pieces() -> None:
    """A read returns what is there: parts of a message, or many of them."""
    content, written = messages()
    rng = random.Random(1)

    for pieces in (0, 1, 5, 50, 500):
        assert read_all(content, sorted(rng.randrange(len(content)) for _ in range(pieces))) == written


def test_a_batch_with_a_dictionary_brings_it(producers: FlightExchange, consumers: FlightExchange) -> None:
    """And may have another one than the batch before, also deep in its columns."""
    columns = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c", "c", "d"]).dictionary_encode()]
    sent = [pa.record_batch({"d": each, "in": pa.StructArray.from_arrays([each], ["d"])}) for each in columns]
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    task = TaskSide(consumers)
    channel = task.open(producers.address)

    for each in sent:
        subpartition.add(each)
        assert task.poll(channel).element == each
    task.release()


def test_bytes_that_nobody_writes_are_named() -> None:
    """A changed byte ends the stream, or changes what it says, and the process lives on; a length of 2 GB and more is
    not even waited for."""
    content, _ = messages()
    rng = random.Random(2)
    outcomes = set()
    for _ in range(300):
        position = rng.randrange(2000)
        damaged = content[:position] + bytes([rng.randrange(256)]) + content[position + 1 : 5000]
        try:
            for metadata, rows in read_all(damaged, []):
                assert isinstance(metadata, bytes)
                assert rows is None or rows.num_rows >= 0
            outcomes.add("read")
        except ProtocolError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}

    huge = bytes([3]) + (MAX_BYTES + 1).to_bytes(4, "little") + bytes(8)
    with pytest.raises(ProtocolError, match="are the most"):
        read_all(huge, [])
