"""From the specification of a window to its operator: which windows, and what they hold.

Mirrors Flink's WindowOperatorBuilder.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from snapline.dataflow.api.triggers import ContinuousEventTimeTrigger, CountTrigger, PurgingTrigger
from snapline.dataflow.api.windows import EventTimeSessionWindows, GlobalWindows, ProcessingTimeSessionWindows
from snapline.dataflow.graph.operator_specs import WindowAggregateSpec, WindowProcessSpec
from snapline.taskmanager.operators.base.keyed_operator import KeyedOperator
from snapline.taskmanager.operators.windows.count_windows import CountWindowOperator
from snapline.taskmanager.operators.windows.extreme_rows import ExtremeRows, kept_by
from snapline.taskmanager.operators.windows.global_windows import GlobalWindowOperator
from snapline.taskmanager.operators.windows.pane_windows import PaneWindowOperator
from snapline.taskmanager.operators.windows.row_contents import (
    ALL_ROWS,
    REDUCED_ROWS,
    BatchWindowCall,
    ReducedContents,
    RowContents,
    RowMaker,
    RowWindowCall,
)
from snapline.taskmanager.operators.windows.session_windows import SessionWindowOperator
from snapline.taskmanager.operators.windows.triggered_contents import TriggeredMaker
from snapline.taskmanager.operators.windows.window_contents import AccumulatorMaker, ContentsMaker, WindowContents


def create_window_operator(spec: WindowAggregateSpec | WindowProcessSpec) -> KeyedOperator:
    """Create the operator of one spec."""
    if isinstance(spec, WindowAggregateSpec):
        return _operator(spec, AccumulatorMaker(spec.aggregates, spec.input_schema))
    operator = _operator(spec, _row_maker(spec))
    operator.user_function = spec.function
    return operator


def _row_maker(spec: WindowProcessSpec) -> ContentsMaker:
    def create(schema: pa.Schema, current_watermark: Callable[[], int]) -> WindowContents:
        match spec.form:
            case "reduce":
                return ReducedContents(schema, spec.function, spec.key_columns)
            case "rows_by":
                return ExtremeRows(schema, spec.function)
            case "batches":
                return RowContents(schema, BatchWindowCall(spec.function, spec.output_schema))
            case _:
                return RowContents(schema, RowWindowCall(spec, current_watermark))

    match spec.form:
        case "reduce":
            kept = REDUCED_ROWS
        case "rows_by":
            kept = kept_by(spec.function)
        case _:
            kept = ALL_ROWS
    return RowMaker(create, kept)


def _operator(spec: WindowAggregateSpec | WindowProcessSpec, maker: ContentsMaker) -> KeyedOperator:
    lateness_ms, tag = spec.allowed_lateness_ms, spec.late_output_tag
    if spec.early_trigger is not None:
        maker = TriggeredMaker(maker, spec.early_trigger)
    match spec.assigner:
        case EventTimeSessionWindows() | ProcessingTimeSessionWindows():
            return SessionWindowOperator(
                spec.key_columns, spec.event_time_column, spec.assigner, maker, lateness_ms, tag
            )
        case GlobalWindows(CountTrigger() as trigger):
            return CountWindowOperator(spec.key_columns, trigger, maker)
        case GlobalWindows(trigger):
            inner = trigger.trigger if isinstance(trigger, PurgingTrigger) else trigger
            time_column = spec.event_time_column if isinstance(inner, ContinuousEventTimeTrigger) else ""
            return GlobalWindowOperator(spec.key_columns, TriggeredMaker(maker, trigger), time_column)
        case assigner:
            return PaneWindowOperator([(spec.key_columns, spec.event_time_column)], assigner, maker, lateness_ms, tag)
