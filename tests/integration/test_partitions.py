"""Coordinators and TaskManagers on hosts of their own (network namespaces), whose links are cut and healed."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.zookeeper_ensemble import ZooKeeperEnsemble
from snapline import StreamExecutionEnvironment
from snapline.client import ClusterClient
from snapline.dataflow.config import Configuration
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.runtime.leaders.coordinator_address import coordinator_address
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import wait_until
from tests.services.network import PrivateNetwork, why_not

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]
HOSTS = ("c1", "c2", "t1", "t2")


class Hosts:
    """Two coordinators, two TaskManagers, each on its host; ZooKeeper beside the test."""

    def __init__(self, directory: Path, network: PrivateNetwork, quorum: str) -> None:
        self.directory = directory
        self.network = network
        self.settings = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": quorum,
            "high-availability.zookeeper.client.session-timeout": "3 s",
            "high-availability.cluster-id": uuid.uuid4().hex,
            "high-availability.storageDir": str(directory / "ha"),
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            "security.auth.token": "secret of the partitions",
            "heartbeat.interval": "1 s",
            "heartbeat.timeout": "15 s",
            "cluster.registration.error-delay": "100 ms",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str, module: str, *arguments: str) -> None:
        """A process of ours on the host."""
        command = [sys.executable, "-m", module, *arguments]
        for key, value in self.settings.items():
            command += ["-D", f"{key}={value}"]
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with (self.directory / f"{host}.log").open("ab") as log:
            self.processes[host] = subprocess.Popen(
                self.network.on(host, command),
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self, host: str) -> str:
        return (self.directory / f"{host}.log").read_text()

    def leader(self) -> str:
        """The host of the coordinator that leads, as ZooKeeper has it; empty: none yet."""
        try:
            address = coordinator_address(Configuration(self.settings))
        except Exception:
            return ""
        return next(host for host in HOSTS if address.startswith(f"{self.network.address(host)}:"))

    def client(self) -> ClusterClient:
        return ClusterClient.from_configuration(Configuration(self.settings))

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """All up, a coordinator leads."""
    with PrivateNetwork(HOSTS) as network, ZooKeeperEnsemble(tmp_path / "zk", 1, host=network.own_address) as ensemble:
        hosts = Hosts(tmp_path, network, ensemble.quorum)
        try:
            for host in ("c1", "c2"):
                hosts.start(host, "snapline.coordinator", "--insecure", "--bind", f"{network.address(host)}:6123")
            for host in ("t1", "t2"):
                arguments = ("--slots", "1", "--resource-id", host, "--bind-host", network.address(host))
                hosts.start(host, "snapline.taskmanager", *arguments)
            wait_until(lambda: bool(hosts.leader()), "a leader")
            yield hosts
        finally:
            hosts.stop()
            for host in HOSTS:
                print(f"--- {host}\n{hosts.log(host)[-4000:]}")


def completed_after(hosts: Hosts, job_id: str, checkpoint_id: int) -> Callable[[], bool]:
    return lambda: newest_checkpoint(hosts, job_id) > checkpoint_id


def newest_checkpoint(hosts: Hosts, job_id: str) -> int:
    with hosts.client() as client:
        history = client.list_checkpoints(job_id).history
    return max((int(c.checkpoint_id) for c in history if c.status == pb.CHECKPOINT_STATUS_COMPLETED), default=0)


def submit(hosts: Hosts, output: Path, rows: int) -> str:
    values: dict[str, object] = {
        **hosts.settings,
        "parallelism.default": 2,
        "execution.checkpointing.interval": "300 ms",
    }
    environment = StreamExecutionEnvironment.get_execution_environment(values)
    gate = str(hosts.directory / "gate")
    build(environment, ["--output", str(output), "--rows", str(rows), "--rate", "2000", "--gate", gate])
    with hosts.client() as client:
        job_id = client.submit(environment.translate("sums").job_graph)
    wait_until(completed_after(hosts, job_id, 1), "checkpoints")
    return job_id


def finished(hosts: Hosts, job_id: str) -> bool:
    (hosts.directory / "gate").touch()
    with hosts.client() as client:
        details = client.wait(job_id)
    return decode_job_status(details.overview.status) is JobStatus.FINISHED


def tasks_started(hosts: Hosts) -> int:
    return sum(hosts.log(host).count('"msg":"task started"') for host in ("t1", "t2"))


@pytest.mark.parametrize(
    "one_way", [pytest.param(False, id="both ways"), pytest.param(True, id="one way", marks=pytest.mark.rare)]
)
def test_a_leader_that_is_cut_off_is_replaced_while_its_tasks_go_on(hosts: Hosts, *, one_way: bool) -> None:
    """Cut off from ZooKeeper and TaskManagers: the other one adopts the tasks; healed, the first stands by."""
    output, rows = hosts.directory / "out", 20_000
    job_id = submit(hosts, output, rows)
    first, seen = hosts.leader(), newest_checkpoint(hosts, job_id)
    if one_way:
        hosts.network.cut_one_way(first)
    else:
        hosts.network.cut(first)
    wait_until(lambda: hosts.leader() not in ("", first), "the other coordinator to lead")
    wait_until(completed_after(hosts, job_id, seen + 1), "checkpoints of the new leader")
    hosts.network.heal(first)

    assert finished(hosts, job_id)
    assert tasks_started(hosts) == 4
    wait_until(lambda: '"msg":"this coordinator does not lead any more"' in hosts.log(first), "the first to notice")
    assert_exactly_once(output, rows)


def test_slow_links_change_nothing(hosts: Hosts) -> None:
    """A leader and a TaskManager whose answers take a while: no leader changes, no task is restarted."""
    try:
        for host in (hosts.leader(), "t1"):
            hosts.network.delay(host, 100)
    except RuntimeError as error:
        pytest.skip(f"links cannot be made slow here: {error}")
    output, rows = hosts.directory / "out", 20_000
    first = hosts.leader()
    job_id = submit(hosts, output, rows)

    assert finished(hosts, job_id)
    assert (hosts.leader(), tasks_started(hosts)) == (first, 4)
    assert_exactly_once(output, rows)
