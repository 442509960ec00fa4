"""What goes wrong, and when: draws faults of the enabled kinds while it is on.

Some faults are events (a process is killed, a connection breaks), which come at random times; others are conditions
(slow storage, duplicated messages), which hold all the time, with random effect. `stop` ends all of them and heals what
can be healed; what is dead stays dead, until the cluster starts another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection

from snapline.testing.simulated.cluster import SimulatedCluster
from snapline.testing.simulated.disk import Disk, DiskFaults
from snapline.testing.simulated.world import Process, World

KILL_TASK_MANAGER = "kill task manager"
KILL_COORDINATOR = "kill coordinator"
KILL_AT_STORAGE = "kill at storage"
BREAK_CONTROL = "break control connection"
BREAK_DATA = "break data stream"
PARTITION = "partition"
SLOW_NETWORK = "slow network"
FAILING_STORAGE = "failing storage"
SLOW_STORAGE = "slow storage"
FREEZE = "freeze"
SLOW_TASK = "slow task"


class FaultInjector:
    """All faults of one run."""

    def __init__(
        self, world: World, cluster: SimulatedCluster, disk: Disk, kinds: Collection[str], mean_pause_ms: int
    ) -> None:
        """`mean_pause_ms`: between two faults that come at a time of their own."""
        self._world = world
        self._cluster = cluster
        self._disk = disk
        self._kinds = frozenset(kinds)
        self._mean_pause_ms = mean_pause_ms
        self._rng: random.Random = world.random("faults")
        self._active = False
        self.counts: Counter[str] = Counter()
        """How often each kind of fault has come."""
        self._events: dict[str, Callable[[], None]] = {
            KILL_TASK_MANAGER: self._kill_task_manager,
            KILL_COORDINATOR: self._kill_coordinator,
            BREAK_CONTROL: self._break_control,
            BREAK_DATA: self._break_data,
            PARTITION: self._partition,
            SLOW_NETWORK: self._slow_network,
            FAILING_STORAGE: self._failing_storage,
            FREEZE: self._freeze,
        }

    @property
    def count(self) -> int:
        """Return how many faults have come so far."""
        return self.counts.total()

    @property
    def nothing_was_lost(self) -> bool:
        """Every process that was ever there still is, and whatever anybody asked of the disk was done."""
        loses = {FAILING_STORAGE, KILL_AT_STORAGE}
        return not loses & self._kinds and all(process.alive for process in self._world.processes)

    def start(self) -> None:
        """Let faults come from now on."""
        self._active = True
        on, rng = self._kinds, self._rng
        if KILL_AT_STORAGE in on:
            self._disk.faults = DiskFaults(kill=rng.choice([0.002, 0.01]), land_late=rng.choice([0.0, 0.3]))
        if SLOW_STORAGE in on:
            self._cluster.io_slowness_ms = lambda: rng.choice([0, 0, 5, 50, 400])
        if "duplicate messages" in on:
            self._cluster.duplicate = lambda _: rng.random() < 0.05
        if SLOW_TASK in on:
            self._cluster.stall_ms = lambda _: rng.choice([0] * 60 + [5, 30, 300])
        self._start_own_conditions()
        events = [kind for kind in self._events if kind in on]
        if events:
            self._next(events)

    def _start_own_conditions(self) -> None:
        """Start what a subclass knows besides."""

    def stop(self) -> None:
        """Let no more faults come."""
        if not self._active:
            return
        self._active = False
        self._disk.faults = DiskFaults()
        self._cluster.io_slowness_ms = lambda: 0
        self._cluster.stall_ms = lambda _: 0
        self._cluster.duplicate = lambda _: False
        self._cluster.lies = lambda *_: []
        self._stop_own_conditions()
        self._world.network.max_delay_ms = self._cluster.options.max_delay_ms
        self._world.network.heal()
        self._cluster.end_replaced()
        self._world.story.say("faults", "are over")

    def _stop_own_conditions(self) -> None:
        """Stop what a subclass knows besides."""

    def _next(self, events: list[str]) -> None:
        pause_ms = self._rng.randint(1, 2 * self._mean_pause_ms)

        def due() -> None:
            if self._active:
                kind = self._rng.choice(events)
                self.counts[kind] += 1
                self._events[kind]()
                self._next(events)

        self._world.clock.after(pause_ms, due)

    def _say(self, what: str) -> None:
        self._world.story.say("faults", what)

    # --- events -------------------------------------------------------------------------------------------------------

    def _kill_task_manager(self) -> None:
        alive = self._cluster.alive()
        for process in self._rng.sample(alive, self._rng.choice([1, 1, 1, len(alive)]) if alive else 0):
            self._say(f"kill {process.name}")
            process.kill()

    def _kill_coordinator(self) -> None:
        coordinator = self._cluster.coordinator
        if coordinator is not None and coordinator.alive:
            self._say(f"kill {coordinator.name}")
            coordinator.kill()

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

    def _names(self) -> list[str]:
        """Return who is on the network."""
        return [process.name for process in self._processes()]

    def _processes(self) -> list[Process]:
        alive: list[Process] = [*self._cluster.alive()]
        if self._cluster.coordinator is not None and self._cluster.coordinator.alive:
            alive.append(self._cluster.coordinator)
        return alive

    def _freeze(self) -> None:
        alive = self._processes()
        if alive:
            process, duration_ms = self._rng.choice(alive), self._rng.choice([100, 1000, 2500, 6000])
            self._say(f"{process.name} freezes for {duration_ms} ms")
            process.freeze(duration_ms)

    def _slow_network(self) -> None:
        self._world.network.max_delay_ms = self._rng.choice([50, 300, 1000])
        self._say(f"messages take up to {self._world.network.max_delay_ms} ms")

        def over() -> None:
            self._world.network.max_delay_ms = self._cluster.options.max_delay_ms

        self._world.clock.after(self._rng.choice([200, 1000]), over)

    def _failing_storage(self) -> None:
        """Some of the time, some of the operations."""
        faults = self._disk.faults
        faults.fail_before, faults.fail_after = self._rng.choice([(0.1, 0.05), (0.5, 0.1), (1.0, 0.0), (0.0, 0.3)])
        self._say(f"storage fails: {faults.fail_before} before, {faults.fail_after} after")

        def over() -> None:
            faults.fail_before = faults.fail_after = 0.0

        self._world.clock.after(self._rng.choice([20, 200, 1500]), over)
