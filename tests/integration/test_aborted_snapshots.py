"""Checkpoints that are given up while they are taken, over and over: no file and no thread is left of them."""

from __future__ import annotations

from pathlib import Path

from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import LocalCluster, files_below, wait_until


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_aborted_checkpoints_leave_no_file_and_no_thread(tmp_path):
    """Each expires a millisecond after it was triggered; the job runs on, and no checkpoint that was given up makes
    output visible."""
    with LocalCluster(tmp_path / "cluster", slots=(2,)) as cluster:
        environment = build(
            cluster.environment(
                interval="50 ms",
                execution__checkpointing__timeout="1 ms",
                execution__checkpointing__tolerable_failed_checkpoints="-1",
                execution__checkpointing__data_inline_threshold="0 b",
            ),
            ["--output", str(tmp_path / "out"), "--rate", "50000"],
        )
        job_id = cluster.submit(environment, "always too late")
        cluster.wait_for(job_id, JobStatus.RUNNING)

        def failed() -> int:
            return int(cluster.client.list_checkpoints(job_id).counts.failed)

        wait_until(lambda: failed() >= 10, "ten aborted checkpoints")
        (task_manager,) = cluster.task_managers
        pids = (task_manager.pid, cluster.coordinator_pid)
        before = [threads_of(pid) for pid in pids]
        wait_until(lambda: failed() >= 60, "fifty more")
        after = [threads_of(pid) for pid in pids]
        # A pool may grow to its bound in the meantime; a thread left behind by each of the fifty would be fifty more.
        assert all(now < then + 25 for then, now in zip(before, after, strict=True)), (before, after)

        cluster.cancel(job_id)
        job_directory = cluster.checkpoints / job_id
        wait_until(lambda: not list(files_below(job_directory)), "the last files to go")
        visible = assert_exactly_once(tmp_path / "out")
        completed = cluster.client.list_checkpoints(
            job_id
        ).counts.completed  # where a thread was late, the timeout was, too
        assert visible == 0 or completed > 0
