"""How far sources that keep step may go."""

from __future__ import annotations

from snapline.coordinator.jobmaster.watermark_alignment import LOOK_AGAIN_MS, MAX_GROUPS, WatermarkAlignment
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.dataflow.ids import ExecutionAttemptID, JobID, JobVertexID
from snapline.dataflow.wire.messages import AlignWatermarks, ReportWatermark

JOB = JobID("a" * 32)


def attempt(subtask: int, number: int = 0) -> ExecutionAttemptID:
    return ExecutionAttemptID("graph", JobVertexID("b" * 32), subtask, number)


class Story:
    """Reports and answers, with the time in the test's hands."""

    def __init__(self) -> None:
        self.over: set[ExecutionAttemptID] = set()
        self.alignment = WatermarkAlignment(lambda attempt_id: attempt_id not in self.over)

    def says(
        self, who: ExecutionAttemptID, watermark_ms: int, at_ms: int = 0, group: str = "g", drift: int = 10
    ) -> int:
        report = ReportWatermark(JOB, who, group, watermark_ms, drift)
        answer = self.alignment.report(report, at_ms)
        assert answer == AlignWatermarks(JOB, who, answer.max_watermark_ms)
        return answer.max_watermark_ms


def test_everybody_may_be_so_far_ahead_of_the_slowest() -> None:
    """Each source by its own drift; another group does not matter."""
    story = Story()
    assert story.says(attempt(0), 1000) == 1010
    assert story.says(attempt(1), 100) == 110
    assert story.says(attempt(0), 1000) == 110
    assert story.says(attempt(0), 1000, drift=500) == 600
    assert story.says(attempt(2), 7000, group="other") == 7010
    assert story.says(attempt(1), 200) == 210
    assert story.says(attempt(0), 1000) == 210
    assert story.says(attempt(1), 3000) == 1010


def test_a_source_without_rows_holds_all_back_an_idle_one_nobody() -> None:
    """Nothing was read yet: the others wait. The greatest watermark says that nobody has to."""
    story = Story()
    assert story.says(attempt(0), MIN_WATERMARK_MS) == MIN_WATERMARK_MS + 10
    assert story.says(attempt(1), 50) == MIN_WATERMARK_MS + 10
    assert story.says(attempt(0), MAX_WATERMARK_MS) == 60
    assert story.says(attempt(1), MAX_WATERMARK_MS) == MAX_WATERMARK_MS


def test_attempts_that_are_over_count_no_longer() -> None:
    """At the latest after a while: a failed attempt leaves the others to its successor."""
    story = Story()
    story.says(attempt(0), 100)
    story.says(attempt(1), 500)
    story.over.add(attempt(0))
    assert story.says(attempt(1), 500, at_ms=LOOK_AGAIN_MS) == 510
    assert story.says(attempt(0, 1), 90, at_ms=LOOK_AGAIN_MS) == 100
    assert story.says(attempt(1), 500, at_ms=LOOK_AGAIN_MS) == 100


def test_more_groups_than_a_job_has_are_not_kept() -> None:
    """Their names come from tasks: a source of one more goes on alone, and the others as before."""
    story = Story()
    story.says(attempt(0), 100)
    for number in range(MAX_GROUPS + 10):
        story.says(attempt(1), 5, group=f"g{number}")

    assert story.says(attempt(2), 900, group="one more") == 910
    assert story.says(attempt(2), 900) == 110
    assert len(story.alignment._groups) == MAX_GROUPS
