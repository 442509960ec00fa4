"""What gRPC does not offer and the exchange needs: to end connections whose peer does not answer any more, and to look
whether somebody listens before a call that cannot be interrupted.

Works on this process's own sockets by their port: `shutdown` on a connection makes gRPC see a lost peer at once, on any
thread, whatever state that peer is in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import time
from collections.abc import Callable, Iterator

_FD_DIRECTORIES = ("/proc/self/fd", "/dev/fd")
_POLL_MS = 50

KEEPALIVE_IDLE_SECONDS = 15
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_PROBES = 5
USER_TIMEOUT_MS = 40_000
"""A host that vanished without a word is noticed within about this time, idle or not."""


def _sockets(local_port: int) -> Iterator[socket.socket]:
    """Own TCP sockets with this local port, 0: with any; each is closed again after its turn (a duplicate)."""
    directory = next((name for name in _FD_DIRECTORIES if os.path.isdir(name)), None)  # noqa: PTH112 (one stat)
    for name in os.listdir(directory) if directory else ():  # noqa: PTH208 (names, not paths)
        found = _duplicate(int(name))
        if found is None:
            continue
        with found:
            try:
                is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
                is_ours = is_tcp and local_port in {0, found.getsockname()[1]}
            except OSError:
                continue
            if is_ours:
                yield found


def connections(local_port: int) -> Iterator[socket.socket]:
    """Yield those of them that are connected."""
    for found in _sockets(local_port):
        with contextlib.suppress(OSError):  # listening, or not connected any more
            if found.getpeername():
                yield found


def stop_listening(local_port: int) -> None:
    """Let another server listen on the port at once: who listens there now takes no more connections, and keeps those
    that it has."""
    for found in _sockets(local_port):
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


def _duplicate(descriptor: int) -> socket.socket | None:
    """Another handle of the same socket; None when it is none, or closed meanwhile."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


def reset_connections(local_port: int, peer_port: int = 0) -> int:
    """End all connections to a port that this process listens on, or those from a port of a peer alone. Returns how
    many there were."""
    count = 0
    for connection in connections(local_port):
        try:
            if peer_port and connection.getpeername()[1] != peer_port:
                continue
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError:
            continue
    return count


def notice_lost_hosts(local_port: int, peer_port: int) -> None:
    """Have the kernel end the connection between these ports when its other end does not acknowledge any more.
    `local_port`: 0: of this end it may be any."""
    for connection in connections(local_port):
        with contextlib.suppress(OSError):  # it has ended
            if connection.getpeername()[1] != peer_port:
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (
                ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
                ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
                ("TCP_KEEPCNT", KEEPALIVE_PROBES),
                ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
            ):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def family_of(host: str) -> socket.AddressFamily:
    """That in which to listen at this host: IPv6 for an address of it, and for a name that has no other one.

    >>> family_of("127.0.0.1"), family_of("[::1]")
    (<AddressFamily.AF_INET: 2>, <AddressFamily.AF_INET6: 10>)
    """
    if ":" in host:
        return socket.AF_INET6
    with contextlib.suppress(OSError, UnicodeError):  # whoever listens there says what is wrong with the name
        if {each[0] for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)} == {socket.AF_INET6}:
            return socket.AF_INET6
    return socket.AF_INET


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens on this port. gRPC would share it with another process of the same user, silently."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def connect_error(host: str, port: int, deadline: float, stopped: Callable[[], bool]) -> str:
    """Empty when somebody accepts connections there, else why not. Returns soon after `stopped()`, and at the deadline
    (`time.monotonic`) when the host does not answer at all."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter: it can be no name
        return f"unknown host: {error}"
    failure = "no address"
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            failure = _connect(probe, address, deadline, stopped)
        if not failure:
            break
    return failure


def _connect(probe: socket.socket, address: object, deadline: float, stopped: Callable[[], bool]) -> str:
    probe.setblocking(False)
    code = probe.connect_ex(address)  # type: ignore[arg-type]
    if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EINTR):
        poll = select.poll()
        poll.register(probe, select.POLLOUT)
        while not poll.poll(_POLL_MS):
            if stopped():
                return "given up"
            if time.monotonic() >= deadline:
                return "no answer"
        code = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return os.strerror(code) if code else ""
