"""Credits: how many batches may be on their way to one input channel.

One credit per data batch; control elements need none. The receiver grants `exclusive` credits from the start and, when
the backlog that comes with a batch says that more could flow, up to `maximum`, so that batches granted and batches
waiting in the receive queue never exceed the maximum: that bounds the receiver's memory, and nothing lingers in the
transport. Neither side knows the connection. Mirrors Flink's BufferManager with AvailableBufferListener, and
NetworkSequenceViewReader's credit; a unit is a whole batch, not a buffer.
"""

from __future__ import annotations

from snapline.runtime.cores.machine import check

DEFAULT_EXCLUSIVE_CREDITS = 2
DEFAULT_MAXIMUM_CREDITS = 8
ROW_WISE_CREDITS = 2
"""For a consumer that works row by row: one batch that it works on and one that follows. What waits with it is not in
the producer's queue, which has a bound in bytes, and each barrier waits for it."""


def credits_of_channel(configured: int, *, row_wise: bool) -> int:
    """How many batches may be on their way to one channel, or wait there."""
    return min(configured, ROW_WISE_CREDITS) if row_wise else configured


class ReceiverCredit:
    """The receiver's books for one channel."""

    def __init__(self, *, exclusive: int = DEFAULT_EXCLUSIVE_CREDITS, maximum: int = DEFAULT_MAXIMUM_CREDITS) -> None:
        check(0 < exclusive <= maximum, "a channel needs at least one credit of its own, and not more than its maximum")
        self._exclusive = exclusive
        self._maximum = maximum
        #: Granted and not used by a batch that arrived.
        self._outstanding = 0
        #: Arrived and not consumed by the task.
        self._queued = 0
        self._backlog = 0

    def open(self) -> int:
        """The connection is up: credits to announce first."""
        check(self._outstanding == 0 and self._queued == 0, "a channel is opened once")
        return self._grant()

    def on_batch(self, backlog: int) -> str:
        """A batch arrived, and so many wait behind it. Returns why the channel fails, empty when all is well."""
        if self._outstanding <= 0:
            return "the sender sent a batch without credit"
        self._outstanding -= 1
        self._queued += 1
        self._backlog = backlog
        return ""

    def on_consumed(self) -> int:
        """The task polled a batch. Returns credits to announce."""
        check(self._queued > 0, "more batches were consumed than have arrived")
        self._queued -= 1
        return self._grant()

    @property
    def usage(self) -> float:
        """How full the queue of batches that have arrived is, from 0 to 1."""
        return self._queued / self._maximum

    @property
    def outstanding(self) -> int:
        """Return how many credits are granted and not used."""
        return self._outstanding

    @property
    def queued(self) -> int:
        """Return how many batches have arrived and are not consumed."""
        return self._queued

    def _grant(self) -> int:
        wanted = self._backlog + self._exclusive - self._outstanding
        room = self._maximum - self._outstanding - self._queued
        granted = max(0, min(wanted, room))
        self._outstanding += granted
        return granted


class SenderCredit:
    """The sender's books for one channel."""

    def __init__(self) -> None:
        self._credit = 0

    def add_credit(self, credit: int) -> None:
        """The receiver announced so many more."""
        check(credit > 0, "a credit announcement carries at least one")
        self._credit += credit

    def can_send(self, *, is_data: bool) -> bool:
        """Whether the next element may go out."""
        return not is_data or self._credit > 0

    def on_sent(self, *, is_data: bool) -> None:
        """Note that an element went out, and take a credit for a batch."""
        if is_data:
            check(self._credit > 0, "a batch was sent without credit")
            self._credit -= 1

    @property
    def credit(self) -> int:
        """Batches that may go out now."""
        return self._credit
