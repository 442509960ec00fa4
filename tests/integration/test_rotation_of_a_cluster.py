"""All certificates and tokens of a cluster are changed while a job runs on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.certificates import LiveFiles, why_not
from tests.services.cluster import LocalCluster, wait_until

ROWS = 10_000

pytestmark = [pytest.mark.rare, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_no_task_is_restarted(tmp_path: Path) -> None:
    """Checkpoints complete after each step, a TaskManager that has only the new ones is let in, and the job ends
    without a restart."""
    output, gate = tmp_path / "out", tmp_path / "gate"
    files = LiveFiles(tmp_path)
    with LocalCluster(tmp_path / "cluster", (1, 1), files.settings) as cluster:
        arguments = ["--output", str(output), "--rows", str(ROWS), "--gate", str(gate)]
        job_id = cluster.submit(build(cluster.environment(), arguments), "turning")
        done = cluster.wait_for_checkpoints(job_id, 1).counts.completed
        for step in range(3):
            files.change(step)
            done = cluster.wait_for_checkpoints(job_id, done + 2).counts.completed
        newcomer = cluster.start_task_manager(1).resource_id
        wait_until(lambda: cluster.client.state_of_task_manager(newcomer) == "registered", "the newcomer")
        gate.touch()
        details = cluster.client.wait(job_id)

    assert 0 == details.overview.restarts
    assert_exactly_once(output, ROWS)
