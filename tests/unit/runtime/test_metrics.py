"""Metrics as Prometheus gets them."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime import metrics_endpoint
from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from snapline.runtime.logs import silent_logger
from snapline.runtime.metrics import Kind, MetricsServer, Sample
from snapline.runtime.rpc.security import Security
from tests.services.certificates import Authority, why_not
from tests.services.cluster import wait_until


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def served():
    samples: list[Any] = []
    server = MetricsServer(lambda: [s() if callable(s) else s for s in samples], silent_logger())
    port = server.start("127.0.0.1", 0)
    yield samples, port
    server.stop()


def test_names_are_flinks(served):
    """Scope, name and labels, read at the moment of the scrape."""
    samples, port = served
    for number, job in enumerate(("a", "b"), 1):
        samples.append(Sample("jobmanager_job", "numberOfCompletedCheckpoints", number, {"job_id": job}))
    text = scrape(port)
    assert 'snapline_jobmanager_job_numberOfCompletedCheckpoints{job_id="a"} 1.0' in text
    assert 'snapline_jobmanager_job_numberOfCompletedCheckpoints{job_id="b"} 2.0' in text
    assert text.count("# TYPE snapline") == 1


def test_a_counter_is_one_and_everything_has_help(served):
    """Kinds and sentences are the sample's; figures of the process are there as well."""
    samples, port = served
    samples.append(Sample("jobmanager_job", "numRestarts", 3, {"job_id": "a"}, Kind.COUNTER, "How often."))
    text = scrape(port)
    assert "# HELP snapline_jobmanager_job_numRestarts_total How often." in text
    assert "# TYPE snapline_jobmanager_job_numRestarts_total counter" in text
    assert 'snapline_jobmanager_job_numRestarts_total{job_id="a"} 3.0' in text
    assert "process_cpu_seconds_total" in text


def test_a_source_that_fails_gives_an_empty_page(served):
    """Not an error page: Prometheus would drop the target."""
    samples, port = served
    samples.append(lambda: 1 / 0)
    assert "snapline" not in scrape(port)


def test_a_taken_port_is_one_clear_line(served):
    """With the way out."""
    _samples, port = served
    with pytest.raises(SnaplineError, match=f"cannot serve metrics on 127.0.0.1:{port}: Address already in use"):
        MetricsServer(list, silent_logger()).start("127.0.0.1", port)


def test_a_number_that_is_no_port_is_one_clear_line():
    """A port of six digits is refused like one that is taken, and no error of Python's sockets."""
    with pytest.raises(
        SnaplineError, match=r"cannot serve metrics on 127.0.0.1:99999: .*; choose another --metrics-port"
    ):
        MetricsServer(list, silent_logger()).start("127.0.0.1", 99999)


def test_half_requests_take_no_more_than_their_share(monkeypatch):
    """A hundred connections that say nothing: so many as are served at a time are held, each for its time, and the rest
    is closed at once. When the time of these is over, Prometheus is answered."""
    monkeypatch.setattr(metrics_endpoint, "REQUEST_SECONDS", 0.3)
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    port = server.start("127.0.0.1", 0)
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for each in silent:
        each.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
    most = 0
    for each in silent:
        most = max(most, threading.active_count() - before)
        try:
            while each.recv(1 << 10):
                pass
        except ConnectionResetError:
            pass
        each.close()

    assert most <= metrics_endpoint.MAX_CONNECTIONS
    assert "snapline_jobmanager_one 1.0" in scrape(port)
    server.stop()


def test_a_request_that_comes_byte_by_byte_is_not_waited_for(monkeypatch):
    """Sixteen of them kept Prometheus out for as long as they liked."""
    monkeypatch.setattr(metrics_endpoint, "REQUEST_SECONDS", 0.3)
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    with socket.create_connection(("127.0.0.1", server.start("127.0.0.1", 0)), timeout=0.05) as slow:
        ended = False
        while not ended:
            try:
                slow.sendall(b"G")
                ended = not slow.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
    server.stop()


@pytest.mark.parametrize(
    "accepted",
    ["application/openmetrics-text; version=abc", "text/plain; version=\xff", "text/plain; version=9" * 2000],
)
def test_a_version_that_is_none_is_one_line_to_who_asks(served, capsys, accepted):
    """Each was a traceback in the log, of anybody who reaches the port. Older libraries look at no version."""
    _samples, port = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics", headers={"Accept": accepted})
    answer = connection.getresponse()
    refused, said = answer.status == 400, answer.read()
    assert said == b"the request makes no sense: TypeError\n" if refused else said.startswith(b"# HELP")
    connection.close()
    assert capsys.readouterr().err == ""


def test_a_figure_that_cannot_be_written_is_told_to_the_operator():
    """It is a bug of whoever made it, not of whoever asks: it was a 400 without a line anywhere."""
    told = []
    logger: Any = SimpleNamespace(warning=lambda message, **more: told.append((message, more["reason"])))
    server = MetricsServer(lambda: [Sample("jobmanager", "one", "no number")], logger)  # type: ignore[arg-type]
    port = server.start("127.0.0.1", 0)
    with pytest.raises(urllib.error.HTTPError, match="500"):
        scrape(port)
    server.stop()
    ((message, reason),) = told
    assert (message, "snapline_jobmanager_one" in reason) == ("metrics could not be written", True)


def test_who_reads_no_answer_leaves_nothing_in_the_log(monkeypatch, capsys):
    """It was a traceback of twenty lines for each."""
    monkeypatch.setattr(metrics_endpoint, "REQUEST_SECONDS", 0.3)
    many = [Sample("jobmanager", "one", 1, {"name": f"{number:0100}"}) for number in range(30_000)]
    server = MetricsServer(lambda: many, silent_logger())
    port = server.start("127.0.0.1", 0)
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        slow.recv(1)
        wait_until(lambda: threading.active_count() <= before, "the end of its thread")
    server.stop()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "expected"), [("evil.example", 403), ("localhost:9249", 200), ("127.0.0.1", 200), ("[::1]:9249", 200)]
)
def test_a_name_that_a_site_makes_point_here_is_refused_on_loopback(served, host, expected):
    """A page elsewhere on the web would read the figures through the browser of whoever looks at it."""
    _samples, port = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics", headers={"Host": host})
    assert connection.getresponse().status == expected
    connection.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the machine has no IPv6")
def test_the_address_of_a_coordinator_may_be_of_ipv6() -> None:
    """Its host stands in brackets before a port, and sockets take it without them."""
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    port = server.start("[::1]", 0)
    with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=10) as answer:
        assert b"snapline_jobmanager_one 1.0" in answer.read()
    server.stop()


def test_nobody_is_asked_what_the_address_is_called(monkeypatch):
    """A server of names that does not answer held up a coordinator that was to lead, until it was given up."""

    def ask(*_):
        pytest.fail("it was asked")

    monkeypatch.setattr(socket, "getfqdn", ask)
    monkeypatch.setattr(socket, "gethostbyaddr", ask)
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    assert "snapline_jobmanager_one 1.0" in scrape(server.start("127.0.0.1", 0))
    server.stop()


def test_one_host_leaves_others_their_share(monkeypatch):
    """Half of the connections are for somebody else, however many it opens."""
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    port = server.start("127.0.0.1", 0)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    wait_until(
        lambda: sum(is_closed(each) for each in held) == 40 - metrics_endpoint.MAX_OF_HOST, "the rest to be closed"
    )
    with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0), timeout=30) as other:
        other.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert other.recv(12) == b"HTTP/1.0 200"
    for each in held:
        each.close()
    server.stop()


def is_closed(connection):
    """Whether the other side has closed it."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_connections_that_found_no_file_left_are_not_counted_for_ever(monkeypatch):
    """A process that is out of files answers none of them, and all that come when it has some again."""
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    port = server.start("127.0.0.1", 0)

    def no_file(self):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as without_files:
        without_files.setattr(socket.socket, "dup", no_file)
        for _ in range(metrics_endpoint.MAX_OF_HOST):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                assert connection.recv(1) == b""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"snapline_jobmanager_one 1.0" in answer.read()
    server.stop()


def test_connections_that_found_no_thread_left_are_not_counted_for_ever(monkeypatch):
    """Whoever asks when the process can start threads again is answered."""
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger())
    port = server.start("127.0.0.1", 0)

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", no_thread)
        for _ in range(metrics_endpoint.MAX_OF_HOST):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                assert connection.recv(1) == b""
    assert "snapline_jobmanager_one 1.0" in scrape(port)
    server.stop()


def test_metrics_ask_for_what_the_cluster_asks_for():
    """The token, or a client's credential; neither none nor a TaskManager's."""
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger(), security=Security("secret"))
    port = server.start("127.0.0.1", 0)

    def status(token: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            return urllib.request.urlopen(request, timeout=10).status
        except urllib.error.HTTPError as error:
            return error.code

    shown = [
        "secret",
        sign_credential("secret", Identity(Role.CLIENT)),
        "",
        sign_credential("secret", Identity(Role.TASK_MANAGER)),
    ]
    assert [200, 200, 401, 403] == [status(token) for token in shown]
    server.stop()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_metrics_are_encrypted_when_everything_is(tmp_path):
    """Both sides show a certificate of the cluster; whoever has none gets nothing."""
    authority = Authority(tmp_path)
    security = Security.from_configuration(Configuration(authority.settings))
    server = MetricsServer(lambda: [Sample("jobmanager", "one", 1)], silent_logger(), security=security)
    port = server.start("127.0.0.1", 0)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with pytest.raises(OSError):
        urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", timeout=10, context=context).read()

    context.load_cert_chain(tmp_path / "node.pem", tmp_path / "node.key")
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", timeout=10, context=context) as answer:
        assert b"snapline_jobmanager_one 1.0" in answer.read()
    server.stop()


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_who_reads_an_answer_slowly_under_tls_has_one_deadline(tmp_path, monkeypatch):
    """Each record of TLS had a time of its own, so that a byte now and then held a thread for ever."""
    monkeypatch.setattr(metrics_endpoint, "REQUEST_SECONDS", 60.0)
    monkeypatch.setattr(metrics_endpoint, "CONNECTION_SECONDS", 2.0, raising=False)
    security = Security.from_configuration(Configuration(Authority(tmp_path).settings))
    many = [Sample("jobmanager", "one", 1, {"name": f"{number:0100000}"}) for number in range(80)]
    server = MetricsServer(lambda: many, silent_logger(), security=security)
    port = server.start("127.0.0.1", 0)
    before = threading.active_count()
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "node.pem", tmp_path / "node.key")
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert slow.recv(1) == b"H"
            wait_until(lambda: threading.active_count() <= before, "the end of its thread")
    server.stop()
