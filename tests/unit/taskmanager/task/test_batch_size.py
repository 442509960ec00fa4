"""How many rows a task takes at once."""

from __future__ import annotations

from snapline.taskmanager.task.batch_size import LOOKED_AT, TARGET_MS, UNLIMITED, BatchSizeLimit


def after(limit: BatchSizeLimit, rows: int, took_ms: int) -> bool:
    """A batch of so many rows took so long; whether the limit changed."""
    limit.batch_taken(rows, 1_000)
    return limit.step_ends(1_000 + took_ms)


def test_a_fast_task_is_not_limited() -> None:
    """Batches that take less than the target say nothing."""
    limit = BatchSizeLimit()
    assert not any(after(limit, 16_384, 1) for _ in range(100))
    assert limit.rows == UNLIMITED


def test_a_slow_batch_sets_the_limit_and_fast_ones_lift_it() -> None:
    """One row per millisecond: as many rows as milliseconds; afterwards it doubles, until batches are smaller than
    it."""
    limit = BatchSizeLimit()
    assert after(limit, 1_000, 1_000)
    assert limit.rows == TARGET_MS
    assert not after(limit, TARGET_MS, TARGET_MS)
    assert after(limit, TARGET_MS, 0)
    assert limit.rows == 2 * TARGET_MS
    assert not after(limit, 5, 0)


def test_at_least_one_row_is_taken() -> None:
    """However long one takes."""
    limit = BatchSizeLimit()
    after(limit, 2, 60_000)
    assert limit.rows == 1


def test_a_pause_among_fast_batches_does_not_cut_what_follows() -> None:
    """The machine stood still for 100 ms within a batch of five rows: it says nothing about rows."""
    limit = BatchSizeLimit()
    after(limit, 5, 1)
    after(limit, 5, 100)
    assert limit.rows == 5 * TARGET_MS


def test_rows_that_have_become_slow_set_the_limit_once_all_batches_looked_at_say_so() -> None:
    """A database that answers more slowly from now on is no pause."""
    limit = BatchSizeLimit()
    for _ in range(LOOKED_AT):
        after(limit, 1_000, 1)
    limits = []
    for _ in range(LOOKED_AT):
        after(limit, 1_000, 1_000)
        limits.append(limit.rows)
    assert limits == [1_000 * TARGET_MS] * (LOOKED_AT - 1) + [TARGET_MS]


def test_a_small_fast_batch_says_nothing_against_a_large_slow_one() -> None:
    """Ten rows in a millisecond are compatible with a thousand in 100 ms."""
    limit = BatchSizeLimit()
    after(limit, 10, 1)
    assert after(limit, 1_000, 100)
    assert limit.rows == 80


def costs_a_request(limit: BatchSizeLimit, request_ms: int, us_a_row: int, waiting: int = 1_000) -> list[int]:
    """The rows of the batches of a function that asks something outside once for each, while so many rows wait."""
    taken = []
    for _ in range(100):
        taken.append(min(waiting, limit.rows))
        after(limit, taken[-1], request_ms + taken[-1] * us_a_row // 1_000)
    return taken


def test_what_a_batch_costs_whatever_its_rows_does_not_cut_it_into_rows() -> None:
    """A model or a database that answers in 20 ms, however many rows are asked for at once."""
    assert min(costs_a_request(BatchSizeLimit(), request_ms=20, us_a_row=0)[-50:]) == 1_000


def test_rows_may_take_as_long_again_as_the_request_for_their_batch() -> None:
    """Twenty milliseconds for a request and one for each row: some twenty rows at once, in place of one."""
    assert all(10 <= rows <= 40 for rows in costs_a_request(BatchSizeLimit(), request_ms=20, us_a_row=1_000)[-50:])


def test_a_function_that_had_single_rows_to_ask_for_takes_more_when_they_wait() -> None:
    """At first rows come one by one; what they cost may be their own cost, until there are two."""
    limit = BatchSizeLimit()
    costs_a_request(limit, request_ms=20, us_a_row=0, waiting=1)
    assert costs_a_request(limit, request_ms=20, us_a_row=0)[-1] == 1_000


def test_slow_rows_that_come_one_by_one_are_not_gathered() -> None:
    """Each of them takes a second by itself."""
    limit = BatchSizeLimit()
    costs_a_request(limit, request_ms=0, us_a_row=1_000_000, waiting=1)
    assert costs_a_request(limit, request_ms=0, us_a_row=1_000_000)[-50:] == [1] * 50
