"""A cluster of the version before is replaced process by process under a running job, as docs/operations.md says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import assert_exactly_once
from tests.integration.test_coordinator_failover import completed_after, newest_checkpoint
from tests.services.cluster import wait_until
from tests.services.ha_cluster import HighAvailabilityCluster
from tests.services.relay import RelayProcess
from tests.services.released_wheel import BEFORE, ReleasedWheel, build_wheel, why_not
from tests.services.zookeeper import ZooKeeperEnsemble, start_ensemble

pytestmark = [pytest.mark.zookeeper, pytest.mark.rare, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("savepoint_job.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The ensemble is up before anything counts what a test leaves behind."""
    metafunc.fixturenames.insert(0, "ensemble")


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One server, which nobody kills here."""
    ensemble = start_ensemble(tmp_path_factory.mktemp("zookeeper"), nodes=1)
    yield ensemble
    ensemble.stop()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> ReleasedWheel:
    """The wheel of the version before."""
    if why_not():
        pytest.skip(f"NO VERSION BEFORE: {why_not()}")
    return build_wheel(BEFORE, tmp_path_factory.mktemp("before"))


def test_a_cluster_is_upgraded_under_a_running_job(
    tmp_path: Path, ensemble: ZooKeeperEnsemble, before: ReleasedWheel
) -> None:
    """The standby first, then the leader, then one TaskManager after the other, each drained before, onto a relay of
    the new version: the job is never restarted by a failure, and its output is exact."""
    output = tmp_path / "out"
    with (
        RelayProcess(tmp_path / "old", python_path=before.python_path) as old_relay,
        HighAvailabilityCluster(
            tmp_path, ensemble, 2, slots=(1, 1), settings=old_relay.settings, python_path=before.python_path
        ) as cluster,
        RelayProcess(tmp_path / "new") as new_relay,
    ):
        job_id = submitted_by(before, cluster, output)
        goes_on(cluster, job_id)
        assert versions_of(cluster) == {before.directory}

        cluster.python_path = ""
        leader = cluster.leader_process()
        (standby,) = [each for each in cluster.coordinators if each is not leader]
        cluster.coordinators.remove(standby)
        standby.stop()
        cluster.start_coordinator()
        cluster.kill_leader()
        goes_on(cluster, job_id)
        cluster.start_coordinator()

        cluster.settings.update(new_relay.settings)
        for number, name in enumerate(("tm-1", "tm-2")):
            cluster.start_task_manager(1)
            with cluster.client() as client:
                wait_until(lambda: any(t.free_slots for t in client.list_task_managers()), "the new TaskManager")
                assert client.drain_task_manager(name) == [job_id]
            cluster.task_managers[number].terminate()
            goes_on(cluster, job_id)

        with cluster.client() as client:
            details = client.get_job(job_id)
            assert {s.resource_id for v in details.vertices for s in v.subtasks} == {"tm-3", "tm-4"}
        old_relay.kill()
        goes_on(cluster, job_id)
        with cluster.client() as client:
            details = client.get_job(job_id)
            assert (details.overview.restarts, list(details.failures)) == (0, [])
            client.cancel(job_id)
            assert [decode_job_status(each.overview.status) for each in client.watch_job(job_id)][
                -1
            ] is JobStatus.CANCELED
    for relay in (old_relay, new_relay):
        assert "trunk opened" in relay.log.read_text(), "TaskManagers came through the relay"
    assert assert_exactly_once(output) > 0


def goes_on(cluster: HighAvailabilityCluster, job_id: str) -> None:
    """Whoever leads now completes a checkpoint that nobody has seen yet; what the version before compiles at first, it
    compiles for as long as that takes."""

    def processor_time() -> list[str]:
        running = (Path(f"/proc/{each.pid}/stat") for each in cluster.task_managers if each.poll() is None)
        return [ticks for stat in running for ticks in stat.read_text().rpartition(")")[2].split()[11:13]]

    with cluster.client() as client:
        reached = completed_after(client, job_id, newest_checkpoint(client, job_id))
        wait_until(reached, "a checkpoint", progress=processor_time)


def submitted_by(before: ReleasedWheel, cluster: HighAvailabilityCluster, output: Path) -> str:
    """The id of a job that a program of the version before has submitted."""
    settings = {f"SNAPLINE_CONF_{k.replace('.', '__').replace('-', '_')}": v for k, v in cluster.settings.items()}
    settings["SNAPLINE_CONF_execution__checkpointing__interval"] = "200 ms"
    command = [sys.executable, "-m", "snapline.cli", "run", "-d", str(SCRIPT), "--", "--output", str(output)]
    command += ["--rate", "4000", "--parallelism", "2"]
    environment = {**os.environ, **settings, "PYTHONPATH": before.python_path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=output.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def versions_of(cluster: HighAvailabilityCluster) -> set[Path]:
    """Where the package of each process lies."""
    found = set()
    for process in cluster.task_managers:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        path = next(each for each in environment if each.startswith(b"PYTHONPATH=")).decode()
        found.add(Path(path.removeprefix("PYTHONPATH=").split(os.pathsep)[0]))
    return found
