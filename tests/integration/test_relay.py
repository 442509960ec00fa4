"""TaskManagers behind a relay, all of them processes: jobs run, and a relay that dies or hangs is done without."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from snapline.connectors.builtin.generator import MULTIPLIER, VALUES
from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import KEYS, assert_exactly_once, build
from tests.services.cluster import LocalCluster
from tests.services.relay import ALL_OF_TWO, RelayProcess, lines_of, relayed_streams

ROWS = 10_000
DIRECTLY = "dialing without the relay"


def submit(cluster: LocalCluster, output: Path, gate: Path) -> str:
    """A job with a subtask of everything on both TaskManagers, which ends when the gate is open."""
    arguments = ["--output", str(output), "--rows", str(ROWS), "--gate", str(gate)]
    return cluster.submit(build(cluster.environment(), arguments), "relayed")


def test_a_relay_that_is_killed_is_a_lost_connection_and_nothing_else(tmp_path: Path) -> None:
    """All streams come through the relay, then none does: the same processes dial directly, the job goes on from its
    latest checkpoint, and every row counts once."""
    output, gate = tmp_path / "out", tmp_path / "gate"
    with RelayProcess(tmp_path) as relay, LocalCluster(tmp_path, (1, 1), relay.settings) as cluster:
        coordinator = cluster.logs / "coordinator.log"
        job_id = submit(cluster, output, gate)
        latest = cluster.wait_for_checkpoints(job_id, 2).latest_completed.checkpoint_id
        before = relayed_streams(coordinator)
        assert before >= ALL_OF_TWO
        assert len(lines_of(relay.log, "trunk opened")) == 1
        assert done_without_relay(cluster) == set()

        relay.kill()
        cluster.follow(job_id, lambda details: details.checkpoint_counts.restored > 0)
        known = cluster.client.list_checkpoints(job_id)
        assert known.restored_checkpoint_id >= latest
        cluster.wait_for_checkpoints(job_id, known.counts.completed + 2)
        gate.touch()
        details = cluster.client.wait(job_id)

        assert (details.overview.restarts, details.checkpoint_counts.restored) == (1, 1)
        assert [manager.process.poll() for manager in cluster.task_managers] == [None, None]
        assert done_without_relay(cluster) == {"tm-1", "tm-2"}
        assert relayed_streams(coordinator) == before
        assert "ERROR" not in relay.log.read_text()
    assert_exactly_once(output, ROWS)
    assert values_summed(output) == values_generated()


@pytest.mark.rare
def test_a_relay_that_hangs_is_given_its_time_and_done_without(tmp_path: Path) -> None:
    """It takes connections and opens no stream: TaskManagers dial directly and say so, however little patience they
    have with a coordinator."""
    output, gate = tmp_path / "out", tmp_path / "gate"
    gate.touch()
    with RelayProcess(tmp_path) as relay:
        relay.hang()
        impatient = {**relay.settings, "cluster.registration.max-timeout": "1 s"}
        with LocalCluster(tmp_path, (1, 1), impatient) as cluster:
            job_id = submit(cluster, output, gate)
            details = cluster.wait_for(job_id, JobStatus.FINISHED)
            assert details.overview.restarts == 0
            assert done_without_relay(cluster) == {"tm-1", "tm-2"}
            assert {said["reason"] for said in lines_of(cluster.task_managers[0].log, DIRECTLY)} == {
                "no answer within 2000 ms"
            }
            assert relayed_streams(cluster.logs / "coordinator.log") == {}
    assert_exactly_once(output, ROWS)


def done_without_relay(cluster: LocalCluster) -> set[str]:
    """Which TaskManagers dialed directly."""
    managers = cluster.task_managers
    return {manager.resource_id for manager in managers if lines_of(manager.log, DIRECTLY)}


def values_summed(output: Path) -> list[tuple[int, int]]:
    """Key and value of every row that went into the sums: by how much each sum exceeds the one before."""
    table = pq.read_table(output).sort_by([("key", "ascending"), ("n", "ascending")])
    sums: dict[int, int] = {}
    found = []
    for key, total in zip(table["key"].to_pylist(), table["total"].to_pylist(), strict=True):
        found.append((key, total - sums.get(key, 0)))
        sums[key] = total
    return sorted(found)


def values_generated() -> list[tuple[int, int]]:
    """Key and value of every row of the source."""
    return sorted((number * MULTIPLIER % KEYS, number % VALUES) for number in range(ROWS))
