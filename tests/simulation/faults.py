"""What goes wrong, and when: draws faults of the enabled kinds while the safety phase lasts.

Some faults are events (a process is killed, a connection breaks), which come at random times; others are conditions
(slow storage, duplicated messages), which hold for the whole phase, with random effect. `stop` ends all of them and
heals what can be healed; what is dead stays dead, until the cluster starts another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.cluster import SimulatedCluster
from tests.simulation.coordinator_host import CoordinatorHost
from tests.simulation.disk import Disk, DiskFaults
from tests.simulation.liars import LIES, Liars
from tests.simulation.options import RESIZING, Options
from tests.simulation.workload import Ledger
from tests.simulation.world import Process, World
from tests.simulation.zookeeper import ENSEMBLE

LARGEST_CLUSTER = 5
"""TaskManagers."""


class FaultInjector:
    """All faults of one run."""

    def __init__(
        self, world: World, cluster: SimulatedCluster, disk: Disk, ledgers: Sequence[Ledger], options: Options
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._disk = disk
        self._ledgers = ledgers
        self._options = options
        self._rng: random.Random = world.random("faults")
        self._active = False
        self.count = 0
        self._events: dict[str, Callable[[], None]] = {
            "kill task manager": self._kill_task_manager,
            "kill coordinator": self._kill_coordinator,
            "break control connection": self._break_control,
            "break data stream": self._break_data,
            "partition": self._partition,
            "slow network": self._slow_network,
            "failing storage": self._failing_storage,
            "freeze": self._freeze,
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

    @property
    def nothing_was_lost(self) -> bool:
        """Every process that was ever there still is, and whatever anybody asked of the disk was done."""
        loses = {"failing storage", "kill at storage"}
        return not loses & self._options.faults.enabled and all(process.alive for process in self._world.processes)

    def start(self) -> None:
        """Faults from now on."""
        self._active = True
        on, rng = self._options.faults, self._rng
        if "kill at storage" in on:
            self._disk.faults = DiskFaults(kill=rng.choice([0.002, 0.01]), land_late=rng.choice([0.0, 0.3]))
        if "slow storage" in on:
            self._cluster.io_slowness_ms = lambda: rng.choice([0, 0, 5, 50, 400])
        if "duplicate messages" in on:
            self._cluster.duplicate = lambda message: rng.random() < 0.05
        if LIES in on:
            self._cluster.lies = Liars(self._world.random("liars"), self._cluster.tasks, self._say).lies_of
        if "slow task" in on:
            self._cluster.stall_ms = lambda task: rng.choice([0] * 60 + [5, 30, 300])
        if "user exception" in on:
            probability = rng.choice([0.001, 0.01])
            for ledger in self._ledgers:
                ledger.user_fails = lambda where: self._drawn(probability, f"user function fails in {where}")
        if "lose answers of zookeeper" in on:
            self._cluster.ensemble.lose_answer = lambda: rng.random() < 0.02
        if "failing commit" in on:
            for ledger in self._ledgers:
                ledger.commit_fault = self._commit_fault
        events = [kind for kind in self._events if kind in on]
        if events:
            self._next(events)

    def stop(self) -> None:
        """No faults any more."""
        if not self._active:
            return
        self._active = False
        self._disk.faults = DiskFaults()
        self._cluster.io_slowness_ms = lambda: 0
        self._cluster.stall_ms = lambda task: 0
        self._cluster.duplicate = lambda message: False
        self._cluster.lies = lambda process, message: []
        for ledger in self._ledgers:
            ledger.user_fails = lambda where: False
            ledger.commit_fault = lambda transaction_id: ""
        self._cluster.ensemble.lose_answer = lambda: False
        self._world.network.max_delay_ms = self._options.max_delay_ms
        self._world.network.heal()
        self._cluster.end_replaced()
        self._world.story.say("faults", "are over")

    def _next(self, events: list[str]) -> None:
        pause_ms = self._rng.randint(1, 2 * self._options.faults.mean_pause_ms)

        def due() -> None:
            if self._active:
                self.count += 1
                self._events[self._rng.choice(events)]()
                self._next(events)

        self._world.clock.after(pause_ms, due)

    def _say(self, what: str) -> None:
        self._world.story.say("faults", what)

    def _drawn(self, probability: float, what: str) -> bool:
        if self._rng.random() >= probability:
            return False
        self.count += 1
        self._say(what)
        return True

    # --- events -------------------------------------------------------------------------------------------------------

    def _kill_task_manager(self) -> None:
        alive = self._cluster.alive()
        for process in self._rng.sample(alive, self._rng.choice([1, 1, 1, len(alive)]) if alive else 0):
            self._say(f"kill {process.name}")
            process.kill()

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

    def _kill_coordinator(self) -> None:
        if self._cluster.hosts:
            host = self._rng.choice(self._hosts())
            self._say(f"kill {host.name}")
            host.kill()
            return
        coordinator = self._cluster.coordinator
        if coordinator is not None and coordinator.alive:
            self._say(f"kill {coordinator.name}")
            coordinator.kill()

    def _hosts(self) -> list[CoordinatorHost]:
        """Coordinators on ZooKeeper, the one that leads more often."""
        hosts = list(self._cluster.hosts.values())
        return [*hosts, *(host for host in hosts if host.leads for _ in hosts)]

    def _break_control(self) -> None:
        connections = [
            (process.name, connection)
            for process in self._cluster.alive()
            for connection in self._world.network.connections_of(process.name)
            if not connection.startswith("data-")
        ]
        if connections:
            name, connection = self._rng.choice(connections)
            self._say(f"break {connection} of {name}")
            self._world.network.break_link(name, connection)

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

    def _break_data(self) -> None:
        alive = self._cluster.alive()
        if alive:
            broken = self._rng.choice(alive).exchange.break_a_stream(self._rng.choice)
            if broken:
                self._say(f"break the data stream {broken}")

    def _partition(self) -> None:
        """Two processes do not reach each other for a while; nobody is told."""
        names = self._names()
        if len(names) < 2:
            return
        one, other = self._rng.sample(names, 2)
        duration_ms = self._rng.choice([100, 1000, 4000, 8000])
        both_ways = self._rng.random() < 0.7
        self._say(f"cut {one} from {other} for {duration_ms} ms{'' if both_ways else ', one way'}")
        self._world.network.cut(one, other, both_ways=both_ways)
        self._world.clock.after(duration_ms, lambda: self._world.network.heal(((one, other), (other, one))))

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
        names = [process.name for process in self._cluster.alive()]
        if self._options.has_zookeeper:
            return [*names, *self._cluster.hosts, ENSEMBLE]
        coordinator = self._cluster.coordinator
        if coordinator is not None and coordinator.alive:
            names.append(coordinator.name)
        return names

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

    def _processes(self) -> list[Process]:
        alive: list[Process] = [*self._cluster.alive()]
        if self._options.has_zookeeper:
            return [*alive, *self._cluster.hosts.values()]
        if self._cluster.coordinator is not None and self._cluster.coordinator.alive:
            alive.append(self._cluster.coordinator)
        return alive

    def _freeze(self) -> None:
        alive = self._processes()
        if alive:
            process, duration_ms = self._rng.choice(alive), self._rng.choice([100, 1000, 2500, 6000])
            self._say(f"{process.name} freezes for {duration_ms} ms")
            process.freeze(duration_ms)

    def _replace_coordinator(self) -> None:
        """It seems dead and is not: another takes over, and then it wakes up."""
        duration_ms = self._rng.choice([50, 500, 3000])
        replaced = self._cluster.replace_coordinator(duration_ms)
        if replaced:
            self._say(f"{replaced} freezes for {duration_ms} ms, and is replaced")

    def _slow_network(self) -> None:
        self._world.network.max_delay_ms = self._rng.choice([50, 300, 1000])
        self._say(f"messages take up to {self._world.network.max_delay_ms} ms")

        def over() -> None:
            self._world.network.max_delay_ms = self._options.max_delay_ms

        self._world.clock.after(self._rng.choice([200, 1000]), over)

    def _failing_storage(self) -> None:
        """Some of the time, some of the operations."""
        faults = self._disk.faults
        faults.fail_before, faults.fail_after = self._rng.choice([(0.1, 0.05), (0.5, 0.1), (1.0, 0.0), (0.0, 0.3)])
        self._say(f"storage fails: {faults.fail_before} before, {faults.fail_after} after")

        def over() -> None:
            faults.fail_before = faults.fail_after = 0.0

        self._world.clock.after(self._rng.choice([20, 200, 1500]), over)

    def _commit_fault(self, transaction_id: str) -> str:
        drawn = self._rng.random()
        if drawn < 0.04:
            self._say(f"commit of {transaction_id} fails")
            return "before" if drawn < 0.02 else "after"
        return ""


def nothing(*_: Any) -> None:
    """For callers that watch nothing."""
