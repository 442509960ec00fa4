"""Requests to the outside, several at a time: the user's AsyncFunction.

Decides how many rows may be under way (a batch waits, row by row, for room), in which order results leave (that of the
rows, or as they come but never across a watermark), what happens to a request that takes too long or fails and may be
made again, and what a snapshot holds: every row whose result has not left, so that it is asked for again after a
restore, and how often it has failed. It does not know threads or
event loops: AsyncCalls does. Mirrors Flink's AsyncWaitOperator.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import AsyncSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.function_operator import FunctionOperator
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.base.row_wise import listed
from snapline.taskmanager.operators.base.rows import RowBatcher, rows_of
from snapline.taskmanager.operators.process.co_process import ARROW

STATE_NAME = "async-rows-under-way"
ROWS_PER_BATCH = 4_096
FAILURES = "__failed_attempts"
"""Column of a snapshot's rows, where some have failed."""


class AsyncCalls(Protocol):
    """Runs calls of an async function beside the task."""

    def submit(self, number: int, row: Row) -> None:
        """Begin the asynchronous call of one row."""
        ...

    def take_done(self) -> list[tuple[int, Any, BaseException | None]]:
        """(number, result, failure) of calls that have ended since the last time."""
        ...

    @property
    def has_done(self) -> bool:
        """Return whether `take_done` has something to return."""
        ...

    def forget(self, number: int) -> None:
        """Cancel one call, whose answer nobody waits for."""
        ...

    def close(self) -> None:
        """Cancel all calls, because the operator is closed."""
        ...


class _Request:
    """A row whose call is under way, and when it times out."""

    __slots__ = ("batch", "deadline_ms", "done", "failures", "index", "result", "row")

    def __init__(self, row: Row, batch: pa.RecordBatch, index: int, deadline_ms: int, failures: int) -> None:
        self.row, self.batch, self.index, self.deadline_ms = row, batch, index, deadline_ms
        self.failures = failures
        """Attempts that came to nothing."""
        self.done = False
        self.result: Sequence[Row] = ()


def _with_failures(batch: pa.RecordBatch, failures: Sequence[int]) -> pa.RecordBatch:
    """The rows and how often each has failed, if any has."""
    return batch.append_column(FAILURES, pa.array(failures, pa.int32())) if any(failures) else batch


class AsyncOperator(FunctionOperator):
    """Keeps requests and watermarks in a queue."""

    orders_statuses = True

    def __init__(self, spec: AsyncSpec, create_calls: Callable[[Any, Callable[[], None]], AsyncCalls]) -> None:
        super().__init__(spec.function)
        self._spec = spec
        self._create_calls = create_calls
        self._calls: AsyncCalls | None = None
        self._batcher = RowBatcher(spec.output_schema)
        self._queue: deque[int | Watermark | WatermarkStatus] = deque()
        """Requests by number, in the order of their rows, and the watermarks and statuses between them."""
        self._requests: dict[int, _Request] = {}
        """Whose results have not left, in the order of their rows."""
        self._waiting: deque[tuple[pa.RecordBatch, int]] = deque()
        """Batches, and how many of their rows have been submitted."""
        self._waiting_rows: deque[list[Row]] = deque()
        self._waiting_failures: deque[list[int] | None] = deque()
        """How often each of these rows has failed before the restore; None: never."""
        self._again: list[tuple[int, int]] = []
        """Heap of requests that are to be made again: when, and which."""
        self._held: list[Watermark | WatermarkStatus] = []
        """Watermarks and statuses that came while rows were still waiting for room."""
        self._results: list[Row] = []
        self._next_number = 0
        self._finishing = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        operator_state = check(self.operator_state, "there is no operator state, although it was just made")
        state = operator_state.list_state(STATE_NAME, OperatorStateMode.SPLIT_DISTRIBUTE, ARROW)
        for batch in state.get():
            position = batch.schema.get_field_index(FAILURES)
            if position < 0:
                self._wait(batch)
            else:
                self._wait(batch.drop_columns([FAILURES]), batch.column(position).to_pylist())

    def open(self) -> None:
        super().open()
        self._calls = self._create_calls(self.function, self.context.wake_up)

    def close(self) -> None:
        if self._calls is not None:
            calls, self._calls = self._calls, None
            calls.close()
        super().close()

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        operator_state = check(self.operator_state, "there is no operator state")
        state = operator_state.list_state(STATE_NAME, OperatorStateMode.SPLIT_DISTRIBUTE, ARROW)
        state.update(self._unanswered())
        return super().snapshot_state(checkpoint_id, timestamp_ms)

    def _unanswered(self) -> list[pa.RecordBatch]:
        """Rows whose results have not left, in their order."""
        self._flush()
        chosen: list[tuple[pa.RecordBatch, list[int], list[int]]] = []
        for number in self._queue:
            if not isinstance(number, int):
                continue
            request = self._requests[number]
            if not chosen or chosen[-1][0] is not request.batch:
                chosen.append((request.batch, [], []))
            chosen[-1][1].append(request.index)
            chosen[-1][2].append(request.failures)
        batches = [
            _with_failures(batch.take(pa.array(indexes, pa.int64())), failures) for batch, indexes, failures in chosen
        ]
        for (batch, begin), failures in zip(self._waiting, self._waiting_failures, strict=True):
            if begin < batch.num_rows:
                batches.append(_with_failures(batch.slice(begin), failures[begin:] if failures else []))
        return batches

    # --- rows ---------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if batch.num_rows:
            self._wait(batch)
            self._submit()

    def _wait(self, batch: pa.RecordBatch, failures: list[int] | None = None) -> None:
        self._waiting.append((batch, 0))
        self._waiting_rows.append(rows_of(batch))
        self._waiting_failures.append(failures)

    def _submit(self) -> None:
        """Begin calls as long as there is room."""
        calls = self._calls
        calls = check(calls, "there is no calls, although open was called")
        room = self._spec.capacity - len(self._requests)
        deadline_ms = self.context.processing_time.now_ms() + self._spec.timeout_ms
        while self._waiting and room > 0:
            batch, begin = self._waiting[0]
            rows, failures = self._waiting_rows[0], self._waiting_failures[0]
            end = min(begin + room, len(rows))
            for index in range(begin, end):
                request = _Request(rows[index], batch, index, deadline_ms, failures[index] if failures else 0)
                number = self._next_number
                self._next_number += 1
                self._requests[number] = request
                self._queue.append(number)
                calls.submit(number, request.row.copy())  # which may be asked for again, or time out
            room -= end - begin
            if end == len(rows):
                self._waiting.popleft()
                self._waiting_rows.popleft()
                self._waiting_failures.popleft()
            else:
                self._waiting[0] = (batch, end)
        if not self._waiting and self._held:
            self._queue.extend(self._held)
            self._held.clear()

    @staticmethod
    def _answer(request: _Request, produced: Iterable[Row] | None) -> None:
        request.done = True
        request.result = listed(produced)

    # --- results ------------------------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Let go what may leave: from the front, or, without order, all that is done up to the first watermark."""
        queue, requests = self._queue, self._requests
        while queue:
            first = queue[0]
            if not isinstance(first, int):
                self._flush()
                self._emit(first)
                queue.popleft()
            elif requests[first].done:
                self._results.extend(requests.pop(first).result)
                queue.popleft()
            elif self._spec.ordered or not self._release_behind():
                break
        self._flush()

    def _release_behind(self) -> bool:
        """Without order: what is done between here and the next watermark. The first stays, for it is not done."""
        kept: list[int | Watermark | WatermarkStatus] = []
        passed = False
        for item in self._queue:
            if not isinstance(item, int):
                passed = True
            elif not passed and self._requests[item].done:
                self._results.extend(self._requests.pop(item).result)
                continue
            kept.append(item)
        self._queue = deque(kept)
        return False

    def _flush(self) -> None:
        results, self._results = self._results, []
        batch = self._batcher.batch_of(results)
        if batch is not None:
            self.output.emit_batch(batch)

    def process_watermark(self, watermark: Watermark) -> None:
        self._emit_behind_rows(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Idle means that nothing more is to be waited for: said before the rows that are under way, it would let the
        watermark pass them, and they would be late."""
        self._emit_behind_rows(status)

    def _emit_behind_rows(self, element: Watermark | WatermarkStatus) -> None:
        """Pass it on after the results of all rows that came before it."""
        if self._waiting:
            self._held.append(element)
        elif self._queue:
            self._queue.append(element)
        else:
            self._emit(element)

    def _emit(self, element: Watermark | WatermarkStatus) -> None:
        if isinstance(element, Watermark):
            self.output.emit_watermark(element)
        else:
            self.output.emit_watermark_status(element)

    @property
    def has_pending_work(self) -> bool:
        """Results are there, there is room for rows that wait, or a request took too long."""
        calls = self._calls
        if calls is None:
            return False
        if calls.has_done or (self._waiting and len(self._requests) < self._spec.capacity):
            return True
        wake_at_ms = self.wake_at_ms
        return wake_at_ms is not None and wake_at_ms <= self.context.processing_time.now_ms()

    @property
    def is_blocked(self) -> bool:
        """Rows wait for room, or all is to end and waits for answers."""
        return self._calls is not None and (bool(self._waiting) or (self._finishing and bool(self._queue)))

    @property
    def awaits(self) -> str:
        under_way = len(self._requests)
        return f"the answers to {under_way} requests of {self.context.operator_uid}" if self.is_blocked else ""

    @property
    def wake_at_ms(self) -> int | None:
        """When the oldest request has taken too long, or one is to be made again."""
        oldest = self._oldest()
        times = [] if oldest is None else [oldest[1].deadline_ms]
        return min([*times, *(at_ms for at_ms, _ in self._again[:1])], default=None)

    @property
    def next_attempt_ms(self) -> int | None:
        """When a request is made again, unless an answer may come before."""
        again = {number for _, number in self._again}
        if all(request.done or number in again for number, request in self._requests.items()):
            return self._again[0][0] if again else None
        return None

    def _oldest(self) -> tuple[int, _Request] | None:
        """All wait equally long: the first of those that have not been answered is the first to time out."""
        return next((item for item in self._requests.items() if not item[1].done), None)

    def continue_work(self) -> None:
        """Take results; give up on what took too long; begin more calls."""
        calls = self._calls
        if calls is None:
            return
        for number, produced, failure in calls.take_done():
            request = self._requests.get(number)
            if request is None or request.done:
                continue  # timed out meanwhile
            rows = None if failure is not None or produced is None else listed(produced)
            if self._tries_again(number, request, failure, rows):
                continue
            if failure is not None:
                raise failure
            self._answer(request, rows)
        now_ms = self.context.processing_time.now_ms()
        while (oldest := self._oldest()) is not None and oldest[1].deadline_ms <= now_ms:
            number, request = oldest
            calls.forget(number)
            self._answer(request, self.function.timeout(request.row))
        while self._again and self._again[0][0] <= now_ms:
            _, number = heapq.heappop(self._again)
            waiting = self._requests.get(number)
            if waiting is not None and not waiting.done:
                calls.submit(number, waiting.row.copy())
        self._release()
        self._submit()

    def _tries_again(
        self, number: int, request: _Request, failure: BaseException | None, rows: list[Row] | None
    ) -> bool:
        """Whether an attempt came to nothing, and there is to be another one."""
        retry = self._spec.retry
        if retry is None or not retry.should_retry(request.failures + 1, failure, rows):
            return False
        request.failures += 1
        at_ms = self.context.processing_time.now_ms() + retry.delay_after(request.failures)
        heapq.heappush(self._again, (at_ms, number))
        return True

    def finish(self) -> None:
        """Everything that is under way is waited for."""
        self._finishing = True
        super().finish()
