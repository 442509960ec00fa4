"""What a coordinator's log says of a job."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.event_logs import JobLog
from snapline.coordinator.jobmaster.operations import CancelJob
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.wire.messages import ExecutionState
from tests.simulation.jobs import parallel_job
from tests.unit.coordinator.jobmaster.test_job_master import A, Story, attempt

LOST = SerializedFailure("the input from 'source' broke", blame=Blame.EXTERNAL, error_type="ChannelFailure")


class RecordedWarnings:
    """Keeps the warnings of a log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **context: Any) -> None:
        self.lines.append((event, context))


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
