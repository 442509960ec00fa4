"""Ten restarts in a row leave no file, process, thread or znode behind: standalone Spark, ZooKeeper, a killed worker
each time."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from deploy.zookeeper_ensemble import ZooKeeperEnsemble
from snapline.dataflow.config import Configuration
from snapline.protos import client_pb2 as pb
from snapline.runtime.leaders.zookeeper_session import ZooKeeperSession, ZooKeeperSettings
from snapline.runtime.logs import silent_logger
from tests.e2e.programs import MARK, marked
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import wait_until
from tests.services.ha_cluster import HighAvailabilityCluster
from tests.soak import TASK_MANAGERS, bring_task_managers, ended, standalone_spark

pytestmark = [pytest.mark.rare, pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(900)]
RESTARTS = 10
PATIENCE_SECONDS = 300.0
NOISE = 5
"""Files and threads come and go with the checkpoint that is being taken; one left by each restart would be twice as
many."""


class Census:
    """Counts what there is."""

    def __init__(self, cluster: HighAvailabilityCluster, directory: Path, mark: str) -> None:
        self._cluster = cluster
        self._directory = directory
        self._mark = mark

    def take(self) -> dict[str, Sequence[object]]:
        """By kind."""
        coordinator, driver = self._cluster.coordinators[0].pid, self._cluster.task_managers[0].pid
        areas = ("checkpoints", "ha", "spark", "tmp")
        hidden = [name for name in _files(self._directory / "out") if Path(name).name.startswith((".", "_"))]
        return {
            "processes": list(marked(self._mark).values()),
            "znodes": self._znodes(),
            "hidden files of the sink": hidden,
            **{f"files in {area}": _files(self._directory / area) for area in areas},
            **{f"threads of {pid}": list(Path(f"/proc/{pid}/task").iterdir()) for pid in (coordinator, driver)},
            **{f"open files of {pid}": list(Path(f"/proc/{pid}/fd").iterdir()) for pid in (coordinator, driver)},
        }

    def _znodes(self) -> list[str]:
        settings = ZooKeeperSettings.from_configuration(Configuration(self._cluster.settings))
        session = ZooKeeperSession(settings, silent_logger())
        session.open()
        try:
            return list(_below(session, settings.base))
        finally:
            session.close()


def _files(directory: Path) -> list[str]:
    """All below, whatever comes and goes meanwhile. Directories aside: Spark spreads blocks over 64 of them, in
    time."""
    return [str(Path(place) / name) for place, _, names in os.walk(directory) for name in names]


def _below(session: ZooKeeperSession, path: str) -> Iterator[str]:
    yield path
    for child in session.children(path):
        yield from _below(session, f"{path}/{child}")


def grown(before: Mapping[str, Sequence[object]], after: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
    """Of what there is more than noise explains: what is new."""
    return {
        kind: sorted(set(after[kind]) - set(before[kind]), key=str)
        for kind in before
        if len(after[kind]) - len(before[kind]) >= (1 if kind == "processes" else NOISE)
    }


def test_ten_killed_workers_leave_nothing_behind(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Counted after the first and after the eleventh; and the output is exact."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "spark").mkdir()
    settings = {"restart-strategy.fixed-delay.attempts": "1000", "parallelism.default": str(TASK_MANAGERS)}
    with (
        ZooKeeperEnsemble(tmp_path / "zookeeper", nodes=1) as ensemble,
        standalone_spark(tmp_path / "spark", TASK_MANAGERS) as master,
        HighAvailabilityCluster(tmp_path, ensemble, 1, (), settings) as cluster,
    ):
        bring_task_managers(cluster, master)
        environment = cluster.environment(TASK_MANAGERS, "500 ms")
        arguments = ["--output", str(tmp_path / "out"), "--rate", "1000", "--parallelism", str(TASK_MANAGERS)]
        build(environment, arguments)
        with cluster.client() as client:
            job_id = client.submit(environment.translate("ten restarts").job_graph)

            def completed_since(moment_ms: int) -> bool:
                history = client.list_checkpoints(job_id).history
                done = [c for c in history if c.status == pb.CHECKPOINT_STATUS_COMPLETED]
                return any(c.trigger_timestamp_ms > moment_ms for c in done)

            census = Census(cluster, tmp_path, mark)
            wait_until(lambda: completed_since(0), "the first checkpoint", PATIENCE_SECONDS)
            for number in range(1 + RESTARTS):
                (victim, *_) = [m.pid for m in client.list_task_managers() if m.free_slots < m.slots]
                os.kill(victim, signal.SIGKILL)
                killed_ms = round(time.time() * 1000)
                wait_until(partial(completed_since, killed_ms), "a checkpoint", PATIENCE_SECONDS)
                if number == 0:
                    before = census.take()
            assert client.get_job(job_id).overview.restarts == 1 + RESTARTS
            with suppress(AssertionError):  # what was being taken down may need a moment
                wait_until(lambda: not grown(before, census.take()), "all to be as before", 30.0)
            assert grown(before, census.take()) == {}
            client.stop_with_savepoint(job_id, str(tmp_path / "savepoints"))
            ended(client, job_id)
    assert marked(mark) == {}
    assert_exactly_once(tmp_path / "out")
