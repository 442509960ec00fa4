"""Exactly once, whatever dies whenever: the committed rows are visible once, and nothing else is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.connectors.parquet.sink_job import Death, Fate, SinkJob

TOTAL = 60


def story(job: SinkJob) -> None:
    """Several checkpoints, one aborted, one whose notification reaches only one subtask, files that roll."""
    job.write(17)
    job.checkpoint()
    job.write(5)
    job.checkpoint(complete=False)
    job.write(9)
    job.checkpoint(notify=[1])
    job.write(3)
    job.checkpoint(notify=[])
    job.write(11)


def complete(job: SinkJob) -> None:
    """Go on to the end, without deaths."""
    job.write(TOTAL - job.position)
    job.finish()


def run_until_death(job: SinkJob, death_at: int, *, parallelism_after: int) -> bool:
    """Tell the story, die at that step, restore, end. False when the story was over before."""
    job.fate.death_at = death_at
    try:
        job.start()
        story(job)
        complete(job)
    except Death:
        job.check_visible()
        job.die()
        job.start(parallelism_after)
        job.check_visible()
        complete(job)
        return True
    return False


def assert_all_committed_and_nothing_left(job: SinkJob) -> None:
    assert job.visible() == list(range(TOTAL))
    assert job.staged() == []
    assert not (job.directory / "_staging").exists()


@pytest.mark.parametrize(
    ("roll_bytes", "parallelism_after"),
    [
        (1, 1),
        (1, 3),
        (1 << 30, 2),
        *(pytest.param(*each, marks=pytest.mark.rare) for each in [(1, 2), (1 << 30, 1), (1 << 30, 3)]),
    ],
)
def test_a_death_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism_after: int, roll_bytes: int
) -> None:
    """Before and after every operation on disk, and between all messages; then a restore, also at another
    parallelism."""
    death_at, died = 1, True
    while died:
        job = SinkJob(tmp_path / str(death_at), roll_bytes=roll_bytes)
        job.install(monkeypatch)
        died = run_until_death(job, death_at, parallelism_after=parallelism_after)
        assert_all_committed_and_nothing_left(job)
        death_at += 1
    assert death_at > 60, "the story got shorter than the test believes"


@pytest.mark.parametrize("lives", [60, pytest.param(150, marks=pytest.mark.rare)])
def test_random_lives(tmp_path_factory: pytest.TempPathFactory, lives: int) -> None:
    """Random writes, checkpoints, lost notifications, aborts, deaths (also while recovering) and rescales."""

    @settings(max_examples=lives, deadline=None)
    @given(seed=st.integers(0, 2**32))
    def live(seed: int) -> None:
        live_at_random(tmp_path_factory, seed)

    live()


def live_at_random(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    choose = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        job = SinkJob(
            tmp_path_factory.mktemp("life"),
            Fate(),
            parallelism=choose.randint(1, 4),
            roll_bytes=choose.choice([1, 300, 1 << 30]),
            row_group_rows=choose.randint(1, 8),
        )
        job.install(monkeypatch)
        for _ in range(choose.randint(0, 6)):
            job.fate.death_at = job.fate.steps + choose.randint(1, 60)
            try:
                job.start(choose.choice([None, 1, 2, 3, 4]))
                while job.position < TOTAL:
                    job.write(min(choose.randint(0, 12), TOTAL - job.position))
                    kind = choose.random()
                    if kind < 0.5:
                        job.checkpoint()
                    elif kind < 0.65:
                        job.checkpoint(notify=choose.sample(range(4), choose.randint(0, 3)))
                    elif kind < 0.75:
                        job.checkpoint(complete=False)
                    elif kind < 0.8:
                        job.close()  # a task failed: the others are cancelled in order
                        raise Death
                    job.check_visible()
                raise Death
            except Death:
                job.check_visible()
                job.die()
        job.fate.death_at = None
        job.start(choose.choice([None, 1, 2, 3, 4]))
        complete(job)
        assert_all_committed_and_nothing_left(job)


def test_a_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness sees a sink that commits at the barrier: rows of a checkpoint that never completed become visible."""
    from snapline.taskmanager.operators.sinks.sink_operator import SinkOperator

    job = SinkJob(tmp_path)
    job.install(monkeypatch)
    job.start()
    honest = SinkOperator.prepare_snapshot_pre_barrier

    def hasty(self: SinkOperator, checkpoint_id: object) -> None:
        honest(self, checkpoint_id)  # type: ignore[arg-type]
        self.notify_checkpoint_complete(checkpoint_id)  # type: ignore[arg-type]

    monkeypatch.setattr(SinkOperator, "prepare_snapshot_pre_barrier", hasty)
    job.write(10)
    job.checkpoint(complete=False)

    with pytest.raises(AssertionError, match="rows of an incomplete checkpoint"):
        job.check_visible()
