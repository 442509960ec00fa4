"""Control mail of one task: what other threads want done on the task's own.

Decides nothing: it keeps the order of arrival. Thread-safe only in that `put` is one append to a deque, which CPython
does atomically; the task takes from the other end. The task empties it before it looks at data, which replaces Flink's
checkpoint lock. Mirrors Flink's TaskMailbox and MailboxProcessor; unlike there, mail is a value, so that a run can be
replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import TaskMessage


@dataclass(frozen=True, slots=True)
class AsyncSnapshotMail:
    """The asynchronous part of a snapshot is done: handles, or why not."""

    checkpoint_id: CheckpointID
    result: TaskStateSnapshot | BaseException


@dataclass(frozen=True, slots=True)
class CancelMail:
    """The task has to stop, and to report CANCELED."""


@dataclass(frozen=True, slots=True)
class FailMail:
    """Fail with this failure, which somebody outside found (Flink: failExternally)."""

    failure: SerializedFailure


@dataclass(frozen=True, slots=True)
class ChannelNonEmptyMail:
    """A channel of the gate `gate_index` has something to poll."""

    gate_index: int
    channel_index: int
    priority: bool


@dataclass(frozen=True, slots=True)
class ChannelFailedMail:
    """A channel of the gate lost its producer."""

    gate_index: int
    channel_index: int
    cause: str


Mail = TaskMessage | AsyncSnapshotMail | CancelMail | FailMail | ChannelNonEmptyMail | ChannelFailedMail
"""What the JobMaster says is mail as it came over the wire; the rest comes from this process."""


class Mailbox:
    """First in, first out; `on_mail` wakes whoever drives the task."""

    def __init__(self, on_mail: Callable[[], None]) -> None:
        self._mails: deque[Mail] = deque()
        self._on_mail = on_mail
        self._closed = False

    def put(self, mail: Mail) -> None:
        """From any thread. Mail to a task that has ended is dropped."""
        if not self._closed:
            self._mails.append(mail)
            self._on_mail()

    def take(self) -> Mail | None:
        """Only on the task's thread."""
        return self._mails.popleft() if self._mails else None

    def close(self) -> None:
        """Take no mail any more, because the task has ended."""
        self._closed = True
        self._mails.clear()

    @property
    def is_empty(self) -> bool:
        """Return whether no mail waits."""
        return not self._mails
