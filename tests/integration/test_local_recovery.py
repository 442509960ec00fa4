"""Local recovery in real processes: who takes the place of a killed TaskManager restores from what that one has
left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import LocalCluster, files_below, wait_until

ROWS = 50_000


@pytest.mark.parametrize("backend", [pytest.param("hashmap", marks=pytest.mark.rare), "rocksdb"])
def test_a_task_manager_goes_on_from_the_disk_of_the_one_before(tmp_path: Path, backend: str) -> None:
    """Killed with signal 9; the one that survives restores from its own disk. Nothing is read from the storage, each
    row counts once, and nothing is left on the disk when the job has finished."""
    root, output, gate = tmp_path / "state", tmp_path / "out", tmp_path / "gate"
    settings = {
        "state.backend.type": backend,
        "state.backend.local-recovery": "true",
        "taskmanager.state.local.root-dirs": str(root),
        "execution.checkpointing.data-inline-threshold": "0",
        "execution.checkpointing.incremental": "true",
    }
    with LocalCluster(tmp_path / "cluster", slots=(1, 1), settings=settings) as cluster:
        arguments = ["--output", str(output), "--rows", str(ROWS), "--gate", str(gate)]
        job_id = cluster.submit(build(cluster.environment(), arguments), "local recovery")
        cluster.wait_for_checkpoints(job_id, 3)
        victim, survivor = cluster.task_managers
        victim.kill()
        replacement = cluster.start_task_manager(1)
        completed = cluster.client.list_checkpoints(job_id).counts.completed
        cluster.wait_for_checkpoints(job_id, completed + 2)
        gate.touch()
        cluster.wait_for(job_id, JobStatus.FINISHED)
        for manager in (survivor, replacement):
            restored = re.findall(r'state restored.*"local_bytes":(\d+),"remote_bytes":(\d+)', manager.log.read_text())
            assert restored and all(int(local) > 0 and remote == "0" for local, remote in restored), restored
        wait_until(lambda: {path.name for path in files_below(root)} == {"lock"}, "the copies to go")
    assert_exactly_once(output, ROWS)
    assert [path.relative_to(root).as_posix() for path in files_below(root)] == ["lock"]
