"""Oracles that no planted bug reaches alone: fed by hand."""

from __future__ import annotations

import pytest

from snapline.dataflow.ids import ExecutionAttemptID, JobID, JobVertexID, LeaderSessionID
from snapline.dataflow.wire.messages import CancelTask, Fenced
from snapline.runtime.cores.connections import ConnectionID, MessageReceived
from snapline.taskmanager.executor.effects import CancelTaskExecution
from snapline.testing.simulated import network
from snapline.testing.simulated.network import SimulatedClock
from snapline.testing.simulated.world import Violation, World
from tests.simulation.electing_cluster import ElectingCluster
from tests.simulation.oracles.leaders import LeaderOracle
from tests.simulation.simulation import LIVENESS, run_seed

JOB = JobID("job")
ATTEMPT = ExecutionAttemptID("graph", JobVertexID("v"), 0, 0)


def said(session: str) -> MessageReceived:
    return MessageReceived(ConnectionID("c"), Fenced(LeaderSessionID(session), CancelTask(ATTEMPT)))


def test_task_manager_that_goes_back_to_an_earlier_leader_is_found() -> None:
    """It may obey one after the other, each as long as it likes; messages that change nothing may come at any time."""
    oracle = LeaderOracle(World(1, max_delay_ms=0), "/base")
    oracle.leads(JOB, "first")
    oracle.leads(JOB, "second")
    done = [CancelTaskExecution(ATTEMPT)]

    for name, session, effects in (
        ("tm-1", "first", done),
        ("tm-1", "second", done),
        ("tm-2", "first", done),
        ("tm-1", "first", []),
        ("tm-1", "second", done),
    ):
        oracle.observe(name, said(session), effects)

    with pytest.raises(Violation, match="tm-1 obeys CancelTask of leader 1 of job, after one of leader 2"):
        oracle.observe("tm-1", said("first"), done)


def test_run_that_never_leaves_an_instant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, and says so: two processes that answer each other without end would fill the memory."""
    monkeypatch.setattr(ElectingCluster, "start", lambda cluster: for_ever(cluster.world.clock))
    monkeypatch.setattr(network, "MOST_EVENTS_AT_ONE_INSTANT", 1_000)

    report = run_seed(1)

    assert report.exit_code == LIVENESS
    assert "it goes on for ever: 1001 events, 1001 of them at 1000000 ms" in report.detail


def for_ever(clock: SimulatedClock) -> None:
    """Something happens now, and again now."""
    clock.after(0, lambda: for_ever(clock))
