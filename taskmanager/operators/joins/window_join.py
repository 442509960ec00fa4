"""Window join: windows that hold rows of two inputs, and emit every pair when they fire.

Decides the order of pairs (left rows in their order, for each the right rows in theirs) and what outer joins add: rows
whose key had none of the other side in the window, with nulls. Mirrors Flink's JoinedStreams, which is a coGroup over
tagged rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.windows import (
    EventTimeSessionWindows,
    GlobalWindows,
    PaneAssigner,
    ProcessingTimeSessionWindows,
)
from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import WindowJoinSpec
from snapline.taskmanager.operators.base.operator_contract import Output
from snapline.taskmanager.operators.base.row_store import RowStore
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.operators.joins.timed_rows import as_pairs, emit_in_parts
from snapline.taskmanager.operators.windows.pane_windows import PaneWindowOperator
from snapline.taskmanager.operators.windows.row_contents import check_same_columns
from snapline.taskmanager.operators.windows.window_contents import (
    ContentsMaker,
    FiredWindows,
    RowsByEntry,
    WholeWindowContents,
    WindowContents,
)
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import Slots

PAIRS_PER_BATCH = 65_536


class JoinContents(WholeWindowContents):
    """The rows of both sides of a window join, by window."""

    windows_per_slice = 4_096

    def __init__(self, spec: WindowJoinSpec) -> None:
        self._spec = spec
        self._sides = (RowStore(spec.left.schema), RowStore(spec.right.schema))
        self._schema = spec.output_schema
        self._keep = (spec.how in ("left", "full"), spec.how in ("right", "full"))

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(name, side.type) for name, side in zip(("left", "right"), self._sides, strict=True)]

    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self._sides[input_index].add(entries, batch)

    def merge(self, into: Slots, others: Slots) -> None:
        for side in self._sides:
            side.move(into, others)

    @property
    def sides(self) -> Sequence[RowStore]:
        return self._sides

    def without_rows(self) -> JoinContents:
        return JoinContents(self._spec)

    def rows_made(self, counts: Sequence[Int64Array]) -> Int64Array:
        left, right = counts
        return left * right + left + right

    def emit(self, fired: FiredWindows, output: Output) -> None:
        self.emit_rows(fired, self._sides, output)

    def emit_rows(self, fired: FiredWindows, sides: Sequence[RowsByEntry], output: Output) -> None:
        bounds = fired.bounds()
        left_bounds, left_rows = self._rows_of(sides[0], fired, bounds)
        right_bounds, right_rows = self._rows_of(sides[1], fired, bounds)
        left_counts, right_counts = np.diff(left_bounds), np.diff(right_bounds)
        windows = len(fired.starts)
        # each left row of a window, as often as the window has right rows
        window_of_left = np.repeat(np.arange(windows), left_counts)
        partners = right_counts[window_of_left]
        left_at = np.repeat(np.arange(len(left_rows)), partners)
        firsts = np.cumsum(partners) - partners
        right_at = (
            np.arange(int(partners.sum())) - np.repeat(firsts, partners) + right_bounds[:-1][window_of_left][left_at]
            if len(left_at)
            else left_at
        )

        def make(part: slice) -> pa.RecordBatch:
            left, right = sides[0].take(left_rows[left_at[part]]), sides[1].take(right_rows[right_at[part]])
            return pa.RecordBatch.from_arrays([*left.columns, *right.columns], schema=self._schema)

        for begin in range(0, len(left_at), PAIRS_PER_BATCH):
            emit_in_parts(make, begin, min(begin + PAIRS_PER_BATCH, len(left_at)), output)
        if self._keep[0]:
            self._emit_alone(sides, 0, left_rows[np.repeat(right_counts == 0, left_counts)], output)
        if self._keep[1]:
            self._emit_alone(sides, 1, right_rows[np.repeat(left_counts == 0, right_counts)], output)

    @staticmethod
    def _rows_of(store: RowsByEntry, fired: FiredWindows, bounds: Int64Array) -> tuple[Int64Array, Slots]:
        offsets, rows = store.rows_of(fired.entries)
        return offsets[bounds], rows

    def _emit_alone(self, sides: Sequence[RowsByEntry], side: int, rows: Slots, output: Output) -> None:
        if not len(rows):
            return
        own = sides[side].take(rows).columns
        nulls = [pa.nulls(len(rows), field.type) for field in sides[1 - side].schema]
        columns = [*own, *nulls] if side == 0 else [*nulls, *own]
        output.emit_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def grow(self, capacity: int) -> None:
        for side in self._sides:
            side.grow_owners(capacity)

    def clear(self, entries: Slots) -> None:
        for side in self._sides:
            side.remove_owners(entries)

    def get(self, entries: Slots) -> list[pa.Array]:
        return [side.get(entries) for side in self._sides]

    def freeze(self, high_water: int) -> list[FrozenColumn]:
        return [side.freeze(high_water) for side in self._sides]

    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        for side, column in zip(self._sides, columns, strict=True):
            side.restore(entries, column)

    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        check_same_columns(self._sides[input_index].schema, schema, operator_uid)


class _JoinMaker(ContentsMaker):
    def __init__(self, spec: WindowJoinSpec) -> None:
        self._spec = spec

    def of_batch(self, schema: pa.Schema, current_watermark: Callable[[], int]) -> WindowContents:
        return JoinContents(self._spec)

    def of_snapshot(self, fields: Sequence[pa.Field], current_watermark: Callable[[], int]) -> WindowContents:
        return JoinContents(self._spec)


class WindowJoinOperator(PaneWindowOperator):
    """The event time of a pair is that of its left row, which is beyond no watermark that leaves before the window
    fires for the last time."""

    def __init__(self, spec: WindowJoinSpec, assigner: PaneAssigner) -> None:
        """Begin without rows. `assigner`: that of `spec`."""
        self._sides, self._schema = (spec.left, spec.right), spec.output_schema
        inputs = [(side.key_columns, side.event_time_column) for side in self._sides]
        super().__init__(inputs, assigner, _JoinMaker(spec), spec.allowed_lateness_ms, spec.late_output_tag)

    def late_rows(self, batch: pa.RecordBatch, input_index: int) -> pa.RecordBatch:
        """Rows of both sides go to one side output."""
        return as_pairs(conform(batch, self._sides[input_index].schema), input_index, self._schema)

    def pass_on(self, watermark: Watermark) -> None:
        """Behind the windows that are not over, or that late rows may still make fire once more."""
        geometry, time_ms = self._geometry, watermark.timestamp_ms
        if not self._by_clock and time_ms < MAX_WATERMARK_MS:
            over_ms = time_ms - self._lateness_ms + 1 - geometry.size_ms
            first_open = geometry.last_window(over_ms) + geometry.slide_ms
            watermark = Watermark(max(min(time_ms, first_open - 1), MIN_WATERMARK_MS))
        super().pass_on(watermark)


def create_window_join(spec: WindowJoinSpec) -> WindowJoinOperator:
    """Tumbling and sliding windows of two inputs."""
    assigner = spec.assigner
    if isinstance(assigner, (EventTimeSessionWindows, ProcessingTimeSessionWindows, GlobalWindows)):
        raise JobDefinitionError(f"joins take tumbling or sliding windows, not {assigner!r}")
    return WindowJoinOperator(spec, assigner)
