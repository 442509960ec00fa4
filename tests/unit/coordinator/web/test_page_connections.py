"""Who reaches the page and does not ask properly takes nothing from the others, or from the coordinator."""

from __future__ import annotations

import contextlib
import functools
import gc
import socket
import ssl
import threading
import urllib.request
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from snapline.coordinator.rpc.coordinator_stub import CoordinatorStub
from snapline.coordinator.web import (
    flink_checkpoints,
    flink_cluster,
    flink_jobs,
    page_app,
    page_connections,
    request_bodies,
)
from snapline.coordinator.web.page_server import PageServer
from snapline.dataflow.config import Configuration
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from tests.services.certificates import Authority, why_not
from tests.services.cluster import wait_until


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, Any]]] = []

    def warning(self, message: str, **context: Any) -> None:
        self.written.append((message, context))


@contextmanager
def serving(
    monkeypatch: pytest.MonkeyPatch, request_s: float, settings: dict[str, str] | None = None
) -> Iterator[tuple[int, Lines]]:
    """The port of a page that waits so long for a request and lets one host have eight connections, and its log."""
    monkeypatch.setattr(page_connections.PageLoop, "handshake_s", request_s)
    monkeypatch.setattr(request_bodies, "BODY_SECONDS", request_s)
    timed = functools.partial(page_connections.timed_protocol, request_s=request_s)
    monkeypatch.setattr(page_connections, "timed_protocol", timed)
    monkeypatch.setattr(page_connections, "MAX_CONNECTIONS", 8)
    lines = Lines()
    server = PageServer(Configuration(settings or {}), lambda: "127.0.0.1:1", lines)  # type: ignore[arg-type]
    url = server.start("127.0.0.1", 0)
    try:
        yield int(url.rpartition(":")[2]), lines
    finally:
        server.stop()


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, Lines]]:
    """One that waits a fifth of a second."""
    with serving(monkeypatch, 0.2) as port_and_lines:
        yield port_and_lines


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


ASKED = b"GET /v1/config HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("said", [b"", b"GET / HT", ASKED + b"GET / HT", ASKED], ids=["none", "half", "next", "whole"])
def test_a_request_that_does_not_come_is_not_waited_for(page: tuple[int, Lines], said: bytes) -> None:
    """Neither the first one of a connection nor a later one; what was asked is answered."""
    with socket.create_connection(("127.0.0.1", page[0]), timeout=60) as connection:
        connection.sendall(said)
        assert received(connection).startswith(b"HTTP/1.1" if said.startswith(ASKED) else b"")


def test_what_is_no_http_is_one_line_with_its_sender(page: tuple[int, Lines]) -> None:
    """However often it comes."""
    port, lines = page
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert received(connection).startswith(b"HTTP/1.1 400")
    message, context = lines.written[0]
    assert ("refused", "127.0.0.1") == (message, context["who"])
    assert len(lines.written) < 5


def test_connections_of_one_host_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are closed, and there is an answer again."""
    with serving(monkeypatch, page_connections.REQUEST_SECONDS) as (port, lines):
        opened = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
        wait_until(lambda: any(said == "connections closed" for said, _ in lines.written), "a look at the connections")
        for connection in opened:
            connection.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/config", timeout=60) as answer:
            assert 200 == answer.status


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["none", "half"])
def test_a_handshake_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: bytes
) -> None:
    """A connection that says nothing, or begins one, is closed as soon as one with half a request."""
    with (
        serving(monkeypatch, 0.2, Authority(tmp_path).settings) as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        connection.sendall(said)
        assert b"" == received(connection)


def handshakes() -> int:
    """How many connections with TLS are in memory, whether somebody needs them or not."""
    return sum(issubclass(type(each), SSLProtocol) for each in gc.get_objects())  # a dead proxy has no other class


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_handshakes_that_fail_leave_nothing_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each left 300 KB until Python next looked for what is in circles: 2.6 GB after three seconds."""
    gc.collect()
    gc.disable()
    try:
        with serving(monkeypatch, 30.0, Authority(tmp_path).settings) as (port, _):
            before = handshakes()
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                    connection.sendall(b"no handshake at all")
                    received(connection)
            wait_until(lambda: handshakes() == before, "the connections are forgotten")
    finally:
        gc.enable()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_handshakes_at_a_time_have_a_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Connections of one host are counted only now and then, and two thousand had come by then."""
    monkeypatch.setattr(page_connections, "MAX_HANDSHAKES_OF_HOST", 2)
    settings = Authority(tmp_path).settings
    with (
        serving(monkeypatch, 30.0, settings) as (port, _),
        contextlib.ExitStack() as stack,
    ):

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))

        first, _ = connected(), connected()
        assert b"" == received(connected())

        first.sendall(b"no handshake at all")
        received(first)  # its end makes room for another one
        assert client_of(settings, settings).wrap_socket(connected()).version()


def client_of(trusted: dict[str, str], shown: dict[str, str] | None) -> ssl.SSLContext:
    """Who trusts the authority of these settings, and shows the certificate of those, or none."""
    context = ssl.create_default_context(cafile=trusted["security.ssl.ca-file"])
    context.check_hostname = False
    if shown:
        context.load_cert_chain(shown["security.ssl.certificate-file"], shown["security.ssl.key-file"])
    return context


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("shows", ["the cluster's", "a stranger's", "none"])
def test_who_has_no_certificate_of_the_cluster_sees_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shows: str
) -> None:
    """A stranger's authority says of itself what it likes, the same names included."""
    ours, strangers = ({**Authority(made(tmp_path / name)).settings} for name in ("ours", "strangers"))
    shown = {"the cluster's": ours, "a stranger's": strangers, "none": None}[shows]
    with (
        serving(monkeypatch, 30.0, ours) as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
    ):
        answer = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # TLS 1.3 refuses a client after its handshake
            wrapped = client_of(ours, shown).wrap_socket(connection)
            wrapped.sendall(ASKED)
            answer = wrapped.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1") == (shows == "the cluster's")


def made(directory: Path) -> Path:
    """The directory, which is there now."""
    directory.mkdir()
    return directory


SECRET = "a secret of a cluster"
ID = b"a" * 32
NUMBERS = [
    b"/v1/jobs/" + ID + b"/checkpoints/details/" + b"9" * 5000,
    b"/v1/jobs/" + ID + b"/vertices/" + ID + b"/subtasks/" + b"9" * 5000,
    b"/api/jobs/" + ID + b"/checkpoints/" + b"9" * 5000 + b"/state",
]


@pytest.mark.parametrize("path", NUMBERS, ids=["checkpoint", "subtask", "state"])
def test_a_number_of_thousands_of_digits_is_one_answer(monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    """It is refused as any other number that there is not, and no traceback gets into the log."""
    vertex = pb.VertexDetails(vertex_id=ID.decode())
    answering(monkeypatch, GetJob=pb.JobDetails(vertices=[vertex]))
    with serving(monkeypatch, 10) as (port, lines):
        assert asked(port, b"GET " + path).startswith(b"HTTP/1.1 400 Bad Request")
    assert [] == lines.written


def test_what_the_page_breaks_at_is_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With who asked, at most once a second, and no traceback for each."""

    async def call(_stub: Any, method: str, *_arguments: Any) -> Any:
        if method == "ListJobs":
            return pb.ListJobsResponse()
        raise RuntimeError("broken")

    monkeypatch.setattr(CoordinatorStub, "call", call)
    with serving(monkeypatch, 10) as (port, lines):
        for _ in range(3):
            assert asked(port, b"GET /api/jobs/a").startswith(b"HTTP/1.1 500")
    assert [] == caplog.records
    message, context = lines.written[0]
    assert ("refused", "127.0.0.1", "/api/jobs/a") == (message, context["who"], context["path"])
    assert "the page breaks at it: RuntimeError: broken" == context["reason"]


def test_a_body_that_does_not_come_is_not_waited_for(page: tuple[int, Lines]) -> None:
    """Neither are the rest of its bytes."""
    said = b"POST /api/jobs/a/rescale HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Snapline: page\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", page[0]), timeout=30) as connection:
        connection.sendall(said)
        assert received(connection).startswith(b"HTTP/1.1 408")


def test_a_head_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many headers come in the seconds that it has, the connection ends at the bytes that one may have."""
    with (
        serving(monkeypatch, 30) as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(1 << 12):
            connection.sendall(b"a: " + b"b" * 1000 + b"\r\n")
        assert received(connection).startswith(b"HTTP/1.1 400")


def test_requests_that_wait_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends ever more requests and reads no answer took eight megabytes in half a minute, with each of its
    connections."""
    with (
        serving(monkeypatch, 30) as (port, lines),
        socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.sendall(ASKED * (1 << 20))
    assert "too many requests wait that came before the answer" in lines.written[0][1]["reason"]


def test_a_body_that_breaks_an_answer_off_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request without a body in the answer, whose own body is nonsense, wrote two of them, each time."""
    with serving(monkeypatch, 10) as (port, lines):
        for path in (b"/v1/config", b"/v1/openapi.json", b"/nothing"):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(
                    b"HEAD " + path + b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
                )
                received(connection)
    assert [] == caplog.records
    assert "what came to the page is no HTTP" == lines.written[0][1]["reason"]


def test_what_is_no_number_is_shown_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric of a user's function may be the mean of nothing, which JSON cannot say."""
    answering(monkeypatch, GetJob=pb.JobDetails(metrics=[job_pb2.MetricValue(name="mean", value=float("nan"))]))
    with serving(monkeypatch, 10) as (port, _):
        answer = asked(port, b"GET /api/jobs/a")
    assert answer.startswith(b"HTTP/1.1 200") and b'"value":null' in answer


def test_an_address_of_one_process_that_is_none_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever registers says where it is reached, and says what it likes."""
    shown = [pb.TaskManagerDetails(resource_id="a", exchange_address=f"h:{port}") for port in ("\u00b2", "9" * 5000)]
    answering(monkeypatch, ListTaskManagers=pb.ListTaskManagersResponse(task_managers=shown))
    with serving(monkeypatch, 10) as (port, _):
        answer = asked(port, b"GET /v1/taskmanagers")
    assert (True, 2) == (answer.startswith(b"HTTP/1.1 200"), answer.count(b'"dataPort":-1'))


LARGE = pb.JobDetails(vertices=[pb.VertexDetails(name="x" * 1000)] * 8000)


def unread(port: int, requests: int) -> socket.socket:
    """A connection that asks so often for a large answer, and reads nothing."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(b"GET /api/jobs/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * requests)
    return connection


def test_an_answer_that_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when another request waits behind it: 60 connections with two each held 295 MB for ever."""
    answering(monkeypatch, GetJob=LARGE)
    monkeypatch.setattr(page_connections, "ANSWER_SECONDS", 0.2, raising=False)
    with serving(monkeypatch, 0.2) as (port, lines), unread(port, 2):
        wait_until(lambda: any("not read" in each[1].get("reason", "") for each in lines.written), "a line in the log")


def test_answers_that_wait_to_be_read_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest one of the host that has most of them is closed before its time is over."""
    answering(monkeypatch, GetJob=LARGE)
    monkeypatch.setattr(page_connections, "MAX_UNREAD_BYTES", 1 << 20, raising=False)
    with serving(monkeypatch, 60) as (port, lines), unread(port, 1):
        wait_until(lambda: any("too much" in each[1].get("reason", "") for each in lines.written), "a line in the log")
        assert asked(port, b"GET /v1/config").startswith(b"HTTP/1.1 200")


def test_a_large_answer_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made on a thread; on the loop 60 answers of 4 MB had another client wait for 27 s."""
    begun, others_are_answered = threading.Event(), threading.Event()

    def slowly(message: Any) -> dict[str, Any]:
        begun.set()
        return {"others": others_are_answered.wait(10), "configuration": {}}

    answering(monkeypatch, GetJob=LARGE)
    monkeypatch.setattr(page_app, "message_as_dict", slowly)
    with serving(monkeypatch, 60) as (port, _), unread(port, 1) as connection:
        assert begun.wait(30)
        assert asked(port, b"GET /v1/config").startswith(b"HTTP/1.1 200")
        others_are_answered.set()
        answer = b""
        while b"others" not in answer:
            answer += connection.recv(1 << 16)
    assert b'"others":true' in answer


MANY_SUBTASKS = pb.VertexDetails(
    vertex_id=ID.decode(), subtasks=[pb.SubtaskDetails(subtask_index=n, records_in=n) for n in range(20_000)]
)
THEIR_CHECKPOINT = pb.VertexCheckpointDetails(
    vertex_id=ID.decode(),
    subtasks=[pb.SubtaskCheckpointDetails(subtask_index=n, acknowledge_timestamp_ms=n + 1) for n in range(20_000)],
)
CHECKPOINT = pb.CheckpointDetails(
    overview=pb.CheckpointOverview(status=pb.CHECKPOINT_STATUS_COMPLETED), vertices=[THEIR_CHECKPOINT]
)
METRICS = b"/v1/jobs/" + ID + b"/vertices/" + ID + b"/subtasks/metrics?"


def test_ranges_of_subtasks_are_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of 60 kB with ranges of 100,000 numbers stopped the server of the page for a minute."""
    answering(monkeypatch, GetJob=pb.JobDetails(vertices=[MANY_SUBTASKS]))
    ranges = b",".join([b"0-99999"] * 7_500)
    with serving(monkeypatch, 60) as (port, _):
        answer = asked(port, b"GET " + METRICS + b"agg=max&get=numRecordsIn&subtasks=" + ranges)
        of_none = asked(port, b"GET " + METRICS.replace(ID + b"/sub", b"b" * 32 + b"/sub") + b"subtasks=" + ranges)
    assert answer.endswith(b'[{"id":"numRecordsIn","max":19999.0}]')
    assert of_none.startswith(b"HTTP/1.1 404")


def test_a_figure_that_is_asked_for_often_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with 5,500 times the same name took 17.7 s for 20,000 subtasks."""
    answering(monkeypatch, GetJob=pb.JobDetails(vertices=[MANY_SUBTASKS]))
    of_vertex = METRICS.replace(b"/subtasks", b"")
    with serving(monkeypatch, 60) as (port, _):
        answer = asked(port, b"GET " + METRICS + b"agg=min&get=" + b"numRecordsIn," * 4_000)
        of_first = asked(port, b"GET " + of_vertex + b"get=" + b"1.numRecordsIn," * 4_000)
    assert answer.endswith(b'\r\n\r\n[{"id":"numRecordsIn","min":0.0}]')
    assert of_first.endswith(b'\r\n\r\n[{"id":"1.numRecordsIn","value":"1"}]')


@pytest.mark.parametrize(
    ("path", "translates"),
    [
        (b"/v1/jobs/" + ID, (flink_jobs, "job_plan")),
        (b"/v1/jobs/" + ID + b"/vertices/" + ID + b"/taskmanagers", (flink_jobs, "_io_metrics")),
        (METRICS.replace(b"/subtasks", b""), (flink_cluster, "vertex_figures")),
        (METRICS, (flink_cluster, "aggregated")),
        (b"/v1/jobs/" + ID + b"/checkpoints/details/1", (flink_checkpoints, "_task")),
        (b"/v1/jobs/" + ID + b"/checkpoints/details/1/subtasks/" + ID, (flink_checkpoints, "_task")),
    ],
    ids=["job", "taskmanagers", "vertex metrics", "subtask metrics", "checkpoint", "checkpoint of a vertex"],
)
def test_a_large_answer_of_flinks_api_is_made_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, path: bytes, translates: tuple[Any, str]
) -> None:
    """Of 20,000 subtasks they took up to three seconds, in which nobody else was answered."""
    threads: list[str] = []
    translate = getattr(*translates)

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return translate(*arguments)

    overview = pb.JobOverview(status=job_pb2.JOB_STATUS_RUNNING)
    job = pb.JobDetails(overview=overview, vertices=[MANY_SUBTASKS])
    answering(monkeypatch, GetJob=job, GetCheckpoint=CHECKPOINT)
    monkeypatch.setattr(*translates, watched)
    with serving(monkeypatch, 60) as (port, _):
        assert asked(port, b"GET " + path).startswith(b"HTTP/1.1 200")
    assert threads
    assert all(name.startswith("asyncio_") for name in threads)


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    """Let the coordinator give these answers."""

    async def call(_stub: Any, method: str, *_arguments: Any) -> Any:
        return answers.get(method, pb.ListJobsResponse())

    monkeypatch.setattr(CoordinatorStub, "call", call)


def asked(port: int, line: bytes, token: str = "") -> bytes:
    """The whole answer to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        header = f"Authorization: Bearer {token}\r\n".encode() if token else b""
        connection.sendall(line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + header + b"\r\n")
        return received(connection)


def test_a_page_with_a_credential_takes_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can check no other, and let nobody in: `snapline ui` with the settings of a client asked for a token, and
    refused each."""
    own, other = (sign_credential(SECRET, Identity(Role.CLIENT, name=name)) for name in ("", "other"))
    answering(monkeypatch)
    with serving(monkeypatch, 10, {"security.auth.token": own}) as (port, _):
        said = [asked(port, b"GET /api/jobs", given) for given in (own, other, SECRET, "")]
    assert [b"200", b"401", b"401", b"401"] == [each.split()[1] for each in said]
