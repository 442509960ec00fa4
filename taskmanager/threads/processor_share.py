"""Which processors of its host a TaskManager uses: a share of its own, while others work there, too.

Python has one lock, which threads of a process hand to each other thousands of times a second. Between threads on one
processor, handing it over is a switch of threads. Between processors it is an interrupt, with cold caches on the other
side, and the thread that gets it may have to wait for another process there. Linux moves a thread that wakes to a
processor that is idle, so that the threads of a process are on several of them most of the time. Where every
TaskManager of a host works on processors of its own, rows are handed on in half the time, and no processor is left
idle, because the other TaskManagers use the rest.

A TaskManager that has tasks says so by a name in the abstract names of Linux' sockets, which each network namespace has
for itself and which end with the process. Everybody looks at all names and divides the processors in the same way, so
that nobody has to be asked. A TaskManager that is alone uses all of them, and so do all when there are more of them
than processors. Where a process is not allowed all processors of its host from the beginning, somebody has decided that
already, and it stays as it is.

`shares` decides, `ProcessorShare` is the shell, and `LinuxHost` asks the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from snapline.runtime.clock import Clock
from snapline.runtime.logs import Logger
from snapline.runtime.timers import TimerScheduler

LOOK_MS = 2_000
"""How often a TaskManager that has tasks looks who else has some."""
MAX_SLOTS_SAID = 9_999
MAX_BYTES_OF_NAMES = 4 << 20
"""So much is read of the host's list of sockets; on a host with more nobody is found, and all processors are used."""
_PREFIX = "snapline-processors/"
_NAME = re.compile(_PREFIX + "([1-9][0-9]{0,3})/")
_SOCKETS = Path("/proc/net/unix")
_THREADS = Path("/proc/self/task")


def shares(slots: Mapping[str, int], processors: Sequence[int]) -> dict[str, list[int]]:
    """The processors of each TaskManager, by the slots that each of them has: one at least, and the rest in proportion.
    Empty when there is nothing to divide: one TaskManager, or more than processors.

    >>> shares({"a": 1, "b": 1}, [0, 1, 2, 3])
    {'a': [0, 1], 'b': [2, 3]}
    >>> shares({"a": 1, "b": 5}, [0, 1, 2, 3])
    {'a': [0], 'b': [1, 2, 3]}
    >>> shares({"a": 1}, [0, 1]), shares({"a": 1, "b": 1, "c": 1}, [0, 1])
    ({}, {})
    """
    spare = len(processors) - len(slots)
    if len(slots) < 2 or spare < 0:
        return {}
    total, before, start = sum(slots.values()), 0, 0
    divided = {}
    for position, name in enumerate(sorted(slots), start=1):
        before += slots[name]
        end = position + spare * before // total
        divided[name] = list(processors[start:end])
        start = end
    return divided


class ProcessorHost(Protocol):
    """What has to be known and done about processors, names and threads."""

    @property
    def processors(self) -> Sequence[int]:
        """Those that this process may use; empty: they cannot be chosen, or somebody has chosen already."""
        ...

    def announce(self, name: str) -> bool:
        """Show this name to all processes of the host; whether that is possible."""
        ...

    def withdraw(self) -> None:
        """Show the name no more, if there is one."""
        ...

    def names(self) -> Sequence[str]:
        """Return all that are shown, this process' included."""
        ...

    def bind(self, processors: Sequence[int]) -> None:
        """Let all threads of the process, and those that they start, run on these alone. Raises OSError when they
        cannot be listed."""
        ...


class LinuxHost:
    """The machine, as Linux shows it. Does nothing on other systems."""

    def __init__(self) -> None:
        """Looks what is allowed, before anything is bound."""
        allowed = sorted(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else []
        self.processors: Sequence[int] = allowed if len(allowed) == os.cpu_count() else []
        self._shown: socket.socket | None = None

    def announce(self, name: str) -> bool:
        """Bind a socket that nobody connects to."""
        self.withdraw()
        try:
            shown = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:  # there is no file left
            return False
        try:
            shown.bind(f"\0{name}")
        except OSError:  # it is shown already
            shown.close()
            return False
        self._shown = shown
        return True

    def withdraw(self) -> None:
        """Close the socket, which ends the name."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def names(self) -> Sequence[str]:
        """Return the abstract names of TaskManagers, from the kernel's list of sockets."""
        with contextlib.suppress(OSError), _SOCKETS.open("rb") as listed:
            content = listed.read(MAX_BYTES_OF_NAMES + 1)
            if len(content) <= MAX_BYTES_OF_NAMES:
                marked = f" @{_PREFIX}".encode()
                lines = (line.partition(marked) for line in content.splitlines())
                return [_PREFIX + name.decode(errors="replace") for _, found, name in lines if found]
        return []

    def bind(self, processors: Sequence[int]) -> None:
        """Bind every thread there is; a new one has its maker's. Arrow counts processors once, at its first use, and
        then has as many threads for ever: so it counts before."""
        pa.cpu_count()
        for thread in _THREADS.iterdir():
            with contextlib.suppress(OSError):  # it has ended, or the processors have gone
                os.sched_setaffinity(int(thread.name), processors)


class ProcessorShare:
    """The share of one TaskManager, as long as it has tasks. Thread-safe."""

    def __init__(
        self,
        slots: int,
        timers: TimerScheduler,
        clock: Clock,
        has_tasks: Callable[[], bool],
        logger: Logger,
        host: ProcessorHost,
    ) -> None:
        """`slots`: how large the share is beside others'. Does nothing before `work`."""
        self._name = f"{_PREFIX}{min(slots, MAX_SLOTS_SAID)}/{secrets.token_hex(8)}"
        self._timers = timers
        self._clock = clock
        self._has_tasks = has_tasks
        self._logger = logger
        self._host = host
        self._lock = threading.Lock()
        self._works = False
        self._closed = False
        self._all = list(host.processors)
        self._bound = self._all

    def work(self) -> None:
        """A task starts: take a share, and look from now on who else does, until there is no task."""
        with self._lock:
            if self._works or self._closed or len(self._all) < 2:
                return
            self._works = self._host.announce(self._name)
            if self._works:
                self._look()

    def close(self) -> None:
        """Use all processors again. Idempotent."""
        with self._lock:
            self._closed = True
            self._rest()

    def _again(self) -> None:
        """The timer has fired: look again, or rest."""
        with self._lock:
            if self._works and self._has_tasks():
                self._look()
            else:
                self._rest()

    def _look(self) -> None:
        slots = dict(filter(None, map(_slots_of, self._host.names())))
        self._bind(shares(slots, self._all).get(self._name, self._all))
        self._timers.schedule(self._clock.now_ms() + LOOK_MS, self._again)

    def _rest(self) -> None:
        self._works = False
        self._host.withdraw()
        self._bind(self._all)

    def _bind(self, processors: list[int]) -> None:
        if processors != self._bound:
            try:
                self._host.bind(processors)
            except OSError:  # there is no file left to list the threads by: the next look does it
                return
            self._bound = processors
            self._logger.info("TaskManager uses processors", processors=processors, of=len(self._all))


def _slots_of(name: str) -> tuple[str, int] | None:
    """The name with the slots that it says; None for what no TaskManager shows."""
    said = _NAME.match(name)
    return (name, int(said[1])) if said else None
