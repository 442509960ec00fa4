"""The last lines that a process has written, whoever wrote them: its log, warnings, and what functions print.

Kept in memory, so that a client reads them through the coordinator from an executor whose files nobody can reach.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

MAX_LINES = 2000
"""A process keeps so many."""
MAX_LINE = 4000
"""Characters of a line; of a longer one the end is left out."""
MAX_CHARACTERS = 500_000
"""What is said at a time, so that it fits into a message."""


class RecentOutput:
    """A context manager: within it, what is written to `sys.stdout` and `sys.stderr` is also kept. Thread-safe.

    >>> with RecentOutput() as recent:
    ...     print("a line")
    a line
    >>> recent.tail(10)
    ('a line',)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._replaced: tuple[TextIO, TextIO] | None = None

    def __enter__(self) -> RecentOutput:
        """Return this, which listens to both streams from now on."""
        self._replaced = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Heard(sys.stdout, self), _Heard(sys.stderr, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put the streams back as they were."""
        if self._replaced is not None:
            sys.stdout, sys.stderr = self._replaced

    def keep(self, lines: list[str]) -> None:
        """Keep these lines, in place of the oldest; halves of characters, which no message carries, are spelled out."""
        cut = (line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..." for line in lines)
        with self._lock:
            self._lines.extend(line.encode(errors="backslashreplace").decode() for line in cut)

    def tail(self, count: int) -> tuple[str, ...]:
        """Return the last lines, the oldest first: at most so many, and no more than fit into a message."""
        with self._lock:
            lines = list(self._lines)[-count:] if count > 0 else []
        return last_lines(lines, MAX_CHARACTERS)


def last_lines(lines: Sequence[str], room: int) -> tuple[str, ...]:
    """Return the last of the lines that have so many characters together, at most."""
    first = len(lines)
    while first and (room := room - len(lines[first - 1])) >= 0:
        first -= 1
    return tuple(lines[first:])


class _Heard:
    """A stream that says each whole line to somebody else as well."""

    def __init__(self, stream: TextIO, recent: RecentOutput) -> None:
        self._stream = stream
        self._recent = recent
        self._begun = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Write it, and keep the lines that end with it, also where they cannot be written, as on a full disk."""
        with suppress(OSError):
            self._stream.write(text)
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            self._begun = self._begun[-MAX_LINE:]
            if lines:
                self._recent.keep(lines)
        return len(text)

    def flush(self) -> None:
        """Let what waits be written, if it can be."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)
