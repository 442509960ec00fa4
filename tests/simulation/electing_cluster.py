"""The simulated cluster with a ZooKeeper, if the options of the run say so: several coordinators, each at an address
of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapline.dataflow.ids import JobID
from snapline.runtime.leaders.leader_election import Leadership
from snapline.runtime.leaders.zookeeper_leader_retrieval import ZooKeeperLeaderRetrieval
from snapline.runtime.rpc.security import Security
from snapline.testing.simulated.cluster import SimulatedCluster
from snapline.testing.simulated.coordinator_process import SimulatedCoordinator
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.task_manager_process import SimulatedTaskManager
from snapline.testing.simulated.world import SilentLogger, World
from tests.simulation.coordinator_host import SETTINGS, CoordinatorHost, as_files, is_stored
from tests.simulation.options import Options
from tests.simulation.zookeeper import SimulatedEnsemble


class ElectingCluster(SimulatedCluster):
    """All processes of one run, ZooKeeper included."""

    options: Options

    def __init__(
        self,
        world: World,
        disk: Disk,
        options: Options,
        *,
        observe: Callable[[str, Any, list[Any]], None] = lambda name, event, effects: None,
        through_wire: bool = False,
    ) -> None:
        super().__init__(world, disk, options, observe=observe, through_wire=through_wire)
        self.ensemble = SimulatedEnsemble(world)
        self.hosts: dict[str, CoordinatorHost] = {}

    def _start_coordinators(self) -> None:
        if not self.options.has_zookeeper:
            super()._start_coordinators()
            return
        self.ensemble.start()
        for _ in range(self.options.coordinators):
            self._start_host()

    def _look_after_coordinators(self) -> None:
        if not self.options.has_zookeeper:
            super()._look_after_coordinators()
            return
        for name in [name for name, host in self.hosts.items() if not host.alive]:
            del self.hosts[name]
            self.world.clock.after(self.options.start_delay_ms, self._start_host)

    def _start_host(self) -> None:
        name = f"host-{self.world.number('coordinator host')}"
        self.hosts[name] = CoordinatorHost(self.world, name, self._start_leader)

    def _start_leader(
        self, host: CoordinatorHost, leadership: Leadership, on_leadership_lost: Callable[[], None]
    ) -> SimulatedCoordinator:
        name = f"coordinator-{self.world.number('coordinator')}"
        self.world.network.hosts[name] = host.name
        leader = self.coordinator = SimulatedCoordinator(
            self.world,
            self,
            self.disk,
            name,
            self.configuration,
            lambda: self.io_slowness_ms(),
            self.observe,
            leadership,
            f"{host.name}:6123",
            on_leadership_lost,
        )
        leader.on_death = host.kill
        return leader

    def _introduce(self, process: SimulatedTaskManager) -> None:
        if self.options.has_zookeeper:
            process.run(lambda: _follow_leaders(process))
        else:
            super()._introduce(process)

    def _at(self, address: str) -> SimulatedCoordinator | None:
        if not self.options.has_zookeeper:
            return super()._at(address)
        host = self.hosts.get(address.partition(":")[0])
        return None if host is None else host.leader

    def is_stored(self, job_id: JobID) -> bool:
        return is_stored(self.ensemble, job_id) if self.options.has_zookeeper else super().is_stored(job_id)

    def durable_files(self) -> dict[str, bytes]:
        return as_files(self.ensemble, self.disk) if self.options.has_zookeeper else super().durable_files()

    def replace_coordinator(self, frozen_ms: int) -> str:
        return self._freeze_leader(frozen_ms) if self.options.has_zookeeper else super().replace_coordinator(frozen_ms)

    def _freeze_leader(self, frozen_ms: int) -> str:
        """The others find that out by themselves, if it takes long enough."""
        leading = [host for host in self.hosts.values() if host.leads]
        for host in leading:
            host.freeze(frozen_ms)
        return leading[0].name if leading else ""


def _follow_leaders(process: SimulatedTaskManager) -> None:
    ZooKeeperLeaderRetrieval(SETTINGS, Security(), process.leaders_changed, SilentLogger()).start()  # type: ignore[arg-type]
