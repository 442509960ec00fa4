"""Looking at this process's own sockets."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapline.runtime.rpc.tcp_connections import (
    connect_error,
    family_of,
    is_free,
    notice_lost_hosts,
    reset_connections,
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_connections_to_a_port_are_ended_and_others_are_not(listener: socket.socket) -> None:
    """Both ends see the end; the listener goes on; no descriptor is left."""
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as served,
        socket.create_connection(other.getsockname()) as other_client,
        other.accept()[0] as other_served,
        open(os.devnull, "rb"),  # noqa: PTH123
    ):
        assert reset_connections(port_of(listener)) == 1

        assert served.recv(1) == b""
        assert client.recv(1) == b""
        other_served.sendall(b"x")
        assert other_client.recv(1) == b"x"
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == descriptors
    assert connect_error("127.0.0.1", port_of(listener), time.monotonic() + 5, lambda: False) == ""


def test_the_kernel_watches_the_connection_of_one_peer(listener: socket.socket) -> None:
    """Keep-alive is on for it, and for no other."""
    with (
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as served,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as unwatched,
    ):
        notice_lost_hosts(port_of(listener), client.getsockname()[1])

        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0
        assert unwatched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_the_kernel_watches_connections_to_a_server(listener: socket.socket) -> None:
    """Whichever port they have at this end; those to other servers are left alone."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_connection(listener.getsockname()) as client,
        socket.create_connection(other.getsockname()) as unwatched,
    ):
        notice_lost_hosts(0, port_of(listener))

        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert unwatched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_a_port_is_free_or_not(listener: socket.socket) -> None:
    """By trying."""
    assert not is_free("127.0.0.1", port_of(listener))
    port = port_of(listener)
    listener.close()
    assert is_free("127.0.0.1", port)


def test_why_nobody_can_be_reached() -> None:
    """Refused, unknown, and given up because it is not wanted any more."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert connect_error("127.0.0.1", port_of(bound), time.monotonic() + 5, lambda: False) == "Connection refused"
    for unknown in ("no-such-host.invalid", "no..host"):
        assert "unknown host" in connect_error(unknown, 1, time.monotonic() + 5, lambda: False)


def test_a_host_that_does_not_answer_is_given_up(listener: socket.socket) -> None:
    """At the deadline, or when nobody is interested any more. A full backlog does not answer."""
    listener.listen(0)
    waiting = []
    for _ in range(3):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(listener.getsockname())
        waiting.append(connection)

    late = connect_error("127.0.0.1", port_of(listener), time.monotonic(), lambda: False)
    unwanted = connect_error("127.0.0.1", port_of(listener), time.monotonic() + 60, lambda: True)

    for connection in waiting:
        connection.close()
    assert (late, unwanted) == ("no answer", "given up")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([socket.AF_INET6], socket.AF_INET6),
        ([socket.AF_INET6, socket.AF_INET], socket.AF_INET),
        ([], socket.AF_INET),
    ],
)
def test_a_name_that_has_no_other_address_is_listened_on_by_ipv6(
    monkeypatch: pytest.MonkeyPatch, found: list[socket.AddressFamily], expected: socket.AddressFamily
) -> None:
    """In a cluster that has IPv6 alone, a coordinator did not start under the name of its pod."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(family, 1, 6, "", ()) for family in found])
    assert family_of("here.example") == expected
