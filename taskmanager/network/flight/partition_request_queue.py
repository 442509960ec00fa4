"""Which channel of a stream sends next.

Decides turns and credit: a channel with something to send stands in line once, one with a priority element goes to the
front, one that has sent goes to the end; a batch costs its channel a credit, events cost none. It does not know what is
queued: whoever takes a turn polls the subpartition with or without credit, and reports. Not thread-safe. Mirrors
Flink's PartitionRequestQueue and CreditBasedSequenceNumberingViewReader.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from snapline.runtime.cores.machine import check
from snapline.taskmanager.network.channels.credit import SenderCredit
from snapline.taskmanager.network.channels.prioritized_deque import PrioritizedDeque


@dataclass(slots=True, eq=False)
class _Reader:
    channel_id: int
    in_line: bool = False
    credit: SenderCredit = field(default_factory=SenderCredit)


@dataclass(frozen=True, slots=True)
class ChannelTurn:
    """Poll this channel now; a batch only with credit."""

    channel_id: int
    has_credit: bool


class PartitionRequestQueue:
    """The channels of one stream."""

    def __init__(self) -> None:
        self._readers: dict[int, _Reader] = {}
        #: All and only the readers with `in_line`, and possibly removed ones.
        self._line: PrioritizedDeque[_Reader] = PrioritizedDeque()

    def add_reader(self, channel_id: int, initial_credit: int) -> None:
        """A consumer asks for a subpartition. Raises InvariantViolation when the number is taken."""
        check(channel_id not in self._readers, f"channel {channel_id} is open already")
        reader = self._readers[channel_id] = _Reader(channel_id)
        reader.credit.add_credit(initial_credit)

    def remove_reader(self, channel_id: int) -> None:
        """The channel is over. Unknown ones are ignored: both ends may end a channel at the same time."""
        self._readers.pop(channel_id, None)

    def notify_available(self, channel_id: int, *, priority: bool) -> None:
        """Polling this channel may yield something."""
        reader = self._readers.get(channel_id)
        if reader is None:
            return
        if not reader.in_line:
            reader.in_line = True
            self._line.add(reader, priority=priority)
        elif priority:
            self._line.prioritize(reader)

    def add_credit(self, channel_id: int, credit: int) -> None:
        """The consumer has room for so many more batches."""
        reader = self._readers.get(channel_id)
        if reader is None:
            return
        had_none = reader.credit.credit == 0
        reader.credit.add_credit(credit)
        if had_none:
            self.notify_available(channel_id, priority=False)

    @property
    def size(self) -> int:
        """How many channels there are, or places in the line, where ended ones may still stand."""
        return max(len(self._readers), len(self._line))

    @property
    def has_turn(self) -> bool:
        """Whether a channel may stand in line."""
        return len(self._line) > 0

    def next_turn(self) -> ChannelTurn | None:
        """Take the first channel out of the line, None when nobody waits."""
        while (reader := self._line.poll()) is not None:
            reader.in_line = False
            if self._readers.get(reader.channel_id) is reader:
                return ChannelTurn(reader.channel_id, reader.credit.can_send(is_data=True))
        return None

    def batch_sent(self, channel_id: int) -> None:
        """A batch cost the channel a credit."""
        reader = self._readers.get(channel_id)
        if reader is not None:
            reader.credit.on_sent(is_data=True)

    def credits_of(self, channel_id: int) -> int:
        """How many batches the channel may be sent at once."""
        reader = self._readers.get(channel_id)
        return 0 if reader is None else reader.credit.credit

    @property
    def channel_ids(self) -> tuple[int, ...]:
        """The open channels, in the order of their opening."""
        return tuple(self._readers)
