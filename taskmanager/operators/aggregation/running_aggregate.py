"""For every row its key's aggregates so far, itself included.

Decides which accumulators are folded: one kernel call per input column and batch, with the result after each row. Rows
are counted by the first column that is aggregated as long as that column has had no nulls; from its first null on they
have a count of their own, which begins with what the column had counted. Goes on with the accumulators of a snapshot,
as AggregatePlan has it. It does not know how keys are found. There is no such operator in Flink; a KeyedProcessFunction
over ValueState does it there, a row at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import RunningAggregateDescriptor, descriptor_of
from snapline.dataflow.columnar.arrow_columns import column_named
from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import RunningAggregateSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.dataflow.snapshot.state_format import KeyedStateHeader
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.aggregation.accumulator_shapes import keep_shapes, restored_shapes, start_from
from snapline.taskmanager.operators.aggregation.aggregate_plan import (
    ROWS,
    Accumulator,
    AggregatePlan,
    Numbers,
    Shape,
    check_widens,
    counts_and_totals,
)
from snapline.taskmanager.operators.aggregation.held_by_key import HELD_STATE, HeldByKey, held_fields
from snapline.taskmanager.operators.aggregation.held_columns import HELD_PREFIX, HeldColumn, combined_results
from snapline.taskmanager.operators.aggregation.held_factory import (
    held_columns,
    open_functions,
    plain_aggregates,
    restored_held_columns,
)
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.incremental_operator import IncrementalKeyedOperator
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.keyed_state import RunningAggregateState

COUNTED_BY_STATE = "rows-counted-by"
_ROWS_DESCRIPTOR = RunningAggregateDescriptor(ROWS, pa.int64(), ())


class RunningAggregateOperator(IncrementalKeyedOperator):
    """One batch in, one batch of as many rows out."""

    why_no_state = "functions of aggregates have none beside their accumulators: use key_by(...).process(...)"

    def __init__(self, spec: RunningAggregateSpec) -> None:
        super().__init__(spec.key_columns)
        self._passthrough = spec.passthrough
        self._known_schema = spec.input_schema
        self._aggregates = spec.aggregates
        self._plan = AggregatePlan(plain_aggregates(spec.aggregates))
        self._held: HeldByKey | None = None
        """What aggregates hold that are more than counts and numbers."""
        self._drops_held = False
        """The snapshot has some of these, and the job none."""
        self._accumulators: tuple[Accumulator, ...] = ()
        self._input_schema: pa.Schema | None = None
        self._states: dict[str, RunningAggregateState] = {}
        self._counted_by = ""
        """Accumulator that also counts the rows; empty: they have their own."""
        self._goes_on = False
        """Subtasks of a snapshot may have counted rows by another accumulator."""
        self._output_schema: pa.Schema | None = None

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        if header is None:
            if batch is not None:
                self._adopt(backend, held_columns(self._aggregates, batch.schema))
            return
        self._restore_held(backend, header)
        found = [descriptor_of(field) for field in header.state_fields]
        running = [one for one in found if isinstance(one, RunningAggregateDescriptor)]
        names = {field.name for field in header.state_fields}
        if not running and HELD_STATE not in names:  # before shapes are looked at, which windows have as well
            self.refuse_foreign(backend.asked_for, names)
        shapes = restored_shapes(self.operator_state) or [Shape(one.name, one.aggregates) for one in running]
        self._goes_on = start_from(shapes, self._plan, self)
        kept = {shape.name: shape.aggregates for shape in self._plan.shapes}
        for one in running:
            declared = replace(one, aggregates=kept.get(one.name, one.aggregates))
            self._check_type(one)
            self._states[one.name] = backend.get_running_aggregate(declared)

    def _restore_held(self, backend: KeyedStateBackend, header: KeyedStateHeader) -> None:
        """Aggregates that hold values or accumulators go on with those of the snapshot."""
        fields = [child for field in header.state_fields if field.name == HELD_STATE for child in held_fields(field)]
        if not fields and self._known_schema is None:
            return  # the first batch tells the types of those that are new
        if fields and len(self._plan.aggregates) == len(self._aggregates):
            self._drop_held(fields)
        else:
            self._adopt(backend, restored_held_columns(self._aggregates, fields, self._known_schema))

    def _drop_held(self, fields: Sequence[pa.Field]) -> None:
        """The job has no such aggregate any more. StateError that names them, without leave."""
        if not self.setting(DROP_STATE_COLUMNS):
            gone = ", ".join(repr(field.name.removeprefix(HELD_PREFIX)) for field in fields)
            raise StateError(
                f"operator {self.context.operator_uid!r}: aggregate {gone} is in the snapshot and not in the job any more: ask for it "
                f"again, or allow that it is dropped ({DROP_STATE_COLUMNS.key} = true, --drop-state-columns)"
            )
        self._drops_held = True

    def _adopt(self, backend: KeyedStateBackend, columns: Sequence[HeldColumn]) -> None:
        if columns:
            self._held = HeldByKey(columns)
            backend.adopt_state(self._held)

    def initialize_state(self, restored: RestoredState) -> None:
        open_functions(self._aggregates, FunctionRuntimeContext(self.context, self.why_no_state))
        super().initialize_state(restored)
        if self.backend is None:  # a subtask without keys goes on with the accumulators of the others
            self._goes_on = start_from(restored_shapes(self.operator_state), self._plan, self)

    def _check_type(self, written: RunningAggregateDescriptor) -> None:
        """As far as the input's columns are known. The type of the column is not, only what it was folded as."""
        column, schema = Shape(written.name, ()).column, self._known_schema
        if schema is not None and written.aggregates and column in schema.names:
            declared = schema.field(column).type
            if pa.types.is_floating(declared) != pa.types.is_floating(written.accumulator_type):
                check_widens(column, written.accumulator_type, declared)

    def backend_restored(self, backend: KeyedStateBackend) -> None:
        """Some of the subtasks that the state comes from may have counted rows apart, others not yet."""
        named = self.operator_state.list_state(COUNTED_BY_STATE, OperatorStateMode.UNION).get()
        counted_by = next((name for name in named if name), "")
        kept = {shape.name for shape in self._plan.shapes}
        if counted_by in self._states:
            self._counted_by = counted_by
            if backend.has_state(ROWS) or (counted_by not in kept and ROWS in kept):
                self._count_rows_apart(backend)
        for name in [name for name in self._states if name not in kept]:
            backend.remove_state(name)
            del self._states[name]
            self._counted_by = "" if name == self._counted_by else self._counted_by
        if self._drops_held and backend.has_state(HELD_STATE):
            backend.remove_state(HELD_STATE)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        slots = self.slots_of(batch)
        if self._input_schema is None or not self._input_schema.equals(batch.schema):
            self._prepare(batch)
            slots = self.slots_of(batch)  # counting rows apart may have moved keys
        folded: dict[str, dict[str, Numbers]] = {}
        for accumulator in self._accumulators:
            if accumulator.name == ROWS:
                continue
            numbers = accumulator.numbers(batch)
            if accumulator.name == self._counted_by and isinstance(numbers, pa.Array) and numbers.null_count:
                self._count_rows_apart(self._backend())
                slots = self.slots_of(batch)
            folded[accumulator.name] = self._states[accumulator.name].fold_batch(slots, numbers)
        if self._counted_by:
            folded[ROWS] = folded[self._counted_by]
        elif ROWS in self._states:
            folded[ROWS] = self._states[ROWS].fold_batch(slots, np.zeros(len(slots), np.int64))
        columns = [column_named(batch, name) for name in (*self.key_columns, *self._passthrough)]
        results = self._plan.results(self._accumulators, *counts_and_totals(folded))
        if self._held is not None:
            held = self._held.fold_batch(slots, batch)
            results = combined_results(self._aggregates, results, self._held.columns, held)
        columns.extend(results)
        self.output.emit_batch(pa.RecordBatch.from_arrays(columns, schema=self._output_schema))

    def _backend(self) -> KeyedStateBackend:
        return check(self.backend, "there is no backend, although there was a batch")

    def _prepare(self, batch: pa.RecordBatch) -> None:
        """The first batch, or one of another schema: know accumulators, states and the schema of the output."""
        schema = batch.schema
        self._accumulators = self._plan.accumulators(schema)
        backend = self._backend()
        names = [accumulator.name for accumulator in self._accumulators if accumulator.name != ROWS]
        is_fresh = not self._states and not self._goes_on
        for accumulator in self._accumulators:
            if accumulator.name != ROWS:
                self._states[accumulator.name] = backend.get_running_aggregate(accumulator.descriptor())
        if len(names) < len(self._accumulators):
            if is_fresh and names:
                self._counted_by = names[0]
            elif self._counted_by and self._counted_by not in names:
                self._count_rows_apart(backend)
            elif not self._counted_by:
                self._states[ROWS] = backend.get_running_aggregate(_ROWS_DESCRIPTOR)
        if self._held is None:
            self._adopt(backend, held_columns(self._aggregates, schema))
        if self._held is not None:
            for one in self._held.columns:
                one.check(schema, self.context.operator_uid)
        missing = [name for name in self._passthrough if schema.get_field_index(name) < 0]
        if missing:
            raise KeyError(f"no column {missing[0]!r} to pass through: the columns are {', '.join(schema.names)}")
        fields = [schema.field(name).remove_metadata() for name in (*self.key_columns, *self._passthrough)]
        results = {field.name: field for field in self._plan.result_fields(self._accumulators)}
        for one in self._held.columns if self._held is not None else ():
            results[one.aggregate.name] = pa.field(one.aggregate.name, one.result_type)
        self._output_schema = pa.schema([*fields, *(results[aggregate.name] for aggregate in self._aggregates)])
        self._input_schema = schema

    def _count_rows_apart(self, backend: KeyedStateBackend) -> None:
        """Until now a key had as many rows as values; where rows were counted apart already, that count stands. Walks
        over all keys, which may move: slots looked up before mean nothing afterwards."""
        counted = self._states[self._counted_by].column
        rows = backend.get_running_aggregate(_ROWS_DESCRIPTOR)

        def count(slots: Slots) -> None:
            known = rows.column.counts[slots]
            rows.column.before_write(slots)
            rows.column.counts[slots] = np.where(known == 0, counted.counts[slots], known)

        backend.update_all(count)
        self._states[ROWS] = rows
        self._counted_by = ""

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        self.operator_state.list_state(COUNTED_BY_STATE, OperatorStateMode.UNION).update([self._counted_by])
        keep_shapes(self.operator_state, self._plan.shapes)
        return super().snapshot_state(checkpoint_id, timestamp_ms)
