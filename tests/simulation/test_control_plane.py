"""Whole clusters of cores on one clock: jobs start, survive, are cancelled, finish."""

from __future__ import annotations

import random

import pytest

from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    CancelJob,
    JobSubmitted,
    OperationFailed,
    RescaleJob,
    SnapshotCompleted,
    StopWithSavepoint,
    TakeCheckpoint,
    TakeSavepoint,
)
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import JobVertexID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from tests.simulation.control_plane import Cluster, ClusterSettings, TaskBehaviour
from tests.simulation.jobs import keyed_job, parallel_job

RUNNING, RESTARTING, FINISHED = JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHED


def running_cluster(graph=None, settings: ClusterSettings | None = None, behaviour: TaskBehaviour | None = None):
    cluster = Cluster(settings, behaviour=behaviour)
    graph = graph or keyed_job()
    cluster.submit(graph)
    assert cluster.run_until_status(graph.job_id, RUNNING)
    return cluster, graph


def test_a_job_is_submitted_gets_slots_and_runs() -> None:
    """The pool is told what is missing, TaskManagers come, every task runs, checkpoints complete."""
    cluster = Cluster()
    graph = keyed_job()
    request = cluster.submit(graph)

    assert cluster.run_until_status(graph.job_id, RUNNING)
    cluster.run(3_000)

    assert cluster.answers[request] == JobSubmitted(graph.job_id)
    assert cluster.statuses[graph.job_id] == [JobStatus.CREATED, RUNNING]
    assert len(cluster.alive()) == 1
    assert len(cluster.store_of(graph.job_id).stored) >= 4
    cluster.check_invariants()


def test_a_bounded_job_finishes_and_gives_everything_back() -> None:
    """FINISHED: graph removed, slots free, no timer of the job is left, checkpoints discarded."""
    cluster, graph = running_cluster(behaviour=TaskBehaviour(run_ms=2_000))

    assert cluster.run_until_status(graph.job_id, FINISHED)
    cluster.run(1_000)

    assert cluster.job_graphs == {}
    assert cluster.job_masters == {}
    assert cluster.timers_left_behind == []
    assert cluster.resource_manager.slot_manager.free_slots == 2
    assert all(process.core.jobs == () for process in cluster.alive())
    assert cluster.store_of(graph.job_id).completed == {}


def test_a_cancelled_job_is_gone() -> None:
    """CANCELED after every task has ended."""
    cluster, graph = running_cluster()
    request = cluster.operate(graph.job_id, CancelJob())

    assert cluster.run_until_status(graph.job_id, JobStatus.CANCELED)
    assert cluster.answers[request] == Acknowledged()
    assert cluster.statuses[graph.job_id] == [JobStatus.CREATED, RUNNING, JobStatus.CANCELLING, JobStatus.CANCELED]
    assert all(not process.tasks.running for process in cluster.alive())


def test_a_killed_task_manager_is_replaced_and_the_job_restored() -> None:
    """Connection lost -> failure -> cancel -> restart delay -> restore -> new TaskManager -> RUNNING with attempt 1."""
    cluster, graph = running_cluster(settings=ClusterSettings(slots_per_task_manager=1))
    cluster.run(2_000)
    latest = cluster.store_of(graph.job_id).stored[-1]
    victim, other = cluster.alive()
    victim.crash()

    assert cluster.run_until_status(graph.job_id, RESTARTING)
    assert cluster.run_until_status(graph.job_id, RUNNING)
    job_master = cluster.job_masters[graph.job_id].core

    assert {e.attempt_id.attempt_number for e in job_master.scheduler.graph.executions} == {1}
    assert all(d.restore_checkpoint_id >= latest for p in cluster.alive() for d in p.tasks.running.values())
    assert victim not in cluster.alive() and other in cluster.alive() and len(cluster.alive()) == 2
    cluster.check_invariants()


def test_unconnected_regions_keep_running() -> None:
    """Only the failed pipeline restarts."""
    cluster, graph = running_cluster(parallel_job(parallelism=3))
    process = next(p for p in cluster.alive() if p.tasks.running)
    attempt_id = next(iter(process.tasks.running))
    process.tasks.fail(attempt_id, SerializedFailure("user code raised"))

    assert cluster.run_until_status(graph.job_id, RESTARTING)
    assert cluster.run_until_status(graph.job_id, RUNNING)
    attempts = {
        (e.attempt_id.subtask_index): e.attempt_id.attempt_number
        for e in cluster.job_masters[graph.job_id].core.scheduler.graph.executions
    }

    assert attempts == {index: int(index == attempt_id.subtask_index) for index in range(3)}


def test_a_failure_that_must_not_be_retried_ends_the_job() -> None:
    """Whatever the restart strategy says; the root failure is kept."""
    cluster, graph = running_cluster()
    process = cluster.alive()[0]
    process.tasks.fail(next(iter(process.tasks.running)), SerializedFailure("no such column: fare", retryable=False))

    assert cluster.run_until_status(graph.job_id, JobStatus.FAILED)
    overview = cluster.dispatcher.find(graph.job_id)
    assert overview is not None and overview.failure is not None
    assert overview.failure.summary.startswith("no such column: fare")
    assert cluster.statuses[graph.job_id][-2:] == [JobStatus.FAILING, JobStatus.FAILED]


def test_a_job_without_restarts_fails_with_its_first_failure() -> None:
    """restart-strategy none."""
    cluster, graph = running_cluster(keyed_job(configuration={"restart-strategy.type": "none"}))
    cluster.alive()[0].crash()

    assert cluster.run_until_status(graph.job_id, JobStatus.FAILED)


def test_a_task_that_does_not_end_takes_its_task_manager_down() -> None:
    """task.cancellation.timeout: the process ends, the job goes on elsewhere."""
    behaviour = TaskBehaviour(stuck={"window (1/2)"})
    cluster, graph = running_cluster(behaviour=behaviour)
    process = cluster.alive()[0]
    attempt_id = next(a for a, d in process.tasks.running.items() if d.task_name == "sink (1/2)")
    process.tasks.fail(attempt_id, SerializedFailure("raised"))

    assert cluster.run_until_status(graph.job_id, RESTARTING)
    assert cluster.run_until_status(graph.job_id, RUNNING)
    assert process.terminated is not None
    assert "window (1/2)" in process.terminated.reason and process.terminated.exit_code == 1


def test_a_cut_off_task_manager_is_lost_after_the_heartbeat_timeout_and_fails_its_tasks() -> None:
    """Nobody is told that the network is gone; both sides find out, and the slots come back after it healed."""
    cluster, graph = running_cluster(settings=ClusterSettings(slots_per_task_manager=1, max_task_managers=3))
    cluster.run(1_000)
    victim = cluster.alive()[0]
    cluster.network.cut(victim.name, "coordinator")
    began_ms = cluster.clock.now_ms

    assert cluster.run_until_status(graph.job_id, RESTARTING)
    assert 3_000 <= cluster.clock.now_ms - began_ms <= 5_100
    assert cluster.run_until_status(graph.job_id, RUNNING)
    cluster.run(10_000)
    assert not victim.tasks.running
    cluster.network.heal()
    cluster.run(10_000)

    assert victim.core.is_registered
    assert cluster.status(graph.job_id) is RUNNING
    cluster.check_invariants()


def test_a_broken_connection_to_the_job_master_is_made_again() -> None:
    """The TaskManager lives: it comes back at once, its old attempts are cancelled, its slots are accepted again."""
    cluster, graph = running_cluster()
    process = cluster.alive()[0]
    connection = process.core._jobs[graph.job_id].connection.connection
    assert connection is not None
    cluster.network.break_link(process.name, connection)

    assert cluster.run_until_status(graph.job_id, RESTARTING)
    assert cluster.run_until_status(graph.job_id, RUNNING, within_ms=5_000)
    cluster.run(5_000)
    attempts = {a.attempt_number for a in process.tasks.running}
    assert attempts == {1}, attempts
    cluster.check_invariants()


def test_another_resource_manager_leader_changes_nothing_for_running_jobs() -> None:
    """TaskManagers and JobMasters register with it and tell what they have; no task restarts."""
    cluster, graph = running_cluster()
    cluster.restart_resource_manager()
    cluster.run(10_000)

    assert cluster.statuses[graph.job_id] == [JobStatus.CREATED, RUNNING]
    assert cluster.resource_manager.slot_manager.held_by(graph.job_id) == 2
    assert cluster.resource_manager.registered_jobs == (graph.job_id,)


def test_savepoint_checkpoint_and_stop() -> None:
    """Each is answered with what it left; the stopped job is FINISHED."""
    cluster, graph = running_cluster(behaviour=TaskBehaviour())
    checkpoint = cluster.operate(graph.job_id, TakeCheckpoint())
    cluster.run(1_000)
    savepoint = cluster.operate(graph.job_id, TakeSavepoint())
    cluster.run(1_000)

    first, second = cluster.answers[checkpoint], cluster.answers[savepoint]
    assert isinstance(first, SnapshotCompleted) and first.path.startswith("/checkpoints/job-keyed/chk-")
    assert isinstance(second, SnapshotCompleted) and second.path.startswith("/savepoints/savepoint-job-ke-")


def test_rescale_goes_through_a_fresh_checkpoint() -> None:
    """More subtasks, more slots, attempts that never were, state of the checkpoint just taken."""
    cluster, graph = running_cluster()
    parallelism = {JobVertexID(name): 3 for name in ("source", "window", "sink")}
    request = cluster.operate(graph.job_id, RescaleJob(parallelism))
    assert cluster.run_until_status(graph.job_id, RESTARTING)
    assert cluster.run_until_status(graph.job_id, RUNNING)
    cluster.run(2_000)

    scheduler = cluster.job_masters[graph.job_id].core.scheduler
    assert cluster.answers[request] == Acknowledged()
    assert len(scheduler.graph) == 9 and len(scheduler.pool) == 3
    assert {e.attempt_id.attempt_number for e in scheduler.graph.executions} == {1}
    assert {e.state for e in scheduler.graph.executions} == {ExecutionState.RUNNING}
    cluster.check_invariants()


def test_a_rescale_beyond_the_max_parallelism_is_refused() -> None:
    """The answer names the vertex and the bound; nothing happens."""
    cluster, graph = running_cluster()
    request = cluster.operate(graph.job_id, RescaleJob({JobVertexID("window"): 129}))
    cluster.run(100)

    answer = cluster.answers[request]
    assert isinstance(answer, OperationFailed) and "'window'" in answer.failure.summary
    assert cluster.status(graph.job_id) is RUNNING


def test_too_few_slots_fail_with_the_numbers() -> None:
    """slot.request.timeout: what is required and what is there."""
    settings = ClusterSettings(max_task_managers=1, slots_per_task_manager=1, slot_request_timeout_ms=3_000)
    cluster = Cluster(settings)
    graph = keyed_job(configuration={"restart-strategy.type": "none"})
    cluster.submit(graph)
    cluster.run(2_000)

    assert cluster.job_masters[graph.job_id].core.status_detail == "waiting for slots: 2 required, 1 available"
    assert cluster.run_until_status(graph.job_id, JobStatus.FAILED)
    overview = cluster.dispatcher.find(graph.job_id)
    assert overview is not None and overview.failure is not None
    assert "needs 2 slots and got 1" in overview.failure.summary


def test_several_jobs_share_a_cluster() -> None:
    """Each gets its slots; one is cancelled, its slots serve the one that waited."""
    cluster = Cluster(ClusterSettings(max_task_managers=2))
    graphs = [keyed_job(name) for name in ("a", "b", "c")]
    for graph in graphs:
        cluster.submit(graph)
    cluster.run(2_000)
    by_status = {status: [g.job_id for g in graphs if cluster.status(g.job_id) is status] for status in JobStatus}
    (waiting,) = by_status[JobStatus.CREATED]
    assert len(by_status[RUNNING]) == 2
    cluster.operate(by_status[RUNNING][0], CancelJob())

    assert cluster.run_until_status(waiting, RUNNING)
    cluster.check_invariants()


def test_idle_task_managers_are_released() -> None:
    """After the job nobody needs them."""
    settings = ClusterSettings(task_manager_timeout_ms=3_000)
    cluster, graph = running_cluster(settings=settings, behaviour=TaskBehaviour(run_ms=500))
    assert cluster.run_until_status(graph.job_id, FINISHED)
    process = cluster.alive()[0]
    cluster.run(5_000)

    assert cluster.alive() == []
    assert process.terminated is not None and process.terminated.exit_code == 0


def test_a_broken_job_master_is_replaced() -> None:
    """TaskManagers follow to its successor, which cancels what it does not know and starts from the latest
    checkpoint."""
    cluster, graph = running_cluster()
    cluster.run(2_000)
    process = cluster.alive()[0]
    before = {a.execution_graph_id for a in process.tasks.running}
    latest = cluster.store_of(graph.job_id).stored[-1]
    cluster.job_masters[graph.job_id].crash("an invariant broke")
    cluster.run(100)
    assert cluster.run_until_status(graph.job_id, RUNNING, within_ms=5_000)
    cluster.run(5_000)

    assert all(d.restore_checkpoint_id >= latest for d in process.tasks.running.values())
    assert before.isdisjoint(a.execution_graph_id for a in process.tasks.running)
    assert len(process.tasks.running) == 6
    stored = cluster.store_of(graph.job_id).stored
    assert stored[-1] > latest and stored == sorted(stored)
    cluster.check_invariants()


def test_stop_with_savepoint_ends_the_job() -> None:
    """The client hears of the savepoint when the job is FINISHED and its graph is gone."""
    cluster, graph = running_cluster(behaviour=TaskBehaviour(stops=True))
    request = cluster.operate(graph.job_id, StopWithSavepoint(drain=True))

    assert cluster.run_until_status(graph.job_id, FINISHED)
    assert graph.job_id not in cluster.job_graphs
    answer = cluster.answers[request]
    assert isinstance(answer, SnapshotCompleted) and answer.path.startswith("/savepoints/")


@pytest.mark.parametrize("seed", range(40))
def test_whatever_breaks_every_job_runs_again_and_ends(seed: int) -> None:
    """Crashes, partitions, broken connections, failing tasks, another ResourceManager leader; then peace: jobs
    finish."""
    rng = random.Random(seed)
    settings = ClusterSettings(
        slots_per_task_manager=rng.choice([1, 2, 3]), max_task_managers=6, max_delay_ms=rng.choice([0, 5, 50, 400])
    )
    behaviour = TaskBehaviour(max_delay_ms=rng.choice([5, 100]))
    cluster = Cluster(settings, seed, behaviour)
    graphs = [keyed_job("one", 2), parallel_job("two", 2)]
    for graph in graphs:
        cluster.submit(graph)
    for _ in range(rng.randint(1, 12)):
        cluster.run(rng.choice([10, 100, 1_000, 7_000]))
        break_something(cluster, rng)
        cluster.check_invariants()
    cluster.network.heal()
    cluster.network.max_delay_ms = 5
    cluster.behaviour.stuck = set()

    for graph in graphs:
        assert cluster.run_until_status(graph.job_id, RUNNING, within_ms=200_000), (seed, cluster.statuses)
    cluster.run(20_000)
    cluster.check_invariants()
    for graph in graphs:
        assert cluster.status(graph.job_id) is RUNNING, (seed, cluster.statuses)
        store = cluster.store_of(graph.job_id)
        assert store.stored == sorted(set(store.stored)), "checkpoint ids must rise"
        cluster.operate(graph.job_id, CancelJob())
    for graph in graphs:
        assert cluster.run_until_status(graph.job_id, JobStatus.CANCELED), (seed, cluster.statuses)
    cluster.run(20_000)
    assert cluster.timers_left_behind == []
    assert cluster.resource_manager.slot_manager.required_slots == 0
    for process in cluster.alive():
        assert process.core.jobs == (), (seed, process.name)
        assert not process.tasks.running


def break_something(cluster: Cluster, rng: random.Random) -> None:
    """One fault."""
    alive = cluster.alive()
    fault = rng.choice(["crash", "crash", "cut", "one-way", "heal", "break", "task", "rm", "store", "jm", "stuck"])
    victim = rng.choice(alive) if alive else None
    if fault == "rm":
        cluster.restart_resource_manager()
    elif fault == "heal":
        cluster.network.heal()
    elif fault == "jm":
        # the Dispatcher gives a job up whose JobMaster breaks too often
        healthy = [each for each in cluster.job_masters.values() if not each.ended]
        if healthy and cluster.broken_job_masters < 3:
            cluster.broken_job_masters += 1
            rng.choice(healthy).crash("an invariant broke")
    elif fault == "stuck":
        cluster.behaviour.stuck = {rng.choice(["sink (1/2)", "window (2/2)", "source (1/2)"])}
    elif fault == "store":
        for store in cluster.checkpoint_stores.values():
            store.fail_next_store = True
    elif victim is None:
        return
    elif fault == "crash":
        victim.crash()
    elif fault == "cut":
        cluster.network.cut(victim.name, "coordinator")
    elif fault == "one-way":
        pair = [victim.name, "coordinator"]
        rng.shuffle(pair)
        cluster.network.cut(pair[0], pair[1], both_ways=False)
    elif fault == "break" and cluster.network.connections_of(victim.name):
        cluster.network.break_link(victim.name, rng.choice(cluster.network.connections_of(victim.name)))
    elif fault == "task" and victim.tasks.running:
        victim.tasks.fail(rng.choice(list(victim.tasks.running)), SerializedFailure("user code raised"))
