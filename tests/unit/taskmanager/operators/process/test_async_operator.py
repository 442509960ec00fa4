"""Requests to the outside: order, capacity, timeouts, and what a snapshot holds."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.api.async_retries import AsyncRetryStrategy
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import AsyncFunction
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.errors import InvalidArgument
from snapline.dataflow.graph.operator_specs import AsyncSpec
from snapline.taskmanager.operators.process.async_operator import AsyncOperator
from snapline.taskmanager.threads.async_calls import EventLoopCalls
from tests.unit.taskmanager.operators.harness import Harness, restored_state


class Asked(AsyncFunction):
    """Never called here: the test answers."""

    async def async_invoke(self, row: Row) -> list[Row]:
        return [row]

    def timeout(self, row: Row) -> list[Row]:
        return [{"v": -row["v"]}]


class ByHand:
    """AsyncCalls that the test answers."""

    def __init__(self) -> None:
        self.open: dict[int, Row] = {}
        self.done: list[tuple[int, Any, BaseException | None]] = []
        self.most = 0

    def create(self, function: Any, wake_up: Callable[[], None]) -> ByHand:
        return self

    def submit(self, number: int, row: Row) -> None:
        self.open[number] = row
        self.most = max(self.most, len(self.open))

    def answer(self, value: int, *results: int) -> None:
        number = next(number for number, row in self.open.items() if row["v"] == value)
        del self.open[number]
        self.done.append((number, [{"v": result} for result in results], None))

    def take_done(self) -> list[Any]:
        done, self.done = self.done, []
        return done

    @property
    def has_done(self) -> bool:
        return bool(self.done)

    def forget(self, number: int) -> None:
        self.open.pop(number, None)

    def close(self) -> None:
        self.open.clear()


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def harness_of(*, ordered: bool = True, capacity: int = 10, restored: Any = None) -> tuple[Harness, ByHand]:
    calls = ByHand()
    spec = AsyncSpec(Asked(), capacity, 100, ordered, pa.schema([("v", pa.int64())]))
    return Harness(AsyncOperator(spec, calls.create)).start(restored), calls


def emitted(harness: Harness) -> list[Any]:
    return [
        item.timestamp_ms if isinstance(item, Watermark) else item.column("v").to_pylist()
        for item in harness.work().take()
    ]


def test_ordered_results_leave_in_the_order_of_their_rows() -> None:
    """And a watermark waits for the rows before it."""
    harness, calls = harness_of()
    harness.process(batch(1, 2, 3)).watermark(7, work=False)
    calls.answer(3, 30)
    calls.answer(2)
    assert emitted(harness) == []
    calls.answer(1, 10, 11)
    assert emitted(harness) == [[10, 11, 30], 7]


def test_unordered_results_leave_as_they_come_but_not_across_a_watermark() -> None:
    """A watermark is a fence."""
    harness, calls = harness_of(ordered=False)
    harness.process(batch(1, 2)).watermark(7, work=False).process(batch(3))
    calls.answer(3, 30)
    assert emitted(harness) == []
    calls.answer(2, 20)
    assert emitted(harness) == [[20]]
    calls.answer(1, 10)
    assert emitted(harness) == [[10], 7, [30]]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("capacity", [10, 1])
def test_idleness_is_said_after_the_rows_before_it(ordered: bool, capacity: int) -> None:
    """An idle input holds no watermark back: said before the rows that are under way, idleness would make them late.
    One row waits for room where the capacity is one."""
    harness, calls = harness_of(ordered=ordered, capacity=capacity)
    harness.process(batch(1, 2))
    harness.operator.process_watermark_status(WatermarkStatus.IDLE)
    harness.operator.process_watermark_status(WatermarkStatus.ACTIVE)
    assert harness.take() == []
    for value in (1, 2):
        calls.answer(value, value)
        harness.operator.continue_work()

    *rows, idle, active = harness.take()
    assert [1, 2] == [value for each in rows for value in each.column("v").to_pylist()]
    assert [WatermarkStatus.IDLE, WatermarkStatus.ACTIVE] == [idle, active]


def test_no_more_requests_than_the_capacity() -> None:
    """The rest of the batch waits, and the watermark behind it."""
    harness, calls = harness_of(capacity=2)
    harness.process(batch(1, 2, 3, 4, 5))
    harness.operator.process_watermark(Watermark(7))
    for value in range(1, 6):
        assert harness.operator.is_blocked is (value <= 3)
        assert harness.operator.awaits == ("the answers to 2 requests of op" if value <= 3 else "")
        assert not harness.operator.has_pending_work
        calls.answer(value, value)
        harness.operator.continue_work()
    assert calls.most == 2
    assert [item.num_rows if isinstance(item, pa.RecordBatch) else "w" for item in harness.take()] == [
        1,
        1,
        1,
        1,
        1,
        "w",
    ]


def test_a_request_that_takes_too_long_is_answered_by_timeout() -> None:
    """Its late answer is nobody's."""
    harness, calls = harness_of()
    harness.process(batch(1, 2))
    calls.answer(2, 20)
    harness.operator.continue_work()
    assert emitted(harness.advance(100)) == [[-1, 20]]
    assert not calls.open


def test_a_snapshot_holds_what_was_not_answered() -> None:
    """Also the rows that wait for room; they are asked for again."""
    harness, calls = harness_of(ordered=False, capacity=3)
    harness.process(batch(1, 2, 3, 4, 5))
    calls.answer(2, 20)
    harness.operator.continue_work()
    assert emitted(harness) == [[20]]
    again, new_calls = harness_of(capacity=3, restored=restored_state([harness.snapshot()]))
    for value in (1, 3, 4, 5):
        again.operator.continue_work()
        new_calls.answer(value, value * 10)
    assert [value for values in emitted(again) for value in values] == [10, 30, 40, 50]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_event_loop_runs_calls_beside_the_task(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is the task's, on the loop of uvloop and, where that is not installed, on Python's own."""
    loops: set[str] = set()
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)

    class Doubles(AsyncFunction):
        async def async_invoke(self, row: Row) -> list[Row]:
            loops.add(type(asyncio.get_running_loop()).__module__.partition(".")[0])
            await asyncio.sleep(0)
            return [{"v": 10 // row["v"]}]

    woken = threading.Event()
    operator = AsyncOperator(AsyncSpec(Doubles(), 4, 60_000), lambda function, _: EventLoopCalls(function, woken.set))
    harness = Harness(operator).start().process(batch(1, 2, 5, 10, 3, 4))
    operator.finish()

    def work_to_the_end() -> None:
        while operator.is_blocked:
            assert woken.wait(20)
            woken.clear()
            harness.work()

    work_to_the_end()
    assert [row["v"] for row in harness.rows()] == [10, 5, 2, 1, 3, 2]
    operator.process_batch(batch(0))
    with pytest.raises(ZeroDivisionError):
        work_to_the_end()
    operator.close()
    assert loops == {loop}


STEPS = st.lists(
    st.one_of(
        st.integers(0, 4),  # a batch of so many rows
        st.just("watermark"),
        st.just("restore"),
        st.tuples(st.just("answer"), st.integers(0, 30)),
    ),
    max_size=25,
)


class Requests:
    """One operator through a story: numbered rows in, what left so far, the next watermark."""

    def __init__(self, *, ordered: bool, capacity: int) -> None:
        self._ordered, self._capacity = ordered, capacity
        self.harness, self.calls = harness_of(ordered=ordered, capacity=capacity)
        self.sent: list[Any] = []
        self.left: list[Any] = []

    def step(self, step: Any) -> None:
        match step:
            case int(rows):
                self._make_room()
                values = [self._rows + number for number in range(rows)]
                self.sent += values
                self.harness.operator.process_batch(batch(*values))
            case "watermark":
                self._make_room()
                self.sent.append(f"w{self._rows}")
                self.harness.operator.process_watermark(Watermark(self._rows))
            case "restore":
                self._gather()
                written = self.harness.snapshot()
                self._gather()
                self.harness, self.calls = harness_of(
                    ordered=self._ordered, capacity=self._capacity, restored=restored_state([written])
                )
            case (_, which):
                self._answer(which)
        self._gather()

    def finish(self) -> None:
        self._make_room()
        while self.calls.open:
            self._answer(0)
        self._gather()

    @property
    def _rows(self) -> int:
        return sum(not isinstance(item, str) for item in self.sent)

    def _make_room(self) -> None:
        while self.harness.operator.is_blocked:
            self.harness.operator.continue_work()
            if self.harness.operator.is_blocked and not self.calls.has_done:
                self._answer(0)

    def _answer(self, which: int) -> None:
        if self.calls.open:
            value = list(self.calls.open.values())[which % len(self.calls.open)]["v"]
            self.calls.answer(value, value)
            self.harness.operator.continue_work()

    def _gather(self) -> None:
        for item in emitted(self.harness):
            self.left += item if isinstance(item, list) else [f"w{item}"]


@pytest.mark.parametrize("ordered", [True, False])
@given(story=STEPS, capacity=st.integers(1, 6))
def test_every_row_leaves_once_whatever_the_answers_batches_and_restores(
    story: list[Any], capacity: int, ordered: bool
) -> None:
    """In order, or in any between two watermarks. What is asked again after a restore leaves once; a watermark that
    waited is lost with the task that held it, and comes again from upstream."""
    requests = Requests(ordered=ordered, capacity=capacity)
    for step in story:
        requests.step(step)
    requests.finish()
    rows = [item for item in requests.left if not isinstance(item, str)]
    assert sorted(rows) == list(range(len(rows))) == [item for item in requests.sent if not isinstance(item, str)]
    assert rows == sorted(rows) or not ordered
    for place, item in enumerate(requests.left):
        if isinstance(item, str):  # a watermark: all rows before it in the input, and no others
            assert sorted(each for each in requests.left[:place] if not isinstance(each, str)) == list(
                range(int(item[1:]))
            )
    if "restore" not in story and ordered:
        marks = [item for item in requests.left if isinstance(item, str)]
        assert marks == [item for item in requests.sent if isinstance(item, str)]


def retrying(strategy: AsyncRetryStrategy, restored: Any = None) -> tuple[Harness, ByHand]:
    calls = ByHand()
    spec = AsyncSpec(Asked(), 10, 1_000, True, pa.schema([("v", pa.int64())]), strategy)
    return Harness(AsyncOperator(spec, calls.create)).start(restored), calls


def fail(calls: ByHand, value: int, error: BaseException) -> None:
    number = next(number for number, row in calls.open.items() if row["v"] == value)
    del calls.open[number]
    calls.done.append((number, None, error))


def test_a_request_that_is_cancelled_by_what_it_calls_fails() -> None:
    """It was taken for one that nobody waits for, and the job stood still until the timeout."""

    class Cancelled(AsyncFunction):
        async def async_invoke(self, row: dict[str, Any]) -> list[dict[str, Any]]:
            raise asyncio.CancelledError(f"request {row['n']}")

    woken = threading.Event()
    calls = EventLoopCalls(Cancelled(), woken.set)
    calls.submit(7, {"n": 1})
    assert woken.wait(5.0)
    [(number, result, failure)] = calls.take_done()
    assert (7, None, "CancelledError('request 1')") == (number, result, repr(failure))
    calls.close()


def test_a_request_that_fails_is_made_again_after_its_delay() -> None:
    """Twice, each time later; the third answer leaves, and what is behind it has waited."""
    harness, calls = retrying(AsyncRetryStrategy.exponential_backoff(3, 10, 100))
    harness.process(batch(1, 2))
    calls.answer(2, 20)
    fail(calls, 1, OSError("busy"))
    harness.operator.continue_work()
    assert (emitted(harness), calls.open, harness.operator.wake_at_ms) == ([], {}, 10)
    harness.advance(10).operator.continue_work()
    fail(calls, 1, OSError("busy"))
    harness.operator.continue_work()
    assert (calls.open, harness.operator.wake_at_ms) == ({}, 30)
    harness.advance(30).operator.continue_work()
    calls.answer(1, 10)
    harness.operator.continue_work()
    assert emitted(harness) == [[10, 20]]


def test_a_request_is_made_again_with_the_row_as_it_came() -> None:
    """What the function had done to its row before the service failed was in the next attempt, and at the timeout."""
    harness, calls = retrying(AsyncRetryStrategy.fixed_delay(9, 5))
    harness.process(batch(1))
    calls.open[0]["v"] = "asked for 1"
    number, _ = calls.open.popitem()
    calls.done.append((number, None, OSError("busy")))
    harness.operator.continue_work()
    harness.advance(5).operator.continue_work()
    assert calls.open == {0: {"v": 1}}
    calls.open[0].clear()
    harness.advance(1_000).operator.continue_work()
    assert emitted(harness) == [[-1]]


def test_what_the_last_attempt_raises_fails_the_job() -> None:
    """And what the predicate does not let pass does at once."""
    harness, calls = retrying(AsyncRetryStrategy.fixed_delay(2, 5))
    harness.process(batch(1))
    fail(calls, 1, OSError("first"))
    harness.operator.continue_work()
    harness.advance(5).operator.continue_work()
    fail(calls, 1, OSError("second"))
    with pytest.raises(OSError, match="second"):
        harness.operator.continue_work()
    only_busy = AsyncRetryStrategy.fixed_delay(9, 5, retry_if_exception=lambda error: "busy" in str(error))
    harness, calls = retrying(only_busy)
    harness.process(batch(1))
    fail(calls, 1, OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        harness.operator.continue_work()


def test_an_answer_that_is_none_is_asked_for_again() -> None:
    """As often as is allowed; then it leaves as it is."""
    harness, calls = retrying(AsyncRetryStrategy.fixed_delay(2, 5, retry_if_result=lambda rows: not rows))
    harness.process(batch(1, 2))
    calls.answer(1)
    calls.answer(2, 20)
    harness.operator.continue_work()
    harness.advance(5).operator.continue_work()
    calls.answer(1)
    harness.operator.continue_work()
    assert emitted(harness) == [[20]]


def test_the_timeout_counts_all_attempts() -> None:
    """A request that waits to be made again times out like one that is under way."""
    harness, calls = retrying(AsyncRetryStrategy.fixed_delay(9, 600))
    harness.process(batch(1))
    fail(calls, 1, OSError("busy"))
    harness.operator.continue_work()
    harness.advance(600).operator.continue_work()
    assert list(calls.open.values()) == [{"v": 1}]
    harness.advance(1_000).operator.continue_work()
    assert emitted(harness) == [[-1]]


def test_how_often_a_request_has_failed_is_in_the_snapshot() -> None:
    """A request that has had two of its three attempts has one after the restore; others have all."""
    strategy = AsyncRetryStrategy.fixed_delay(3, 5)
    harness, calls = retrying(strategy)
    harness.process(batch(1, 2))
    for now in (5, 10):
        fail(calls, 1, OSError("busy"))
        harness.operator.continue_work()
        harness.advance(now).operator.continue_work()
    again, calls = retrying(strategy, restored_state([harness.snapshot()]))
    again.operator.continue_work()
    assert sorted(row["v"] for row in calls.open.values()) == [1, 2]
    fail(calls, 2, OSError("busy"))
    again.operator.continue_work()
    fail(calls, 1, OSError("for the third time"))
    with pytest.raises(OSError, match="for the third time"):
        again.operator.continue_work()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsyncRetryStrategy.fixed_delay(0, 5), "max_attempts of a retry strategy .* at least 1, got 0"),
        (lambda: AsyncRetryStrategy.fixed_delay(2, -5), "initial_delay_ms of a retry strategy .* at least 0, got -5"),
        (lambda: AsyncRetryStrategy.exponential_backoff(2, 5, 10, 0.5), "multiplier .* at least 1, got 0.5"),
        (lambda: AsyncRetryStrategy(2, 5, retry_if_exception=None), "retry_if_exception .* is a function"),  # type: ignore[arg-type]
    ],
)
def test_strategies_that_make_no_sense(make: Any, message: str) -> None:
    """They are refused where they are written."""
    with pytest.raises(InvalidArgument, match=message):
        make()
