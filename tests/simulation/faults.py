"""What goes wrong in the project's own simulator besides: faults of ZooKeeper, of the jobs' outside world, of relays
and machines, and TaskManagers that lie."""

from __future__ import annotations

from collections.abc import Sequence

from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.faults import FaultInjector
from snapline.testing.simulated.world import Process, World
from tests.simulation.coordinator_host import CoordinatorHost
from tests.simulation.electing_cluster import ElectingCluster
from tests.simulation.liars import LIES, Liars
from tests.simulation.options import RESIZING, Options
from tests.simulation.strangers import STRANGER, Stranger
from tests.simulation.workload import Ledger
from tests.simulation.zookeeper import ENSEMBLE

LARGEST_CLUSTER = 5
"""TaskManagers."""


class AllFaults(FaultInjector):
    """All faults of one run."""

    _cluster: ElectingCluster

    def __init__(
        self, world: World, cluster: ElectingCluster, disk: Disk, ledgers: Sequence[Ledger], options: Options
    ) -> None:
        super().__init__(world, cluster, disk, options.faults.enabled, options.faults.mean_pause_ms)
        self._ledgers = ledgers
        self._stranger: Stranger | None = None
        self._events |= {
            "replace coordinator": self._replace_coordinator,
            "clocks": self._jump_clock,
            "isolate": self._isolate,
            "expire session": self._expire_session,
            "lose relay": self._lose_relay,
            "relay stands still": self._relay_stands_still,
            "lose machine": self._lose_machine,
            "damage local copies": self._damage_local_copies,
            RESIZING: self._resize,
        }

    def _start_own_conditions(self) -> None:
        on, rng = self._kinds, self._rng
        if LIES in on:
            self._cluster.lies = Liars(self._world.random("liars"), self._cluster.tasks, self._say).lies_of
        if STRANGER in on:
            self._stranger = Stranger(self._world, self._cluster, self._say)
            self._stranger.start()
        if "user exception" in on:
            probability = rng.choice([0.001, 0.01])
            for ledger in self._ledgers:
                ledger.user_fails = lambda where: self._drawn(probability, f"user function fails in {where}")
        if "lose answers of zookeeper" in on:
            self._cluster.ensemble.lose_answer = lambda: rng.random() < 0.02
        if "failing commit" in on:
            for ledger in self._ledgers:
                ledger.commit_fault = self._commit_fault

    def _stop_own_conditions(self) -> None:
        if self._stranger is not None:
            self._stranger.stop()
        for ledger in self._ledgers:
            ledger.user_fails = lambda where: False
            ledger.commit_fault = lambda transaction_id: ""
        self._cluster.ensemble.lose_answer = lambda: False

    def _drawn(self, probability: float, what: str) -> bool:
        if self._rng.random() >= probability:
            return False
        self.counts["user exception"] += 1
        self._say(what)
        return True

    # --- events -------------------------------------------------------------------------------------------------------

    def _kill_coordinator(self) -> None:
        if self._cluster.hosts:
            host = self._rng.choice(self._hosts())
            self._say(f"kill {host.name}")
            host.kill()
            return
        super()._kill_coordinator()

    def _hosts(self) -> list[CoordinatorHost]:
        """Coordinators on ZooKeeper, the one that leads more often."""
        hosts = list(self._cluster.hosts.values())
        return [*hosts, *(host for host in hosts if host.leads for _ in hosts)]

    def _lose_machine(self) -> None:
        """All that run on it, and what they kept there."""
        machine = self._rng.choice(self._cluster.machines)
        self._say(f"{machine.name} is lost")
        for process in self._cluster.alive():
            if process.machine is machine:
                process.kill()
        machine.lose()

    def _damage_local_copies(self) -> None:
        machine = self._rng.choice(self._cluster.machines)
        self._say(f"{machine.damage(self._rng)} copies of state on {machine.name} are damaged")

    def _behind_a_relay(self) -> list[str]:
        """Some TaskManagers, which have their way to the coordinators in common."""
        alive = [process.name for process in self._cluster.alive()]
        return self._rng.sample(alive, self._rng.randint(1, len(alive))) if alive else []

    def _lose_relay(self) -> None:
        """Whatever its streams carried is lost, in both directions and at once; the processes live."""
        names = self._behind_a_relay()
        self._say(f"the relay of {', '.join(names) or 'nobody'} is lost")
        self._break_all_control(names)

    def _break_all_control(self, names: list[str]) -> None:
        for name in names:
            for connection in self._world.network.connections_of(name):
                if not connection.startswith("data-"):
                    self._world.network.break_link(name, connection)

    def _relay_stands_still(self) -> None:
        """What it carries waits, and arrives late or never; the TaskManagers behind it reach each other."""
        behind = self._behind_a_relay()
        others = {ENSEMBLE, *(process.name for process in self._cluster.alive())}
        coordinators = [name for name in self._names() if name not in others]
        pairs = [pair for tm in behind for name in coordinators for pair in ((tm, name), (name, tm))]
        duration_ms, is_lost = self._rng.choice([100, 1000, 4000]), self._rng.random() < 0.5
        self._say(
            f"the relay of {', '.join(behind)} stands still for {duration_ms} ms{', and is lost' if is_lost else ''}"
        )
        for one, other in pairs:
            self._world.network.cut(one, other, both_ways=False)

        def over() -> None:
            if is_lost and self._active:
                self._break_all_control(behind)
            self._world.network.heal(pairs)

        self._world.clock.after(duration_ms, over)

    def _isolate(self) -> None:
        """One process reaches nobody, or is reached by nobody, or both."""
        names = self._names()
        if len(names) < 2:
            return
        alone = self._rng.choice(names)
        out, into = self._rng.choice([(True, True), (True, True), (True, False), (False, True)])
        pairs = [(alone, other) for other in names if other != alone and out]
        pairs += [(other, alone) for other in names if other != alone and into]
        duration_ms = self._rng.choice([300, 1500, 4000])
        ways = "entirely" if out and into else "outwards" if out else "inwards"
        self._say(f"{alone} is cut off {ways} for {duration_ms} ms")
        for one, other in pairs:
            self._world.network.cut(one, other, both_ways=False)
        self._world.clock.after(duration_ms, lambda: self._world.network.heal(pairs))

    def _names(self) -> list[str]:
        """Everybody on the network."""
        if self._cluster.options.has_zookeeper:
            return [*(process.name for process in self._cluster.alive()), *self._cluster.hosts, ENSEMBLE]
        return super()._names()

    def _processes(self) -> list[Process]:
        if self._cluster.options.has_zookeeper:
            return [*self._cluster.alive(), *self._cluster.hosts.values()]
        return super()._processes()

    def _jump_clock(self) -> None:
        processes = self._processes()
        if processes:
            process, by_ms = self._rng.choice(processes), self._rng.choice([20, 500, 2_000, 60_000])
            self._say(f"the clock of {process.name} jumps {by_ms} ms ahead")
            process.jump(by_ms)

    def _expire_session(self) -> None:
        """ZooKeeper gives up a client that still believes in its session; or somebody removes a candidate by hand."""
        ensemble = self._cluster.ensemble
        candidates = [path for path, node in ensemble.nodes.items() if node.owner]
        of_candidates = [ensemble.nodes[path].owner for path in candidates]
        if candidates and self._rng.random() < 0.3:
            path = self._rng.choice(candidates)
            self._say(f"a candidate of session {ensemble.nodes[path].owner} is removed")
            ensemble.remove(path)
        elif ensemble.sessions:
            session = self._rng.choice([*ensemble.sessions, *of_candidates, *of_candidates])
            self._say(f"ZooKeeper session {session} expires")
            ensemble.end_session(session)

    def _resize(self) -> None:
        size = self._rng.randint(1, LARGEST_CLUSTER)
        self._say(f"there are to be {size} TaskManagers instead of {self._cluster.size}")
        self._cluster.resize(size)

    def _replace_coordinator(self) -> None:
        """It seems dead and is not: another takes over, and then it wakes up."""
        duration_ms = self._rng.choice([50, 500, 3000])
        replaced = self._cluster.replace_coordinator(duration_ms)
        if replaced:
            self._say(f"{replaced} freezes for {duration_ms} ms, and is replaced")

    def _commit_fault(self, transaction_id: str) -> str:
        drawn = self._rng.random()
        if drawn < 0.04:
            self._say(f"commit of {transaction_id} fails")
            return "before" if drawn < 0.02 else "after"
        return ""
