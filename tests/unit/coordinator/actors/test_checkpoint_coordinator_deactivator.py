"""The DeActivator: RUNNING starts, anything else stops, everything else is ignored."""

from __future__ import annotations

import pytest

from snapline.coordinator.actors.checkpoint_coordinator_deactivator import CheckpointCoordinatorDeActivator
from snapline.coordinator.checkpoint.events import StartCheckpointScheduler, StopCheckpointScheduler
from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.dataflow.wire.messages import HeartbeatRequest, JobStatus, JobStatusChanged

JOB = JobID("j" * 32)
SESSION = LeaderSessionID("of-the-leader")


@pytest.fixture
def told():
    return []


@pytest.fixture
def deactivator(told):
    actor = CheckpointCoordinatorDeActivator.start(JOB, SESSION, told.append, lambda: 700)
    yield actor
    actor.stop()


def test_running_starts_the_scheduler(deactivator, told):
    """With the delay that was drawn."""
    deactivator.ask(JobStatusChanged(JOB, JobStatus.RUNNING, 5, None, SESSION))
    assert told == [StartCheckpointScheduler(700)]


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.RUNNING])
def test_anything_else_stops_it(deactivator, told, status):
    """Each of the other statuses."""
    deactivator.ask(JobStatusChanged(JOB, status, 5, None, SESSION))
    assert told == [StopCheckpointScheduler()]


def test_every_change_counts_in_order(deactivator, told):
    """A job that restarts."""
    for status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.RUNNING):
        deactivator.tell(JobStatusChanged(JOB, status, 5, None, SESSION))
    deactivator.ask("anything")
    assert told == [StartCheckpointScheduler(700), StopCheckpointScheduler(), StartCheckpointScheduler(700)]


@pytest.mark.parametrize("message", ["RUNNING", JobStatus.RUNNING, HeartbeatRequest(), None, {"status": "RUNNING"}])
def test_every_other_message_is_ignored(deactivator, told, message):
    """Whatever it looks like."""
    deactivator.ask(message)
    assert told == []


def test_another_job_is_ignored(deactivator, told):
    """Each job has its own."""
    deactivator.ask(JobStatusChanged(JobID("k" * 32), JobStatus.RUNNING, 5, None, SESSION))
    assert told == []


@pytest.mark.parametrize("session", ["", "of-the-leader-before"])
def test_another_leader_is_ignored(deactivator, told, session):
    """A JobMaster that was replaced may speak late."""
    deactivator.ask(JobStatusChanged(JOB, JobStatus.RUNNING, 5, None, LeaderSessionID(session)))
    assert told == []
