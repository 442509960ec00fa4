"""The receiving end of one remote channel: what has arrived and the task has not polled.

Decides order (arrival order, priority elements first), announces a timeoutable barrier ahead of the data in front of
it, moves it to the front when told so, knows which received data a polled barrier has overtaken, and hands out nothing
that stands behind an aligned barrier, or behind restored data, before it is resumed (the sender stops there, too). It
does not know the connection or credits; whoever shares it between a receiving thread and the task locks around it.
Mirrors the queue of Flink's RemoteInputChannel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier, EndOfChannelState, EventAnnouncement, StreamElement
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame
from snapline.taskmanager.network.channels.gathering import gathered
from snapline.taskmanager.network.channels.prioritized_deque import PrioritizedDeque


@dataclass(frozen=True, slots=True)
class Received:
    """What the receiving thread has to do after an element arrived."""

    notify: bool = False
    """The task had nothing to poll from this channel before."""
    notify_priority: bool = False
    """The task had no priority element to poll from this channel before."""
    failure: str = ""
    """Not empty: the element was refused, and the channel has failed."""


class InputChannelCore:
    """Receive queue of one channel. Not thread-safe."""

    def __init__(self, *, gathered_rows: int = 0) -> None:
        """`gathered_rows`: batches are handed out together with those behind them, up to so many rows."""
        self._gathered_rows = self._most_gathered_rows = gathered_rows
        self._queue: PrioritizedDeque[ElementFrame] = PrioritizedDeque()
        self._next_sequence_number = 0
        self._queued_batches = 0
        #: Sequence number of the last barrier that the task polled; the data in front of it is in flight.
        self._last_barrier_at = -1
        # : Sequence number of what consumption stops behind (an aligned barrier, the end of restored data); None: it
        # does not.
        self._blocked_at: int | None = None
        self._released = False

    def on_element(self, arrived: ElementFrame) -> Received:
        """An element has arrived. Sequence numbers must be gapless: a priority element has overtaken at the sender, and
        is numbered as it was sent. After `release` everything is dropped."""
        if self._released:
            return Received()
        if arrived.sequence_number != self._next_sequence_number:
            return Received(
                failure=f"element {arrived.sequence_number} arrived where {self._next_sequence_number} was due: "
                "the connection lost or reordered data"
            )
        self._next_sequence_number += 1
        had_elements, had_priority = len(self._queue) > 0, self._queue.num_priority_elements > 0
        element = arrived.element
        self._queue.add(arrived, priority=arrived.priority)
        if isinstance(element, pa.RecordBatch):
            self._queued_batches += 1
        elif isinstance(element, CheckpointBarrier) and element.options.is_timeoutable and not arrived.priority:
            announcement = EventAnnouncement(element, arrived.sequence_number)
            self._queue.add(replace(arrived, element=announcement, priority=True), priority=True)
        has_priority = self._queue.num_priority_elements > 0
        return Received(notify=not had_elements, notify_priority=has_priority and not had_priority)

    def poll(self) -> BufferAndBacklog | None:
        """The next element, None when there is none, or it stands behind an aligned barrier that is not resumed."""
        if not self.has_available_element:
            return None
        is_priority = self._queue.num_priority_elements > 0
        arrived = self._queue.poll()
        if arrived is None:
            return None
        element = arrived.element
        if isinstance(element, pa.RecordBatch):
            self._queued_batches -= 1
            element = gathered(element, self._gathered_rows, self._peek, self._take_following)
        elif isinstance(arrived.element, CheckpointBarrier):
            self._last_barrier_at = arrived.sequence_number
            if arrived.element.options.needs_alignment:
                self._blocked_at = arrived.sequence_number
        elif isinstance(arrived.element, EndOfChannelState):
            self._blocked_at = arrived.sequence_number
        return BufferAndBacklog(
            element,
            arrived.sequence_number,
            arrived.backlog,
            is_priority=is_priority,
            more_available=self.has_available_element,
            more_priority=self.has_priority_element,
        )

    def _peek(self) -> StreamElement | None:
        head = self._queue.peek() if self.has_available_element else None
        return None if head is None else head.element

    def _take_following(self) -> None:
        self._queue.poll()
        self._queued_batches -= 1

    def gather_at_most(self, rows: int) -> None:
        """Batches that are handed out together have no more rows from now on, however many were allowed at first."""
        self._gathered_rows = min(self._most_gathered_rows, rows)

    def inflight_batches(self) -> tuple[pa.RecordBatch, ...]:
        """Received data, not yet polled, that stood before the last polled barrier and was overtaken by it."""
        return tuple(
            arrived.element
            for arrived in self._queue
            if isinstance(arrived.element, pa.RecordBatch) and arrived.sequence_number < self._last_barrier_at
        )

    def convert_to_priority(self, sequence_number: int) -> bool:
        """The announced barrier with this number timed out: move it to the front. False when it has been polled
        already.

        Only its place changes: it stays an aligned barrier, because the sender has stopped behind it, and the barrier
        handler has to resume it."""
        queued = self._queue.find(
            lambda arrived: (
                arrived.sequence_number == sequence_number and isinstance(arrived.element, CheckpointBarrier)
            )
        )
        if queued is None:
            return False
        self._queue.prioritize(queued)
        return True

    def resume_consumption(self) -> None:
        """The aligned barrier has been processed: what arrived behind it may be polled."""
        self._blocked_at = None

    def release(self) -> None:
        """The task is gone: drop everything, and what arrives later."""
        self._released = True
        self._queue.clear()
        self._queued_batches = 0

    @property
    def queued_batches(self) -> int:
        """Data batches received and not polled."""
        return self._queued_batches

    @property
    def queued_bytes(self) -> int:
        """Size of the data batches that were received and not polled, which is added up when somebody asks."""
        return sum(arrived.element.nbytes for arrived in self._queue if isinstance(arrived.element, pa.RecordBatch))

    @property
    def has_available_element(self) -> bool:
        """Whether `poll` would return something."""
        head = self._queue.peek()
        if head is None:
            return False
        return self._blocked_at is None or self.has_priority_element or head.sequence_number < self._blocked_at

    @property
    def is_blocked(self) -> bool:
        """Whether consumption stops behind an aligned barrier."""
        return self._blocked_at is not None

    @property
    def has_priority_element(self) -> bool:
        """Whether `poll` would return a priority element."""
        return self._queue.num_priority_elements > 0
