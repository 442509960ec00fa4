"""What a server keeps of its senders' limits: the log of what it refuses, and the number of connections of each host.

gRPC bounds the connections of all together (`rpc_server`), and has nothing for one host. So a thread looks at this
process's own sockets every few seconds, and only when there are more than one host may have. What is decided is in
`snapline.runtime.cores.senders`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from snapline.runtime.cores.senders import MAX_CONNECTIONS, NEWS_AT_ONCE, RefusedSenders, surplus_connections
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.tcp_connections import connections

LOOK_SECONDS = 2.0


class RefusalLog:
    """One line about each sender a second at most; of streams that come and go, a few more at once. Used by one thread
    at a time."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._senders = RefusedSenders()
        self._streams = RefusedSenders(NEWS_AT_ONCE)

    def write(self, sender: str, reason: str, **details: Any) -> None:
        """Log what was refused, and why."""
        untold = self._senders.note(sender, time.monotonic())
        if untold is not None:
            self._logger.warning("refused", who=sender, reason=reason, not_logged_before=untold, **details)

    def note_stream(self, sender: str, log: Callable[..., Any], event: str, **details: Any) -> None:
        """Log by `log` what became of a stream of this sender."""
        untold = self._streams.note(sender, time.monotonic())
        if untold is not None:
            log(event, **details, **({"not_logged_before": untold} if untold else {}))


class ConnectionLimits:
    """Closes what one host has too many of. `start` it, and `stop` it."""

    def __init__(self, port: int, logger: Logger, most: int = MAX_CONNECTIONS, look_s: float = LOOK_SECONDS) -> None:
        self._port = port
        self._logger = logger
        self._most = most
        self._look_s = look_s
        self._known: set[int] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapline-connections", daemon=True)

    def start(self) -> None:
        """Start the thread, which looks from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._look_s):
            with contextlib.suppress(OSError):  # no file is left to look with; the next look may have one
                if len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")) > self._most:  # noqa: PTH112, PTH208
                    self.close_surplus()

    def close_surplus(self) -> None:
        """Look once, and close the newest connections of each host that has too many."""
        hosts = {}
        for each in connections(self._port):
            with contextlib.suppress(OSError):  # it has ended
                hosts[os.fstat(each.fileno()).st_ino] = each.getpeername()[0].removeprefix("::ffff:")
        surplus = set(surplus_connections(hosts, self._known, self._most))
        self._known = hosts.keys() - surplus
        if not surplus:
            return
        for each in connections(self._port):
            with contextlib.suppress(OSError):
                if os.fstat(each.fileno()).st_ino in surplus:
                    each.shutdown(socket.SHUT_RDWR)
        self._logger.warning(
            "connections closed", hosts=sorted({hosts[each] for each in surplus}), closed=len(surplus), most=self._most
        )
