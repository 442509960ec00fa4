"""The queue of one subpartition: what a producing subtask has emitted for one consumer, and the consumer has not taken.

Decides order (first in, first out, except that priority elements go first), when consumption pauses (behind an aligned
barrier of an exactly-once job, and behind the end of restored data, until the consumer resumes it), which batches a
barrier overtakes, and when the producer should stop (bounds in batches and bytes; only data counts). It refuses nothing
for being full: a task asks `is_available` before it processes the next batch, and what that batch yields must find a
place. It does not know threads, credits or connections; whoever shares it locks around it. Mirrors Flink's
PipelinedSubpartition without its buffers; flushing does not exist, because batches are whole when they arrive here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow as pa

from snapline.dataflow.columnar.batch_bytes import BatchBytes
from snapline.dataflow.elements import CheckpointBarrier, EndOfChannelState, EndOfPartition, StreamElement
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import check
from snapline.taskmanager.network.channels.buffer_debloater import LEAST_PIECE_BYTES, PIECES, Consumption
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog
from snapline.taskmanager.network.channels.gathering import gathered
from snapline.taskmanager.network.channels.prioritized_deque import PrioritizedDeque

DEFAULT_MAX_QUEUED_BATCHES = 16
DEFAULT_MAX_QUEUED_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AddOutcome:
    """What became of an added element."""

    accepted: bool
    """False after `finish` or `release`: the element is dropped."""
    overtaken: tuple[pa.RecordBatch, ...] = ()
    """The data that a priority barrier left behind: its output channel state, in order."""
    notify_consumer: bool = False
    """The consumer had nothing to take, or no priority element, before."""


_REFUSED = AddOutcome(accepted=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    element: StreamElement
    size_bytes: int


class PipelinedSubpartition:
    """One subpartition, both ends of it. Not thread-safe."""

    def __init__(
        self,
        *,
        max_queued_batches: int = DEFAULT_MAX_QUEUED_BATCHES,
        max_queued_bytes: int = DEFAULT_MAX_QUEUED_BYTES,
        gathered_rows: int = 0,
    ) -> None:
        """`gathered_rows`: batches are handed out together with those behind them, up to so many rows."""
        check(max_queued_batches > 0 and max_queued_bytes > 0, "a subpartition must have room for at least one batch")
        self._max_queued_batches = max_queued_batches
        self._max_queued_bytes = self._limit_bytes = max_queued_bytes
        self._gathered_rows = self._most_gathered_rows = gathered_rows
        self._gather_bytes = 0
        """Bytes that may still join the batch that is being handed out."""
        self._bytes = BatchBytes()
        #: Restored data in flight with the marker behind it: goes first, whatever has priority.
        self._restored: deque[_Queued] = deque()
        self._queue: PrioritizedDeque[_Queued] = PrioritizedDeque()
        #: All that was restored, or is made of it, has been added.
        self._is_recovered = False
        #: Number and size of all and only the queued data batches.
        self._backlog = 0
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._fillings = 0
        self._sequence_number = 0
        self._blocked = False
        self._finished = False
        self._released = False
        #: Batches that the consumer asked for and that were not added, on an edge where it asks; None: it has not yet.
        self._demand: int | None = None

    # --- the producer's end -------------------------------------------------------------------------------------------

    def add(self, element: StreamElement, *, priority: bool = False) -> AddOutcome:
        """Queue an element. A priority barrier says which data it overtook. EndOfChannelState says that everything
        queued so far was restored: nothing overtakes that."""
        if self._finished or self._released:
            return _REFUSED
        is_data = isinstance(element, pa.RecordBatch)
        check(not (priority and is_data), "data never has priority")
        had_elements, had_priority = self.has_available_element, self.has_priority_element
        size_bytes = self._bytes.of(element) if isinstance(element, pa.RecordBatch) else 0
        self._queue.add(_Queued(element, size_bytes), priority=priority)
        if is_data:
            self._demand = None if self._demand is None else self._demand - 1
            self._backlog += 1
            self._queued_bytes += size_bytes
            if not self.is_available:
                self._fillings += 1
        if isinstance(element, EndOfChannelState):
            check(not had_priority, "EndOfChannelState is added before any barrier")
            check(not self._is_recovered, "EndOfChannelState is added after the last one")
            self._is_recovered = element.is_last
            self._restored.extend(self._queue)
            self._queue.clear()
        overtaken = self._batches() if priority and isinstance(element, CheckpointBarrier) else ()
        notify = (self.has_available_element and not had_elements) or (self.has_priority_element and not had_priority)
        return AddOutcome(accepted=True, overtaken=overtaken, notify_consumer=notify)

    def time_out(self, barrier: CheckpointBarrier) -> tuple[pa.RecordBatch, ...] | None:
        """The aligned timeout of this barrier passed. If it is still queued it becomes an unaligned priority element;
        returns the batches that it overtakes. None when it has left, never came, or must not overtake here."""
        queued = self._find_waiting(barrier.checkpoint_id)
        if queued is None:
            return None
        overtaken: list[pa.RecordBatch] = []
        for entry in self._queue:
            if entry is queued:
                break
            if isinstance(entry.element, pa.RecordBatch):
                overtaken.append(entry.element)
        self._queue.get_and_remove(lambda entry: entry is queued)
        self._queue.add(_Queued(barrier.as_unaligned(), 0), priority=True)
        return tuple(overtaken)

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """Whether the barrier of this checkpoint, which may time out, is still queued here (the output channel state is
        not final before it has left or timed out)."""
        return self._find_waiting(checkpoint_id) is not None

    def finish(self) -> bool:
        """Nothing follows but EndOfPartition, which is added now. False when it was finished or released before."""
        accepted = self.add(EndOfPartition()).accepted
        self._finished = True
        return accepted

    @property
    def is_available(self) -> bool:
        """Whether the queue is below its bounds. A released one always is: what is added there is dropped."""
        return self._backlog < self._max_queued_batches and self._queued_bytes < self._limit_bytes

    @property
    def demand(self) -> int | None:
        """How many more batches the consumer has asked for; None before it has said anything."""
        return self._demand

    def limit_bytes(self, max_queued_bytes: int) -> None:
        """The bound in bytes from now on; what is queued stays."""
        self._limit_bytes = min(max_queued_bytes, self._max_queued_bytes)

    @property
    def consumption(self) -> Consumption:
        """What the consumer has taken, and whether it was waited for."""
        return Consumption(self._taken_bytes, self._queued_bytes, self._fillings, self._blocked)

    # --- the consumer's end -------------------------------------------------------------------------------------------

    def poll(self) -> BufferAndBacklog | None:
        """The next element, None when there is none or consumption is blocked."""
        if self._blocked:
            return None
        is_priority = self.has_priority_element
        entry = self._restored.popleft() if self._restored else self._queue.poll()
        if entry is None:
            return None
        element = entry.element
        if isinstance(element, pa.RecordBatch):
            self._count_taken(entry)
            if not self._restored:
                self._gather_bytes = max(LEAST_PIECE_BYTES, self._limit_bytes // PIECES) - entry.size_bytes
                element = gathered(element, self._gathered_rows, self._peek, self._take_following)
        self._blocked = isinstance(element, EndOfChannelState) or (
            isinstance(element, CheckpointBarrier) and element.options.needs_alignment
        )
        number = self._sequence_number
        self._sequence_number += 1
        return BufferAndBacklog(
            element,
            number,
            self._backlog,
            is_priority=is_priority,
            more_available=self.has_available_element,
            more_priority=self.has_priority_element,
        )

    def _count_taken(self, entry: _Queued) -> None:
        self._backlog -= 1
        self._queued_bytes -= entry.size_bytes
        self._taken_bytes += entry.size_bytes

    def _peek(self) -> StreamElement | None:
        head = self._queue.peek()
        return None if head is None or head.size_bytes > self._gather_bytes else head.element

    def _take_following(self) -> None:
        entry = check(self._queue.poll(), "a batch was seen, and cannot be taken")
        self._count_taken(entry)
        self._gather_bytes -= entry.size_bytes

    def gather_at_most(self, rows: int) -> None:
        """Batches that are handed out together have no more rows from now on, however many were allowed at first."""
        self._gathered_rows = min(self._most_gathered_rows, rows)

    def resume_consumption(self) -> None:
        """The consumer has processed what it stopped behind. Raises InvariantViolation unless that was handed out."""
        check(self._blocked or self._released, "resume_consumption: the subpartition is not blocked")
        self._blocked = False

    def request(self, count: int) -> None:
        """The consumer asks for so many batches more; with 0 it only says that it is there."""
        check(count >= 0, "a consumer cannot take back what it asked for")
        self._demand = (self._demand or 0) + count

    def release(self) -> None:
        """The consumer is gone: drop everything, and what is added later."""
        self._released = True
        self._blocked = False
        self._restored.clear()
        self._queue.clear()
        self._backlog = self._queued_bytes = 0

    @property
    def has_available_element(self) -> bool:
        """Whether `poll` would return something."""
        return not self._blocked and self.queued_elements > 0

    @property
    def is_data_next(self) -> bool:
        """Whether the first queued element is a batch, which a remote consumer gets for a credit only."""
        head = self._restored[0] if self._restored else self._queue.peek()
        return head is not None and isinstance(head.element, pa.RecordBatch)

    @property
    def has_priority_element(self) -> bool:
        """Whether `poll` would return a priority element."""
        return not self._blocked and not self._restored and self._queue.num_priority_elements > 0

    # --- both ---------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Queued data batches; events do not count."""
        return self._backlog

    @property
    def queued_bytes(self) -> int:
        """Size of the queued data batches."""
        return self._queued_bytes

    @property
    def usage(self) -> float:
        """How full the queue is by the nearer of its two bounds, from 0 to 1."""
        return min(1.0, max(self._backlog / self._max_queued_batches, self._queued_bytes / self._limit_bytes))

    @property
    def queued_elements(self) -> int:
        """Return how many elements are queued, events included."""
        return len(self._restored) + len(self._queue)

    @property
    def is_blocked(self) -> bool:
        """Whether an aligned barrier, or the end of restored data, was handed out and not yet resumed."""
        return self._blocked

    @property
    def is_finished(self) -> bool:
        """Whether the producer has said that nothing follows."""
        return self._finished

    @property
    def is_released(self) -> bool:
        """Whether the consumer is gone."""
        return self._released

    def _batches(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(entry.element for entry in self._queue if isinstance(entry.element, pa.RecordBatch))

    def _find_waiting(self, checkpoint_id: CheckpointID) -> _Queued | None:
        return self._queue.find(
            lambda entry: (
                isinstance(entry.element, CheckpointBarrier)
                and entry.element.checkpoint_id == checkpoint_id
                and entry.element.options.is_timeoutable
            )
        )
