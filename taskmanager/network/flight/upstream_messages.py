"""What the consumers of one stream say to its producers, in order, written by whoever finds nobody writing.

A write lets go of Python's lock and waits to get it back, behind every task that computes: milliseconds where many
tasks share a process. A task that had to wait for the writes of the others before its own would spend its turn on it
(of 64 tasks a fifth of their time). So it leaves what it says to the one that writes, who goes on until nothing waits.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

import pyarrow as pa


class MetadataWriter(Protocol):
    """The part of Flight's stream writer that consumers use."""

    def write_metadata(self, message: bytes, /) -> None:
        """The message has gone to the transport when this returns, milliseconds later perhaps."""
        ...

    def close(self) -> None:
        """End the stream, because nothing is written any more."""
        ...


class UpstreamMessages:
    """The messages of one stream. All methods may be called from any thread.

    >>> from types import SimpleNamespace
    >>> messages, written = UpstreamMessages(), []
    >>> messages.say(b"before the stream is up")
    >>> messages.begin(SimpleNamespace(write_metadata=written.append))
    >>> messages.say(b"afterwards")
    >>> written
    [b'before the stream is up', b'afterwards']
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        #: Guards the writer: one writes at a time, and nobody after it was taken away.
        self._writing = threading.Lock()
        self._writer: MetadataWriter | None = None
        self._has_ended = False

    def say(self, message: bytes) -> None:
        """Write the message behind those that wait, now or once there is a writer; after the end it is dropped."""
        if not self._has_ended:
            self._waiting.append(message)
            self._write_waiting()

    def begin(self, writer: MetadataWriter) -> None:
        """The stream is up: what was said before is written first, by this thread."""
        with self._writing:
            self._writer = writer
            while self._waiting:
                _write_to(writer, self._waiting.popleft())
        self._write_waiting()

    def end(self) -> MetadataWriter | None:
        """Take the writer away, if there was one, once nobody writes."""
        with self._writing:
            writer, self._writer = self._writer, None
            self._has_ended = True
            self._waiting.clear()
        return writer

    def _write_waiting(self) -> None:
        """Who says something while another one writes leaves it there: that one looks again when it has let go."""
        while self._waiting and self._writing.acquire(blocking=False):
            try:
                writer = self._writer
                if writer is None:
                    return
                while self._waiting:
                    _write_to(writer, self._waiting.popleft())
            finally:
                self._writing.release()


def _write_to(writer: MetadataWriter, message: bytes) -> None:
    try:
        writer.write_metadata(message)
    except (pa.ArrowException, OSError):
        return  # the connection is lost: the receiving thread learns it from its own end, with the cause
