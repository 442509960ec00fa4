"""One run of a user's job on the simulated cluster, with the faults of a seed or without any.

Decides what a seed is: which faults come and how often, what the user does meanwhile (a savepoint, another parallelism,
stop and go on), how often checkpoints are taken and how slow sources are. Faults last for a while; then the job has to
come to its end. What it has put out is compared elsewhere.
"""

from __future__ import annotations

import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import cloudpickle
import pyarrow as pa

import snapline.coordinator.ha.embedded
from snapline.coordinator.execution.execution_graph import with_parallelism
from snapline.coordinator.jobmaster.operations import (
    CancelJob,
    OperationFailed,
    RequestID,
    RescaleJob,
    SnapshotCompleted,
    StopWithSavepoint,
    TakeSavepoint,
)
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from snapline.runtime.cores.machine import check
from snapline.taskmanager.executor.events import TaskEnteredState
from snapline.testing.row_comparison import row_text, row_texts
from snapline.testing.simulated.async_calls import async_calls_in, background_calls_in
from snapline.testing.simulated.cluster import SimulatedCluster
from snapline.testing.simulated.coordinator_process import SimulatedCoordinator
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.faults import (
    BREAK_CONTROL,
    BREAK_DATA,
    FAILING_STORAGE,
    FREEZE,
    KILL_AT_STORAGE,
    KILL_COORDINATOR,
    KILL_TASK_MANAGER,
    PARTITION,
    SLOW_NETWORK,
    SLOW_STORAGE,
    SLOW_TASK,
    FaultInjector,
)
from snapline.testing.simulated.lineage import Rows, lineage_in
from snapline.testing.simulated.network import Livelock
from snapline.testing.simulated.rescaling import draw_rescaled
from snapline.testing.simulated.run_state import RunState, run_with
from snapline.testing.simulated.step_faults import LEADER, RESCALED, StepFault, StepFaults
from snapline.testing.simulated.user_job import SimulationError, UserJob, is_own_sink
from snapline.testing.simulated.watched_sinks import forget_transactions, watch_sink
from snapline.testing.simulated.world import SimulatedTime, World

FAIL_TASK = "fail task"
FAIL_COMMIT = "fail commit"
RESCALE, SAVEPOINT, STOP = "rescale", "savepoint", "stop and go on"
DRAIN, CANCEL, TWICE = "stop and drain", "cancel", "stop and restore twice"
END = "stop, because all has come"
LARGEST_PARALLELISM = 3
TASK_MANAGERS = 2
STARTS_WITHIN_MS = 10_000
ENDS_WITHIN_MS = 120_000
"""Milliseconds of simulated time, after the last fault, within which a run ends."""
MOST_FAILURES = 30
"""A job whose tasks fail so often after the last fault fails by itself, whatever its restart strategy would try."""
FIRST_RESTORE_MS = 120
"""How long a job runs that is cancelled and restored from the same savepoint again."""
ASK_AGAIN_MS = 200
MOST_STEPS = 200_000
"""The most steps of all tasks of a run; those of short data make some hundreds."""
CLUSTER = {
    "heartbeat.interval": "300 ms",
    "heartbeat.timeout": "1000 ms",
    "cluster.registration.initial-timeout": "50 ms",
    "cluster.registration.max-timeout": "400 ms",
    "cluster.registration.error-delay": "100 ms",
    "cluster.registration.refused-registration-delay": "200 ms",
    "taskmanager.registration.timeout": "60 s",
    "taskmanager.slot.timeout": "2 s",
    "resourcemanager.taskmanager-timeout": "0 ms",
    "taskmanager.network.credits-per-channel": "2",
    "taskmanager.network.max-queued-batches": "8",
    "task.cancellation.interval": "500 ms",
    "task.cancellation.timeout": "5 s",
}


@dataclass(frozen=True)
class RunPlan:
    """What a seed means; also what the simulated cluster asks of its options."""

    seed: str
    faults: frozenset[str] = frozenset()
    mean_pause_ms: int = 100
    safety_ms: int = 0
    operations: tuple[tuple[int, str], ...] = ()
    outside: tuple[tuple[int, Callable[[], None]], ...] = ()
    """What happens in the world outside, and when after the first task has begun."""
    rescale_to: int = 0
    """The parallelism that a rescale asks for; 0: it is drawn."""
    steps: tuple[StepFault, ...] = ()
    """Faults at calls of a connector under test."""
    look: Callable[[str, str, int], object] | None = None
    """Told of each call of a connector under test, and how many checkpoints are complete."""
    has_all: Callable[[Mapping[str, Rows]], bool] | None = None
    """Whether the job has read all there is; it is stopped with a savepoint then, because it has no end."""
    interval_ms: int = 50
    pause_ms: int = 20
    commit_failures: float = 0.0
    slots: int = 1
    max_delay_ms: int = 2
    task_managers: int = TASK_MANAGERS
    start_delay_ms: int = 40
    machines: int = 0
    stalls: tuple[str, int] = ("", 0)
    cluster_settings: dict[str, str] = field(default_factory=lambda: CLUSTER)


def quiet_plan(job: UserJob, name: str, *, pause_ms: int = 20, max_delay_ms: int = 2) -> RunPlan:
    """Plan a run in which nothing fails."""
    return RunPlan(name, slots=_slots(job), pause_ms=pause_ms, max_delay_ms=max_delay_ms)


def draw_plan(job: UserJob, seed: int) -> RunPlan:
    """Draw everything about the run of a seed."""
    rng = random.Random(f"{seed}/plan")  # noqa: S311 - replayed from the seed
    others = (BREAK_CONTROL, BREAK_DATA, PARTITION, SLOW_NETWORK, FAILING_STORAGE, SLOW_STORAGE, FREEZE, SLOW_TASK)
    kinds = {kind for kind in others if rng.random() < 0.2}
    kinds |= {kind for kind in (KILL_TASK_MANAGER, FAIL_TASK) if rng.random() < 0.6} or {KILL_TASK_MANAGER}
    kinds |= {kind for kind in (KILL_AT_STORAGE, KILL_COORDINATOR) if rng.random() < 0.1}
    operation = rng.choice(["", "", RESCALE, RESCALE, SAVEPOINT, STOP])
    if operation == STOP:  # whoever is asked has to live until the answer
        kinds -= {KILL_COORDINATOR, KILL_AT_STORAGE}
    return RunPlan(
        str(seed),
        faults=frozenset(kinds),
        mean_pause_ms=rng.choice([60, 120, 200]),
        safety_ms=rng.choice([150, 300, 500]),
        operations=((rng.randint(30, 250), operation),) if operation else (),
        interval_ms=rng.choice([40, 80, 120]),
        pause_ms=rng.choice([30, 60, 90]),
        commit_failures=rng.choice([0.0, 0.0, 0.2]),
        slots=_slots(job),
        max_delay_ms=rng.choice([0, 2, 6]),
    )


def _slots(job: UserJob) -> int:
    """The slots of each TaskManager: the job runs with all of them, and may be rescaled in each slot sharing group."""
    most: dict[str, int] = {}
    for vertex in job.graph.vertices:
        group = vertex.slot_sharing_group
        most[group] = max(most.get(group, LARGEST_PARALLELISM), vertex.parallelism)
    return -(-sum(most.values()) // TASK_MANAGERS)


@dataclass
class RunOutcome:
    """How a run of the job went."""

    plan: RunPlan
    status: JobStatus | None
    """None: the job did not come to its end."""
    failure: SerializedFailure | None
    visible: dict[str, Rows]
    emitted: Callable[[str], Rows]
    story: list[str]
    story_hash: str
    faults: Counter[str]
    checkpoints: int
    restarts: int
    detail: str = ""
    """Why it did not come to its end."""


class _JobFaults(FaultInjector):
    """Faults of processes, and of single tasks and commits."""

    def __init__(self, world: World, cluster: SimulatedCluster, disk: Disk, plan: RunPlan) -> None:
        super().__init__(world, cluster, disk, plan.faults, plan.mean_pause_ms)
        self._commit_failures = plan.commit_failures
        self._events[FAIL_TASK] = self._fail_task

    def _fail_task(self) -> None:
        threads = [thread for process in self._cluster.alive() for thread in process.tasks.values()]
        if threads:
            thread = self._rng.choice(threads)
            self._say(f"a task fails: {thread.name}")
            if thread.task is not None:
                thread.task.fail_externally(SerializedFailure("the simulator fails this task", Blame.EXTERNAL))

    def commit_fault(self, uid: str) -> str:
        """Whether a commit of this sink fails now, before it was done or after."""
        if not self._active or self._rng.random() >= self._commit_failures:
            return ""
        self.counts[FAIL_COMMIT] += 1
        when = self._rng.choice(["before", "after"])
        self._say(f"a commit of {uid!r} fails {'before anything is done' if when == 'before' else 'when it is done'}")
        return when


class UserRun:
    """One run of the job, from its submission to its end."""

    def __init__(self, job: UserJob, plan: RunPlan, on_function: Callable[[str, Any], None], on_open: Callable[[str], None]) -> None:  # fmt: skip
        """`on_function`: told of every specification that a task gets; `on_open`: of every operator that is open."""
        self._job = job
        self._plan = plan
        self._on_function = on_function
        self._on_open = on_open
        self._uid_of = job.uid_of_payload
        self._world = World(hash_of(plan.seed), max_delay_ms=plan.max_delay_ms, keep_story=True)
        self._begun_ms = self._world.clock.now_ms
        self._disk = Disk(self._world.random("disk"))
        self._disk.on_written = self._written
        self._cluster = SimulatedCluster(self._world, self._disk, plan, observe=self._observe)
        self._faults = _JobFaults(self._world, self._cluster, self._disk, plan)
        self.steps = StepFaults(
            self._world, plan.steps, {LEADER: self._kill_leader, RESCALED: lambda: self._ask(RESCALE)}
        )
        self._state = RunState(
            self._world.random("sources"),
            plan.pause_ms,
            self._faults.commit_fault,
            at_step=self._at_step,
            process=lambda: check(self._world.current, "connectors are called in a process"),
            process_is_gone=self._collect_soon,
        )
        self._rng = self._world.random("user")
        self._graph = replace(
            job.graph,
            configuration={**job.graph.configuration, "execution.checkpointing.interval": f"{plan.interval_ms} ms"},
        )
        self._waiting: list[tuple[SimulatedCoordinator, RequestID, str]] = []
        self._go_on_from: str | None = None
        self._is_restored_twice = False
        self._ask_at_ms = 0
        self._collects = False
        self._forgotten: dict[JobID, tuple[JobStatus, SerializedFailure | None]] = {}
        """How jobs have ended that no coordinator will run again."""
        self._cluster.on_forgotten = self._forget
        self.checkpoints = 0

    def run(self) -> RunOutcome:
        """Run the job to its end. Raises what the simulated cluster itself breaks by."""
        world, cluster, plan = self._world, self._cluster, self._plan
        global_random = random.getstate()
        random.seed(f"{plan.seed}/functions")
        detail = ""
        with ExitStack() as stack:
            stack.enter_context(patch.object(snapline.coordinator.ha.embedded, "time", SimulatedTime(world)))
            stack.enter_context(async_calls_in(world))
            stack.enter_context(background_calls_in(world))
            stack.enter_context(run_with(self._state))
            stack.enter_context(lineage_in(self._state.lineage, self._on_open))
            stack.callback(random.setstate, global_random)
            stack.callback(forget_transactions)
            stack.callback(world.end_workers)
            world.arrived = self._arrived
            cluster.start()
            try:
                world.clock.run_until(world.clock.now_ms + STARTS_WITHIN_MS, self._is_ready)
                cluster.submit(self._graph)
                world.clock.run_until(world.clock.now_ms + STARTS_WITHIN_MS, lambda: self._state.lineage.has_begun)
                for at_ms, operation in plan.operations:
                    world.clock.after(at_ms, lambda operation=operation: self._ask(operation))  # type: ignore[misc]
                for at_ms, happens in plan.outside:
                    world.clock.after(at_ms, happens)
                if plan.faults or plan.commit_failures:
                    self._faults.start()
                    world.clock.run_until(world.clock.now_ms + plan.safety_ms, self._is_over)
                    self._faults.stop()
                self._failures_allowed = MOST_FAILURES
                world.clock.run_until(world.clock.now_ms + ENDS_WITHIN_MS, self._is_over)
            except Livelock as error:
                detail = str(error)
            status, failure = cluster.outcomes.get(self._graph.job_id, (None, None))
        return RunOutcome(
            plan,
            status,
            failure if failure is not None else self._last_failure,
            {uid: _counted(values) for uid, values in self._state.visible.items()},
            self._state.lineage.rows,
            world.story.lines,
            world.story.hash,
            self._faults.counts,
            self.checkpoints,
            self._state.lineage.restarts,
            detail,
        )

    @property
    def now_ms(self) -> int:
        """Return the simulated time since the world began."""
        return self._world.clock.now_ms - self._begun_ms

    def _is_ready(self) -> bool:
        coordinator = self._cluster.coordinator
        return coordinator is not None and coordinator.ready

    # --- what the run is told -----------------------------------------------------------------------------------------

    _last_failure: SerializedFailure | None = None
    _failures_allowed: float = math.inf
    """As long as faults happen, tasks fail because of them."""

    def _arrived(self, payload: bytes) -> Any:
        """Read a specification, as a task does."""
        spec = cloudpickle.loads(payload)
        uid = self._uid_of.get(payload)
        if uid is None:  # of an edge, which has no function of the user's
            return spec
        self._on_function(uid, spec)
        if is_own_sink(spec):
            watch_sink(uid, getattr(spec, "sink", None) or spec.function)
        return spec

    def _written(self, path: str, _late: bool) -> None:
        if path.endswith("/_metadata"):
            self.checkpoints += 1
            self._world.story.say("checkpoint", f"{path.removesuffix('/_metadata').rpartition('/')[2]} is complete")

    def _observe(self, name: str, event: Any, effects: list[Any]) -> None:
        if type(event) is TaskEnteredState and event.state is ExecutionState.FAILED and event.failure is not None:
            failure = event.failure
            self._failures_allowed -= 1
            self._last_failure = failure if failure.operator_uid else self._last_failure
            where = f" ({failure.operator_uid})" if failure.operator_uid else ""
            self._world.story.say(name, f"task failed{where}: {failure.summary}")

    # --- the user -----------------------------------------------------------------------------------------------------

    def _ask(self, operation: str) -> None:
        coordinator = self._cluster.coordinator
        if coordinator is None or not coordinator.alive or self._graph.job_id not in coordinator.runners:
            return
        self._world.story.say("user", f"wants: {operation}")
        if operation == RESCALE:
            rescaled = self._rescaled()
            self._world.story.say("user", "parallelism " + "/".join(str(v.parallelism) for v in rescaled.vertices))
            request: Any = RescaleJob({vertex.vertex_id: vertex.parallelism for vertex in rescaled.vertices})
        elif operation == SAVEPOINT:
            request = TakeSavepoint("/savepoints")
        elif operation == CANCEL:
            request = CancelJob()
        else:
            request = StopWithSavepoint("/savepoints", drain=operation == DRAIN)
        self._waiting.append((coordinator, coordinator.operate(self._graph.job_id, request), operation))

    def _rescaled(self) -> JobGraph:
        wanted = self._plan.rescale_to
        if not wanted:
            return draw_rescaled(self._graph, self._rng, LARGEST_PARALLELISM, self._job.kept_parallelism)
        many = [vertex.vertex_id for vertex in self._graph.vertices if vertex.max_parallelism != 1]
        return with_parallelism(self._graph, dict.fromkeys(many, wanted))

    def _take_answers(self) -> None:
        waiting, self._waiting = self._waiting, []
        for coordinator, request_id, operation in waiting:
            answer = coordinator.answers.get(request_id)
            if answer is None:
                if coordinator.alive and self._graph.job_id in coordinator.runners:
                    self._waiting.append((coordinator, request_id, operation))
            elif isinstance(answer, OperationFailed):
                self._world.story.say("user", f"{operation} failed: {answer.failure.summary}")
            elif isinstance(answer, SnapshotCompleted) and operation in (STOP, TWICE):
                self._go_on_from, self._is_restored_twice = answer.path, operation == TWICE

    def _outcome(self) -> tuple[JobStatus, SerializedFailure | None] | None:
        """How the job has ended; nobody may have heard of it, if the coordinator was killed just then."""
        job_id, cluster = self._graph.job_id, self._cluster
        if job_id not in cluster.outcomes and job_id in self._forgotten and not cluster.is_stored(job_id):
            leader = cluster.coordinator
            if leader is None or not leader.alive or job_id not in leader.runners:
                cluster.outcomes[job_id] = self._forgotten[job_id]
        return cluster.outcomes.get(job_id)

    def _forget(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None:
        self._forgotten[job_id] = status, failure

    def _is_over(self) -> bool:
        """Whether the job has ended; one that was stopped with a savepoint goes on from it."""
        outcome = self._outcome()
        if outcome is None:
            if self._world.steps > MOST_STEPS:
                raise Livelock(
                    f"its tasks have made {MOST_STEPS} steps; a source that never ends needs inputs={{uid: rows}}"
                )
            if self._failures_allowed < 0:
                raise Livelock(f"its tasks have failed {MOST_FAILURES} times after the last fault")
            self._stop_when_all_has_come()
            return False
        if self._waiting:
            self._take_answers()
        if self._go_on_from is None:
            return True
        if self._first_restore is not None and self._first_restore == self._graph.job_id:
            self._first_restore = None
        elif outcome[0] is not JobStatus.FINISHED:
            return True
        path = self._go_on_from
        rescaled = draw_rescaled(self._graph, self._rng, LARGEST_PARALLELISM, self._job.kept_parallelism)
        job_id = JobID(f"{int(self._graph.job_id[0], 16) + 1:x}{self._graph.job_id[1:]}")
        self._graph = replace(rescaled, job_id=job_id, savepoint_restore=SavepointRestoreSettings(path))
        shape = "/".join(str(vertex.parallelism) for vertex in rescaled.vertices)
        self._world.story.say("user", f"starts the job again from {path}, with parallelism {shape}")
        if self._is_restored_twice:
            self._is_restored_twice, self._first_restore = False, job_id
            never = {**rescaled.configuration, "execution.checkpointing.interval": "1 d"}
            self._cluster.submit(replace(self._graph, configuration=never))
            self._world.clock.after(FIRST_RESTORE_MS, lambda: self._ask(CANCEL))
        else:
            self._go_on_from = None
            self._cluster.submit(self._graph)
        return False

    _first_restore: JobID | None = None
    """The job that is cancelled, so that another one starts from the same savepoint."""

    def _stop_when_all_has_come(self) -> None:
        has_all = self._plan.has_all
        if has_all is None or self._world.clock.now_ms < self._ask_at_ms:
            return
        self._ask_at_ms = self._world.clock.now_ms + ASK_AGAIN_MS
        self._take_answers()
        if not self._waiting and has_all({uid: _counted(values) for uid, values in self._state.visible.items()}):
            self._ask(END)

    # --- connectors under test ----------------------------------------------------------------------------------------

    def _at_step(self, step: str, moment: str) -> None:
        if self._plan.look is not None:
            self._plan.look(step, moment, self.checkpoints)
        self.steps.at(step, moment)

    def _kill_leader(self) -> None:
        coordinator = self._cluster.coordinator
        if coordinator is not None and coordinator.alive:
            coordinator.kill()

    def _collect_soon(self) -> None:
        """Collect garbage once the objects of a killed process are out of reach, because some hold connections."""
        if not self._collects:
            self._collects = True
            self._world.clock.after(1, self._collect)

    def _collect(self) -> None:
        self._collects = False
        gc.collect()


def hash_of(seed: str) -> int:
    """A whole number for a name of a run."""
    return int(seed) if seed.isdecimal() else sum(ord(letter) << (8 * place) for place, letter in enumerate(seed[:7]))


def _counted(values: Iterable[Any]) -> Rows:
    """The rows of batches, rows and tables."""
    counted: Rows = Counter()
    for value in values:
        if isinstance(value, (pa.RecordBatch, pa.Table)):
            counted.update(row_texts(value))
        else:
            counted[row_text(value) if isinstance(value, Mapping) else repr(value)] += 1
    return counted


def rows_of_target(rows: Any, read: str = "the function that reads the target") -> Rows:
    """What a function of the user's says lies in the target of a sink. Raises SimulationError for what is no rows."""
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return _counted([rows])
    if not isinstance(rows, Iterable):
        raise SimulationError(f"{read} must return rows, and returned {rows!r}")
    return _counted(rows)
