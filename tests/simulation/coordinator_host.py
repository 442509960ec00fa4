"""One of several simulated coordinators that share a ZooKeeper: contends, leads, and contends again when leadership is
lost.

Plays `snapline.coordinator.__main__` (`_stand_by`, `_lead`) without a process: candidacy, election, sessions, stores
and the publication of leaders are the product's own, on `SimulatedEnsemble` and on threads of `threads`. What leads
is a `SimulatedCoordinator` of its own for each leadership; it is on the network where its host is, and dies and
freezes with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import snapline.coordinator.ha.leader_table_writer
import snapline.coordinator.ha.zookeeper_high_availability
import snapline.runtime.leaders.leader_election
import snapline.runtime.leaders.zookeeper_leader_retrieval
import snapline.runtime.leaders.zookeeper_session
from snapline.coordinator.leader_candidate import Candidacy
from snapline.dataflow.ids import JobID
from snapline.runtime.leaders.leader_election import Leadership
from snapline.runtime.leaders.zookeeper_session import ZooKeeperSettings
from snapline.testing.simulated.coordinator_process import HIGH_AVAILABILITY, SimulatedCoordinator
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import Process, SilentLogger, World
from tests.simulation.threads import SimulatedEvent, SimulatedThreading, Worker, end_idle_threads
from tests.simulation.zookeeper import SimulatedClient, SimulatedEnsemble

SUBMITTED_BYTES = 8
"""Of the time of submission, in front of where a job graph lies."""
SETTINGS = ZooKeeperSettings("zookeeper:2181", session_timeout_ms=1_200, connection_timeout_ms=2_000)
LOOK_EVERY_MS = 50

StartLeader = Callable[["CoordinatorHost", Leadership, Callable[[], None]], SimulatedCoordinator]


class CoordinatorHost(Process):
    """A process that leads or stands by."""

    def __init__(self, world: World, name: str, start_leader: StartLeader) -> None:
        super().__init__(world, name)
        self.leader: SimulatedCoordinator | None = None
        """What it leads with, or led with last."""
        self._start_leader = start_leader
        Worker(self, self._stand_by).start(world.network.delay_ms())

    @property
    def leads(self) -> bool:
        return self.leader is not None and self.leader.alive

    def freeze(self, duration_ms: int) -> None:
        super().freeze(duration_ms)
        if self.leader is not None:
            self.leader.freeze(duration_ms)

    def jump(self, by_ms: int) -> None:
        super().jump(by_ms)
        if self.leader is not None:
            self.leader.jump(by_ms)

    def ended(self) -> None:
        super().ended()
        self.world.story.say(self.name, "is gone")
        if self.leader is not None:
            self.leader.kill()

    def _stand_by(self) -> None:
        def standing_by(leader: str) -> None:
            self.world.story.say(self.name, f"stands by: {leader} leads")

        candidacy = Candidacy(SETTINGS, HIGH_AVAILABILITY, self.name, SilentLogger(), standing_by)  # type: ignore[arg-type]
        candidacy.is_patient = True
        stopping: Any = SimulatedEvent()
        while True:
            leadership = candidacy.next_leadership(stopping)
            assert leadership is not None
            self._lead(leadership)
            leadership.session.close()

    def _lead(self, leadership: Leadership) -> None:
        ended = SimulatedEvent()
        leader = self.leader = self._start_leader(self, leadership, ended.set)
        leadership.session.on_over(lambda _: ended.set())
        ended.wait()
        self.world.story.say(self.name, f"does not lead any more: {leadership.session.reason}")
        leader.run(leader.retire)
        worker = Worker.running
        assert worker is not None
        while leader.alive:
            worker.sleep(LOOK_EVERY_MS)


class _Uuids:
    """Stands in for the module `uuid`."""

    def __init__(self, world: World) -> None:
        self._rng = world.random("uuids")

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128))


@contextmanager
def zookeeper_in(world: World, ensemble: SimulatedEnsemble) -> Iterator[None]:
    """The product's code meets this ensemble and these threads."""
    threads, uuids = SimulatedThreading(world), _Uuids(world)

    def client(settings: ZooKeeperSettings) -> SimulatedClient:
        assert world.current is not None
        return SimulatedClient(ensemble, world.current, settings.session_timeout_ms)

    with ExitStack() as stack:
        for module in (
            snapline.runtime.leaders.zookeeper_session,
            snapline.runtime.leaders.leader_election,
            snapline.runtime.leaders.zookeeper_leader_retrieval,
            snapline.coordinator.ha.leader_table_writer,
        ):
            stack.enter_context(patch.object(module, "threading", threads))
        for module in (snapline.runtime.leaders.leader_election, snapline.coordinator.ha.zookeeper_high_availability):
            stack.enter_context(patch.object(module, "uuid", uuids))
        stack.enter_context(patch.object(ZooKeeperSettings, "client", client))
        try:
            yield
        finally:
            world.end_workers()
            end_idle_threads()


def is_stored(ensemble: SimulatedEnsemble, job_id: JobID) -> bool:
    """Whether a leader would find the job."""
    return f"{SETTINGS.base}/jobs/{job_id}" in ensemble.nodes


def durable_nodes(ensemble: SimulatedEnsemble) -> dict[str, bytes]:
    """What belongs to jobs, by its path below the node of the cluster."""
    prefix = f"{SETTINGS.base}/"
    names = {path.removeprefix(prefix): node.data for path, node in ensemble.nodes.items() if path.startswith(prefix)}
    return {
        name: data
        for name, data in names.items()
        if "/" in name and name.partition("/")[0] in ("jobs", "counters", "pointers", "statistics")
    }


def as_files(ensemble: SimulatedEnsemble, disk: Disk) -> dict[str, bytes]:
    """The same durable state as the embedded stores keep it: a coordinator without ZooKeeper can go on from here."""
    files = {path: data for path, data in disk.snapshot().items() if not path.startswith("ha/")}
    for name, data in durable_nodes(ensemble).items():
        kind, _, rest = name.partition("/")
        if kind == "jobs":
            graph = disk.files.get(f"ha/{data[SUBMITTED_BYTES:].decode()}")
            files[f"ha/jobs/{rest}"] = data[:SUBMITTED_BYTES] + graph
        elif kind == "counters":
            files[f"ha/counters/{rest}/{int(data):020d}"] = b""
        elif kind == "pointers" and "/" in rest:
            files[f"ha/pointers/{rest}/pointer"] = data
    return files
