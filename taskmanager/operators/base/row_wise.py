"""What operators do that call a function for each row and may go on without the rows that it raises for.

Decides what a bad row is: one for which the function raises (unless that is the fault of something else, see
`NOT_OF_THE_ROW`), or whose result does not fit the schema; what was produced for it before is not emitted. Such rows
are counted, and set aside as they came in, whatever the function did to its dictionary. It does not know what the
functions do. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from snapline.dataflow.api.bad_rows import (
    BAD_ROWS_METRIC,
    BAD_ROWS_TAG,
    NOT_OF_THE_ROW,
    bad_rows_batch,
    refused_row,
)
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.user_metrics import Counter
from snapline.taskmanager.operators.base.failure import failed_row
from snapline.taskmanager.operators.base.function_operator import FunctionOperator
from snapline.taskmanager.operators.base.rows import RowBatcher, rows_made, rows_of

Item = TypeVar("Item")
Made = TypeVar("Made")
Errors = dict[int, Exception]
"""What was raised, by the index of the row in its batch."""


class RowWiseOperator(FunctionOperator):
    """Base of operators that call a function for each row."""

    def __init__(self, function: Any, on_error: str) -> None:
        super().__init__(function)
        self._on_error = on_error
        self._bad_rows: Counter | None = None

    @property
    def goes_on(self) -> bool:
        """Whether a bad row does not fail the job."""
        return self._on_error != "fail"

    def open(self) -> None:
        if self.goes_on:
            self._bad_rows = self.context.metrics.counter(BAD_ROWS_METRIC)
        super().open()

    def emit_good(self, batch: pa.RecordBatch, produce: Callable[[Row], list[Row]], batcher: RowBatcher) -> None:
        """Emit what the function makes of each row that it can work on, and set the others aside."""
        made, errors = try_rows(rows_of(batch), produce)
        results = fitting(made, batcher, errors)
        if results is not None:
            self.output.emit_batch(results)
        self.set_aside(batch, errors)

    def set_aside(self, batch: pa.RecordBatch, errors: Errors) -> None:
        """Count the rows of this batch that are bad, and emit them beside the others if that is asked for."""
        if not errors:
            return
        if self._bad_rows is not None:
            self._bad_rows.inc(len(errors))
        if self._on_error == "side_output":
            places = sorted(errors)
            rows = rows_of(batch.take(pa.array(places, pa.int64())))
            refused = [refused_row(row, errors[place]) for row, place in zip(rows, places, strict=True)]
            self.output.emit_side(BAD_ROWS_TAG, bad_rows_batch(self.context.operator_uid, refused))


def try_rows(items: Sequence[Item], produce: Callable[[Item], Made]) -> tuple[dict[int, Made], Errors]:
    """What `produce` makes of each item, and what it raises, by index. Raises RowFailure for what is no fault of the
    row."""
    made: dict[int, Made] = {}
    errors: Errors = {}
    for index, item in enumerate(items):
        try:
            made[index] = produce(item)
        except NOT_OF_THE_ROW as error:
            raise failed_row(index, item, error) from error
        except Exception as error:
            errors[index] = error
    return made, errors


def fitting(made: dict[int, list[Row]], batcher: RowBatcher, errors: Errors) -> pa.RecordBatch | None:
    """Return a batch of the results. Rows whose results fit no schema are taken out of `made`, and are in `errors`
    then."""
    try:
        return batcher.batch_of([row for results in made.values() for row in results])
    except (TypeError, AttributeError):
        pass
    for index, results in list(made.items()):
        try:
            batcher.batch_of(results)
        except (TypeError, AttributeError) as error:
            errors[index] = error
            del made[index]
    return batcher.batch_of([row for results in made.values() for row in results])


def listed(produced: Iterable[Row] | None) -> list[Row]:
    """Return the rows that a function has returned or yields; None is none."""
    if produced is None:
        return []
    return list(rows_made(produced))
