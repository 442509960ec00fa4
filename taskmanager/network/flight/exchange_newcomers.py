"""The thread that closes connections to a data server on which nobody has been let in.

Flight bounds neither connections nor what it reads of a call before anybody looks at its token: a gigabyte each. So the
process looks at its own sockets. What is decided is in `snapline.runtime.cores.newcomers`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from urllib.parse import unquote

from snapline.runtime.cores.newcomers import Newcomers, SeenConnection
from snapline.runtime.rpc.tcp_connections import connections

LOOK_SECONDS = 0.5
FULL_LOOK_SECONDS = 15.0
"""How often is looked even when no connection seems to have come."""
_BYTES_RECEIVED = 128
"""Where it lies in Linux' `struct tcp_info`."""


class ExchangeNewcomers:
    """Closes newcomers of one port. `start` it, and `stop` it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._newcomers = Newcomers()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exchange-newcomers", daemon=True)

    def start(self) -> None:
        """Start the thread, which looks from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self._stopped.set()
        self._thread.join()

    def let_in(self, peer: str) -> None:
        """Note that a call was let in, of what gRPC calls a peer."""
        host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
        if port.isdecimal():
            with self._lock:  # a look that has begun does not know this connection, and would forget it
                self._newcomers.let_in(host.strip("[]"), int(port))

    def _run(self) -> None:
        looked, last = 0, -FULL_LOOK_SECONDS
        before: int | None = None
        while not self._stopped.wait(LOOK_SECONDS):
            following, now = _following_file(), time.monotonic()
            if looked or following is None or following != before or now - last >= FULL_LOOK_SECONDS:
                looked, last = self.look(now), now
            before = following

    def look(self, now_s: float) -> int:
        """Close what is to be closed now. Returns how many newcomers there were."""
        with self._lock:
            seen = {}
            for each in connections(self._port):
                with contextlib.suppress(OSError):  # it has ended
                    seen[os.fstat(each.fileno()).st_ino] = _seen(each)
            unwelcome = set(self._newcomers.unwelcome(seen, now_s))
            newcomers = self._newcomers.number
        for each in connections(self._port) if unwelcome else ():
            with contextlib.suppress(OSError):
                if os.fstat(each.fileno()).st_ino in unwelcome:
                    each.shutdown(socket.SHUT_RDWR)
        return newcomers


def _following_file() -> int | None:
    """The number that the next connection is going to get: another one than before where one has come. None: there is
    none left."""
    try:
        file = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None
    os.close(file)
    return file


def _seen(connection: socket.socket) -> SeenConnection:
    host, port = connection.getpeername()[:2]
    received = 0
    if hasattr(socket, "TCP_INFO"):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) >= _BYTES_RECEIVED + 8:
            (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
    return SeenConnection(host.removeprefix("::ffff:"), port, received)
