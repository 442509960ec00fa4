"""A channel after a restore: the data that was in flight in the snapshot comes before anything new.

Only a priority element of the channel overtakes restored data; a new unaligned barrier then finds it in flight again, so
that a checkpoint may be taken, and trusted, while its predecessor is still being restored. Flink: RecoveredInputChannel,
which must be converted into a real channel first, and cannot be checkpointed before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pyarrow as pa

from taskmanager.network.contract import BufferAndBacklog, InputChannel

RESTORED_SEQUENCE_NUMBER = -1
"""Restored elements were numbered in another life."""


class RecoveredInputChannel:
    """A channel and what was restored for it."""

    def __init__(self, channel: InputChannel, batches: Sequence[pa.RecordBatch]) -> None:
        self._channel = channel
        self._restored = deque(batches)
        #: Elements polled from the channel that were not the priority element that was looked for.
        self._polled: deque[BufferAndBacklog] = deque()

    def poll(self, *, priority: bool) -> BufferAndBacklog | None:
        """A priority element if there is one, else restored data, else what was polled too early, else anything new."""
        if priority:
            polled = self._channel.poll()
            if polled is not None and polled.is_priority:
                return self._with_more(polled)
            if polled is not None:
                self._polled.append(polled)
        if self._restored:
            batch = self._restored.popleft()
            return self._with_more(BufferAndBacklog(batch, RESTORED_SEQUENCE_NUMBER, len(self._restored)))
        if self._polled:
            return self._with_more(self._polled.popleft())
        return self._channel.poll()

    def inflight_batches(self) -> tuple[pa.RecordBatch, ...]:
        """All that stands before a barrier just polled with priority; nothing is left before an aligned one."""
        early = (polled.element for polled in self._polled)
        batches = tuple(element for element in early if isinstance(element, pa.RecordBatch))
        return (*self._restored, *batches, *self._channel.inflight_batches())

    @property
    def is_drained(self) -> bool:
        """The channel can be polled directly again."""
        return not self._restored and not self._polled

    def _with_more(self, polled: BufferAndBacklog) -> BufferAndBacklog:
        # The channel itself may have more, too: ask it once the restored data is out of the way.
        return BufferAndBacklog(
            polled.element, polled.sequence_number, polled.backlog, is_priority=polled.is_priority, more_available=True
        )
