"""A job that ends the coordinator which starts it does not end every coordinator after it, and code in coordinators can
be forbidden altogether."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapline.client import RequestRefused
from snapline.connectors.parquet.parquet_sink import ParquetSink
from snapline.coordinator.coordinator_process import CoordinatorStartError
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster, wait_until
from tests.services.hooked_source import DeadlyGenerator


def submit(cluster: LocalCluster, deadly: Path, name: str = "poison") -> str:
    """A job whose hook ends the process that makes it, once the file is there."""
    environment = cluster.environment(parallelism=1)
    source = DeadlyGenerator(deadly, keys=4, rows_per_second=100, batch_rows=50)
    environment.from_source(source, uid="source").sink_to(ParquetSink(str(cluster.directory / "out")), uid="sink")
    return cluster.submit(environment, name)


def test_a_job_that_ended_two_leaders_is_parked(tmp_path: Path) -> None:
    """The third one answers, names it with the reason, has started nothing of it, and lets it be cancelled; jobs that
    were being started beside it are not parked with it."""
    deadly = tmp_path / "deadly"
    with LocalCluster(tmp_path, slots=()) as cluster:
        others = [submit(cluster, tmp_path / "never", f"other {number}") for number in range(2)]
        job_id = submit(cluster, deadly)
        others += [submit(cluster, tmp_path / "never", f"other {number}") for number in range(2, 4)]
        deadly.touch()
        cluster.kill_coordinator()
        deaths = 0
        for _leader in range(2):
            try:
                cluster.start_coordinator()
                wait_until(lambda: not cluster.coordinator_is_alive, "the end of a poisoned leader")
            except CoordinatorStartError:
                pass
            deaths += 1
        cluster.start_coordinator()

        found = cluster.client.get_job(job_id).overview
        assert (2, JobStatus.FAILED) == (deaths, cluster.status(job_id))
        assert "is parked: 2 leaders in a row have ended while they started it" in found.failure.summary
        assert not [each for each in others if cluster.client.get_job(each).overview.HasField("failure")]
        cluster.client.cancel(job_id)
        wait_until(lambda: not list((tmp_path / "ha" / "starting").glob("*")), "the end of its mark")


def test_code_in_the_coordinator_can_be_forbidden(tmp_path: Path) -> None:
    """A job with master hooks is refused with the setting's name, before anything of it is unpickled or stored."""
    deadly = tmp_path / "deadly"
    with LocalCluster(tmp_path, slots=(), settings={"security.master-hooks.allowed": "false"}) as cluster:
        with pytest.raises(RequestRefused, match=r"security\.master-hooks\.allowed is false there"):
            submit(cluster, deadly)
        assert [] == list((tmp_path / "ha" / "jobs").glob("*"))
