"""Whom a JobMaster asks for rows, and when a client is answered."""

from __future__ import annotations

from snapline.coordinator.jobmaster.operations import (
    OperationFailed,
    Reply,
    RequestID,
    RowsTapped,
    TapOperator,
    TappedRows,
)
from snapline.coordinator.jobmaster.taps import MOST_BYTES, MOST_ROWS, MOST_TAPS, TAP_WAIT_MS, Taps, TapTimer
from snapline.dataflow.ids import OperatorID
from snapline.dataflow.wire.messages import ExecutionState, TapTask, TaskTapped
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from tests.simulation.jobs import parallel_job
from tests.unit.coordinator.jobmaster.test_job_master import ONE, A, R, Story, attempt, send

SOURCE = OperatorID("op-source")


def tapped(subtask: int = 0, rows: bytes = b"rows", taken: int = 1, tap_id: str = R) -> TaskTapped:
    return TaskTapped(ONE.job_id, attempt(subtask=subtask), tap_id, rows, taken, 50)


def test_rows_go_from_the_task_through_its_job_master_to_the_client() -> None:
    """Asked of the TaskManager that runs it; answered once, and late rows are dropped."""
    story = Story().run()
    ask = TapTask(ONE.job_id, attempt(), R, SOURCE, 3, 100)
    assert story.operate(TapOperator("source", 3, 100)) == [
        send("a", ask),
        StartTimer(TapTimer(R), story.now_ms + TAP_WAIT_MS),
    ]
    assert story.hears("b", tapped()) == story.hears("b", tapped())  # somebody else's word is not heard
    answer = RowsTapped((TappedRows(0, b"rows", 1, 50),))
    assert story.hears("a", tapped()) == [CancelTimer(TapTimer(R)), Reply(R, answer)]
    assert story.hears("a", tapped()) == []


def test_a_client_is_answered_with_nothing_when_nothing_flows() -> None:
    """After the wait; and at the end of the job."""
    story = Story().run()
    story.operate(TapOperator("source", 3, 100))
    assert story.take(TimerFired(TapTimer(R)), TAP_WAIT_MS) == [Reply(R, RowsTapped(()))]
    story.operate(TapOperator("source", 3, 100))
    ended = story.enters(A, attempt(), ExecutionState.FINISHED)
    assert Reply(R, RowsTapped(())) in ended and CancelTimer(TapTimer(R)) in ended


def test_who_wants_what_the_operator_takes_in_is_shown_that() -> None:
    """The task is told which of both."""
    (ask, _) = Story().run().operate(TapOperator("source", 3, 100, of_input=True))
    assert ask == send("a", TapTask(ONE.job_id, attempt(), R, SOURCE, 3, 100, of_input=True))


def running_pair() -> Story:
    """Three subtasks of each of two operators, all of which run."""
    story = Story(parallel_job()).start()
    story.task_manager(A, 0, 1, 2)
    for name in ("source", "sink"):
        for subtask in range(3):
            story.enters("a", attempt(0, name, subtask), ExecutionState.RUNNING)
    return story


def test_all_subtasks_are_asked_and_enough_rows_are_an_answer() -> None:
    """Two of three have as many as were asked for; bytes are shared by all of them."""
    taps, graph = Taps(), running_pair().core.scheduler.graph
    asks = taps.request(R, TapOperator("source", 4, 300), graph, 0)
    assert [ask.max_bytes for ask in asks if isinstance(ask, TapTask)] == [100, 100, 100]
    assert taps.tapped(tapped(0, taken=2)) == []
    assert taps.tapped(tapped(0, taken=2)) == []
    assert taps.tapped(tapped(1, taken=2))[-1] == Reply(
        R, RowsTapped((TappedRows(0, b"rows", 2, 50), TappedRows(1, b"rows", 2, 50)))
    )


def test_what_a_tap_costs_is_bounded_whatever_is_asked_for() -> None:
    """Rows, bytes, clients at a time; a task that sends more than it may is not passed on."""
    taps, graph = Taps(), running_pair().core.scheduler.graph
    asks = taps.request(R, TapOperator("source", 10**9, 10**9), graph, 0)
    assert {(ask.max_rows, ask.max_bytes) for ask in asks if isinstance(ask, TapTask)} == {(MOST_ROWS, MOST_BYTES // 3)}
    taps.tapped(tapped(0, rows=b"x" * (MOST_BYTES // 3 + 1)))
    for subtask in (1, 2):  # columns alone may be more than was asked for, and not more than an answer has
        said = taps.tapped(tapped(subtask, rows=b"x" * (MOST_BYTES // 2 + 1), taken=0))
    assert said[-1] == Reply(R, RowsTapped((TappedRows(1, b"x" * (MOST_BYTES // 2 + 1), 0, 50),)))
    for number in range(MOST_TAPS):
        taps.request(RequestID(str(number)), TapOperator("source", 1, 100), graph, 0)
    (refusal,) = taps.request(RequestID("more"), TapOperator("source", 1, 100), graph, 0)
    assert isinstance(refusal, Reply) and isinstance(refusal.answer, OperationFailed)
    assert "16 others look at rows" in refusal.answer.failure.summary


def test_unknown_operators_and_jobs_that_do_not_run_are_refused() -> None:
    """In one line, with the nearest uid."""
    (unknown,) = Story().run().operate(TapOperator("sauce", 1, 1))
    assert unknown.answer.failure.summary == "no operator 'sauce': did you mean 'source'? there are source"
    (waits,) = Story().start().operate(TapOperator("source", 1, 1))
    assert waits.answer.failure.summary == "no subtask of 'source' runs: the job is CREATED"
