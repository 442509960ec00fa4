"""Oracles that no planted bug reaches alone: fed by hand."""

from __future__ import annotations

import pytest

from dataflow.ids import ExecutionAttemptID, JobID, JobVertexID, LeaderSessionID
from dataflow.messages import CancelTask, Fenced
from runtime.connections import ConnectionID, MessageReceived
from taskmanager.executor.effects import CancelTaskExecution
from tests.simulation.oracles.leaders import LeaderOracle
from tests.simulation.world import Violation, World

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
