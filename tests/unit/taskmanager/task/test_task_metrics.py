"""Counters and rates of a task, with steps at times that were made up."""

from __future__ import annotations

from snapline.dataflow.ids import ExecutionAttemptID, JobVertexID
from snapline.taskmanager.task.task_metrics import TaskMeter

ATTEMPT = ExecutionAttemptID("g", JobVertexID("v"), 0, 0)


def shares(meter: TaskMeter, now_ms: int) -> tuple[int, int, int, int]:
    """Busy, back-pressured, idle, and how long the present step has lasted."""
    found = meter.metrics(None, now_ms)
    return found.busy_ms_per_second, found.backpressured_ms_per_second, found.idle_ms_per_second, found.step_ms


def step(meter: TaskMeter, at_ms: int, kind: str) -> None:
    meter.step_begins(at_ms)
    meter.step_ends(kind)


def test_a_call_in_progress_counts_as_busy() -> None:
    """A task that is stuck in a function is 100 % busy, not idle; it is back to what it was when the call ends."""
    meter = TaskMeter(ATTEMPT)
    step(meter, 0, "idle")
    assert shares(meter, 1_000) == (0, 0, 1000, 0)
    meter.step_begins(1_000)
    assert shares(meter, 21_000) == (1000, 0, 0, 20_000)


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    """What was long ago does not count, however long the attempt runs."""
    meter = TaskMeter(ATTEMPT)
    step(meter, 0, "worked")
    for at_ms in range(0, 100_000, 1_000):
        shares(meter, at_ms)
    step(meter, 100_000, "backpressured")
    looked = [shares(meter, at_ms)[:3] for at_ms in range(101_000, 111_000, 1_000)]
    assert looked[0] == (900, 100, 0)
    assert looked[4] == (500, 500, 0)
    assert looked[9] == (91, 909, 0)  # the look before the ten seconds is the nearest there is


def test_rows_a_second_are_counted_between_looks() -> None:
    """A look without rows before it says how many came since the task began."""
    meter = TaskMeter(ATTEMPT)
    step(meter, 0, "worked")
    meter.records_in = 5_000
    assert meter.metrics(None, 2_000).records_in_per_second == 2_500
    assert meter.metrics(None, 4_000).records_in_per_second == 1_250


def test_who_only_wants_the_counters_gets_no_rates() -> None:
    """Rates are for the one thread that looks at regular times."""
    meter = TaskMeter(ATTEMPT)
    step(meter, 0, "worked")
    step(meter, 500, "worked")
    found = meter.metrics(None)
    assert (found.busy_ms, found.busy_ms_per_second) == (500, 0)
