"""Clients who look at the rows that an operator puts out.

Decides whom to ask (all running subtasks of the operator) and when a client is answered: when all of them have, when
there are as many rows as were asked for, or after `TAP_WAIT_MS`, with what has come by then. Nothing is kept in a task:
a tap is one sample, and who wants to see more asks again. Nothing in Flink.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from snapline.coordinator.execution.execution_graph import ExecutionGraph
from snapline.coordinator.jobmaster.operations import Reply, RequestID, RowsTapped, TapOperator, TappedRows
from snapline.coordinator.jobmaster.pending_operations import refused
from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import ExecutionState, TapTask, TaskTapped
from snapline.runtime.cores.machine import CancelTimer, StartTimer

TAP_WAIT_MS = 1_000
"""A client is answered after so long, although not all subtasks had rows."""
MOST_TAPS = 16
"""So many clients may look at one job at a time."""
MOST_ROWS = 10_000
MOST_BYTES = 1 << 21
"""More than this no answer has, whatever was asked for: it has to fit into one message."""


@dataclass(frozen=True, slots=True)
class TapTimer:
    """Timer key: a client has waited long enough for rows."""

    request_id: RequestID


@dataclass(slots=True)
class _OpenTap:
    wanted_rows: int
    wanted_bytes: int
    asked: set[ExecutionAttemptID]
    rows: list[TappedRows] = field(default_factory=list)


TapEffect = TapTask | Reply | StartTimer | CancelTimer
"""A TapTask goes to the TaskManager that runs its attempt."""


class Taps:
    """The clients who wait for rows of one job."""

    def __init__(self) -> None:
        self._open: dict[RequestID, _OpenTap] = {}

    def request(
        self, request_id: RequestID, operation: TapOperator, graph: ExecutionGraph, now_ms: int
    ) -> list[TapEffect]:
        """A client wants to see rows of an operator."""
        operators = {
            operator.uid or operator.name: (vertex, operator)
            for vertex in graph.job_graph.vertices
            for operator in vertex.operators
        }
        if operation.uid not in operators:
            near = difflib.get_close_matches(operation.uid, operators, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            return [refused(request_id, f"no operator {operation.uid!r}: {hint}there are {', '.join(operators)}")]
        if len(self._open) >= MOST_TAPS:
            return [refused(request_id, f"{MOST_TAPS} others look at rows of the job: try again", retryable=True)]
        vertex, operator = operators[operation.uid]
        running = [
            execution.attempt_id
            for execution in graph.executions
            if execution.attempt_id.vertex_id == vertex.vertex_id and execution.state is ExecutionState.RUNNING
        ]
        if not running:
            why = f"no subtask of {operation.uid!r} runs: the job is {graph.status.value}"
            return [refused(request_id, why, retryable=True)]
        rows, byte_count = min(operation.max_rows, MOST_ROWS), min(operation.max_bytes, MOST_BYTES) // len(running)
        self._open[request_id] = _OpenTap(rows, byte_count, set(running))
        job_id = graph.job_graph.job_id
        which = (operator.operator_id, rows, byte_count, operation.of_input)
        asks = [TapTask(job_id, each, request_id, *which) for each in running]
        return [*asks, StartTimer(TapTimer(request_id), now_ms + TAP_WAIT_MS)]

    def tapped(self, message: TaskTapped) -> list[TapEffect]:
        """A subtask has shown rows. Of a tap that was answered, or that was never asked: dropped."""
        request_id = RequestID(message.tap_id)
        tap = self._open.get(request_id)
        if tap is None or message.attempt_id not in tap.asked:
            return []
        tap.asked.discard(message.attempt_id)
        kept = sum(len(each.rows) for each in tap.rows)
        if len(message.rows) <= tap.wanted_bytes or (
            message.rows_taken == 0 and kept + len(message.rows) <= MOST_BYTES
        ):
            shown = TappedRows(message.attempt_id.subtask_index, message.rows, message.rows_taken, message.rows_seen)
            tap.rows.append(shown)
        if tap.asked and sum(each.rows_taken for each in tap.rows) < tap.wanted_rows:
            return []
        return [CancelTimer(TapTimer(request_id)), *self._answer(request_id)]

    def timer_fired(self, key: TapTimer) -> list[TapEffect]:
        """The client has waited long enough."""
        return self._answer(key.request_id)

    def job_is_over(self) -> list[TapEffect]:
        """No more rows flow, so that all who wait are answered."""
        waiting = list(self._open)
        return [effect for each in waiting for effect in (CancelTimer(TapTimer(each)), *self._answer(each))]

    def _answer(self, request_id: RequestID) -> list[TapEffect]:
        tap = self._open.pop(request_id, None)
        return [] if tap is None else [Reply(request_id, RowsTapped(tuple(tap.rows)))]
