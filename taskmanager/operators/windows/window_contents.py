"""What a window holds of a key, by entry: the part of window operators that does not care which windows there are.

An entry is a small number that the operator's state gives to a key's pane or session. Contents fold rows in, merge
entries, and make output of windows that fire; the operator decides what is late and due. Here: accumulators. Rows and
reduced rows: `row_contents`. Mirrors Flink's window state (AggregatingState, ListState, ReducingState in a window's
namespace) together with InternalWindowFunction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.aggregate_types import WINDOW_TIME
from snapline.dataflow.api.batch_aggregates import AnyAggregate
from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.errors import StateError
from snapline.taskmanager.operators.aggregation.aggregate_plan import (
    Accumulator,
    AggregatePlan,
    Numbers,
    Shape,
    check_widens,
)
from snapline.taskmanager.operators.aggregation.held_columns import HeldColumn, combined_results
from snapline.taskmanager.operators.aggregation.held_factory import (
    held_columns,
    is_held,
    open_functions,
    plain_aggregates,
    restored_held_columns,
)
from snapline.taskmanager.operators.base.operator_contract import Output
from snapline.taskmanager.operators.base.row_store import RowStore
from snapline.taskmanager.state.adopted_state import AdoptedState
from snapline.taskmanager.state.aggregate_column import AggregateColumn
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import Slots

INPUT_TYPE_METADATA = b"snapline.aggregate.input"
SINCE_FIRED = "rows-since-fired"
"""What windows with a CountTrigger have beside their contents."""
_REDUCERS = {"sum": np.add, "min": np.fmin, "max": np.fmax}
"""What makes one total of two; any number comes before NaN."""
ROWS_PER_SLICE = 131_072
"""Windows with so many rows, or pairs of them, are emitted between two looks at the control mail; or one window."""


@dataclass(frozen=True, slots=True)
class FiredWindows:
    """Windows of keys whose results are due."""

    key_fields: Sequence[pa.Field]
    keys: Sequence[pa.Array]
    """One row per window and key."""
    starts: Int64Array
    ends: Int64Array
    entries: Slots
    """The entries of all windows, one window after the other."""
    offsets: Int64Array | None = None
    """Window i has entries[offsets[i]:offsets[i + 1]]; None: one each."""
    timeless: bool = False
    """Global windows: results say no times."""
    time_type: pa.DataType = WINDOW_TIME
    """The type of `window_start` and `window_end`."""

    def bounds(self) -> Int64Array:
        """The offsets, also where they are implied."""
        return np.arange(len(self.starts) + 1) if self.offsets is None else self.offsets

    def window_fields(self) -> list[pa.Field]:
        """Return the fields of what `window_columns` returns."""
        return [] if self.timeless else [pa.field(name, self.time_type) for name in ("window_start", "window_end")]

    def window_columns(self) -> list[pa.Array]:
        """Return the columns `window_start` and `window_end` of the fired windows. Raises ValueError for one that
        nanoseconds have no room for."""
        if self.timeless:
            return []
        in_ms = pa.timestamp("ms", self.time_type.tz)
        try:
            return [pa.array(times).view(in_ms).cast(self.time_type) for times in (self.starts, self.ends)]
        except pa.ArrowInvalid:
            at = np.argmax(np.maximum(np.abs(self.starts), np.abs(self.ends)))
            start, end = (times[at].astype("datetime64[ms]") for times in (self.starts, self.ends))
            raise ValueError(
                f"a window from {start} to {end} is not within what {self.time_type} holds (1677 to 2262), which is the type of "
                "event time and so of window_start and window_end: make it microseconds before, or filter such rows out"
            ) from None


class WindowContents(ABC):
    """What windows hold, in columns, by the windows' entries."""

    windows_per_slice = 16_384
    """So many windows of keys are emitted between two looks at the control mail, at most."""

    def windows_at_once(self, entries: Slots, offsets: Int64Array | None = None) -> int:
        """How many of these windows are emitted between two looks, from the first on. `offsets`: see FiredWindows."""
        return min(self.windows_per_slice, len(entries) if offsets is None else len(offsets) - 1)

    @property
    @abstractmethod
    def fields(self) -> list[pa.Field]:
        """The columns that stand for an entry in a snapshot."""

    @abstractmethod
    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        """Take the rows in; `entries` has one per row."""

    @abstractmethod
    def merge(self, into: Slots, others: Slots) -> None:
        """others[i] becomes part of into[i], in order; the caller clears the others."""

    @abstractmethod
    def emit(self, fired: FiredWindows, output: Output) -> None:
        """Emit the results of the windows that have fired."""

    @abstractmethod
    def grow(self, capacity: int) -> None:
        """Make room for entries below."""

    @abstractmethod
    def clear(self, entries: Slots) -> None:
        """Forget the contents of entries, each of which is named once."""

    @abstractmethod
    def get(self, entries: Slots) -> list[pa.Array]:
        """As they are now, in the order of `fields`."""

    @abstractmethod
    def freeze(self, high_water: int) -> list[FrozenColumn]:
        """The same for later, of the entries below."""

    @abstractmethod
    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        """Take over what `freeze` gave; the entries are new."""

    @abstractmethod
    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        """Raise unless batches of this schema fit."""


class RowsByEntry(Protocol):
    """Rows of windows, to be read: those of a state (`RowStore`), or of one window (`GroupedRows`)."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        ...

    def rows_of(self, owners: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, rows): owners[i] has rows[offsets[i]:offsets[i + 1]], oldest first."""
        ...

    def counts(self, owners: Slots) -> Slots | Int64Array:
        """Return how many rows each owner has."""
        ...

    def take(self, rows: Slots) -> pa.RecordBatch:
        """The rows of these numbers."""
        ...


class WholeWindowContents(WindowContents):
    """Contents that are rows: what they emit they emit of rows that were in no state, too."""

    @property
    @abstractmethod
    def sides(self) -> Sequence[RowStore]:
        """The rows of each input."""

    @abstractmethod
    def without_rows(self) -> WholeWindowContents:
        """Create contents of the same columns that hold no row."""

    @property
    def row_schemas(self) -> list[pa.Schema]:
        """The columns that are kept of each input."""
        return [side.schema for side in self.sides]

    @property
    def row_count(self) -> int:
        """Return how many rows there are, of all inputs."""
        return sum(len(side) for side in self.sides)

    @abstractmethod
    def rows_made(self, counts: Sequence[Int64Array]) -> Int64Array:
        """How many rows windows emit, or hand to a function, that have so many of each input."""

    def windows_at_once(self, entries: Slots, offsets: Int64Array | None = None) -> int:
        return self.windows_of_rows_at_once(self.sides, entries, offsets)

    def windows_of_rows_at_once(
        self, sides: Sequence[RowsByEntry], entries: Slots, offsets: Int64Array | None = None
    ) -> int:
        """The same of windows whose rows of each input these are."""
        counts = [side.counts(entries).astype(np.int64) for side in sides]
        if offsets is not None:
            counts = [np.add.reduceat(of_entry, offsets[:-1]) for of_entry in counts]
        within = np.searchsorted(np.cumsum(self.rows_made(counts)), ROWS_PER_SLICE, side="right")
        return min(max(1, int(within)), super().windows_at_once(entries, offsets))

    @abstractmethod
    def emit_rows(self, fired: FiredWindows, sides: Sequence[RowsByEntry], output: Output) -> None:
        """Emit the results of the windows that have fired, whose rows of each input these are."""


class ContentsState(AdoptedState):
    """State of windows, whatever they hold."""

    contents: WindowContents

    @abstractmethod
    def describe(self) -> None:
        """Set the descriptor, from what the contents are now."""


def check_contents(fields: Sequence[pa.Field], *, are_rows: bool) -> None:
    """Raise StateError if windows whose contents a snapshot describes so keep their rows, and those of the job
    accumulators, or the other way round."""
    own = [field for field in fields if field.name != SINCE_FIRED]
    kept = any(not pa.types.is_struct(field.type) and not is_held(field) for field in own)
    if kept is not are_rows:
        kinds = ("accumulators of aggregates", "whole rows")
        raise StateError(
            f"the windows in the snapshot hold {kinds[kept]}, and those of the job now {kinds[are_rows]}: keep what is done with "
            "them, or give the operator another uid to start without its state"
        )


class ContentsMaker(ABC):
    """Makes contents when the columns of the input are known."""

    def open(self, context: RuntimeContext) -> None:
        """Open the functions that the contents call; before anything else."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The accumulators, if there are any."""
        return ()

    def start_from(self, known: Sequence[Shape], *, drop: bool) -> None:
        """A snapshot had these. StateError, by column, for what is gone, unless it may be dropped."""

    def shapes_of(self, fields: Sequence[pa.Field]) -> list[Shape]:
        """From `WindowContents.fields` of a snapshot."""
        return []

    @abstractmethod
    def of_batch(self, schema: pa.Schema, current_watermark: Callable[[], int]) -> WindowContents:
        """Make the contents of a fresh state; `current_watermark` is that of the operator."""

    @abstractmethod
    def of_snapshot(self, fields: Sequence[pa.Field], current_watermark: Callable[[], int]) -> WindowContents:
        """Make the contents of a restored state, whose `WindowContents.fields` are these."""


class AccumulatorContents(WindowContents):
    """Counts, sums, minima and maxima, and what other aggregates hold."""

    def __init__(
        self,
        aggregates: Sequence[AnyAggregate],
        plan: AggregatePlan,
        accumulators: Sequence[Accumulator],
        held: Sequence[HeldColumn],
        *,
        may_widen: bool = False,
    ) -> None:
        """`plan` is that of the counts and numbers. `may_widen`: the accumulators are those of a snapshot; the first
        batch may have wider types."""
        self._aggregates = tuple(aggregates)
        self._plan = plan
        self.accumulators = tuple(accumulators)
        self._held = tuple(held)
        self._may_widen = may_widen
        self.columns = {a.name: AggregateColumn(a.descriptor()) for a in accumulators}
        self._output_schema: pa.Schema | None = None

    @property
    def fields(self) -> list[pa.Field]:
        fields = []
        for accumulator in self.accumulators:
            input_type = pa.schema([pa.field("input", accumulator.column_type)]).serialize().to_pybytes()
            storage = accumulator.descriptor().storage_type
            fields.append(pa.field(accumulator.name, storage, metadata={INPUT_TYPE_METADATA: input_type}))
        return [*fields, *(held.field for held in self._held)]

    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        for accumulator in self.accumulators:
            self.columns[accumulator.name].fold(entries, accumulator.numbers(batch), running=False)
        for held in self._held:
            held.fold(entries, batch)

    def merge(self, into: Slots, others: Slots) -> None:
        for column in self.columns.values():
            column.before_write(into)
            np.add.at(column.counts, into, column.counts[others])
            for name, totals in column.totals.items():
                _REDUCERS[name].at(totals, into, totals[others])
        for held in self._held:
            held.merge(into, others)

    def emit(self, fired: FiredWindows, output: Output) -> None:
        entries, offsets = fired.entries, fired.offsets
        columns = self.columns

        def counts_of(name: str) -> Numbers:
            counts = gather_values(columns[name].counts, entries)
            return counts if offsets is None else np.add.reduceat(counts, offsets[:-1])

        def totals_of(name: str, total: str) -> Numbers:
            totals = gather_values(columns[name].totals[total], entries)
            return totals if offsets is None else _REDUCERS[total].reduceat(totals, offsets[:-1])

        results = self._plan.results(self.accumulators, counts_of, totals_of)
        if self._held:
            bounds = fired.bounds()
            held = [one.results(entries, bounds) for one in self._held]
            results = combined_results(self._aggregates, results, self._held, held)
        if self._output_schema is None:
            fields = [pa.field(a.name, column.type) for a, column in zip(self._aggregates, results, strict=True)]
            self._output_schema = pa.schema([*fired.key_fields, *fired.window_fields(), *fields])
        arrays = [*fired.keys, *fired.window_columns(), *results]
        output.emit_batch(pa.RecordBatch.from_arrays(arrays, schema=self._output_schema))

    def grow(self, capacity: int) -> None:
        for column in self.columns.values():
            column.grow(capacity)
        for held in self._held:
            held.grow(capacity)

    def clear(self, entries: Slots) -> None:
        for column in self.columns.values():
            column.clear(entries)
        for held in self._held:
            held.clear(entries)

    def get(self, entries: Slots) -> list[pa.Array]:
        return [*(column.get(entries) for column in self.columns.values()), *(held.get(entries) for held in self._held)]

    def freeze(self, high_water: int) -> list[FrozenColumn]:
        plain = [column.freeze(high_water) for column in self.columns.values()]
        return [*plain, *(held.freeze(high_water) for held in self._held)]

    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        numbers = len(self.accumulators)
        for accumulator, part in zip(self.accumulators, columns[:numbers], strict=True):
            self.columns[accumulator.name].put(entries, part)
        for held, part in zip(self._held, columns[numbers:], strict=True):
            held.restore(entries, part)

    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        for held in self._held:
            held.check(schema, operator_uid)
        needed = self._plan.accumulators(schema)
        if self._may_widen:
            for written, declared in zip(self.accumulators, needed, strict=True):
                check_widens(written.column, written.column_type, declared.column_type)
            self.accumulators, self._output_schema, self._may_widen = needed, None, False
        if needed != self.accumulators:
            raise StateError(
                f"operator {operator_uid!r}: the aggregates, or the types of their columns, are not those that "
                "its state was made for: keep them, or give the operator another uid to start without its state"
            )


class AccumulatorMaker(ContentsMaker):
    """Makes the contents of windows that are aggregated."""

    def __init__(self, aggregates: Sequence[AnyAggregate], input_schema: pa.Schema | None = None) -> None:
        """`input_schema`: as far as it is known before the first batch."""
        self._aggregates = tuple(aggregates)
        self._plan = AggregatePlan(plain_aggregates(aggregates))
        self._input_schema = input_schema

    def open(self, context: RuntimeContext) -> None:
        open_functions(self._aggregates, context)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self._plan.shapes

    def start_from(self, known: Sequence[Shape], *, drop: bool) -> None:
        self._plan.start_from(known, drop=drop)

    def shapes_of(self, fields: Sequence[pa.Field]) -> list[Shape]:
        check_contents(fields, are_rows=False)
        return [accumulator.shape for accumulator in accumulators_of(fields)]

    def of_batch(self, schema: pa.Schema, current_watermark: Callable[[], int]) -> WindowContents:
        held = held_columns(self._aggregates, schema)
        return AccumulatorContents(self._aggregates, self._plan, self._plan.accumulators(schema), held)

    def of_snapshot(self, fields: Sequence[pa.Field], current_watermark: Callable[[], int]) -> WindowContents:
        written = accumulators_of(fields)
        held = restored_held_columns(self._aggregates, fields, self._input_schema)
        if self._input_schema is not None:
            needed = self._plan.accumulators(self._input_schema)
            types = {accumulator.name: accumulator.column_type for accumulator in written}
            for one in needed:
                check_widens(one.column, types.get(one.name, one.column_type), one.column_type)
            return AccumulatorContents(self._aggregates, self._plan, needed, held)
        known = {accumulator.column: accumulator.column_type for accumulator in written if accumulator.aggregates}
        accumulators = [self._accumulator_of(shape, known) for shape in self.shapes]
        return AccumulatorContents(self._aggregates, self._plan, accumulators, held, may_widen=True)

    @staticmethod
    def _accumulator_of(shape: Shape, known: Mapping[str, pa.DataType]) -> Accumulator:
        if not shape.aggregates:
            return Accumulator(shape.name, shape.column, pa.int64(), ())
        if shape.column not in known:
            raise StateError(
                f"column {shape.column!r}: {', '.join(shape.aggregates)} of it is new, and its type is not known before the first row: "
                "declare the schema of the operator that comes before (schema=)"
            )
        return Accumulator(shape.name, shape.column, known[shape.column], shape.aggregates)


def accumulators_of(fields: Sequence[pa.Field]) -> tuple[Accumulator, ...]:
    """Return the accumulators that `AccumulatorContents.fields` has described."""
    found = []
    for child in fields:
        if is_held(child) or child.name == SINCE_FIRED:
            continue
        declared = pa.ipc.read_schema(pa.py_buffer((child.metadata or {})[INPUT_TYPE_METADATA])).field(0).type
        totals = tuple(
            child.type.field(i).name for i in range(child.type.num_fields) if child.type.field(i).name != "count"
        )
        found.append(Accumulator(child.name, Shape(child.name, totals).column, declared, totals))
    return tuple(found)
