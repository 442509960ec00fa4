"""What only an exchange between processes has, over Flight and by sockets of the host: streams, tokens, peers that are
slow, stopped or dead, and an end of its own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import EndOfData, EndOfPartition
from snapline.runtime.cores import newcomers
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.tcp_connections import connections
from snapline.taskmanager.network.flight import (
    exchange_newcomers,
    flight_server,
    frames,
    inbound_stream,
    outbound_stream,
)
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange
from snapline.taskmanager.network.flight.flight_server import ExchangeError
from snapline.taskmanager.network.host import host_server
from tests.contract.exchange_channels import EDGE, PATIENCE_SECONDS, PRODUCER, Room, TaskSide, batch
from tests.contract.exchange_peer import PeerProcess
from tests.services.certificates import Authority, LiveFiles, why_not
from tests.services.cluster import wait_until

ROOT = Path(__file__).resolve().parents[2]
QUEUED, CREDITS = 4, 4
SETTINGS = ExchangeSettings(credits_per_channel=CREDITS, max_queued_batches=QUEUED, request_backoff_max_ms=5000)
IMPATIENT = ExchangeSettings(request_backoff_max_ms=200)


@pytest.fixture(autouse=True, params=["flight", "host"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way rows go between processes of this host, of which this one is one: by its sockets, or over Flight."""
    if request.param == "flight":
        monkeypatch.setattr(host_server, "_listen", lambda _: None)
        monkeypatch.setattr(inbound_stream, "connect_on_host", lambda *_: None)
    return str(request.param)


@pytest.fixture
def producers() -> Iterator[FlightExchange]:
    with FlightExchange(SETTINGS) as exchange:
        yield exchange


@pytest.fixture
def consumers() -> Iterator[FlightExchange]:
    with FlightExchange(SETTINGS) as exchange:
        yield exchange


@pytest.fixture
def peer() -> Iterator[PeerProcess]:
    process = PeerProcess()
    yield process
    process.end()


def exchange_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("exchange-")]


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_for_streams(exchange: FlightExchange, expected: tuple[int, int]) -> None:
    """Streams end on threads of their own."""
    deadline = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 100)):
        if exchange.number_of_streams == expected:
            return
        deadline.wait(0.01)
    raise AssertionError(f"{exchange.number_of_streams} streams, expected {expected}")


# --- inside a process -------------------------------------------------------------------------------------------------


def test_inside_a_process_the_batch_itself_changes_hands(producers: FlightExchange) -> None:
    """No copy, no message, no stream."""
    sent = batch(1)
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    task = TaskSide(producers)
    channel = task.open(producers.address)

    subpartition.add(sent)

    assert task.poll(channel).element is sent
    assert producers.number_of_streams == (0, 0)
    task.release()


# --- streams ----------------------------------------------------------------------------------------------------------


def test_all_channels_of_an_edge_share_one_stream(producers: FlightExchange, consumers: FlightExchange) -> None:
    """However many producers and consumers; it ends with its last channel, and another edge has another one."""
    task, other = TaskSide(consumers), TaskSide(consumers)
    for producer in ("graph_source_0_0", "graph_source_1_0"):
        for subpartition in producers.create_result_partition(producer, EDGE, 3):
            subpartition.add(batch(1))
        for index in range(3):
            task.read(task.open(producers.address, producer=producer, index=index), 1)
    (subpartition,) = producers.create_result_partition(PRODUCER, "other edge", 1)
    subpartition.add(batch(2))
    other.read(other.open(producers.address, edge_id="other edge"), 1)
    assert (consumers.number_of_streams, producers.number_of_streams) == ((2, 0), (0, 2))

    task.release()
    wait_for_streams(producers, (0, 1))
    other.release()
    wait_for_streams(producers, (0, 0))
    wait_for_streams(consumers, (0, 0))


def test_the_kernel_looks_whether_the_producer_is_still_there(
    producers: FlightExchange, consumers: FlightExchange, way: str
) -> None:
    """Who waits for rows says nothing meanwhile, and would never hear that the other host is cut off; least of all who
    has not got any yet."""
    producers.create_result_partition(PRODUCER, EDGE, 1)
    task = TaskSide(consumers)
    task.open(producers.address)
    wait_for_streams(producers, (0, 1))
    port = int(producers.address.rpartition(":")[2])

    def watched() -> list[int]:
        return [
            each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for each in connections(0)
            if each.getpeername()[1] == port
        ]

    wait_until(lambda: watched() == ([1] if way == "flight" else []), "the kernel's watch")
    task.release()


def test_jobs_do_not_share_streams(producers: FlightExchange, consumers: FlightExchange) -> None:
    """Two jobs whose edges have the same id may send different columns."""
    task = TaskSide(consumers)
    for job in ("graph-a", "graph-b"):
        (subpartition,) = producers.create_result_partition(f"{job}_source_0_0", EDGE, 1)
        subpartition.add(batch(1))
        task.read(task.open(producers.address, producer=f"{job}_source_0_0"), 1)

    assert producers.number_of_streams == (0, 2)
    task.release()


def test_one_failed_channel_leaves_the_others_alone(producers: FlightExchange, consumers: FlightExchange) -> None:
    """A producer that is gone fails its own consumers, not those of its neighbours on the same stream."""
    producers.create_result_partition("graph_source_0_0", EDGE, 1)
    (second,) = producers.create_result_partition("graph_source_1_0", EDGE, 1)
    gone, alive = TaskSide(consumers), TaskSide(consumers)
    gone.open(producers.address, producer="graph_source_0_0")
    channel = alive.open(producers.address, producer="graph_source_1_0")
    second.add(batch(1))
    assert alive.read(channel, 1) == [1]

    producers.release_result_partition("graph_source_0_0", EDGE)

    assert "graph_source_0_0" in gone.failure()[1]
    second.add(batch(2))
    assert alive.read(channel, 1) == [2]
    assert alive.failures == []
    gone.release()
    alive.release()


def test_a_second_consumer_of_a_subpartition_is_refused(producers: FlightExchange, consumers: FlightExchange) -> None:
    """It would miss what the first one took."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    subpartition.add(batch(1))
    first, second = TaskSide(consumers), TaskSide(consumers)
    first.read(first.open(producers.address), 1)

    second.open(producers.address)

    assert "has a consumer" in second.failure()[1]
    first.release()
    second.release()


def test_received_columns_are_aligned_in_memory(producers: FlightExchange, consumers: FlightExchange) -> None:
    """Because numpy and numba take misaligned columns for another type."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    task = TaskSide(consumers)
    channel = task.open(producers.address)
    schemas = [("a",), ("a", "b", "c")]

    for rows in (1, 3, 100, 2000, 8192, 200_000):
        for names in schemas:
            subpartition.add(pa.record_batch({name: np.arange(rows, dtype=np.int64) for name in names}))
            received = task.poll(channel).element
            assert isinstance(received, pa.RecordBatch)
            for name in names:
                column = received.column(name).to_numpy(zero_copy_only=True)
                assert column.flags.aligned
                assert column[-1] == rows - 1
    task.release()


# --- patience and refusal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shortcut", [True, False])
def test_a_producer_that_never_comes_is_given_up(*, shortcut: bool) -> None:
    """After taskmanager.network.request-backoff.max, which the message names."""
    settings = ExchangeSettings(request_backoff_max_ms=50, local_shortcut=shortcut)
    with FlightExchange(settings) as exchange:
        task = TaskSide(exchange)
        channel = task.open(exchange.address)

        index, cause = task.failure()

        assert index == 0
        assert PRODUCER in cause and EDGE in cause and "taskmanager.network.request-backoff.max" in cause
        assert channel.poll() is None
        task.release()


def test_a_producer_that_is_gone_already_is_known(producers: FlightExchange, consumers: FlightExchange) -> None:
    """Nobody waits for an attempt that was released."""
    producers.create_result_partition(PRODUCER, EDGE, 1)
    producers.release_result_partition(PRODUCER, EDGE)
    task = TaskSide(consumers)

    task.open(producers.address)

    assert f"producer {PRODUCER} of edge {EDGE} is gone" in task.failure()[1]
    task.release()


def test_nobody_at_the_address() -> None:
    """The TaskManager is dead: the consumer hears where it looked."""
    with socket.socket() as unused, FlightExchange(IMPATIENT) as exchange:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        task = TaskSide(exchange)

        task.open(address)

        assert address in (cause := task.failure()[1]) and "cannot connect" in cause
        task.release()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:http", "no-such-host.invalid:1234"])
def test_an_address_that_is_none(address: str) -> None:
    """The message repeats it."""
    with FlightExchange(IMPATIENT) as exchange:
        task = TaskSide(exchange)

        task.open(address)

        assert address in task.failure()[1] or "unknown host" in task.failure()[1]
        task.release()


@pytest.mark.parametrize("token", ["", "other"])
def test_without_the_token_nobody_reads(token: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the setting, and the log of whoever refuses says who came and what was wrong. A busy machine
    may note what came by the host's socket after what came by Flight, which is asked next."""
    monkeypatch.setattr(host_server, "ANSWER_SECONDS", PATIENCE_SECONDS)
    log = io.StringIO()
    with (
        FlightExchange(
            ExchangeSettings(security=ExchangeSecurity(("secret",))), make_logger("taskmanager", stream=log)
        ) as producers,
        FlightExchange(ExchangeSettings(security=ExchangeSecurity((token,) if token else ()))) as consumers,
    ):
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        subpartition.add(batch(1))
        task = TaskSide(consumers)

        task.open(producers.address)

        assert "security.auth.token" in task.failure()[1]
        task.release()
        who = "a caller of Flight" if way == "flight" else f"user {os.geteuid()} of this host"
        wait_until(lambda: any(who in line for line in log.getvalue().splitlines()), "a line in the log")
    line = next(line for line in log.getvalue().splitlines() if who in line)
    assert "wrong or missing token" in line


def test_with_the_token_one_reads() -> None:
    """Both ends have it from the configuration."""
    configuration = Configuration({"security.auth.token": "secret"})
    settings = ExchangeSettings.from_configuration(configuration, bind_host="127.0.0.1")
    with FlightExchange(settings) as producers, FlightExchange(settings) as consumers:
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        subpartition.add(batch(1))
        task = TaskSide(consumers)

        assert task.read(task.open(producers.address), 1) == [1]
        task.release()


# --- connections on which nobody is let in ----------------------------------------------------------------------------

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
UNKNOWN_FRAME = bytes((0, 0x40, 0, 0xFA, 0, 0, 0, 0, 0)) + bytes(1 << 14)


def is_closed(connection: socket.socket) -> bool:
    """Reads what the server says until it says no more."""
    connection.settimeout(PATIENCE_SECONDS)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01", HTTP2, HTTP2 + UNKNOWN_FRAME * 80])
def test_who_is_not_let_in_is_closed_and_others_read_on(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand idle ones took every file of a TaskManager, and four calls without a token a gigabyte of memory. One
    that says much goes before its time is over."""
    monkeypatch.setattr(exchange_newcomers, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(newcomers, "SECONDS", 600.0 if len(says) > newcomers.MAX_BYTES else 0.5)
    settings = ExchangeSettings(security=ExchangeSecurity(("secret",)))
    with FlightExchange(settings) as producers, FlightExchange(settings) as consumers:
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        task = TaskSide(consumers)
        channel = task.open(producers.address)
        subpartition.add(batch(1))
        assert task.read(channel, 1) == [1]
        host, _, port = producers.address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            with contextlib.suppress(ConnectionError):
                stranger.sendall(says)
            assert is_closed(stranger)

        subpartition.add(batch(2))
        assert task.read(channel, 1) == [2]
        task.release()


@pytest.mark.parametrize("finds", [True, False], ids=["waits", "refused"])
def test_who_opens_channels_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, way: str, *, finds: bool) -> None:
    """Also when it reads nothing of what is said, so that a write to it waits; others read on."""
    if way == "host":
        pytest.skip("what a stream says is the same, and no write waits there")
    from pyarrow import flight

    monkeypatch.setattr(outbound_stream, "MAX_CHANNELS", 2_000, raising=False)
    log = io.StringIO()
    with FlightExchange(SETTINGS, make_logger("taskmanager", stream=log)) as producers, FlightExchange() as consumers:
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        task = TaskSide(consumers)
        channel = task.open(producers.address)
        subpartition.add(batch(1))
        assert task.read(channel, 1) == [1]

        stranger = flight.connect(f"grpc://{producers.address}")
        writer, _ = stranger.do_exchange(flight.FlightDescriptor.for_command(frames.stream_descriptor(EDGE)))
        with pytest.raises((pa.ArrowException, OSError, StopIteration)):
            for number in range(300_000):
                asked = frames.OpenChannel(number, 0, 1, f"p{number}" if finds else PRODUCER, "c")
                writer.write_metadata(frames.encode_upstream(asked))
        wait_until(lambda: "more than 2000 channels on one stream" in log.getvalue(), "a line in the log")
        stranger.close()

        subpartition.add(batch(2))
        assert task.read(channel, 1) == [2]
        task.release()


def test_who_opens_streams_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Each is a thread of the TaskManager. Who comes too late hears why, and who reads reads on."""
    monkeypatch.setattr(flight_server, "MAX_STREAMS", 2)
    log = io.StringIO()
    with (
        FlightExchange(SETTINGS, make_logger("taskmanager", stream=log)) as producers,
        FlightExchange() as first,
        FlightExchange() as second,
        FlightExchange() as third,
    ):
        parts = producers.create_result_partition(PRODUCER, EDGE, 3)
        tasks = [TaskSide(exchange) for exchange in (first, second, third)]
        for index in range(2):
            parts[index].add(batch(index))
            assert tasks[index].read(tasks[index].open(producers.address, index=index), 1) == [index]

        tasks[2].open(producers.address, index=2)
        wait_until(lambda: bool(tasks[2].failures), "the third one fails")
        wait_until(lambda: "2 streams are served already" in log.getvalue(), "a line in the log")
        assert way == "host" or "2 streams are served already" in tasks[2].failures[0][1]

        parts[0].add(batch(7))
        assert tasks[0].read(tasks[0].channels[0], 1) == [7]
        for task in tasks[:2]:
            task.release()


# --- TLS --------------------------------------------------------------------------------------------------------------

TOKEN = "the-token-of-the-cluster"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whose certificates name 127.0.0.1 and taskmanager.snapline."""
    if reason := why_not():
        pytest.skip(reason)
    return Authority(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1,DNS:taskmanager.snapline")


@pytest.fixture(scope="module")
def another_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A stranger's, whose certificates name the same."""
    if reason := why_not():
        pytest.skip(reason)
    return Authority(tmp_path_factory.mktemp("strangers"), "IP:127.0.0.1,DNS:taskmanager.snapline")


def with_settings(settings: dict[str, str]) -> ExchangeSettings:
    configured = Configuration(
        {"security.auth.token": TOKEN, "taskmanager.network.request-backoff.max": "700 ms", **settings}
    )
    return ExchangeSettings.from_configuration(configured, bind_host="127.0.0.1")


@pytest.mark.parametrize("name", ["", "taskmanager.snapline"])
def test_the_exchange_is_encrypted_when_the_control_plane_is(authority: Authority, name: str) -> None:
    """With the same certificates, whose name may be that of an address or of all TaskManagers."""
    settings = with_settings({**authority.settings, "security.ssl.exchange.hostname": name})
    with FlightExchange(settings) as producers, FlightExchange(settings) as consumers:
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        subpartition.add(batch(1))
        task = TaskSide(consumers)

        assert task.read(task.open(producers.address), 1) == [1]
        task.release()


def test_who_has_no_certificate_of_the_cluster_reads_nothing(
    authority: Authority, another_authority: Authority
) -> None:
    """Neither without one, nor with one of another authority, nor under another name."""
    strangers: list[dict[str, str]] = [
        {},
        another_authority.settings,
        {**authority.settings, "security.ssl.exchange.hostname": "other"},
    ]
    with FlightExchange(with_settings(authority.settings)) as producers:
        (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
        subpartition.add(batch(1))
        for settings in strangers:
            with FlightExchange(with_settings(settings)) as consumers:
                task = TaskSide(consumers)
                task.open(producers.address)
                assert producers.address in task.failure()[1]
                task.release()


def certificate_at(host: str, port: int) -> str:
    """What a server shows; empty while one follows another on its port, where consumers try again, too."""
    try:
        return ssl.get_server_certificate((host, port))
    except OSError:
        return ""


def test_new_certificates_are_shown_while_streams_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of before is not cut; who has only the new certificates reads, and who has only the old does not."""
    if reason := why_not():
        pytest.skip(reason)
    monkeypatch.setattr(flight_server, "RENEW_SECONDS", 0.05)
    files = LiveFiles(tmp_path)

    def settings(given: dict[str, str]) -> ExchangeSettings:
        configured = Configuration({"taskmanager.network.request-backoff.max": "700 ms", **given})
        return ExchangeSettings.from_configuration(configured, bind_host="127.0.0.1")

    def of_one(authority: Authority, token: str) -> ExchangeSettings:
        return settings({**authority.settings, "security.auth.token": token})

    first, second = files.authorities
    with FlightExchange(settings(files.settings)) as producers, FlightExchange(of_one(first, "old")) as before:
        subpartitions = producers.create_result_partition(PRODUCER, EDGE, 3)
        subpartitions[0].add(batch(1))
        streaming = TaskSide(before)
        channel = streaming.open(producers.address)
        assert streaming.read(channel, 1) == [1]

        for step in range(3):
            files.change(step)
        host, _, port = producers.address.rpartition(":")
        shown = (second.directory / "node.pem").read_text().split()
        wait_until(lambda: certificate_at(host, int(port)).split() == shown, "the new certificate")
        subpartitions[1].add(batch(2))
        with FlightExchange(of_one(second, "new")) as newcomer:
            task = TaskSide(newcomer)
            assert task.read(task.open(producers.address, index=1), 1) == [2]
            task.release()
        subpartitions[0].add(batch(3))
        assert streaming.read(channel, 1) == [3]
        streaming.release()
        with FlightExchange(of_one(first, "old")) as late:
            task = TaskSide(late)
            task.open(producers.address, index=2)
            assert producers.address in task.failure()[1]
            task.release()


def test_the_token_does_not_leave_in_plaintext(authority: Authority) -> None:
    """Somebody who listens where a TaskManager is thought to be hears a handshake, and no token."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        FlightExchange(with_settings(authority.settings)) as consumers,
    ):
        task = TaskSide(consumers)
        task.open(f"127.0.0.1:{listener.getsockname()[1]}")
        listener.settimeout(PATIENCE_SECONDS)
        heard = b""
        while not heard:  # the first connection only looks whether somebody listens
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(PATIENCE_SECONDS)
                heard = accepted.recv(1 << 16)

        assert (heard[:2], TOKEN.encode() in heard) == (b"\x16\x03", False)
        task.release()


def test_a_port_in_use_is_said() -> None:
    """Else gRPC would share it silently."""
    with FlightExchange() as exchange:
        port = int(exchange.address.rpartition(":")[2])

        with pytest.raises(ExchangeError, match=f"cannot listen on 127.0.0.1:{port}: the port is in use"):
            FlightExchange(ExchangeSettings(port=port))


def test_listening_everywhere_needs_a_name_for_others() -> None:
    """Nobody can connect to 0.0.0.0."""
    with pytest.raises(ExchangeError, match="advertised host"):
        FlightExchange(ExchangeSettings(bind_host="0.0.0.0"))

    with FlightExchange(ExchangeSettings(bind_host="0.0.0.0", advertised_host="127.0.0.1")) as exchange:
        assert exchange.address.startswith("127.0.0.1:")


# --- the end ----------------------------------------------------------------------------------------------------------


def test_closing_ends_everything_and_the_port_is_free() -> None:
    """A Spark worker process is used again: the next exchange may even have the same port."""
    with FlightExchange() as consumers:
        exchange = FlightExchange()
        (subpartition,) = exchange.create_result_partition(PRODUCER, EDGE, 1)
        subpartition.add(batch(1))
        task = TaskSide(consumers)
        task.read(task.open(exchange.address), 1)
        waiting = TaskSide(exchange)
        waiting.open(exchange.address, producer="graph_never_0_0")

        assert exchange.close()
        assert exchange.close()

        assert "has closed its exchange" in task.failure()[1]
        task.release()
        wait_for_streams(consumers, (0, 0))
        with pytest.raises(ExchangeError, match="is closed"):
            exchange.create_result_partition(PRODUCER, EDGE, 1)
        with FlightExchange(ExchangeSettings(port=int(exchange.address.rpartition(":")[2]))) as again:
            assert again.address == exchange.address
    assert exchange_threads() == []


def test_a_channel_that_has_ended_does_not_fail_with_its_producer(consumers: FlightExchange) -> None:
    """The finished TaskManager leaves before its consumer has polled everything."""
    exchange = FlightExchange(SETTINGS)
    (subpartition,) = exchange.create_result_partition(PRODUCER, EDGE, 1)
    task = TaskSide(consumers)
    channel = task.open(exchange.address)
    for element in (batch(1), batch(2), EndOfData(), EndOfPartition()):
        subpartition.add(element)
    first = task.read(channel, 1)
    wait_for_end = [task.poll(channel) for _ in range(3)]

    exchange.close()
    task.release()

    assert first == [1]
    assert wait_for_end[-1].element == EndOfPartition()
    assert task.failures == []


def test_importing_the_exchange_imports_no_flight() -> None:
    """A Spark worker forks after its imports; a forked gRPC does not work."""
    code = (
        "import sys, snapline.taskmanager.network, snapline.taskmanager.network.flight.flight_exchange\n"
        "bad = [name for name in sys.modules if name == 'grpc' or 'flight' in name and name.startswith('pyarrow')]\n"
        "sys.exit(', '.join(bad) or 0)"
    )

    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr


# --- two processes ----------------------------------------------------------------------------------------------------


def test_between_two_processes_everything_arrives_once(peer: PeerProcess, consumers: FlightExchange) -> None:
    """Many windows of batches, from a process of its own."""
    peer.call("partition", producer=PRODUCER, edge_id=EDGE, subpartitions=1)
    task = TaskSide(consumers)
    channel = task.open(peer.address)
    peer.tell("fill", index=0, batches=2000)

    assert task.read(channel, 2000) == list(range(2000))

    assert peer._read() == 2000
    peer.call("finish", index=0)
    assert task.read(channel, 2) == [EndOfData(), EndOfPartition()]
    task.release()
    assert task.failures == []


def test_a_slow_consumer_in_another_process_stops_the_producer(peer: PeerProcess, producers: FlightExchange) -> None:
    """Exactly the queue and the credits are taken, whatever the transport could hold; then as much as is polled."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    room = Room(subpartition)
    peer.call("open", address=producers.address, producer=PRODUCER, edge_id=EDGE, index=0)

    taken = room.fill_until_stuck(QUEUED + CREDITS)
    assert taken == QUEUED + CREDITS

    for number in range(200):
        assert peer.call("read", channel=0, count=1) == [number]
        if subpartition.is_available:
            subpartition.add(batch(taken))
            taken += 1
    assert subpartition.queued_bytes <= QUEUED * batch(999).nbytes
    assert taken <= 200 + QUEUED + CREDITS


def test_a_killed_producer_fails_its_consumers(peer: PeerProcess, consumers: FlightExchange) -> None:
    """Signal 9 to the other process: the consumer hears which TaskManager is lost, and a new one can be read at
    once."""
    peer.call("partition", producer=PRODUCER, edge_id=EDGE, subpartitions=1)
    task = TaskSide(consumers)
    channel = task.open(peer.address)
    peer.call("fill", index=0, batches=4)
    assert task.read(channel, 4) == [0, 1, 2, 3]

    peer.send_signal(signal.SIGKILL)

    cause = task.failure()[1]
    assert peer.address in cause and "lost" in cause
    task.release()
    wait_for_streams(consumers, (0, 0))


def test_a_killed_consumer_frees_its_producer(peer: PeerProcess, producers: FlightExchange) -> None:
    """The producer, stuck behind a consumer that is gone, gets room: what it adds is dropped."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)
    room = Room(subpartition)
    peer.call("open", address=producers.address, producer=PRODUCER, edge_id=EDGE, index=0)
    room.fill_until_stuck(QUEUED + CREDITS)

    peer.send_signal(signal.SIGKILL)

    room.wait()
    assert subpartition.queued_bytes == 0
    wait_for_streams(producers, (0, 0))


def test_closing_does_not_wait_for_a_stopped_consumer(peer: PeerProcess) -> None:
    """SIGSTOP: the peer neither reads nor hangs up, and a write to it blocks."""
    exchange = FlightExchange(ExchangeSettings(credits_per_channel=64, max_queued_batches=64))
    (subpartition,) = exchange.create_result_partition(PRODUCER, EDGE, 1)
    peer.call("open", address=exchange.address, producer=PRODUCER, edge_id=EDGE, index=0)
    peer.send_signal(signal.SIGSTOP)
    big = pa.record_batch({"n": np.arange(500_000, dtype=np.int64)})
    for _ in range(20):
        subpartition.add(big)

    assert exchange.close()

    assert exchange_threads() == []
    peer.send_signal(signal.SIGCONT)


def test_closing_does_not_wait_for_a_stopped_producer(peer: PeerProcess) -> None:
    """Neither on a stream that is up nor on one that is about to be opened."""
    exchange = FlightExchange(SETTINGS)
    peer.call("partition", producer=PRODUCER, edge_id=EDGE, subpartitions=1)
    task, late = TaskSide(exchange), TaskSide(exchange)
    channel = task.open(peer.address)
    peer.call("fill", index=0, batches=1)
    assert task.read(channel, 1) == [0]
    peer.send_signal(signal.SIGSTOP)
    late.open(peer.address, edge_id="another edge")

    assert exchange.close()

    assert "has closed its exchange" in task.failure()[1]
    assert "has closed its exchange" in late.failure()[1]
    assert exchange_threads() == []
    peer.send_signal(signal.SIGCONT)


def test_no_file_descriptor_is_left(producers: FlightExchange) -> None:
    """Fifty exchanges, each read once and closed."""
    (subpartition,) = producers.create_result_partition(PRODUCER, EDGE, 1)

    def one_round(number: int) -> None:
        with FlightExchange(SETTINGS) as exchange:
            (own,) = exchange.create_result_partition(f"graph_source_0_{number}", EDGE, 1)
            own.add(batch(number))
            task = TaskSide(producers)
            assert task.read(task.open(exchange.address, producer=f"graph_source_0_{number}"), 1) == [number]
            task.release()
        wait_for_streams(producers, (0, 0))

    for number in range(5):
        one_round(number)
    before = open_descriptors()
    for number in range(5, 50):
        one_round(number)

    assert open_descriptors() <= before + 10
    assert subpartition.is_available
