"""Remembers the data in flight of one input channel while an unaligned checkpoint waits for its barrier there.

What is polled before the channel's barrier is both processed and remembered; when the barrier comes, by overtaking,
what it overtook in the receive queue is added. So the memory holds, in order, exactly what the task had not processed
at its snapshot and the producer had sent before its own. One checkpoint at a time. Mirrors Flink's
ChannelStatePersister, except that Flink copies at arrival; polling sees the same elements, on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapline.dataflow.ids import CheckpointID

_NOTHING = CheckpointID(-1)


class ChannelStatePersister:
    """In-flight memory of one channel."""

    def __init__(self) -> None:
        self._last_seen_barrier = _NOTHING
        self._overtaken: tuple[pa.RecordBatch, ...] = ()
        self._checkpoint_id = _NOTHING
        self._is_open = False
        self._batches: list[pa.RecordBatch] = []

    def start_persisting(self, checkpoint_id: CheckpointID) -> None:
        """The task has taken its snapshot. If the channel's barrier came before, only what it overtook is in flight."""
        self._checkpoint_id = checkpoint_id
        if self._last_seen_barrier >= checkpoint_id:
            self._batches = list(self._overtaken) if self._last_seen_barrier == checkpoint_id else []
            self._is_open = False
        else:
            self._batches = []
            self._is_open = True

    def maybe_persist(self, batch: pa.RecordBatch) -> None:
        """The task polled a batch from the channel."""
        if self._is_open:
            self._batches.append(batch)

    def barrier_polled(self, checkpoint_id: CheckpointID, overtaken: Sequence[pa.RecordBatch]) -> None:
        """The task polled a barrier from the channel, which overtook these received batches."""
        self._last_seen_barrier = max(self._last_seen_barrier, checkpoint_id)
        self._overtaken = tuple(overtaken)
        if self._is_open and checkpoint_id >= self._checkpoint_id:
            if checkpoint_id == self._checkpoint_id:
                self._batches.extend(overtaken)
            self._is_open = False

    def end_of_partition_polled(self) -> None:
        """Nothing more comes; the end counts as the barrier."""
        self._is_open = False

    def stop_persisting(self, checkpoint_id: CheckpointID) -> tuple[pa.RecordBatch, ...]:
        """The checkpoint is over: returns what was remembered for it, and forgets it."""
        if checkpoint_id != self._checkpoint_id:
            return ()
        batches, self._batches = tuple(self._batches), []
        self._is_open = False
        self._checkpoint_id = _NOTHING
        if self._last_seen_barrier <= checkpoint_id:
            self._overtaken = ()  # otherwise it belongs to a newer checkpoint, whose start is about to follow
        return batches
