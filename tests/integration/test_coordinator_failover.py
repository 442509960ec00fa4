"""Several coordinators on a real ZooKeeper: one leads, another takes over, and jobs go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from snapline.client import ClusterClient, CoordinatorUnreachable
from snapline.coordinator.coordinator_process import CoordinatorProcess, CoordinatorStartError
from snapline.dataflow.config import Configuration
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import wait_until
from tests.services.ha_cluster import HighAvailabilityCluster
from tests.services.relay import ALL_OF_TWO, RelayProcess, lines_of, relayed_streams
from tests.services.zookeeper import ZooKeeperEnsemble, start_ensemble

pytestmark = pytest.mark.zookeeper


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The ensemble is up before anything counts what a test leaves behind."""
    metafunc.fixturenames.insert(0, "ensemble")


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One server is enough here: the contract suite kills those of three."""
    ensemble = start_ensemble(tmp_path_factory.mktemp("zookeeper"), nodes=1)
    yield ensemble
    ensemble.stop()


def test_standby_takes_over_and_the_tasks_go_on(tmp_path: Path, ensemble: ZooKeeperEnsemble) -> None:
    """The leader is killed twice; no task is restarted, nothing is lost or doubled, and checkpoint ids only rise. The
    job takes incremental checkpoints, and was rescaled before."""
    output = tmp_path / "out"
    rows, gate = 20_000, tmp_path / "gate"
    settings = {"execution.checkpointing.incremental": "true"}
    with HighAvailabilityCluster(tmp_path, ensemble, coordinators=3, slots=(1, 1), settings=settings) as cluster:
        arguments = ["--output", str(output), "--rows", str(rows), "--rate", "4000", "--gate", str(gate)]
        environment = build(cluster.environment(), [*arguments, "--parallelism", "1"])
        with ClusterClient.from_configuration(Configuration(cluster.settings)) as watcher:
            job_id = watcher.submit(environment.translate("sums").job_graph)
            wait_until(completed_after(watcher, job_id, 1), "checkpoints")
            watcher.rescale(job_id, 2)
            seen = newest_checkpoint(watcher, job_id)
            for leader in range(3):
                if leader:
                    cluster.kill_leader()
                with cluster.client() as client:
                    wait_until(completed_after(client, job_id, seen + 1), "checkpoints of the new leader")
                    seen = newest_checkpoint(client, job_id)
            gate.touch()
            details = watcher.wait(job_id)  # opened when the first one led
        assert decode_job_status(details.overview.status) is JobStatus.FINISHED
        after_a_kill = ["CREATED", "RECONCILING", "RUNNING"]
        rescaled = ["CREATED", "RUNNING", "RESTARTING", "RUNNING"]
        assert statuses_logged(cluster) == [*rescaled, *after_a_kill, *after_a_kill, "FINISHED"]
    assert_exactly_once(output, rows)


def test_a_leader_that_hangs_is_replaced_and_stands_by_when_it_wakes(
    tmp_path: Path, ensemble: ZooKeeperEnsemble
) -> None:
    """It still believes that it leads when it goes on: nothing of what it writes arrives, it does not disturb the
    tasks, and who has asked it to cancel the job meanwhile is refused."""
    output = tmp_path / "out"
    rows, gate = 20_000, tmp_path / "gate"
    with HighAvailabilityCluster(tmp_path, ensemble, coordinators=2, slots=(1, 1)) as cluster:
        arguments = ["--output", str(output), "--rows", str(rows), "--rate", "3000", "--gate", str(gate)]
        environment = build(cluster.environment(), arguments)
        with ClusterClient.from_configuration(Configuration(cluster.settings)) as client:
            job_id = client.submit(environment.translate("sums").job_graph)
            wait_until(completed_after(client, job_id, 1), "checkpoints")
            seen = newest_checkpoint(client, job_id)
        hanging = cluster.leader_process()
        before = cluster.leader_address
        with cluster.client() as late, ThreadPoolExecutor(1) as waiting:
            os.kill(hanging.pid, signal.SIGSTOP)
            cancelled = waiting.submit(late.cancel, job_id)
            try:
                wait_until(lambda: cluster.leader_address != before, "the standby to lead")
                with cluster.client() as client:
                    wait_until(completed_after(client, job_id, seen + 1), "checkpoints of the new leader")
            finally:
                os.kill(hanging.pid, signal.SIGCONT)
            with pytest.raises(CoordinatorUnreachable):
                cancelled.result()
        gate.touch()
        with cluster.client() as client:
            details = client.wait(job_id)
        assert decode_job_status(details.overview.status) is JobStatus.FINISHED
        wait_until(lambda: said(cluster, "this coordinator does not lead any more") == 1, "the old leader to notice")
        wait_until(lambda: said(cluster, "standing by") == 2, "the old leader to stand by")
        starts = [log.read_text().count('"msg":"task started"') for log in cluster.logs.glob("tm-*")]
        assert sum(starts) == 4
    assert_exactly_once(output, rows)


@pytest.mark.rare
def test_behind_a_relay_the_tasks_go_on_as_well(tmp_path: Path, ensemble: ZooKeeperEnsemble) -> None:
    """The leader is killed: the relay lives and carries the same TaskManagers to the next one, which adopts the job."""
    output, rows, gate = tmp_path / "out", 10_000, tmp_path / "gate"
    with (
        RelayProcess(tmp_path) as relay,
        HighAvailabilityCluster(tmp_path, ensemble, coordinators=2, slots=(1, 1), settings=relay.settings) as cluster,
    ):
        arguments = ["--output", str(output), "--rows", str(rows), "--gate", str(gate)]
        environment = build(cluster.environment(), arguments)
        with cluster.client() as client:
            job_id = client.submit(environment.translate("sums").job_graph)
            wait_until(completed_after(client, job_id, 1), "checkpoints")
            seen = newest_checkpoint(client, job_id)
        cluster.kill_leader()
        with cluster.client() as client:
            wait_until(completed_after(client, job_id, seen + 1), "checkpoints of the new leader")
            gate.touch()
            details = client.wait(job_id)
        assert decode_job_status(details.overview.status) is JobStatus.FINISHED
        assert statuses_logged(cluster) == ["CREATED", "RUNNING", "CREATED", "RECONCILING", "RUNNING", "FINISHED"]
        assert sum(len(lines_of(log, "task started")) for log in cluster.logs.glob("tm-*")) == 4
        trunks = [trunk["coordinator"] for trunk in lines_of(relay.log, "trunk opened")]
        assert len(trunks) == len(set(trunks)) == 2
    coordinators = list(cluster.logs.glob("coordinator-*"))
    assert [relayed_streams(log) >= ALL_OF_TWO for log in coordinators] == [True, True]
    assert [lines_of(log, "stream ended") for log in coordinators] == [[], []], "said of direct streams"
    assert_exactly_once(output, rows)


def said(cluster: HighAvailabilityCluster, message: str) -> int:
    """How often coordinators said so."""
    return sum(log.read_text().count(f'"msg":"{message}"') for log in cluster.logs.glob("coordinator-*"))


def completed_after(client: ClusterClient, job_id: str, checkpoint_id: int) -> Callable[[], bool]:
    return lambda: newest_checkpoint(client, job_id) > checkpoint_id


def statuses_logged(cluster: HighAvailabilityCluster) -> list[str]:
    """What each coordinator said of the job's status, in the order of its start."""
    lines = [json.loads(line) for log in sorted(cluster.logs.glob("coordinator-*")) for line in log.open()]
    lines.sort(key=lambda line: line["ts"])
    return [line["context"]["status"] for line in lines if line["msg"] == "job status"]


def newest_checkpoint(client: ClusterClient, job_id: str) -> int:
    history = client.list_checkpoints(job_id).history
    return max(
        (int(each.checkpoint_id) for each in history if each.status == pb.CHECKPOINT_STATUS_COMPLETED), default=0
    )


def test_unreachable_zookeeper_ends_a_coordinator_at_its_start(tmp_path: Path) -> None:
    """With one line that names the setting."""
    settings = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": "127.0.0.1:1",
        "high-availability.zookeeper.client.connection-timeout": "300 ms",
        "high-availability.storageDir": str(tmp_path),
    }
    with pytest.raises(CoordinatorStartError, match=r"no ZooKeeper server answers at 127\.0\.0\.1:1"):
        CoordinatorProcess.start(settings=settings)


def test_cluster_id_of_another_cluster_ends_a_coordinator_at_its_start(
    tmp_path: Path, ensemble: ZooKeeperEnsemble
) -> None:
    """It names both storages and the way out."""
    with HighAvailabilityCluster(tmp_path, ensemble, coordinators=1, slots=()) as cluster:
        other = {**cluster.settings, "high-availability.storageDir": str(tmp_path / "other")}
        with pytest.raises(CoordinatorStartError, match=r"give it a high-availability\.cluster-id of its own"):
            CoordinatorProcess.start(settings=other)
