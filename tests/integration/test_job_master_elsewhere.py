"""A JobMaster beside its driver, the ResourceManager and the TaskManagers in a service: what they say crosses gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapline.client import ClusterClient, RequestRefused
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.rpc.security import Security
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import LocalCluster, wait_until

pytestmark = pytest.mark.slow


def test_a_job_beside_its_driver_runs_in_slots_of_the_service(tmp_path: Path) -> None:
    """Its TaskManagers cannot be drained meanwhile. The service is killed and started again: nothing restarts. A
    TaskManager is killed: the job gets a slot of another one. At the end the service has all slots back."""
    output, rows, gate = tmp_path / "out", 20_000, tmp_path / "gate"
    with LocalCluster(tmp_path / "service", slots=(1, 1)) as service:
        beside = {
            **service.settings,
            "high-availability.type": "NONE",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "resourcemanager.rpc.address": service.address,
        }
        sidecar = CoordinatorProcess.start(settings=beside, log_to=service.logs / "sidecar.log")
        try:
            with ClusterClient(sidecar.address, Security()) as client:
                environment = build(
                    service.environment(), ["--output", str(output), "--rows", str(rows), "--gate", str(gate)]
                )
                job_id = client.submit(environment.translate("beside its driver").job_graph)
                wait_until(lambda: client.list_checkpoints(job_id).counts.completed >= 1, "a checkpoint")
                assert free_slots(service) == 0
                with pytest.raises(RequestRefused, match=f"job {job_id} cannot leave .* another coordinator leads it"):
                    service.client.drain_task_manager(service.client.list_task_managers()[0].resource_id)

                service.kill_coordinator()
                service.start_coordinator()
                wait_until(lambda: registered(service) == 2, "the TaskManagers to register again")
                assert client.get_job(job_id).overview.restarts == 0

                service.start_task_manager(1)
                service.task_managers[0].kill()
                wait_until(lambda: client.list_checkpoints(job_id).counts.restored == 1, "the job to go on")
                gate.touch()
                details = client.wait(job_id)
                assert decode_job_status(details.overview.status) is JobStatus.FINISHED
            assert list(service.client.list_jobs()) == []
            wait_until(lambda: (registered(service), free_slots(service)) == (2, 2), "the slots to come back")
            killed, living = (manager.resource_id for manager in service.task_managers[:2])
            assert service.client.state_of_task_manager(killed) == "lost"
            assert service.client.state_of_task_manager(living) == "registered"
            assert service.client.state_of_task_manager("tm-of-nobody") == "unknown"
        finally:
            sidecar.stop()
    assert_exactly_once(output, rows)


def registered(cluster: LocalCluster) -> int:
    """TaskManagers that the service has."""
    return len(cluster.client.list_task_managers())


def free_slots(cluster: LocalCluster) -> int:
    """Of the service."""
    return sum(manager.free_slots for manager in cluster.client.list_task_managers())
