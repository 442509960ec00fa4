"""From an operator's specification, as it comes with a deployment, to the operator that runs.

Decides which class serves which specification, and how a payload that cannot be used is reported. Mirrors Flink's
StreamOperatorFactory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle

from dataflow.errors import JobDefinitionError
from dataflow.operator_specs import (
    CustomOperatorSpec,
    FilterRowsSpec,
    FilterSpec,
    FlatMapRowsSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    MapRowsSpec,
    RunningAggregateSpec,
    SinkFunctionSpec,
    SinkSpec,
    SourceFunctionSpec,
    SourceSpec,
    WatermarkSpec,
    WindowAggregateSpec,
)
from taskmanager.operators.contract import StreamOperator
from taskmanager.operators.push_source import PushSourceOperator, PushSourceRunner
from taskmanager.operators.sink_function_operator import SinkFunctionOperator
from taskmanager.operators.sink_operator import SinkOperator
from taskmanager.operators.source_operator import SourceOperator
from taskmanager.operators.stateless import (
    FilterOperator,
    FilterRowsOperator,
    FlatMapRowsOperator,
    MapBatchesOperator,
    MapRowsOperator,
)
from taskmanager.operators.watermark_operator import WatermarkOperator


def load_spec(payload: bytes, operator_uid: str) -> Any:
    """Unpickle. JobDefinitionError that names the operator and what is missing here."""
    try:
        spec = cloudpickle.loads(payload)
        return spec() if callable(spec) else spec
    except Exception as error:
        raise JobDefinitionError(
            f"operator {operator_uid!r} cannot be unpickled on the TaskManager: {type(error).__name__}: {error}; every module "
            "that the job's functions import must be installed there, in the same version as on the driver"
        ) from error


def create_operator(spec: Any, create_push_source_runner: Callable[[], PushSourceRunner]) -> StreamOperator:
    """The operator of a specification."""
    match spec:
        case SourceSpec():
            return SourceOperator(spec)
        case SourceFunctionSpec():
            return PushSourceOperator(spec, create_push_source_runner())
        case MapBatchesSpec():
            return MapBatchesOperator(spec)
        case FilterSpec():
            return FilterOperator(spec)
        case MapRowsSpec():
            return MapRowsOperator(spec)
        case FlatMapRowsSpec():
            return FlatMapRowsOperator(spec)
        case FilterRowsSpec():
            return FilterRowsOperator(spec)
        case WatermarkSpec():
            return WatermarkOperator(spec)
        case RunningAggregateSpec() | WindowAggregateSpec() | KeyedProcessSpec():
            return _create_keyed_operator(spec)
        case SinkSpec():
            return SinkOperator(spec)
        case SinkFunctionSpec():
            return SinkFunctionOperator(spec)
        case CustomOperatorSpec():
            return _create_custom_operator(spec)
    raise JobDefinitionError(f"no operator for a {type(spec).__name__}: driver and TaskManager run different versions")


def _create_keyed_operator(spec: RunningAggregateSpec | WindowAggregateSpec | KeyedProcessSpec) -> StreamOperator:
    # Imported late: these bring a compiler, which stateless tasks do without.
    match spec:
        case RunningAggregateSpec():
            from taskmanager.operators.running_aggregate import RunningAggregateOperator

            return RunningAggregateOperator(spec)
        case WindowAggregateSpec():
            from taskmanager.operators.window_aggregate import WindowAggregateOperator

            return WindowAggregateOperator(spec)
        case KeyedProcessSpec():
            from taskmanager.operators.keyed_process import KeyedProcessOperator

            return KeyedProcessOperator(spec)


def _create_custom_operator(spec: CustomOperatorSpec) -> StreamOperator:
    operator = spec.factory(**spec.arguments)
    if not isinstance(operator, StreamOperator):
        raise JobDefinitionError(
            f"a custom operator's factory must return a StreamOperator, not a {type(operator).__name__}"
        )
    return operator
