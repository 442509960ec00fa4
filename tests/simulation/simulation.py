"""One run from one seed: build the world, run it with faults, then without, and ask the oracles.

Safety phase: faults of the seed's choice; whatever happens, no oracle may be contradicted. Liveness phase: the faults
are over, and the job has to finish within the given time. Exit codes tell apart a core that broke (127), a job that
does not come to its end (128), and a wrong result (129).
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import snapline.coordinator.ha.embedded
import snapline.coordinator.ha.zookeeper_high_availability
from snapline.dataflow.config import HEARTBEAT_TIMEOUT
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID
from snapline.dataflow.wire.codec import decode_job_graph, encode_job_graph
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import job_pb2
from snapline.testing.simulated.async_calls import async_calls_in, background_calls_in
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.network import Livelock
from snapline.testing.simulated.world import Defect, SimulatedTime, Violation, World
from tests.simulation.coordinator_host import SETTINGS, durable_nodes, zookeeper_in
from tests.simulation.drawing import draw_options
from tests.simulation.electing_cluster import ElectingCluster
from tests.simulation.faults import AllFaults
from tests.simulation.job_plan import until
from tests.simulation.options import Options
from tests.simulation.oracles.adoption import AdoptionOracle
from tests.simulation.oracles.failures import check_error
from tests.simulation.oracles.leaders import LeaderOracle
from tests.simulation.oracles.output import check_output
from tests.simulation.oracles.owners import check_owners
from tests.simulation.oracles.reactive import has_what_slots_allow
from tests.simulation.oracles.storage import check_storage
from tests.simulation.simulated_job import ANOTHER, USERS, SimulatedJob
from tests.simulation.threads import Worker
from tests.simulation.user import User
from tests.simulation.workload import Ledger
from tests.simulation.zookeeper import Operation

CRASH, LIVENESS, CORRECTNESS = 127, 128, 129
INVARIANTS_EVERY = 50
"""Simulated milliseconds."""
AGAIN_MS = 40_000
"""After the last fault, jobs run again within this: processes thaw, heartbeats and the reconciliation time out, leaders
are found."""
FOLLOWED_MS = 60_000
"""The same, and a checkpoint that somebody does not answer has timed out."""
LATEST_EVENTS = 12
"""Of cores, that a run without end is reported with."""
SUBMITTED_BYTES = 8
"""Of the time of submission, in front of a stored job graph."""


@dataclass
class Report:
    """How a run went."""

    seed: int
    exit_code: int
    detail: str
    story_hash: str
    story: list[str]
    simulated_ms: int
    real_seconds: float
    steps: int
    checkpoints: int
    restarts: int
    faults: int
    adoptions: int = 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def line(self) -> str:
        verdict = {0: "ok", CRASH: "CRASH", LIVENESS: "LIVENESS", CORRECTNESS: "CORRECTNESS"}[self.exit_code]
        return (
            f"seed {self.seed}: {verdict} {self.story_hash} after {self.simulated_ms} ms ({self.real_seconds:.2f} s real, "
            f"{self.steps} steps), {self.checkpoints} checkpoints, {self.restarts} restarts, {self.faults} faults"
            + (f"\n  {self.detail}" if self.detail else "")
        )


class Simulation:
    """One world with its cluster, job and oracles."""

    def __init__(
        self, options: Options, *, keep_story: bool = False, name: str = "", disk_files: dict[str, bytes] | None = None,
        ledger: Ledger | None = None,
    ) -> None:  # fmt: skip
        self.options = options
        self.world = World(options.seed, max_delay_ms=options.max_delay_ms, keep_story=keep_story)
        self.world.run_blocking = lambda process, work, delay_ms: Worker(process, work).start(delay_ms)
        self.world.check_error = check_error
        self.disk = Disk(self.world.random("disk"))
        if disk_files:
            self.disk.copy_from(disk_files)
        self.name = name or f"run-{options.seed}"
        ledger = ledger or Ledger()
        ledger.rng = self.world.random("sources")
        self.job = SimulatedJob(self.world, self.disk, options, options.job, USERS, self.name, ledger, self._is_live)
        self.jobs = [self.job]
        if options.another_job is not None:
            beside, name = Ledger(rng=self.world.random("sources of another job")), f"{self.name}-beside"
            job = SimulatedJob(
                self.world, self.disk, options, options.another_job, ANOTHER, name, beside, self._is_live
            )
            self.jobs.append(job)
        self.disk.on_written = self._written
        self._latest: deque[tuple[str, Any, list[Any]]] = deque(maxlen=LATEST_EVENTS)
        self.leaders = LeaderOracle(self.world, SETTINGS.base)
        if "clocks" in options.faults:
            skews = self.world.random("clocks")
            self.world.skew_ms = lambda: skews.choice([0, 7, -3_000, 3_600_000, -900_000])
        self.cluster = ElectingCluster(
            self.world,
            self.disk,
            options,
            observe=self._observe,
            through_wire=self.world.random("wire").random() < 0.2,
        )
        self.cluster.leads = self.leaders.leads
        self.cluster.on_forgotten = self._forgotten
        self.adoption = AdoptionOracle(options, lambda: frozenset(process.name for process in self.cluster.alive()))
        self.cluster.ensemble.on_write = self._written_to_zookeeper
        self.job.checkpoints.durable_files = self._durable_files
        if not options.has_zookeeper:
            self.disk.on_written_by = self._written_to_disk
        self._check_leader = self.leaders.watch(self.cluster.ensemble)
        for job in self.jobs:
            job.checkpoints.leader = self._leader
        ledgers = [job.ledger for job in self.jobs]
        self.faults = AllFaults(self.world, self.cluster, self.disk, ledgers, options)
        self.user = User(self.world, self.cluster, options, self.job.graph)
        self._is_fork = disk_files is not None

    def close(self) -> None:
        for job in self.jobs:
            job.close()

    def _is_live(self, job_master: str, attempt_id: ExecutionAttemptID) -> bool:
        """Whether a JobMaster, by the name of its actor, runs the attempt."""
        graphs = [graph for name, graph in self.cluster.execution_graphs() if name == job_master]
        found = [graph.find(attempt_id) for graph in graphs]
        return any(execution is not None and not execution.state.is_terminal for execution in found)

    def _leader(self) -> str:
        return self.cluster.coordinator.name if self.cluster.coordinator is not None else ""

    def _durable_files(self) -> dict[str, bytes]:
        """With the user's job alone."""
        files = self.cluster.durable_files()
        files.pop(f"ha/jobs/{ANOTHER}", None)
        return files

    def _forgotten(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None:
        for job in self.jobs:
            job.checkpoints.job_ends(job_id, status, failure)

    def _written(self, path: str, late: bool) -> None:
        for job in self.jobs:
            job.checkpoints.written(path, late)

    def _observe(self, name: str, event: Any, effects: list[Any]) -> None:
        self._latest.append((name, event, effects))
        for job in self.jobs:
            job.checkpoints.observe(name, event, effects)
            if job.alignment is not None:
                job.alignment.observe(name, effects)
            if job.hooks is not None:
                job.hooks.observe(name, event, effects)
        self.leaders.observe(name, event, effects)
        self.adoption.observe(name, event, effects)

    def _written_to_disk(self, process: str, path: str) -> None:
        if (session := self.cluster.sessions.get(process)) is not None:
            self.leaders.written_to_disk(session, self.disk, path)

    def _written_to_zookeeper(self, session: int, operation: Operation) -> None:
        self._check_leader(session, operation)
        parts = operation.path.removeprefix(f"{SETTINGS.base}/").split("/")
        if operation.kind == "create" and parts[0] == "pointers" and len(parts) == 3:
            for job in self.jobs:
                job.checkpoints.pointer_written(parts[1], CheckpointID(int(parts[2])), late=False)

    def run(self, *, submit: bool = True) -> None:
        """To the end. Raises Violation, Stuck, or whatever a core raises."""
        with ExitStack() as stack:
            for module in (snapline.coordinator.ha.embedded, snapline.coordinator.ha.zookeeper_high_availability):
                stack.enter_context(patch.object(module, "time", SimulatedTime(self.world)))
            stack.enter_context(async_calls_in(self.world))
            stack.enter_context(background_calls_in(self.world))
            if self.options.has_zookeeper:
                stack.enter_context(zookeeper_in(self.world, self.cluster.ensemble))
            self._run(submit=submit)

    def _run(self, *, submit: bool) -> None:
        self.cluster.start()
        self.job.ledger.is_held_back = self.options.is_reactive and bool(self.options.faults.enabled)
        if submit:
            for job in self.jobs:
                self.cluster.submit(job.graph)
        self.user.start()
        self.world.clock.after(INVARIANTS_EVERY, self._check_invariants)
        begun_ms = self.world.clock.now_ms
        if self.options.faults.enabled:
            self.faults.start()
            self.world.clock.run_until(begun_ms + self.options.safety_ms, self._is_over)
            self.faults.stop()
            self._await_running()
            if self.options.is_reactive:
                self._await_parallelism()
        if not self.world.clock.run_until(self.world.clock.now_ms + self.options.liveness_ms, self._is_over):
            raise Stuck(self._state())
        for job in self.jobs:
            status, failure = self.cluster.outcomes[job.graph.job_id]
            if status is not JobStatus.FINISHED and not (job is self.job and self.user.gave_up):
                raise Violation(f"{job.name} is {status.value}: {failure.summary if failure else ''}")
        self.faults.stop()
        heartbeat_ms = self.cluster.configuration.get_option(HEARTBEAT_TIMEOUT)
        rest_ms = max(
            10_000, heartbeat_ms + 5_000
        )  # a TaskManager may wait so long for another leader of a job that is over
        self.world.clock.run_until(self.world.clock.now_ms + rest_ms)
        self._check_invariants_now()
        self.check_results()

    def _await_running(self) -> None:
        """Whatever has happened: it is over, and the job is there again soon."""

        def is_there() -> bool:
            return self._is_over() or self.cluster.runs_all()

        if not self.world.clock.run_until(self.world.clock.now_ms + AGAIN_MS, is_there):
            raise Stuck(f"not RUNNING {AGAIN_MS} ms after the last fault\n  {self._state()}")

    def _await_parallelism(self) -> None:
        """A job that follows its slots has the parallelism that they allow, soon after they are as they stay."""

        def follows() -> bool:
            if self._is_over():
                return self.user.gave_up
            return self.cluster.runs_all() and has_what_slots_allow(self.job.graph, self.cluster)

        if not self.world.clock.run_until(self.world.clock.now_ms + FOLLOWED_MS, follows):
            raise Stuck(f"the job does not have the parallelism that its slots allow\n  {self._state()}")
        if not self.user.gave_up:
            self.world.story.say("faults", "the job has followed its slots")
        self.job.ledger.is_held_back = False

    def rescale_stored_jobs(self) -> None:
        """As if the jobs had been submitted with another parallelism."""
        for path, _ in self.disk.files.list("ha/jobs"):
            data = self.disk.files.get(path)
            graph = decode_job_graph(job_pb2.JobGraph.FromString(data[SUBMITTED_BYTES:]))
            rescaled = encode_job_graph(self.user.rescaled(graph)).SerializeToString()
            self.disk.files.put(path, data[:SUBMITTED_BYTES] + rescaled)

    def check_results(self) -> None:
        for job in self.jobs:
            self._check_output(job)
        check_storage(
            self.disk,
            durable_nodes(self.cluster.ensemble),
            strict=not self._is_fork and self.faults.nothing_was_lost,
            owned=tuple(self.user.owned),
        )
        for path, data in self.user.precious.items():
            if not self.disk.files.exists(path) or self.disk.files.get(path) != data:
                raise Violation(f"{path}, which a claimed snapshot named and no task has written, is gone or changed")
        left = [copy for machine in self.cluster.machines for copy in machine.left()]
        if left:
            raise Violation(f"{len(left)} copies of state are left behind, such as {left[:5]}")

    def _check_output(self, job: SimulatedJob) -> None:
        """Of the whole input, or of what was read when the job was drained."""
        if job is self.job and self.user.gave_up:
            return
        drained, unclear = self.user.drained_with, self.user.may_have_drained_with
        if job is not self.job or (drained is None and not unclear):
            check_output(job.plan, job.ledger, exact=self.options.exactly_once)
            return
        for number in unclear if drained is None else [drained]:
            plan = until(job.plan, job.ledger.positions.get(number, {}))
            try:
                check_output(plan, job.ledger, exact=self.options.exactly_once, whole=job.plan)
                return
            except Violation as violation:
                why = violation
        if drained is not None:
            raise why
        check_output(job.plan, job.ledger, exact=self.options.exactly_once)

    def _is_over(self) -> bool:
        """All jobs are. One that was stopped with a savepoint goes on from it."""
        job, cluster = self.job, self.cluster
        outcome = job.outcome(cluster)
        if outcome is None or not self.user.settled():
            return False
        if outcome[0] is JobStatus.FINISHED:
            self.user.finds_job_finished(job.checkpoints.latest_completed_of(job.graph.job_id))
        if outcome[0] is JobStatus.CANCELED and self.user.stopped_at is None:
            if cluster.is_stored(job.graph.job_id):
                raise Violation(f"{job.name} was cancelled, and the next leader would run it again")
            if not self.options.retains_on_cancellation:
                self.user.gives_up()
                return all(other.outcome(cluster) is not None for other in self.jobs)
            self.user.finds_job_cancelled(job.checkpoints.latest_completed_of(job.graph.job_id))
            job.checkpoints.retained(self.user.retained)
        if outcome[0].is_globally_terminal and self.user.stopped_at is not None:
            job.checkpoints.ended = None
            job.graph = self.user.go_on()
            cluster.submit(job.graph)
            return False
        return all(other.outcome(cluster) is not None for other in self.jobs)

    def latest_events(self) -> str:
        """What cores were told last, and what they wanted."""
        lines = [
            f"{name}: {type(event).__name__}({getattr(event, 'envelope', event)}) -> {[type(effect).__name__ for effect in effects]}"
            for name, event, effects in self._latest
        ]
        return "\n  ".join(lines)

    def _check_invariants(self) -> None:
        self._check_invariants_now()
        self.world.clock.after(INVARIANTS_EVERY, self._check_invariants)

    def _check_invariants_now(self) -> None:
        check_owners(self.cluster)

    def _state(self) -> str:
        """Where everything stands, for a job that does not end."""
        lines = []
        coordinator = self.cluster.coordinator
        if coordinator is not None and coordinator.alive:
            for runner in coordinator.runners.values():
                core = runner.core
                if core is not None:
                    states = {str(e.attempt_id)[-40:]: e.state.value for e in core.scheduler.graph.executions}
                    lines.append(f"job {core.status.value} ({core.status_detail}): {states}")
        for process in self.cluster.alive():
            slots = [(slot.state.value, len(slot.tasks)) for slot in process.core.slots]
            lines.append(f"{process.name}: slots {slots}")
            for thread in process.tasks.values():
                assert thread.task is not None
                lines.append(f"  {thread.name}: {thread.task.state.value} {thread.task._completion.phase.value}")
        return "\n  ".join(lines) or "nobody is there"


class Stuck(Exception):
    """The liveness phase is over, and the job is not."""


def run_seed(seed: int, *, keep_story: bool = False, options: Options | None = None) -> Report:
    """One whole run, with its side runs from completed checkpoints."""
    options = options or draw_options(seed)
    begun = time.perf_counter()
    simulation = Simulation(options, keep_story=keep_story)
    code, detail = 0, ""
    try:
        simulation.run()
        run_forks(simulation, options)
    except Violation as violation:
        code, detail = CORRECTNESS, str(violation)
    except Stuck as stuck:
        code, detail = LIVENESS, f"the job does not end:\n  {stuck}"
    except Livelock as livelock:
        code, detail = LIVENESS, f"it goes on for ever: {livelock}; the latest:\n  {simulation.latest_events()}"
    except (Exception, Defect):
        code, detail = CRASH, traceback.format_exc()
    finally:
        simulation.close()
    world = simulation.world
    return Report(
        seed=seed,
        exit_code=code,
        detail=detail,
        story_hash=world.story.hash,
        story=world.story.lines,
        simulated_ms=world.clock.now_ms - 1_000_000,
        real_seconds=time.perf_counter() - begun,
        steps=world.steps,
        checkpoints=sum(len(job.checkpoints.completed) for job in simulation.jobs),
        restarts=sum(job.checkpoints.restarts for job in simulation.jobs),
        faults=simulation.faults.count,
        adoptions=simulation.adoption.adoptions,
    )


def run_forks(simulation: Simulation, options: Options) -> None:
    """A completed checkpoint is a consistent cut: a job that starts from it ends as every other does."""
    for fork in simulation.job.checkpoints.forks:
        side = Simulation(
            replace(
                options,
                faults=replace(options.faults, enabled=frozenset()),
                forks=0,
                pause_ms=0,
                operations=(),
                coordinators=0,
                another_job=None,
            ),
            name=simulation.name,  # the functions in the stored job look for their ledger under it
            disk_files=fork.files,
            ledger=fork.ledger(),
        )
        side.job.ledger.positions = simulation.job.ledger.positions
        user = simulation.user
        if user.drained_with is not None and fork.checkpoint_id > user.drained_with:
            side.user.drained_with = user.drained_with
        side.user.may_have_drained_with = [n for n in user.may_have_drained_with if n < fork.checkpoint_id]
        if options.rescale_forks:
            side.rescale_stored_jobs()
        try:
            side.run(submit=False)
        except (Violation, Stuck) as failure:
            kind = type(failure)
            raise kind(f"started again from checkpoint {fork.checkpoint_id}: {failure}") from failure
        finally:
            side.close()
