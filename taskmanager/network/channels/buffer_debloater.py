"""How much may wait in one subpartition: what its consumer takes in `target_ms`, once the consumer is the slow one.

Queues that are bounded in batches alone hold half a minute of data before a slow sink: an aligned barrier waits for all
of it, and an unaligned one carries all of it into the snapshot. So the bound follows the rate at which the consumer
takes bytes, measured over periods in which the queue was full; it falls to a quarter at most per period, because a
pause of the machine is no rate, and doubles with every period in which the queue was never full. Fast consumers are
never limited. It does not know queues or clocks. Mirrors Flink's BufferDebloater with ThroughputCalculator and
BufferSizeEMA, on the producer's side.
"""

from __future__ import annotations

from dataclasses import dataclass

PERIOD_MS = 200
"""Time between two looks at the throughput, as Flink's `buffer-debloat.period`."""
UNLIMITED = 1 << 62
LEAST_BYTES = 32 << 10
"""As one of Flink's buffers: less would only cost messages."""
LEAST_PIECE_BYTES = LEAST_BYTES // 2
FIRST_BYTES = 256 << 10
"""Until a rate is known: what a slow consumer has been sent by then it must work through."""
PIECES = 8
"""A batch is cut so that so many of its pieces fill the bound: those that were granted a credit already do not count to
it."""
ROW_WISE_TARGET_MS = 10
"""A consumer that works row by row has this target in place of a longer one: the producer's half of 20 ms, as a
target is divided. It gains nothing from the large batches that others are handed when much waits."""
ROW_WISE_PIECES = 1
"""So short a bound would cut batches that are small as they are."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """What happened at one subpartition since it was created."""

    taken_bytes: int
    """Bytes that the consumer has polled so far."""
    queued_bytes: int
    """Bytes that are queued and not polled."""
    fillings: int
    """How often an element found the queue full, or filled it."""
    blocked: bool
    """The consumer waits behind a barrier; how long says nothing about its speed."""


class BufferDebloater:
    """Decides how large the batches of one subpartition may be."""

    def __init__(self, target_ms: int, *, row_wise: bool = False) -> None:
        """`target_ms`: how long the consumer should take for what is queued. `row_wise`: it works row by row."""
        self._target_ms = min(target_ms, ROW_WISE_TARGET_MS) if row_wise else target_ms
        self._pieces = ROW_WISE_PIECES if row_wise else PIECES
        self.limit_bytes = FIRST_BYTES
        """Bytes that may be queued."""
        self._since_ms: int | None = None
        self._last = Consumption(0, 0, 0, blocked=False)

    @property
    def piece_bytes(self) -> int:
        """Return the size in bytes above which batches are cut."""
        return UNLIMITED if self.limit_bytes == UNLIMITED else max(LEAST_PIECE_BYTES, self.limit_bytes // self._pieces)

    def sample(self, consumption: Consumption, now_ms: int) -> bool:
        """What was counted so far; call it every PERIOD_MS. Returns whether the limit changed."""
        last, since_ms = self._last, self._since_ms
        if since_ms is None or consumption.blocked or last.blocked:
            self._last, self._since_ms = consumption, now_ms
            return False
        elapsed_ms = now_ms - since_ms
        taken = consumption.taken_bytes - last.taken_bytes
        was_full = consumption.fillings > last.fillings
        is_over = consumption.queued_bytes >= self.limit_bytes
        if elapsed_ms < PERIOD_MS or (not taken and (was_full or is_over)):
            return False  # too early, or nothing is known of a consumer that takes nothing
        self._last, self._since_ms = consumption, now_ms
        before = self.limit_bytes
        if was_full or is_over:
            wanted = max(LEAST_BYTES, taken * self._target_ms // elapsed_ms)
            least = min(before, consumption.queued_bytes + taken) // 4
            self.limit_bytes = max(wanted, least)
        elif before != UNLIMITED:
            self.limit_bytes = min(UNLIMITED, before * 2)
        return self.limit_bytes != before
