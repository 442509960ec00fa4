"""Rows that the window behind an edge would drop: they do not leave at all.

For windows that keep the rows with the greatest (or least) value (`max_by`, `min_by`). Decides which rows of a batch
can still be in a result, by what has left over this edge before; rows of a window that may have fired leave in any
case, so that what is late is counted, and told, where it always was. What it remembers is in no snapshot: after a
restart more rows leave than need to. Where most rows leave all the same, it is asked for few batches only. It does not
know where rows go. Mirrors the local half of Flink's two-phase aggregation, and the combiner of MapReduce (Dean and
Ghemawat, 2004).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.aggregate_types import has_order
from snapline.dataflow.api.windows import PaneGeometry
from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.dataflow.graph.operator_specs import CombinerSpec
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.windows.extreme_rows import BestValueOfOwner, ordered_values
from snapline.taskmanager.operators.windows.window_state import window_starts
from snapline.taskmanager.state.index.key_index import KeyIndex

LEAST_ROWS = 64
"""Smaller batches leave as they are: they cost the edge little."""
MOST_PANES = 65_536
"""With more keys and panes than this, all are forgotten."""
MOST_SKIPPED = 64
"""So many batches at most leave unseen after one of which most rows left."""


class BeatenRows:
    """What is sent over one edge to one such window."""

    def __init__(self, spec: CombinerSpec) -> None:
        self._spec = spec
        self._geometry = PaneGeometry.of(spec.assigner)
        self._fields: list[pa.Field] = []
        self._fired_ms = MIN_WATERMARK_MS
        self._skipped = 0
        """So many batches leave unseen when most rows of one have left."""
        self._to_skip = 0

    def on_watermark(self, watermark_ms: int) -> None:
        """Windows that end by then may have fired."""
        self._fired_ms = max(self._fired_ms, watermark_ms)

    def without_beaten(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch that may be in a result."""
        if batch.num_rows < LEAST_ROWS:
            return batch
        if self._to_skip:
            self._to_skip -= 1
            return batch
        fields = self._fields_of(batch)
        if fields is None:
            return batch
        times = event_times_ms(batch, self._spec.event_time_column)
        panes, first, _ = window_starts(times, self._geometry.pane_ms, self._geometry.offset_ms)
        if self._geometry.has_gaps or first + self._geometry.pane_ms - 1 <= self._fired_ms:
            return batch
        if fields != self._fields or len(self._index) > MOST_PANES:
            self._forget(fields)
        keys = [batch.column(name) for name in self._spec.key_columns]
        owners = self._index.lookup_or_insert([*keys, pa.array(panes)])
        self._best.grow(self._index.capacity)
        keep, _ = self._best.choose(owners, *ordered_values(batch.column(self._spec.by.column)), self._spec.by)
        kept = int(np.count_nonzero(keep))
        self._skipped = min(MOST_SKIPPED, 2 * self._skipped + 1) if 4 * kept > 3 * batch.num_rows else 0
        self._to_skip = self._skipped
        return batch if kept == batch.num_rows else batch.filter(pa.array(keep))

    def _fields_of(self, batch: pa.RecordBatch) -> list[pa.Field] | None:
        """The keys of the index; None where something is not as the window wants it, which it tells itself."""
        schema, spec = batch.schema, self._spec
        names = (*spec.key_columns, spec.event_time_column, spec.by.column)
        if any(schema.get_field_index(name) < 0 for name in names):
            return None
        times = batch.column(spec.event_time_column)
        if times.null_count or not (pa.types.is_timestamp(times.type) or pa.types.is_int64(times.type)):
            return None
        if not has_order(schema.field(spec.by.column).type):
            return None
        keys = [pa.field(name, schema.field(name).type) for name in spec.key_columns]
        return [*keys, pa.field("", pa.int64()), pa.field("", schema.field(spec.by.column).type)]

    def _forget(self, fields: list[pa.Field]) -> None:
        """Begin anew; `fields`: of the keys, the pane, and the value."""
        *keys, value = fields
        self._fields = fields
        self._index = KeyIndex(keys)
        self._best = BestValueOfOwner(np.float64 if pa.types.is_floating(value.type) else np.int64)
