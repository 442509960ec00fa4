"""Joins of two keyed inputs: interval join and temporal (versioned table) join, a batch at a time.

Interval: a row is matched with the rows of the other input that are there, then kept until no partner can come any
more; with open bounds for good. The event time of a pair is that of its left row, so that the watermark stays behind
by as long as left rows are kept. Temporal: a left row waits until the watermark has reached its time, so that no
earlier version can come, and then takes the version of its key that was the latest; of versions, the latest before the
watermark and all after it are kept. Late rows (their time is not beyond the watermark) go to the side output, as in
windows; open bounds know none. Mirrors Flink's IntervalJoinOperator, KeyedCoProcessOperatorWithWatermarkDelay and
TemporalRowTimeJoinOperator.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.function_contexts import OperatorListState
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.gather import gather_batch
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import IntervalJoinSpec, JoinSide, TemporalJoinSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.dataflow.snapshot.state_format import KeyedStateHeader
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import event_times_ms, refuse_no_times
from snapline.taskmanager.operators.base.incremental_operator import IncrementalKeyedOperator
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.operators.joins.timed_rows import TimedRows, as_pairs, emit_in_parts
from snapline.taskmanager.state.adopted_state import reduce_lists
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend

ROWS_PER_SLICE = 16_384
SIDE_NAMES = ("left", "right")
KIND_STATE = "kind-of-join"
"""The operator state that says which kind of join has written the snapshot, by which columns of the right side, and
whether its rows have times."""
_SPELLED = {"interval": "an interval join, or one without bounds", "temporal": "a join as of a time"}
DueTimes = Callable[[Any, Int64Array], Int64Array]
"""Computes when rows are due from their event times, as TimedRows takes it."""
_FOREVER = 2**62
_NO_ROWS: Slots = np.zeros(0, np.int32)
_NO_BOUNDS: Int64Array = np.zeros(0, np.int64)


def _declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that the join was built for."""
    missing = next((name for name in schema.names if batch.schema.get_field_index(name) < 0), None)
    if missing is not None:
        raise KeyError(
            f"no column {missing!r}, which the join was built for: the columns are {', '.join(batch.schema.names)}"
        )
    return conform(batch, schema)


def _times_of(batch: pa.RecordBatch, column: str) -> Int64Array:
    """The event time of each row. Raises ValueError for what is none, as windows do: bounds are added to it."""
    times = np.ascontiguousarray(event_times_ms(batch, column))
    if len(times):
        refuse_no_times(batch, column, int(times.min()), int(times.max()))
    return times


class _JoinOperator(IncrementalKeyedOperator):
    """Two TimedRows over one key."""

    kind: str
    """What it is, as snapshots say it; the rows of one kind mean something else to another."""

    def __init__(self, left: JoinSide, right: JoinSide, schema: pa.Schema, late_output_tag: str) -> None:
        super().__init__(left.key_columns)
        self._schema = schema
        self._sides = (left, right)
        self._late_output_tag = late_output_tag
        self._rows: list[TimedRows] = []

    @property
    def keeps_by_time(self) -> bool:
        """Whether rows are forgotten, or joined, when the watermark has reached their time."""
        return True

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        self._rows = [
            TimedRows(name, side.schema, due_of, has_calendar=self.keeps_by_time)
            for name, side, due_of in zip(SIDE_NAMES, self._sides, self.due_times(), strict=True)
        ]
        for state in self._rows:
            backend.adopt_state(state)

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        for said in self._kinds().get():  # snapshots of before say nothing
            if said["kind"] != self.kind:
                found = _SPELLED.get(str(said["kind"]), "another kind of join")
                raise StateError(
                    f"operator {self.context.operator_uid!r}: the snapshot holds rows of {found}, and the job now asks "
                    f"for {_SPELLED[self.kind]}: keep it, or give the operator another uid to start without its state"
                )
            keys = list(self._sides[1].key_columns)
            found = said.get("right_key", keys)
            if found != keys:
                raise StateError(
                    f"operator {self.context.operator_uid!r}: the snapshot holds rows of the right side by the key "
                    f"{', '.join(map(str, found))}, and the job now asks for {', '.join(keys)}: keep the key, or give the operator "
                    "another uid to start without its state"
                )
            if self.keeps_by_time and not said.get("by_time", True):
                raise StateError(
                    f"operator {self.context.operator_uid!r}: the snapshot holds rows of a join without bounds, which have no times, and "
                    "the job now asks for bounds, so that none would find a partner: keep the join, or give the operator another uid to "
                    "start without its state"
                )

    def open(self) -> None:
        self.count_late_rows(0)
        super().open()

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        said = {"kind": self.kind, "right_key": list(self._sides[1].key_columns), "by_time": self.keeps_by_time}
        self._kinds().update([said])
        return super().snapshot_state(checkpoint_id, timestamp_ms)

    def _kinds(self) -> OperatorListState:
        return self.operator_state.list_state(KIND_STATE, OperatorStateMode.UNION)

    @abstractmethod
    def due_times(self) -> tuple[DueTimes | None, DueTimes | None]:
        """When keys have to be in memory because of their rows, for each side."""

    def _load_due(self, side: int) -> None:
        backend = check(self.backend, "there is no backend, although there are rows")
        backend.load_due(SIDE_NAMES[side], self.watermark_ms, ROWS_PER_SLICE)

    def _timed(self, batch: pa.RecordBatch, input_index: int) -> tuple[pa.RecordBatch, Int64Array]:
        """The batch in the declared columns, with times; late rows are gone."""
        side = self._sides[input_index]
        batch = _declared(batch, side.schema)
        if not side.event_time_column:
            return batch, np.zeros(batch.num_rows, np.int64)
        times = _times_of(batch, side.event_time_column)
        late = times <= self.watermark_ms
        if self.watermark_ms == MIN_WATERMARK_MS or not late.any():
            return batch, times
        self.count_late_rows(int(late.sum()))
        if self._late_output_tag:
            rows = as_pairs(batch.filter(pa.array(late)), input_index, self._schema)
            self.output.emit_side(self._late_output_tag, rows)
        return batch.filter(pa.array(~late)), times[~late]

    def _touch(self, slots: Slots) -> None:
        backend = check(self.backend, "there is no backend, although there are rows")
        backend.touch(slots)


class IntervalJoinOperator(_JoinOperator):
    """Emits pairs as their second row comes."""

    kind = "interval"

    def __init__(self, spec: IntervalJoinSpec) -> None:
        super().__init__(spec.left, spec.right, spec.output_schema, spec.late_output_tag)
        lower, upper = spec.lower_ms, spec.upper_ms
        self._bounded = lower is not None and upper is not None
        self._lower_ms = -_FOREVER if lower is None else lower
        self._upper_ms = _FOREVER if upper is None else upper

        # a left row can meet right rows up to time + upper; a right row left rows up to time - lower
        self._reaches = (max(self._upper_ms, 0), max(-self._lower_ms, 0))

    @property
    def keeps_by_time(self) -> bool:
        return self._bounded

    @property
    def keeps_rows_for_ms(self) -> int | None:
        """The time for which rows of both sides are kept, unless they are kept for good."""
        return sum(self._reaches) if self._bounded else None

    def due_times(self) -> tuple[DueTimes | None, DueTimes | None]:
        """When the last of a key's rows meets no partner any more: only to be forgotten."""
        if not self._bounded:
            return None, None
        left, right = (partial(self._forgotten_at, reach) for reach in self._reaches)
        return left, right

    @staticmethod
    def _forgotten_at(reach_ms: int, rows: Any, times: Int64Array) -> Int64Array:
        return reduce_lists(rows, times + reach_ms, np.maximum)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        batch, times = self._timed(batch, input_index)
        if not batch.num_rows:
            return
        slots = self.slots_of(batch, self._sides[input_index].key_columns)
        mine, others = self._rows[input_index], self._rows[1 - input_index]
        if len(others):
            lows = highs = _NO_BOUNDS
            if self._bounded:
                low, high = self._lower_ms, self._upper_ms
                lows, highs = (times + low, times + high) if input_index == 0 else (times - high, times - low)
            self._emit_pairs(batch, others, others.find(slots, lows, highs), input_index)
        mine.add(slots, times, batch)

    def _emit_pairs(
        self, batch: pa.RecordBatch, others: TimedRows, pairs: tuple[Slots, Slots], input_index: int
    ) -> None:
        """`pairs`: rows of the batch, and the numbers of their partners."""
        own, found = pairs

        def make(part: slice) -> pa.RecordBatch:
            mine, partners = gather_batch(batch, own[part]), others.take(found[part])
            left, right = (mine, partners) if input_index == 0 else (partners, mine)
            return pa.RecordBatch.from_arrays([*left.columns, *right.columns], schema=self._schema)

        for begin in range(0, len(own), 4 * ROWS_PER_SLICE):
            emit_in_parts(make, begin, min(begin + 4 * ROWS_PER_SLICE, len(own)), self.output)

    def advance(self, watermark: Watermark) -> None:
        if self._rows and self._bounded:
            for side, (state, reach) in enumerate(zip(self._rows, self._reaches, strict=True)):
                if self.due_outside_ms(SIDE_NAMES[side]) <= watermark.timestamp_ms:
                    self._load_due(side)  # there is no hurry: what is more than that waits for the next watermark
                limit = watermark.timestamp_ms - reach
                earliest = state.earliest_ms()
                if earliest is not None and earliest <= limit:
                    gone = state.up_to(limit)
                    self._touch(state.slots_of(gone))
                    state.remove(gone)
        self.pass_on(watermark)

    def pass_on(self, watermark: Watermark) -> None:
        """Behind left rows that are kept, as far as there are bounds: their times are those of pairs to come."""
        if self._bounded and watermark.timestamp_ms < MAX_WATERMARK_MS:
            watermark = Watermark(max(watermark.timestamp_ms - self._reaches[0], MIN_WATERMARK_MS))
        super().pass_on(watermark)


class TemporalJoinOperator(_JoinOperator):
    """Emits left rows in slices when the watermark has passed them."""

    kind = "temporal"

    def __init__(self, spec: TemporalJoinSpec) -> None:
        super().__init__(spec.left, spec.right, spec.output_schema, spec.late_output_tag)
        self._keep_unmatched = spec.how == "left"
        self._pending: Watermark | None = None
        self._due: Slots = _NO_ROWS

    def due_times(self) -> tuple[DueTimes | None, DueTimes | None]:
        """Left rows are due at their times; a version is nobody's business before there are left rows."""
        return (lambda rows, times: reduce_lists(rows, times, np.minimum)), None

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if input_index == 0:
            batch, times = self._timed(batch, 0)
        else:  # a late version is the latest before what is still to come, perhaps
            side = self._sides[1]
            batch = _declared(batch, side.schema)
            times = _times_of(batch, side.event_time_column)
        if batch.num_rows:
            slots = self.slots_of(batch, self._sides[input_index].key_columns)
            self._rows[input_index].add(slots, times, batch)

    def open(self) -> None:
        super().open()
        if self._rows:
            self._begin(Watermark(self.watermark_ms))

    def advance(self, watermark: Watermark) -> None:
        if self._rows:
            self._begin(watermark)
        if self._pending is None:
            self.output.emit_watermark(watermark)

    def _begin(self, watermark: Watermark) -> None:
        if self._take_due():
            self._pending = watermark
        else:
            self._forget_versions()

    def _take_due(self) -> bool:
        """The next left rows, of keys in memory, in the order of their times. False when none are due any more."""
        left = self._rows[0]
        while not len(self._due):
            load = self.due_outside_ms(SIDE_NAMES[0]) <= self.watermark_ms
            if load:
                self._load_due(0)
            due = left.up_to(min(self.watermark_ms, self.due_outside_ms(SIDE_NAMES[0])))
            self._due = due[np.argsort(left.times[due], kind="stable")]
            if not load:
                break
        return len(self._due) > 0

    @property
    def has_pending_work(self) -> bool:
        return self._pending is not None

    def continue_work(self) -> None:
        """Join one slice; when nothing is left, let the watermark go on."""
        watermark = self._pending
        if watermark is None:
            return
        part, self._due = self._due[:ROWS_PER_SLICE], self._due[ROWS_PER_SLICE:]
        left = self._rows[0]
        slots = left.slots_of(part)
        found, versions = self._versions_at(slots, left.times[part])
        kept, matched = (part, found) if self._keep_unmatched else (part[found], found[found])
        versions = versions if self._keep_unmatched else versions[found]

        def make(some: slice) -> pa.RecordBatch:
            right = self._rows[1].take(versions[some][matched[some]])
            if self._keep_unmatched:
                right = right.take(pa.array(np.cumsum(matched[some]) - 1, mask=~matched[some]))
            return pa.RecordBatch.from_arrays([*left.take(kept[some]).columns, *right.columns], schema=self._schema)

        if len(kept):
            emit_in_parts(make, 0, len(kept), self.output)
        self._touch(slots)
        left.remove(part)
        if not self._take_due():
            self._pending = None
            self._forget_versions()
            self.output.emit_watermark(watermark)

    def _versions_at(self, slots: Slots, times: Int64Array) -> tuple[BoolArray, Slots]:
        """Whether there is a version of each key at each time, and which; of equal times the one that came last."""
        right = self._rows[1]
        distinct, position = np.unique(slots, return_inverse=True)
        offsets, rows = right.rows_of(distinct)
        owners = np.repeat(np.arange(len(distinct)), np.diff(offsets))
        asked_owner = np.concatenate([owners, position])
        asked_time = np.concatenate([right.times[rows], times])
        is_left = np.concatenate([np.zeros(len(rows), np.int8), np.ones(len(times), np.int8)])
        order = np.lexsort((is_left, asked_time, asked_owner))
        numbers = np.where(is_left[order] == 0, np.arange(len(order)), -1)
        latest = np.maximum.accumulate(numbers)
        of_left = is_left[order] == 1
        versions = latest[of_left]
        found = (versions >= 0) & (asked_owner[order[versions]] == asked_owner[order][of_left])
        result_found, result = np.zeros(len(times), np.bool_), np.zeros(len(times), np.int32)
        left_rows = order[of_left] - len(rows)
        result_found[left_rows] = found
        result[left_rows[found]] = rows[order[versions[found]]]
        return result_found, result

    def _forget_versions(self) -> None:
        """Forget all versions of each key before the watermark but the latest."""
        right = self._rows[1]
        earliest = right.earliest_ms()
        if earliest is None or earliest > self.watermark_ms:
            return
        passed = right.up_to(self.watermark_ms)
        if not len(passed):
            return
        _, rows = right.rows_of(np.unique(right.slots_of(passed)))
        rows = rows[right.times[rows] <= self.watermark_ms]  # in the order of their arrival
        owners, times = right.slots_of(rows), right.times[rows]
        order = np.lexsort((np.arange(len(rows)), times, owners))
        last = np.append(owners[order][1:] != owners[order][:-1], True)
        gone = rows[order[~last]]
        if len(gone):
            self._touch(right.slots_of(gone))
            right.remove(gone)
