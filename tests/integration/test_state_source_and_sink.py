"""The articles' program: a source under the checkpoint lock, a keyed sum, and a sink that buffers."""

from __future__ import annotations

from pathlib import Path

import pytest

import snapline as sl
from examples.state_source_and_sink import FLUSH_ROWS, build, expected, flushed
from tests.services.cluster import LocalCluster, wait_until


def test_without_a_crash_every_sum_is_flushed_once(tmp_path: Path) -> None:
    """In this process; checkpoints are taken meanwhile, and cost nothing."""
    rows = 20 * FLUSH_ROWS
    environment = sl.StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.interval": "20 ms", "execution.checkpointing.dir": str(tmp_path / "checkpoints")}
    )
    output = tmp_path / "out"
    output.mkdir()

    result = build(environment, str(output), rows).execute("articles", local=True)

    assert result.status == "FINISHED"
    assert sorted(flushed(str(output))) == sorted(expected(rows))


@pytest.mark.slow
def test_after_a_crash_no_sum_is_missing_or_wrong(tmp_path: Path) -> None:
    """Position, sums and buffer come back together; what was flushed after the last checkpoint may come again."""
    rows, output = 100 * FLUSH_ROWS, tmp_path / "out"
    output.mkdir()
    with LocalCluster(tmp_path / "cluster", slots=(2,)) as cluster:
        environment = build(cluster.environment(), str(output), rows, pause_seconds=0.1)
        job_id = cluster.submit(environment, "articles")
        cluster.wait_for_checkpoints(job_id, 2)
        wait_until(lambda: len(flushed(str(output))) > 5 * FLUSH_ROWS, "some sums to be flushed")
        cluster.task_managers[0].kill()
        cluster.start_task_manager()
        details = cluster.client.wait(job_id)

    assert details.checkpoint_counts.restored >= 1
    found = flushed(str(output))
    assert (set(found), len(found) >= rows) == (expected(rows), True)
