"""Row by row without keys: the user's ProcessFunction.

Decides what its context has: the event time of the row, the times of the task, and side outputs; whatever belongs to a
key is refused in one line. Mirrors Flink's ProcessOperator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.elements import MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.dataflow.graph.operator_specs import ProcessSpec
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.base.failure import failed_read
from snapline.taskmanager.operators.base.keyed_operator import KeyedOperator
from snapline.taskmanager.operators.base.row_wise import RowWiseOperator, fitting, listed, try_rows
from snapline.taskmanager.operators.base.rows import SEQUENCES, RowBatcher, copy_of, rows_made, rows_of


class TimesWithoutKeys:
    """The times of a task (TimerService); timers are refused."""

    def __init__(self, operator: ProcessOperator | KeyedOperator) -> None:
        self._operator = operator

    def current_processing_time(self) -> int:
        """Return the clock of the task, in milliseconds since the epoch."""
        return self._operator.context.processing_time.now_ms()

    def current_watermark(self) -> int:
        """Return the watermark of the operator, in milliseconds since the epoch."""
        return self._operator.watermark_ms

    def refusal(self) -> SnaplineError:
        """Why there are no timers."""
        return JobDefinitionError(
            f"operator {self._operator.context.operator_uid!r} sets a timer, but its input is not keyed: use key_by(...).process(...)"
        )

    def _refuse(self, timestamp_ms: int) -> NoReturn:
        raise self.refusal()

    register_event_time_timer = register_processing_time_timer = _refuse
    delete_event_time_timer = delete_processing_time_timer = _refuse


class ContextWithoutKeys:
    """One object for all rows (ProcessContext); valid during the call that it is handed to."""

    time_domain = None

    def __init__(self, operator: ProcessOperator) -> None:
        self.timer_service = TimesWithoutKeys(operator)
        self.timestamp_ms: int | None = None
        """Event time of the row."""
        self.side_rows: dict[str, list[Row]] = {}
        self._operator = operator

    @property
    def current_key(self) -> Any:
        """There is none, which is an error of the job."""
        raise JobDefinitionError(
            f"operator {self._operator.context.operator_uid!r} asks for the key of a row, but its input is not keyed: use "
            "key_by(...).process(...)"
        )

    def output(self, tag: str, row: Row) -> None:
        """Emit to a side output."""
        self.side_rows.setdefault(tag, []).append(copy_of(row))


class ProcessOperator(RowWiseOperator):
    """Calls the function for every row."""

    def __init__(self, spec: ProcessSpec) -> None:
        super().__init__(spec.function, spec.on_error)
        self._time_column = spec.event_time_column
        self._batcher = RowBatcher(spec.output_schema)
        self._side_batchers = {tag: RowBatcher(schema) for tag, schema in spec.side_schemas}
        self._call = ContextWithoutKeys(self)
        self.watermark_ms = MIN_WATERMARK_MS

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        process, call = self.function.process_element, self._call
        times = event_times_ms(batch, self._time_column).tolist() if self._time_column else [None] * batch.num_rows
        rows = rows_of(batch)
        if self.goes_on:
            self._process_good(batch, list(zip(rows, times, strict=True)))
            return
        iterator = iter(rows)
        results: list[Row] = []
        try:
            for row, time in zip(iterator, times, strict=True):
                call.timestamp_ms = time
                produced = process(row, call)
                if produced is not None:
                    results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
        except Exception as error:
            raise failed_read(rows, iterator, error) from error
        side_rows, call.side_rows = call.side_rows, {}
        self.emit(results, side_rows)

    def emit(self, rows: Sequence[Row], side_rows: Mapping[str, Sequence[Row]]) -> None:
        """Send off what the function has given."""
        emitted = self._batcher.batch_of(rows)
        if emitted is not None:
            self.output.emit_batch(emitted)
        self._emit_aside(side_rows)

    def _process_good(self, batch: pa.RecordBatch, timed_rows: Sequence[tuple[Row, int | None]]) -> None:
        """Emit what the function makes of each row that it can work on, to its side outputs as well."""
        aside_of: dict[int, dict[str, list[Row]]] = {}

        def produce(numbered: tuple[int, tuple[Row, int | None]]) -> list[Row]:
            number, (row, self._call.timestamp_ms) = numbered
            aside_of[number] = self._call.side_rows = {}
            return listed(self.function.process_element(row, self._call))

        made, errors = try_rows(list(enumerate(timed_rows)), produce)
        results = fitting(made, self._batcher, errors)
        self._call.side_rows = {}
        if results is not None:
            self.output.emit_batch(results)
        side_rows: dict[str, list[Row]] = {}
        for number in made:
            for tag, rows in aside_of[number].items():
                side_rows.setdefault(tag, []).extend(rows)
        self._emit_aside(side_rows)
        self.set_aside(batch, errors)

    def _emit_aside(self, side_rows: Mapping[str, Sequence[Row]]) -> None:
        for tag, of_tag in side_rows.items():
            side = self._side_batchers.setdefault(tag, RowBatcher()).batch_of(of_tag)
            if side is not None:
                self.output.emit_side(tag, side)

    def process_watermark(self, watermark: Watermark) -> None:
        self.watermark_ms = max(self.watermark_ms, watermark.timestamp_ms)
        self.output.emit_watermark(watermark)
