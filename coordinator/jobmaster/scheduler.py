"""Scheduler: when the subtasks of a job are deployed, cancelled and restarted, and what becomes of the job.

A *round* brings a set of subtasks from wherever they are to deployed: CANCELING (all their attempts end; the restart
delay runs meanwhile) -> RESTORING (what they start from is asked for) -> WAITING_FOR_SLOTS (all slots or none) ->
deployed. The first deployment is a round over all subtasks that begins at RESTORING. A failure during a round widens it
and sends it back to CANCELING. At most one round is in progress.

A job that is rescaled gets its new graph into the job graph store before anything of it is deployed.

A failure restarts the failed subtasks' pipelined regions when the restart strategy says so; otherwise, or when it
must not be retried, the job goes through FAILING to FAILED with that failure. A job without a restart strategy is
deployed again when a TaskManager was lost before any task that works with its tasks had run. A global failure
restarts everything. A TaskManager that is lost is one failure, however many attempts it takes along.

Does not know messages, connections, heartbeats or checkpoints: its effects are carried out by the JobMaster around it.
Mirrors Flink's DefaultScheduler with DefaultExecutionDeployer and ExecutionFailureHandler; the versions that Flink
keeps per vertex are one round number here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from snapline.coordinator.checkpoint.events import ExecutionChange
from snapline.coordinator.execution.deployment import RestoredTasks, TaskDeploymentDescriptorFactory, in_messages
from snapline.coordinator.execution.execution_graph import Execution, ExecutionGraph, with_parallelism
from snapline.coordinator.execution.failover import FailoverRegions
from snapline.coordinator.execution.given_slots import ANYTHING_IS_GIVEN, GivenSlots
from snapline.coordinator.execution.reactive import ReactiveParallelism
from snapline.coordinator.execution.restart_strategy import NoRestartStrategy, RestartStrategy
from snapline.coordinator.execution.same_row import SameRowFailures
from snapline.coordinator.execution.slot_pool import SlotPool
from snapline.coordinator.execution.slot_sharing import (
    SlotSharing,
    check_external_tasks,
    required_programs,
    required_slots,
)
from snapline.coordinator.jobmaster.deployment_round import DeploymentRound, RoundPhase
from snapline.coordinator.jobmaster.durable_job_graph import DurableJobGraph
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.job_past import JobPast, RootException, with_entry
from snapline.coordinator.jobmaster.reconciliation import Reconciliation, ReportedExecution
from snapline.coordinator.jobmaster.scheduler_effects import (
    CancelAt,
    CancellationTimer,
    GiveSlotsBack,
    GiveUpTaskManager,
    JobStatusReached,
    RestartDelayTimer,
    RestoreTasks,
    SchedulerEffect,
    SlotRequestTimer,
    SubmitTo,
    TellExecutions,
    TellTopology,
)
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import AllocationID, ExecutionAttemptID, ExecutionVertexID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus, TaskDeploymentDescriptor
from snapline.runtime.cores.machine import CancelTimer, CollectedEffects, InvariantViolation, StartTimer, check

TASK_MANAGER_LOST = "TaskManagerLost"
"""The type of a failure whose tasks ended without a word."""

ON_TASK_MANAGER = frozenset(
    {ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.CANCELING}
)
"""States in which a TaskManager has the attempt."""

NOT_DEPLOYED = frozenset({ExecutionState.CREATED, ExecutionState.SCHEDULED})

_HAS_RUN = frozenset({ExecutionState.RUNNING, ExecutionState.FINISHED})

_PROGRESS = {
    ExecutionState.DEPLOYING: 0,
    ExecutionState.INITIALIZING: 1,
    ExecutionState.RUNNING: 2,
}


class Scheduler:
    """Moves one job. Every method that changes something returns what is to be done."""

    def __init__(
        self,
        job_graph: JobGraph,
        execution_graph_id: str,
        settings: JobMasterSettings,
        restart_strategy: RestartStrategy,
        exchange_address_of: Callable[[ResourceID], str],
        checkpoint_directory: str,
        now_ms: int,
        host_of: Callable[[ResourceID], str] = lambda _: "",
        given: GivenSlots = ANYTHING_IS_GIVEN,
    ) -> None:
        """Nothing is deployed and no slot required before `start`. Raises ValueError for a graph that cannot run."""
        self._settings = settings
        self._restart_strategy = restart_strategy
        self._same_row = SameRowFailures(settings.same_row_failures)
        self._exchange_address_of = exchange_address_of
        self._host_of = host_of
        self._checkpoint_directory = checkpoint_directory
        self.pool = SlotPool(settings.slot_idle_timeout_ms, partial(given.is_given, job_graph.job_id))
        self.root_failure: SerializedFailure | None = None
        self.restarts = 0
        self.operator_failures: Counter[str] = Counter()
        """How often each operator failed its task, by its uid; a uid that is not in the graph is not counted."""
        self._failures = 0
        self.exceptions: deque[RootException] = deque()
        self.round: DeploymentRound | None = None
        self._round_number = 0
        self._deployed: dict[ResourceID, dict[ExecutionAttemptID, Execution]] = {}
        """All and only the attempts that are on a TaskManager, by TaskManager."""
        self._canceling_on: dict[ResourceID, int] = {}
        """How many attempts are CANCELING, by TaskManager; a CancellationTimer runs for each that is here."""
        self._rescale_to: dict[JobVertexID, int] = {}
        """Asked for, and waiting for all attempts to end."""
        self._leaving: dict[ResourceID, None] = {}
        """TaskManagers whose slots are given back then."""
        self._out: CollectedEffects[SchedulerEffect] = CollectedEffects()
        self._changes: list[ExecutionChange] = []
        self.is_reconciling_over = False
        self._has_stopped = False
        """The savepoint that the job stops with is complete: what finishes now has only stopped."""
        check_external_tasks(job_graph)
        if settings.is_reactive and required_programs(job_graph):
            raise ValueError("external tasks do not follow slots: leave scheduler-mode = reactive out for this job")
        self.reactive = ReactiveParallelism(job_graph) if settings.is_reactive else None
        self._durable_graph = DurableJobGraph(job_graph)
        self._expand(ExecutionGraph(job_graph, execution_graph_id, now_ms))

    def go_on_from(self, past: JobPast) -> None:
        """Count on from what former leaders have left."""
        self.restarts = past.restarts
        self.operator_failures.update(past.operator_failures)
        if past.submitted_ms is not None:
            self.graph.status_since_ms[JobStatus.CREATED] = past.submitted_ms

    def _expand(self, graph: ExecutionGraph) -> None:
        self.graph = graph
        self._regions = FailoverRegions(graph.job_graph)
        self._sharing = SlotSharing(graph.job_graph, self.pool, self._host_of)
        self._descriptors = TaskDeploymentDescriptorFactory(graph, self._checkpoint_directory)

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        """Return the status of the job."""
        return self.graph.status

    @property
    def is_over(self) -> bool:
        """Nothing runs and nothing will."""
        return self.status.is_globally_terminal or self.status is JobStatus.SUSPENDED

    @property
    def slots_missing(self) -> int:
        """How many slots the current round waits for."""
        if self.round is None or self.round.phase is not RoundPhase.WAITING_FOR_SLOTS:
            return 0
        return self.pool.missing

    def deployed_on(self, resource_id: ResourceID) -> Mapping[ExecutionAttemptID, Execution]:
        """The attempts that this TaskManager has."""
        return self._deployed.get(resource_id, {})

    # --- beginning and end --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[SchedulerEffect]:
        """Deploy the whole job for the first time under this leader. The caller declares `pool.required`."""
        self.require_slots()
        self._changes += [ExecutionChange(e.attempt_id, e.state) for e in self.graph.executions]
        self._begin_round(dict.fromkeys(self.graph.vertices), now_ms + self._stabilization_ms, initial=True)
        self._advance_round(now_ms)
        return self._done()

    def require_slots(self, more: int = 0, more_programs: Mapping[str, int] | None = None) -> None:
        """What the job needs as it is, but at least so many (a rescale that has not begun); in reactive mode all that
        it can use."""
        needed = required_slots(self.graph.job_graph) if self.reactive is None else self.reactive.slots_wanted
        programs = required_programs(self.graph.job_graph)
        for task, number in (more_programs or {}).items():
            programs[task] = max(programs[task], number)
        least = 0 if self.reactive is None else self.reactive.slots_needed
        self.pool.set_required(max(needed, more), programs, least)

    def use_max_parallelism(self, max_parallelism: Mapping[JobVertexID, int]) -> None:
        """A restored snapshot fixes the number of key groups of these vertices: a job in reactive mode follows its
        slots no further."""
        self.graph.use_max_parallelism(max_parallelism)
        if self.reactive is not None and max_parallelism and not self.is_over:
            self.reactive = ReactiveParallelism(self.graph.job_graph)
            self.require_slots()

    @property
    def _stabilization_ms(self) -> int:
        """In reactive mode slots are waited for even if some are there."""
        return 0 if self.reactive is None else self._settings.resource_stabilization_ms

    @property
    def has_all_slots(self) -> bool:
        """Whether a job in reactive mode has as many as it can use, so that nothing is gained by waiting for more."""
        return self.reactive is not None and self.pool.count() >= self.reactive.slots_wanted

    def nothing_reported(self) -> Reconciliation:
        """What is known of the tasks of a former leader before anybody has reported one."""
        graph = self.graph
        return Reconciliation(
            graph.vertices, self.region_of, graph.execution_graph_id, self.pool.is_given, self._sharing.key_of
        )

    def start_reconciling(self, now_ms: int) -> list[SchedulerEffect]:
        """Another leader ran this job before: deploy nothing until it is known what still runs. Ends with `adopt`, with
        `restart_after_reconciling`, or with anything else that moves the job."""
        self.require_slots()
        self._job_status(JobStatus.RECONCILING, now_ms)
        return self._done()

    def adopt(self, executions: Iterable[ReportedExecution], now_ms: int) -> list[SchedulerEffect]:
        """One attempt for each subtask: they go on as they are, or have finished, under this leader."""
        check(self.is_reconciling, f"a job that is {self.status.value} adopts nothing")
        self.is_reconciling_over = True
        for each in executions:
            report = each.report
            self._has_stopped |= report.stopping
            execution = self.graph.adopt(
                report.attempt_id, report.state, report.allocation_id, each.resource_id, now_ms
            )
            if not execution.state.is_terminal:
                self._sharing.adopt(execution.vertex, report.allocation_id)
                self._deployed.setdefault(each.resource_id, {})[execution.attempt_id] = execution
            self._changes.append(ExecutionChange(execution.attempt_id, execution.state))
        self._after_change(now_ms)
        return self._done()

    def restart_after_reconciling(self, now_ms: int) -> list[SchedulerEffect]:
        """What runs cannot be taken over: deploy the whole job anew."""
        check(self.is_reconciling, f"a job that is {self.status.value} does not wait for reports")
        self.is_reconciling_over = True
        self._changes += [ExecutionChange(e.attempt_id, e.state) for e in self.graph.executions]
        self._job_status(JobStatus.RESTARTING, now_ms)
        self._begin_round(dict.fromkeys(self.graph.vertices), now_ms + self._stabilization_ms, initial=True)
        self._advance_round(now_ms)
        return self._done()

    def region_of(self, subtask: ExecutionVertexID) -> ExecutionVertexID:
        """What stands for the failover region of a subtask."""
        return self._regions.region_of(subtask)

    @property
    def is_reconciling(self) -> bool:
        """Whether nothing was decided yet about what a former leader left."""
        return self.status is JobStatus.RECONCILING and not self.is_reconciling_over

    def cancel(self, now_ms: int) -> list[SchedulerEffect]:
        """A client wants the job to end: one that fails is cancelled, too, while its tasks are being ended. Nothing,
        when it is cancelled already."""
        if self.status is JobStatus.CANCELLING or self.is_over:
            return []
        self._end_with(JobStatus.CANCELLING, now_ms)
        self._after_change(now_ms)
        return self._done()

    def suspend(self, now_ms: int) -> list[SchedulerEffect]:
        """Leadership is lost: let go, cancel nothing."""
        if self.is_over:
            return []
        self._drop_round()
        self._job_status(JobStatus.SUSPENDED, now_ms)
        return self._done()

    def _end_with(self, status: JobStatus, now_ms: int) -> None:
        """CANCELLING or FAILING: end every attempt, then the job."""
        self._drop_round()
        self._job_status(status, now_ms, self.root_failure)
        for execution in list(self.graph.executions):
            if execution.state in NOT_DEPLOYED:
                self._transition(execution, ExecutionState.CANCELED, now_ms)
            else:
                self._cancel_execution(execution, now_ms)

    # --- answers of the world -----------------------------------------------------------------------------------------

    def task_state_changed(
        self,
        resource_id: ResourceID,
        attempt_id: ExecutionAttemptID,
        state: ExecutionState,
        failure: SerializedFailure | None,
        now_ms: int,
    ) -> list[SchedulerEffect]:
        """A TaskManager says that an attempt entered a state."""
        execution = self.graph.find(attempt_id)
        if execution is None or execution.state.is_terminal or execution.resource_id != resource_id:
            if not state.is_terminal and state is not ExecutionState.CANCELING:
                self._out.append(CancelAt(resource_id, attempt_id))
            return self._done()
        if execution.state not in ON_TASK_MANAGER:
            raise InvariantViolation(f"{attempt_id} is {state.value}, but was never deployed")
        execution.confirmed = True
        if execution.state is ExecutionState.CANCELING:
            if state.is_terminal:
                self._transition(execution, ExecutionState.CANCELED, now_ms)
        elif state is ExecutionState.FINISHED:
            self._transition(execution, state, now_ms)
        elif state in (ExecutionState.FAILED, ExecutionState.CANCELED):
            self._fail_executions([execution], failure or _ended_without_reason(attempt_id, state), now_ms)
        elif _PROGRESS.get(state, -1) > _PROGRESS[execution.state]:
            self._transition(execution, state, now_ms)
        self._after_change(now_ms)
        return self._done()

    def task_manager_lost(self, resource_id: ResourceID, reason: str, now_ms: int) -> list[SchedulerEffect]:
        """Take the slots of a lost TaskManager from the pool; what ran in them is over."""
        for slot in self.pool.release_task_manager(resource_id):
            self._sharing.slot_lost(slot.allocation_id)
        self._lose(list(self.deployed_on(resource_id).values()), _lost(resource_id, reason), now_ms)
        return self._done()

    def slots_lost(
        self, resource_id: ResourceID, allocations: Iterable[AllocationID], reason: str, now_ms: int
    ) -> list[SchedulerEffect]:
        """The TaskManager has given these slots away or never had them."""
        gone = dict.fromkeys(allocations)
        for allocation_id in gone:
            if self.pool.remove(allocation_id) is not None:
                self._sharing.slot_lost(allocation_id)
        lost = [e for e in self.deployed_on(resource_id).values() if e.allocation_id in gone]
        self._lose(lost, _lost(resource_id, reason), now_ms)
        return self._done()

    def executions_missing(
        self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID], now_ms: int
    ) -> list[SchedulerEffect]:
        """The TaskManager should run these attempts, and does not (Flink: onMissingDeploymentsOf)."""
        deployed = self.deployed_on(resource_id)
        missing = [deployed[attempt_id] for attempt_id in attempts if attempt_id in deployed]
        self._lose(missing, _lost(resource_id, "it does not run the task any more, and never said why"), now_ms)
        return self._done()

    def slots_offered(self, now_ms: int) -> list[SchedulerEffect]:
        """Deploy what waits, because the pool has got slots. In reactive mode a job that had too few for anything to
        run waits until their number has settled."""
        current = self.round
        if current is not None and current.lacks_slots and len(self.pool):
            current.lacks_slots, current.settles = False, True
            current.not_before_ms = now_ms + self._stabilization_ms
        self._advance_round(now_ms)
        return self._done()

    def state_restored(self, round_number: int, restored: RestoredTasks, now_ms: int) -> list[SchedulerEffect]:
        """Take the answer to RestoreTasks, and deploy with the restored state."""
        current = self.round
        if current is not None and self._is_restoring(round_number):
            current.restored = restored
            current.initial = False
            current.phase = RoundPhase.WAITING_FOR_SLOTS
            self._advance_round(now_ms)
        return self._done()

    def restore_failed(self, round_number: int, failure: SerializedFailure, now_ms: int) -> list[SchedulerEffect]:
        """Answer to RestoreTasks: nothing to start from could be read."""
        return self.fail_global(failure, now_ms) if self._is_restoring(round_number) else []

    def fail_global(self, failure: SerializedFailure, now_ms: int) -> list[SchedulerEffect]:
        """Something of the whole job failed: restart everything or end it (Flink: handleGlobalFailure)."""
        self._handle_failure(self.graph.vertices, failure, None, now_ms)
        self._after_change(now_ms)
        return self._done()

    def fail_execution(
        self, attempt_id: ExecutionAttemptID, failure: SerializedFailure, now_ms: int
    ) -> list[SchedulerEffect]:
        """The coordinator found a reason to fail an attempt that may be healthy itself. It is cancelled like the
        rest."""
        execution = self.graph.find(attempt_id)
        if execution is None or execution.state not in ON_TASK_MANAGER or execution.state is ExecutionState.CANCELING:
            return []
        self._handle_failure([execution.vertex], failure, execution, now_ms)
        self._after_change(now_ms)
        return self._done()

    def restart_delay_over(self, now_ms: int) -> list[SchedulerEffect]:
        """Begin the restart whose RestartDelayTimer has fired."""
        if self.round is not None:
            self.round.delay_timer_runs = False
        self._advance_round(now_ms)
        return self._done()

    def slot_request_timed_out(self, available: str, now_ms: int) -> list[SchedulerEffect]:
        """SlotRequestTimer fired (Flink: NoResourceAvailableException). `available` says what the ResourceManager
        knows."""
        if self.round is None or self.round.phase is not RoundPhase.WAITING_FOR_SLOTS:
            return []
        self.round.slot_timer_runs = False
        summary = (
            f"the job needs {self.pool.required} slots and got {self.pool.count()} within "
            f"{self._settings.slot_request_timeout_ms} ms (slot.request.timeout){available}: give Spark more cores or "
            "executors, or lower the parallelism"
        )
        failure = SerializedFailure(summary, blame=Blame.EXTERNAL, error_type="NoResourceAvailable")
        return self.fail_global(failure, now_ms)

    def cancellation_timer_fired(self, resource_id: ResourceID, now_ms: int) -> list[SchedulerEffect]:
        """Give the TaskManager up when one of its attempts has been CANCELING for too long; else look again later."""
        since = [
            e.state_since_ms for e in self.deployed_on(resource_id).values() if e.state is ExecutionState.CANCELING
        ]
        if since:
            due_ms = min(since) + self._settings.cancellation_timeout_ms
            if due_ms <= now_ms:
                reason = f"a task was not cancelled within {self._settings.cancellation_timeout_ms} ms"
                self._out.append(GiveUpTaskManager(resource_id, reason))
            else:
                self._out.append(StartTimer(CancellationTimer(resource_id), due_ms))
        return self._done()

    def graph_stored(self, now_ms: int) -> list[SchedulerEffect]:
        """Take the answer to UpdateJobGraph: the parallelism to run with is durable."""
        if self.is_over:
            self._durable_graph.store_no_more()
        self._out += self._durable_graph.stored()
        self._advance_round(now_ms)
        return self._done()

    @property
    def is_storing_graph(self) -> bool:
        """Whether an answer to UpdateJobGraph is outstanding."""
        return self._durable_graph.is_storing

    def rescale(
        self, parallelism: Mapping[JobVertexID, int], now_ms: int, leave: Iterable[ResourceID] = ()
    ) -> list[SchedulerEffect]:
        """Restart everything with other parallelism, which `check_rescale` has accepted, and without the slots of the
        TaskManagers that the job is to leave. All attempts end first."""
        check(self.status is JobStatus.RUNNING and self.round is None, "only a running job is rescaled")
        self._rescale_to = {**self._rescale_to, **parallelism}
        for resource_id in leave:
            self._leaving[resource_id] = None
            self.pool.leave(resource_id)
        wanted = with_parallelism(self.graph.job_graph, self._rescale_to)
        leaving = sum(len(self.pool.allocations_of(resource_id)) for resource_id in self._leaving)
        self.require_slots(required_slots(wanted) + leaving, required_programs(wanted))
        self._out += self._durable_graph.want(wanted)  # while tasks end
        self._restart(dict.fromkeys(self.graph.vertices), 0, now_ms)
        self._after_change(now_ms)
        return self._done()

    def stopped_with_savepoint(self, now_ms: int) -> list[SchedulerEffect]:
        """The savepoint that the job stops with is complete. If a task fails, or has failed already, everything starts
        again from there: without those that have stopped the job would go on with a part of its input."""
        self._has_stopped = self.round is None
        return self.restart_as_a_whole(now_ms)

    def restart_as_a_whole(self, now_ms: int) -> list[SchedulerEffect]:
        """What is being restarted takes the rest of the job along; nothing, when nothing is."""
        if self.round is not None and len(self.round.vertices) < len(self.graph):
            self._start_over(dict.fromkeys(self.graph.vertices), 0, now_ms)
            self._after_change(now_ms)
        return self._done()

    # --- failures -----------------------------------------------------------------------------------------------------

    def _lose(self, executions: list[Execution], failure: SerializedFailure, now_ms: int) -> None:
        """These attempts ended without a word."""
        failed = []
        for execution in executions:
            if execution.state is ExecutionState.CANCELING:
                self._transition(execution, ExecutionState.CANCELED, now_ms)
            else:
                failed.append(execution)
        if failed:
            self._fail_executions(failed, failure, now_ms)
        self._after_change(now_ms)

    def _fail_executions(self, executions: list[Execution], failure: SerializedFailure, now_ms: int) -> None:
        for execution in executions:
            execution.failure = failure
            self._transition(execution, ExecutionState.FAILED, now_ms)
        self._handle_failure([execution.vertex for execution in executions], failure, executions[0], now_ms)

    def _handle_failure(
        self,
        failed: Iterable[ExecutionVertexID],
        failure: SerializedFailure,
        execution: Execution | None,
        now_ms: int,
    ) -> None:
        """One failure that counts: restart, or end the job."""
        if self.status in (JobStatus.FAILING, JobStatus.CANCELLING) or self.is_over:
            return
        task_name = "" if execution is None else self.graph.task_name(execution.vertex)
        resource_id = ResourceID("") if execution is None else execution.resource_id
        attempt = 0 if execution is None else execution.attempt_id.attempt_number
        self._failures += 1
        if failure.operator_uid in self.graph.job_graph.operator_uids:
            self.operator_failures[failure.operator_uid] += 1
        delay_ms, why = None, "it must not be retried"
        if failure.retryable:
            delay_ms, why = self._restart_strategy.notify_failure(now_ms), self._restart_strategy.why_not
            if delay_ms is None and self._can_be_deployed_again(failed, failure):
                delay_ms = 0
        shares = failure.retryable and not self._restart_strategy.begins_attempt
        entry = RootException(failure, now_ms, task_name, resource_id, attempt, self._failures, shares)
        self.exceptions = with_entry(self.exceptions, entry)
        if delay_ms is not None and self._same_row.is_poison(failure):
            delay_ms, why = None, self._same_row.why_not
        if delay_ms is None:
            self.root_failure = replace(failure, summary=f"{failure.summary} (not restarted: {why})", retryable=False)
            self._end_with(JobStatus.FAILING, now_ms)
        else:
            self.restarts += self._restart_strategy.begins_attempt
            if self._has_stopped:
                failed, self._has_stopped = self.graph.vertices, False
            if self.reactive is not None and len(self.pool) < required_slots(self.graph.job_graph):
                failed, delay_ms = self.graph.vertices, max(delay_ms, self._stabilization_ms)  # with fewer slots
            self._restart(self._regions.tasks_needing_restart(failed), delay_ms, now_ms)

    def _can_be_deployed_again(self, failed: Iterable[ExecutionVertexID], failure: SerializedFailure) -> bool:
        """Whether a TaskManager of a job that is not restarted was lost before any task of the regions had run."""
        if failure.error_type != TASK_MANAGER_LOST or not isinstance(self._restart_strategy, NoRestartStrategy):
            return False
        together = map(self.graph.current, self._regions.tasks_needing_restart(failed))
        has_run = any(not _HAS_RUN.isdisjoint(execution.timestamps_ms) for execution in together)
        return not has_run and self._restart_strategy.deploys_again()

    def _restart(self, vertices: dict[ExecutionVertexID, None], delay_ms: int, now_ms: int) -> None:
        """Take the vertices into the round, which goes back to waiting for their ends."""
        if self.status is not JobStatus.RESTARTING:
            self._job_status(JobStatus.RESTARTING, now_ms)
        self._start_over(vertices, delay_ms, now_ms)

    def _start_over(self, vertices: dict[ExecutionVertexID, None], delay_ms: int, now_ms: int) -> None:
        """Begin a round over the vertices, or widen the one in progress, and end what runs of them."""
        self._begin_round(vertices, now_ms + delay_ms)
        for vertex in vertices:
            self._cancel_execution(self.graph.current(vertex), now_ms)

    def _cancel_execution(self, execution: Execution, now_ms: int) -> None:
        if execution.state not in ON_TASK_MANAGER:
            return
        if execution.state is not ExecutionState.CANCELING:
            self._transition(execution, ExecutionState.CANCELING, now_ms)
            self._out.append(CancelAt(execution.resource_id, execution.attempt_id))
            self._canceling_on[execution.resource_id] = self._canceling_on.get(execution.resource_id, 0) + 1
            if self._canceling_on[execution.resource_id] == 1 and self._settings.cancellation_timeout_ms:
                due_ms = now_ms + self._settings.cancellation_timeout_ms
                self._out.append(StartTimer(CancellationTimer(execution.resource_id), due_ms))
        if self.round is not None:
            self.round.canceling[execution.attempt_id] = None

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _begin_round(
        self, vertices: dict[ExecutionVertexID, None], not_before_ms: int, *, initial: bool = False
    ) -> None:
        """Start a round, or widen the one in progress and send it back to its beginning."""
        self._round_number += 1
        old = self.round
        if old is not None:
            initial = old.initial
            vertices = {**old.vertices, **vertices}
            not_before_ms = max(not_before_ms, old.not_before_ms)
            self._stop_timers(old)
        self.round = DeploymentRound(
            self._round_number, vertices, RoundPhase.CANCELING, initial, not_before_ms, old.canceling if old else {}
        )
        self.round.settles = initial and old is None

    def _drop_round(self) -> None:
        if self.round is not None:
            self._stop_timers(self.round)
            self.round = None

    def _stop_timers(self, current: DeploymentRound) -> None:
        if current.delay_timer_runs:
            self._out.append(CancelTimer(RestartDelayTimer()))
        if current.slot_timer_runs:
            self._out.append(CancelTimer(SlotRequestTimer()))
        current.delay_timer_runs = current.slot_timer_runs = False

    def _is_restoring(self, round_number: int) -> bool:
        return self.round is not None and self.round.number == round_number and self.round.phase is RoundPhase.RESTORING

    def _advance_round(self, now_ms: int) -> None:
        """Go on with the round as far as it goes."""
        current = self.round
        if current is None:
            return
        if current.phase is RoundPhase.CANCELING:
            if current.canceling:
                return
            if now_ms < current.not_before_ms and not (current.settles and self.has_all_slots):
                if not current.delay_timer_runs:
                    current.delay_timer_runs = True
                    self._out.append(StartTimer(RestartDelayTimer(), current.not_before_ms))
                return
            self._stop_timers(current)
            current.lacks_slots = not self._fits_slots(current)
            if not current.lacks_slots:
                self._begin_restore(current, now_ms)
        elif current.phase is RoundPhase.WAITING_FOR_SLOTS:
            if self.pool.free_count < current.free_slots_needed:
                return
            missing = self._sharing.assign(current.vertices)
            if missing == 0:
                self._stop_timers(current)
                current.free_slots_needed = 0  # they are reserved: none has to be free while the graph is being stored
                if self._durable_graph.holds(self.graph.job_graph):
                    self._deploy(current, now_ms)
                return
            if self.reactive is not None:  # slots were lost since: begin again with those that are left
                self._start_over(dict.fromkeys(self.graph.vertices), self._stabilization_ms, now_ms)
                self._advance_round(now_ms)
                return
            if not self.pool.programs_required:  # with two kinds of slots, the number of free ones says little
                current.free_slots_needed = self.pool.free_count + missing
            if not current.slot_timer_runs and self.pool.count() < self.pool.required:  # programs may take their time
                current.slot_timer_runs = True
                self._out.append(StartTimer(SlotRequestTimer(), now_ms + self._settings.slot_request_timeout_ms))

    def _fits_slots(self, current: DeploymentRound) -> bool:
        """Whether the round can go on. In reactive mode the whole job is given the parallelism that the slots allow."""
        if self.reactive is None or len(current.vertices) < len(self.graph):
            return True
        leaving = sum(len(self.pool.allocations_of(resource_id)) for resource_id in self._leaving)
        parallelism = self.reactive.of(len(self.pool) - leaving)
        if parallelism is None and leaving:  # what it had elsewhere is lost: it stays
            self._leaving, parallelism = {}, self.reactive.of(len(self.pool))
        if parallelism is None:
            return False
        if self._rescale_to or parallelism != {v.vertex_id: v.parallelism for v in self.graph.job_graph.vertices}:
            self._rescale_to = dict(parallelism)
        return True

    def _begin_restore(self, current: DeploymentRound, now_ms: int) -> None:
        if self._rescale_to:
            self._expand_rescaled(current, now_ms)
        ended = [v for v in current.vertices if self.graph.current(v).state not in NOT_DEPLOYED]
        self.graph.reset_for_new_execution(ended, now_ms)
        for vertex in ended:
            self._changes.append(ExecutionChange(self.graph.current(vertex).attempt_id, ExecutionState.CREATED))
        current.phase = RoundPhase.RESTORING
        whole_job = len(current.vertices) == len(self.graph)
        vertices = None if whole_job else tuple(dict.fromkeys(vertex.vertex_id for vertex in current.vertices))
        self._flush()
        self._out.append(RestoreTasks(current.number, vertices, current.initial))

    def _expand_rescaled(self, current: DeploymentRound, now_ms: int) -> None:
        """Nothing runs: the same job with other parallelism takes the place of the old one."""
        self._sharing.release_all(now_ms)
        leaving = sum(len(self.pool.allocations_of(resource_id)) for resource_id in self._leaving)
        needed = required_slots(with_parallelism(self.graph.job_graph, self._rescale_to))
        for resource_id in self._leaving if self.pool.count() - leaving >= needed else ():  # else it stays
            slots = self.pool.give_back(self.pool.allocations_of(resource_id))
            if slots:
                self._out.append(GiveSlotsBack(resource_id, tuple(slot.allocation_id for slot in slots)))
        self._leaving = {}
        self._expand(self.graph.rescaled(self._rescale_to, now_ms))
        self._out += self._durable_graph.want(self.graph.job_graph)
        self._rescale_to = {}
        current.vertices = dict.fromkeys(self.graph.vertices)
        self.require_slots()
        self._flush()
        self._out.append(TellTopology(self.graph.job_graph))
        self._changes = [ExecutionChange(e.attempt_id, e.state) for e in self.graph.executions]

    def _deploy(self, current: DeploymentRound, now_ms: int) -> None:
        """Every place has a slot: hand all tasks out."""
        self.round = None
        executions = [self.graph.current(vertex) for vertex in current.vertices]
        for execution in executions:
            slot = self.pool.get(self._sharing.allocation_of(execution.vertex) or AllocationID(""))
            if slot is None:
                raise InvariantViolation(f"{execution.attempt_id} has no slot")
            execution.allocation_id, execution.resource_id = slot.allocation_id, slot.resource_id
            self._transition(execution, ExecutionState.SCHEDULED, now_ms)
        by_resource: dict[ResourceID, list[TaskDeploymentDescriptor]] = {}
        for execution, descriptor in zip(
            executions, self._descriptors.create(executions, current.restored, self._exchange_address_of), strict=True
        ):
            by_resource.setdefault(execution.resource_id, []).append(descriptor)
            self._deployed.setdefault(execution.resource_id, {})[execution.attempt_id] = execution
            self._transition(execution, ExecutionState.DEPLOYING, now_ms)
        self._flush()
        for resource_id, tasks in by_resource.items():
            self._out += [SubmitTo(resource_id, message) for message in in_messages(tasks)]

    # --- changing -----------------------------------------------------------------------------------------------------

    def _transition(self, execution: Execution, state: ExecutionState, now_ms: int) -> None:
        if execution.state is ExecutionState.CANCELING:
            self._count_one_less_canceling(execution.resource_id)
        self.graph.transition(execution, state, now_ms)
        self._changes.append(ExecutionChange(execution.attempt_id, state))
        if state.is_terminal:
            on_resource = self._deployed.get(execution.resource_id)
            if on_resource is not None:
                on_resource.pop(execution.attempt_id, None)
                if not on_resource:
                    del self._deployed[execution.resource_id]
            if self.round is not None:
                self.round.canceling.pop(execution.attempt_id, None)

    def _count_one_less_canceling(self, resource_id: ResourceID) -> None:
        self._canceling_on[resource_id] -= 1
        if not self._canceling_on[resource_id]:
            del self._canceling_on[resource_id]
            if self._settings.cancellation_timeout_ms:
                self._out.append(CancelTimer(CancellationTimer(resource_id)))

    def _job_status(self, status: JobStatus, now_ms: int, failure: SerializedFailure | None = None) -> None:
        self.graph.transition_job(status, now_ms)
        self._flush()
        self._out.append(JobStatusReached(status, failure))

    def _after_change(self, now_ms: int) -> None:
        """What follows from the states that attempts have now."""
        self._advance_round(now_ms)
        if self.status is JobStatus.FAILING and self.graph.all_terminal:
            self._job_status(JobStatus.FAILED, now_ms, self.root_failure)
        elif self.status is JobStatus.CANCELLING and self.graph.all_terminal:
            self._job_status(JobStatus.CANCELED, now_ms)
        elif self.round is None and self.graph.all_running_or_finished:
            if self.status in (JobStatus.CREATED, JobStatus.RESTARTING, JobStatus.RECONCILING):
                self._job_status(JobStatus.RUNNING, now_ms)
            if self.status is JobStatus.RUNNING and self.graph.all_finished:
                self._job_status(JobStatus.FINISHED, now_ms)

    def _flush(self) -> None:
        if self._changes:
            self._out.append(TellExecutions(tuple(self._changes)))
            self._changes = []

    def _done(self) -> list[SchedulerEffect]:
        self._flush()
        return self._out.take()


def _lost(resource_id: ResourceID, reason: str) -> SerializedFailure:
    return SerializedFailure(
        f"TaskManager {resource_id} is lost: {reason}", Blame.EXTERNAL, error_type=TASK_MANAGER_LOST
    )


def _ended_without_reason(attempt_id: ExecutionAttemptID, state: ExecutionState) -> SerializedFailure:
    return SerializedFailure(
        f"task {attempt_id} ended {state.value} without being asked to and without a failure", Blame.INTERNAL
    )
