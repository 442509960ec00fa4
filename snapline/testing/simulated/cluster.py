"""One simulated cluster: who is there, how they find and reach each other, and who is started again when it is gone.

A fixed pool of TaskManagers, as a Spark application keeps it: each that ends is replaced, under a new name. One
coordinator at a time, started again at the same address. Decides no fault; it only offers what a FaultInjector pulls
at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from snapline.coordinator.execution.execution_graph import ExecutionGraph
from snapline.dataflow.config import Configuration
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import ExecutionAttemptID, JobID, LeaderSessionID
from snapline.dataflow.wire.codec import decode_envelope
from snapline.dataflow.wire.envelope_bytes import serialize_envelope
from snapline.dataflow.wire.messages import Fenced, ForTasks, JobStatus
from snapline.protos import cluster_pb2
from snapline.runtime.cores.connections import (
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
)
from snapline.runtime.leaders.leader_retrieval import LeaderTable
from snapline.testing.simulated.coordinator_process import SimulatedCoordinator
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.exchange import SimulatedExchange
from snapline.testing.simulated.machines import SimulatedMachine
from snapline.testing.simulated.network import Endpoint
from snapline.testing.simulated.task_manager_process import SimulatedTaskManager
from snapline.testing.simulated.world import Process, World


class ClusterOptions(Protocol):
    """What a cluster is like."""

    @property
    def task_managers(self) -> int:
        """How many TaskManagers there are."""
        ...

    @property
    def slots(self) -> int:
        """How many slots each TaskManager has."""
        ...

    @property
    def max_delay_ms(self) -> int:
        """How long a message takes at most."""
        ...

    @property
    def start_delay_ms(self) -> int:
        """How long a process that is gone is missed."""
        ...

    @property
    def cluster_settings(self) -> dict[str, str]:
        """Settings of the processes, not of a job."""
        ...

    @property
    def machines(self) -> int:
        """How many machines keep copies of state; 0: each TaskManager has one of its own, and keeps none."""
        ...

    @property
    def stalls(self) -> tuple[str, int]:
        """Tasks with this in their name wait up to so many milliseconds between two pieces of work."""
        ...


class SimulatedCluster:
    """All processes of one run."""

    def __init__(
        self,
        world: World,
        disk: Disk,
        options: ClusterOptions,
        *,
        observe: Callable[[str, Any, list[Any]], None] = lambda *_: None,
        through_wire: bool = False,
    ) -> None:
        self.world = world
        self.disk = disk
        self.options = options
        self.observe = observe
        self.through_wire = through_wire
        self.configuration = Configuration(options.cluster_settings)
        self.rng = world.random("cluster")
        self._stalls = world.random("stalls")
        self.task_managers: dict[str, SimulatedTaskManager] = {}
        self.size = options.task_managers
        """How many there should be."""
        self.coordinator: SimulatedCoordinator | None = None
        self.outcomes: dict[JobID, tuple[JobStatus, SerializedFailure | None]] = {}
        """The status and failure of jobs that are over."""
        self.io_slowness_ms: Callable[[], int] = lambda: 0
        self.stall_ms: Callable[[str], int] = lambda _: 0
        self.duplicate: Callable[[Any], bool] = lambda _: False
        self.lies: Callable[[str, Fenced[Any]], list[Any]] = lambda *_: []
        """What a process says besides, given what it says."""
        self.sessions: dict[str, str] = {}
        """The leader sessions of all coordinators so far."""
        self.on_forgotten: Callable[[JobID, JobStatus, SerializedFailure | None], None] = lambda *_: None
        self.leads: Callable[[JobID, LeaderSessionID], None] = lambda *_: None
        """Oracle: told of every JobMaster that begins."""
        self._table = LeaderTable()
        self._starting_coordinator = False
        self._starting = 0
        self.machines = [SimulatedMachine(f"machine-{number}") for number in range(1, options.machines + 1)]
        """The machines, which outlive their TaskManagers."""
        self._began: set[JobID] = set()
        self._replaced: list[SimulatedCoordinator] = []

    def start(self) -> None:
        self._start_coordinators()
        for _ in range(self.size):
            self._start_task_manager()
        self._look_after()

    def _start_coordinators(self) -> None:
        self._start_coordinator()

    def alive(self) -> list[SimulatedTaskManager]:
        return [process for process in self.task_managers.values() if process.alive]

    def tasks(self) -> list[tuple[str, ExecutionAttemptID]]:
        """What runs, with the name of its TaskManager."""
        return [(process.name, attempt_id) for process in self.alive() for attempt_id in process.tasks]

    # --- who is there -------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Every process that is gone is started again, a while later."""
        self._look_after_coordinators()
        while len(self.alive()) + self._starting < self.size:
            self._starting += 1
            self.world.clock.after(self.options.start_delay_ms, self._replace)
        for name in [name for name, process in self.task_managers.items() if not process.alive]:
            del self.task_managers[name]
        self.world.clock.after(50, self._look_after)

    def _look_after_coordinators(self) -> None:
        if (self.coordinator is None or not self.coordinator.alive) and not self._starting_coordinator:
            self._starting_coordinator = True
            self.world.clock.after(self.options.start_delay_ms, self._start_coordinator)

    def resize(self, size: int) -> None:
        """From now on there are so many TaskManagers: others are started soon, those that are too many end."""
        self.size = size
        for process in self.rng.sample(self.alive(), max(0, len(self.alive()) - size)):
            process.kill()

    def _replace(self) -> None:
        self._starting -= 1
        if len(self.alive()) < self.size:
            self._start_task_manager()

    def _start_coordinator(self) -> None:
        self._starting_coordinator = False
        name = f"coordinator-{self.world.number('coordinator')}"
        self.coordinator = SimulatedCoordinator(
            self.world, self, self.disk, name, self.configuration, self._io_slowness_ms, self.observe
        )
        self.sessions[name] = self.coordinator.session

    def _start_task_manager(self) -> None:
        number = self.world.number("task manager")
        name = f"tm-{number}"
        machines = self.machines
        machine = machines[number % len(machines)] if machines else SimulatedMachine(name)
        process = SimulatedTaskManager(
            self.world,
            self,
            self.disk,
            name,
            self.options.slots,
            self.configuration,
            self._io_slowness_ms,
            self._stall_ms,
            lambda task: self._slow_task_ms(task) > 0,
            self.observe,
            machine,
        )
        self.task_managers[name] = process
        self.world.story.say(name, "starts")
        self._introduce(process)

    def _introduce(self, process: SimulatedTaskManager) -> None:
        """Tell a TaskManager who leads, now and whenever that changes."""
        self._tell_leaders(process, self._table)

    # --- leaders ------------------------------------------------------------------------------------------------------

    def publish_leaders(self, process: Process, table: LeaderTable) -> None:
        """Publish the leaders that the coordinator at the address that everybody knows has named."""
        if process is not self.coordinator:
            return
        self._table = table
        for task_manager in self.alive():
            self._tell_leaders(task_manager, table)

    def _tell_leaders(self, process: SimulatedTaskManager, table: LeaderTable) -> None:
        """Tables reach a process in order; it may miss some."""

        def tell() -> None:
            if table is self._table:
                process.leaders_changed(table)

        process.later(self.rng.randint(1, 5 + 2 * self.options.max_delay_ms), tell)

    # --- connections --------------------------------------------------------------------------------------------------

    def dial(self, process: Process, effect: OpenConnection, tell: Callable[[Any], object]) -> None:
        """To the coordinator, where everybody dials."""
        network = self.world.network

        def connect() -> None:
            target = self._at(effect.peer.address)
            if target is not None and (
                network.is_cut(process.name, target.name) or network.is_cut(target.name, process.name)
            ):
                process.later(3_000, lambda: tell(ConnectionLost(effect.connection, "no answer")))
                return
            server = target.serve(effect.peer) if target is not None and target.alive and target.ready else None
            if server is None:
                tell(ConnectionLost(effect.connection, "connection refused"))
                return
            dialler = Endpoint(
                process.name,
                effect.connection,
                lambda connection, envelope: tell(MessageReceived(connection, envelope)),
                lambda connection, reason: tell(ConnectionLost(connection, reason)),
            )
            network.connect(dialler, server)
            tell(ConnectionOpened(effect.connection))

        process.later(network.delay_ms(), connect)

    def _at(self, address: str) -> SimulatedCoordinator | None:
        """Who listens at this address."""
        return self.coordinator

    def send(self, process: str, connection: ConnectionID, envelope: Fenced[Any]) -> None:
        """On its way, perhaps as bytes, perhaps twice."""
        if self.through_wire:
            (envelope,) = _through_wire(envelope)
        self._send(process, connection, envelope)

    def send_to_tasks(self, process: str, connection: ConnectionID, envelope: Fenced[ForTasks[Any]]) -> None:
        """What is one message on this side is as many as there are tasks on the other."""
        if self.through_wire:
            envelopes = _through_wire(envelope)
        else:
            template, attempt_ids = envelope.message.template, envelope.message.attempt_ids
            envelopes = [Fenced(envelope.leader_session_id, replace(template, attempt_id=a)) for a in attempt_ids]
        for each in envelopes:
            self._send(process, connection, each)

    def _send(self, process: str, connection: ConnectionID, envelope: Fenced[Any]) -> None:
        for lie in self.lies(process, envelope):
            self.world.network.send(process, connection, replace(envelope, message=lie))
        self.world.network.send(process, connection, envelope)
        if self.duplicate(envelope.message):
            self.world.network.send(process, connection, envelope)

    def _io_slowness_ms(self) -> int:
        """Ask whoever makes storage slow at this moment, faults come and go."""
        return self.io_slowness_ms()

    def _slow_task_ms(self, task: str) -> int:
        """How long it may wait between two pieces of work."""
        name, most_ms = self.options.stalls
        return most_ms if name in task else 0

    def _stall_ms(self, task: str) -> int:
        most_ms = self._slow_task_ms(task)
        return self.stall_ms(task) + (self._stalls.randint(0, most_ms) if most_ms else 0)

    def find_exchange(self, address: str) -> SimulatedExchange | None:
        process = self.task_managers.get(address.partition(":")[0])
        return process.exchange if process is not None and process.alive else None

    # --- the job ------------------------------------------------------------------------------------------------------

    def submit(self, graph: JobGraph) -> None:
        """As a client does: again, until it runs."""

        def attempt() -> None:
            if graph.job_id in self._began:
                return
            coordinator = self.coordinator
            is_there = coordinator is not None and coordinator.alive and coordinator.ready
            if coordinator is not None and is_there and coordinator.dispatcher.core.find(graph.job_id) is None:
                coordinator.submit(graph)
            self.world.clock.after(500, attempt)

        attempt()

    def job_master_began(self, job_id: JobID, session: LeaderSessionID) -> None:
        """Note that a JobMaster is about to lead."""
        self.leads(job_id, session)

    def job_began(self, job_id: JobID) -> None:
        """Note that a JobMaster runs the job."""
        self._began.add(job_id)

    def execution_graphs(self) -> Iterator[tuple[str, ExecutionGraph]]:
        """The graphs of all JobMasters of all coordinators so far, with the names of their actors."""
        for process in self.world.processes:
            if isinstance(process, SimulatedCoordinator):
                for runner in process.runners.values():
                    if runner.actor is not None:
                        yield runner.actor.name, runner.actor.core.scheduler.graph

    def runs_all(self) -> bool:
        """Whether all jobs run that the leader has; it has some."""
        leader = self.coordinator
        cores = [] if leader is None or not leader.alive else [runner.core for runner in leader.runners.values()]
        return bool(cores) and all(core is not None and core.scheduler.status is JobStatus.RUNNING for core in cores)

    def is_stored(self, job_id: JobID) -> bool:
        """Whether the next leader would run it."""
        return self.disk.files.exists(f"ha/jobs/{job_id}")

    def durable_files(self) -> dict[str, bytes]:
        """The disk, with everything on it that a coordinator needs to go on."""
        return self.disk.snapshot()

    def forgets_job(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None:
        """Note how the job has ended, whether or not anybody hears of it, unless it is found again."""
        self.on_forgotten(job_id, status, failure)

    def job_ended(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None:
        if status.is_globally_terminal:
            self.outcomes[job_id] = (status, failure)

    # --- coordinators that do not know that they are replaced ---------------------------------------------------------

    def replace_coordinator(self, frozen_ms: int) -> str:
        """Another coordinator takes over while this one is frozen. Name of the replaced one, empty: there is none."""
        old = self.coordinator
        if old is None or not old.alive or not old.ready or self._starting_coordinator:
            return ""
        old.freeze(frozen_ms)
        self._replaced.append(old)
        self._start_coordinator()
        return old.name

    def end_replaced(self) -> None:
        """Somebody ends them at last."""
        for process in self._replaced:
            process.kill()
        self._replaced = []


def _through_wire(envelope: Fenced[Any]) -> list[Fenced[Any]]:
    """Send the message as bytes, and read it back."""
    data = serialize_envelope(envelope.leader_session_id, [envelope.message])
    session, messages = decode_envelope(cluster_pb2.Envelope.FromString(data))
    return [Fenced(session, message) for message in messages]
