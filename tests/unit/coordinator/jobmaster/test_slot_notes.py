"""What a job says of slots that it cannot get, and for how long."""

from __future__ import annotations

from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.dataflow.wire.messages import ExecutionState, Fenced, NotEnoughResources, RegistrationSuccess
from snapline.runtime.cores.connections import (
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    ResourceManagerLeaderChanged,
)
from snapline.runtime.cores.machine import TimerFired
from tests.unit.coordinator.jobmaster.test_job_master import ONE, RM, RM_SESSION, A, Story, attempt


def test_what_the_resource_manager_could_not_give_is_forgotten_once_it_has() -> None:
    """A job that waited again, however long after, was said to wait for the reason of that time."""
    story = Story().start()
    story.take(ResourceManagerLeaderChanged("rm:1", RM_SESSION))
    story.take(ConnectionOpened(RM))
    for message in (RegistrationSuccess(10, 50), NotEnoughResources(ONE.job_id, 1, 0, "the cluster has no cores")):
        story.take(MessageReceived(RM, Fenced(RM_SESSION, message)))
    assert story.core.status_detail.endswith("the ResourceManager can give 0 of 1: the cluster has no cores")

    story.task_manager(A, 0)
    story.enters("a", attempt(), ExecutionState.RUNNING)
    story.take(ConnectionLost(ConnectionID("tm-a"), "reset"))
    story.take(TimerFired(RestartDelayTimer()), 40)
    assert story.core.status_detail == "waiting for slots: 1 required, 0 available"
