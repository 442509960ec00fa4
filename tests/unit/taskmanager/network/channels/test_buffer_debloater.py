"""The bound of a queue follows the consumer, falls slowly, and is forgotten when nobody waits."""

from __future__ import annotations

from snapline.taskmanager.network.channels.buffer_debloater import (
    FIRST_BYTES,
    LEAST_BYTES,
    PERIOD_MS,
    ROW_WISE_TARGET_MS,
    UNLIMITED,
    BufferDebloater,
    Consumption,
)

MB = 1 << 20


class Queue:
    """A debloater with the counters of its subpartition, one period a call."""

    def __init__(self, target_ms: int = 500, *, row_wise: bool = False) -> None:
        self.debloater = BufferDebloater(target_ms, row_wise=row_wise)
        self.taken = self.fillings = self.now_ms = 0
        self.debloater.sample(Consumption(0, 0, 0, blocked=False), 0)

    def period(
        self, taken: int, *, full: bool = True, queued: int = 0, ms: int = PERIOD_MS, blocked: bool = False
    ) -> int:
        self.taken += taken
        self.fillings += full
        self.now_ms += ms
        self.debloater.sample(Consumption(self.taken, queued, self.fillings, blocked), self.now_ms)
        return self.debloater.limit_bytes


def test_the_bound_is_what_a_slow_consumer_takes_in_the_target_time() -> None:
    """100 kB in 200 ms are 250 kB in 500 ms."""
    assert Queue().period(100_000, queued=FIRST_BYTES) == 250_000


def test_before_a_consumer_that_works_row_by_row_less_waits_in_one_piece() -> None:
    """What it takes in 10 ms is enough for it, and a batch is not cut into eighths of so little."""
    queue = Queue(row_wise=True)
    assert queue.period(4_000_000, queued=FIRST_BYTES) == 4_000_000 * ROW_WISE_TARGET_MS // PERIOD_MS == 200_000
    assert queue.debloater.piece_bytes == 200_000


def test_a_shorter_target_holds_for_a_consumer_that_works_row_by_row_too() -> None:
    """It was asked for."""
    assert Queue(5, row_wise=True).period(4_000_000, queued=FIRST_BYTES) == 100_000


def test_a_fast_consumer_is_not_limited_for_long() -> None:
    """The first period already says how fast it is."""
    assert Queue().period(100 * MB, queued=FIRST_BYTES) == 250 * MB


def test_the_bound_falls_to_a_quarter_at_most() -> None:
    """A pause of the machine looks like a slow consumer."""
    queue = Queue()
    queue.period(40 * MB)
    assert queue.period(1000, queued=100 * MB) == 25 * MB
    assert queue.period(1000, queued=25 * MB) == 25 * MB // 4


def test_a_consumer_that_takes_nothing_says_nothing() -> None:
    """The period goes on until it takes something; its whole length counts."""
    queue = Queue()
    assert queue.period(0, queued=FIRST_BYTES, ms=400) == FIRST_BYTES
    assert queue.period(100_000, queued=FIRST_BYTES, ms=400) == max(62_500, (FIRST_BYTES + 0) // 4)


def test_a_consumer_behind_a_barrier_is_not_slow() -> None:
    """Time that touches a block is not measured."""
    queue = Queue()
    queue.period(40 * MB)
    before = queue.debloater.limit_bytes
    assert queue.period(10, queued=before, blocked=True) == before
    assert queue.period(10, queued=before) == before
    assert queue.period(40 * MB, queued=before) == before


def test_a_queue_that_is_never_full_is_free_again() -> None:
    """Twice as much with every period."""
    queue = Queue()
    assert queue.period(10, full=False) == 2 * FIRST_BYTES
    for _ in range(60):
        queue.period(10, full=False)
    assert queue.debloater.limit_bytes == UNLIMITED == queue.debloater.piece_bytes


def test_the_bound_has_a_bottom() -> None:
    """One of Flink's buffers; half of it is the smallest piece."""
    queue = Queue()
    for _ in range(9):
        queue.period(1)
    assert queue.debloater.limit_bytes == LEAST_BYTES
    assert queue.debloater.piece_bytes == LEAST_BYTES // 2


def test_periods_have_a_least_length() -> None:
    """A task asks as often as it likes."""
    assert Queue().period(1, ms=PERIOD_MS - 1) == FIRST_BYTES
