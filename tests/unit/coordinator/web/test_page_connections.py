"""Who reaches the page and does not ask properly takes nothing from the others, or from the coordinator."""

from __future__ import annotations

import functools
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from snapline.coordinator.web import page_connections
from snapline.coordinator.web.page_server import PageServer
from snapline.dataflow.config import Configuration
from tests.services.cluster import wait_until


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, Any]]] = []

    def warning(self, message: str, **context: Any) -> None:
        self.written.append((message, context))


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, request_s: float) -> Iterator[tuple[int, Lines]]:
    """The port of a page that waits so long for a request and lets one host have eight connections, and its log."""
    timed = functools.partial(page_connections.timed_protocol, request_s=request_s)
    monkeypatch.setattr(page_connections, "timed_protocol", timed)
    monkeypatch.setattr(page_connections, "MAX_CONNECTIONS", 8)
    lines = Lines()
    server = PageServer(Configuration({}), lambda: "127.0.0.1:1", lines)  # type: ignore[arg-type]
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
