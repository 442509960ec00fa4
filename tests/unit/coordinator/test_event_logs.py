"""What a coordinator's log says of a job, and of TaskManagers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from snapline.coordinator.event_logs import JobLog, RegistrationLog
from snapline.coordinator.jobmaster.operations import CancelJob
from snapline.coordinator.resource.resource_manager import RegistrationNews, RegistrationOutcome
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import ExecutionState, TaskManagerInfo
from tests.simulation.jobs import parallel_job
from tests.unit.coordinator.jobmaster.test_job_master import A, Story, attempt

LOST = SerializedFailure("the input from 'source' broke", blame=Blame.EXTERNAL, error_type="ChannelFailure")


class RecordedWarnings:
    """Keeps the warnings of a log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **context: Any) -> None:
        self.lines.append((event, context))

    def info(self, event: str, **context: Any) -> None:
        pass


def test_a_lost_input_is_a_warning_unless_its_job_is_being_cancelled() -> None:
    """Its TaskManager cannot tell, and leaves it to the coordinator."""
    for is_cancelled in (False, True):
        story, log = Story(parallel_job(parallelism=1)).start(), RecordedWarnings()
        story.task_manager(A, 0)
        for name in ("source", "sink"):
            story.enters("a", attempt(0, name), ExecutionState.RUNNING)
        if is_cancelled:
            story.operate(CancelJob())
        story.enters("a", attempt(0, "sink"), ExecutionState.FAILED, LOST)
        JobLog(story.core, log).write()  # type: ignore[arg-type]

        told = {"task": "sink (1/1)", "resource_id": "a", "reason": LOST.summary}
        assert log.lines == ([] if is_cancelled else [("task failed", told)])


def test_who_registers_as_often_as_it_can_does_not_fill_the_log() -> None:
    """A process with a TaskManager's credential is rejected hundreds of times a second, under whatever name: the first
    hundred are told, and the rest is a line a second with their number."""
    log, outcome = RecordedWarnings(), RegistrationOutcome.REJECTED
    infos = [TaskManagerInfo(ResourceID(f"tm-{number}"), "a:9", 1, "0.0.1", "host", 1) for number in range(900)]
    news = [RegistrationNews(number, outcome, info, "it is too old") for number, info in enumerate(infos, 1)]
    manager = SimpleNamespace(slot_manager=SimpleNamespace(last_forged=None), news=news)

    RegistrationLog(manager, log).write()  # type: ignore[arg-type]

    assert {event for event, _ in log.lines} == {outcome.value}
    assert 100 <= len(log.lines) < 200
