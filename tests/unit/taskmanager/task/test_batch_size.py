"""How many rows a task takes at once."""

from __future__ import annotations

from snapline.taskmanager.task.batch_size import TARGET_MS, UNLIMITED, BatchSizeLimit


def test_a_fast_task_is_not_limited() -> None:
    """Batches that take less than the target say nothing."""
    limit = BatchSizeLimit()
    limit.step_begins(0)
    for now_ms in range(1, 100):
        limit.batch_taken(16_384)
        assert not limit.step_begins(now_ms)
    assert limit.rows == UNLIMITED


def test_a_slow_batch_sets_the_limit_and_fast_ones_lift_it() -> None:
    """One row per millisecond: as many rows as milliseconds; afterwards it doubles, until batches are smaller than
    it."""
    limit = BatchSizeLimit()
    limit.step_begins(0)
    limit.batch_taken(1_000)
    assert limit.step_begins(1_000)
    assert limit.rows == TARGET_MS
    limit.batch_taken(TARGET_MS)
    assert not limit.step_begins(1_000 + TARGET_MS)
    limit.batch_taken(TARGET_MS)
    assert limit.step_begins(1_000 + TARGET_MS)
    assert limit.rows == 2 * TARGET_MS
    limit.batch_taken(5)
    assert not limit.step_begins(1_000 + TARGET_MS)


def test_at_least_one_row_is_taken() -> None:
    """However long one takes."""
    limit = BatchSizeLimit()
    limit.step_begins(0)
    limit.batch_taken(2)
    limit.step_begins(60_000)
    assert limit.rows == 1


def test_only_steps_that_took_a_batch_count() -> None:
    """Waiting is no work."""
    limit = BatchSizeLimit()
    limit.step_begins(0)
    limit.batch_taken(100)
    limit.step_begins(1)
    assert not limit.step_begins(60_000)
    assert limit.rows == UNLIMITED
