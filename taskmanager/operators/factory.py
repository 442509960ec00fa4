"""From an operator's specification, as it comes with a deployment, to the operator that runs.

Decides which class serves which specification, and how a payload that cannot be used is reported. Mirrors Flink's
StreamOperatorFactory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.failures import message_of
from snapline.dataflow.graph.declared_payload import load_payload
from snapline.dataflow.graph.operator_specs import (
    AsyncSpec,
    CoProcessSpec,
    CustomOperatorSpec,
    ExternalSpec,
    FilterRowsSpec,
    FilterSpec,
    FlatMapRowsSpec,
    GlobalCommitterSpec,
    IntervalJoinSpec,
    KeyedBatchProcessSpec,
    KeyedProcessSpec,
    MapBatchesSpec,
    MapRowsSpec,
    ProcessSpec,
    RunningAggregateSpec,
    SinkFunctionSpec,
    SinkSpec,
    SinkWriterSpec,
    SourceFunctionSpec,
    SourceSpec,
    SplitEnumeratorSpec,
    TableLookupSpec,
    TemporalJoinSpec,
    WatermarkSpec,
    WindowAggregateSpec,
    WindowJoinSpec,
    WindowProcessSpec,
)
from snapline.dataflow.wire.messages import ResultPartitionDescriptor
from snapline.taskmanager.operators.base.failure import is_of_operator
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.operators.base.stateless import (
    FilterOperator,
    FilterRowsOperator,
    FlatMapRowsOperator,
    MapBatchesOperator,
    MapRowsOperator,
)
from snapline.taskmanager.operators.sinks.global_committer_operator import GlobalCommitterOperator
from snapline.taskmanager.operators.sinks.sink_function_operator import SinkFunctionOperator
from snapline.taskmanager.operators.sinks.sink_operator import SinkOperator
from snapline.taskmanager.operators.sinks.sink_writer_operator import SinkWriterOperator
from snapline.taskmanager.operators.sources.push_source_operator import PushSourceOperator, PushSourceRunner
from snapline.taskmanager.operators.sources.source_operator import SourceOperator
from snapline.taskmanager.operators.sources.split_enumerator_operator import SplitEnumeratorOperator
from snapline.taskmanager.operators.sources.split_reader_operator import SplitReaderOperator
from snapline.taskmanager.operators.sources.watermark_operator import WatermarkOperator

if TYPE_CHECKING:
    from snapline.taskmanager.operators.windows.beaten_rows import BeatenRows


def load_spec(payload: bytes, operator_uid: str, unpickle: Callable[[bytes], Any] = load_payload) -> Any:
    """Unpickle, or build what was declared. JobDefinitionError that names the operator and what is missing here."""
    try:
        spec = unpickle(payload)
        return spec() if callable(spec) else spec
    except JobDefinitionError as error:
        raise JobDefinitionError(f"operator {operator_uid!r}: {error}") from error
    except BaseException as error:
        if not is_of_operator(error):
            raise
        way_out = (
            "every module that the job's functions import must be installed there, in the same version as on the driver"
        )
        if isinstance(error, SystemExit):
            way_out = "a module that calls sys.exit() does so under if __name__ == '__main__':"
        raise JobDefinitionError(
            f"operator {operator_uid!r} cannot be unpickled on the TaskManager: {type(error).__name__}: {message_of(error)}; "
            f"{way_out}"
        ) from error


def create_combiner(edge: ResultPartitionDescriptor, unpickle: Callable[[bytes], Any]) -> BeatenRows:
    """What keeps rows back that need not be sent over an edge."""
    from snapline.taskmanager.operators.windows.beaten_rows import BeatenRows

    return BeatenRows(load_spec(edge.combiner, f"edge {edge.edge_id}", unpickle))


def create_operator(spec: Any, create_push_source_runner: Callable[[], PushSourceRunner]) -> StreamOperator:
    """The operator of a specification."""
    match spec:
        case SourceSpec():
            return SplitReaderOperator(spec) if spec.is_fed else SourceOperator(spec)
        case SplitEnumeratorSpec():
            from snapline.taskmanager.threads.background_call import BackgroundCall

            return SplitEnumeratorOperator(spec, BackgroundCall)
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
        case ProcessSpec():
            from snapline.taskmanager.operators.process.process_operator import ProcessOperator

            return ProcessOperator(spec)
        case WatermarkSpec():
            return WatermarkOperator(spec)
        case RunningAggregateSpec() | WindowAggregateSpec() | WindowProcessSpec() | KeyedProcessSpec():
            return _create_keyed_operator(spec)
        case KeyedBatchProcessSpec() | CoProcessSpec() | WindowJoinSpec() | IntervalJoinSpec() | TemporalJoinSpec():
            return _create_operator_of_two(spec)
        case TableLookupSpec():
            from snapline.taskmanager.operators.joins.table_lookup import TableLookupOperator

            return TableLookupOperator(spec)
        case AsyncSpec():
            from snapline.taskmanager.operators.process.async_operator import AsyncOperator
            from snapline.taskmanager.threads.async_calls import EventLoopCalls

            return AsyncOperator(spec, EventLoopCalls)
        case SinkSpec():
            return SinkOperator(spec)
        case SinkWriterSpec():
            return SinkWriterOperator(spec)
        case GlobalCommitterSpec():
            return GlobalCommitterOperator(spec)
        case SinkFunctionSpec():
            return SinkFunctionOperator(spec)
        case ExternalSpec():
            from snapline.taskmanager.operators.external.external_operators import (
                ExternalOperator,
                ExternalSourceOperator,
            )

            return ExternalSourceOperator(spec) if spec.shape == "source" else ExternalOperator(spec)
        case CustomOperatorSpec():
            return _create_custom_operator(spec)
    raise JobDefinitionError(f"no operator for a {type(spec).__name__}: driver and TaskManager run different versions")


def _create_keyed_operator(
    spec: RunningAggregateSpec | WindowAggregateSpec | WindowProcessSpec | KeyedProcessSpec,
) -> StreamOperator:
    # Imported late: these bring a compiler, which stateless tasks do without.
    match spec:
        case RunningAggregateSpec():
            from snapline.taskmanager.operators.aggregation.running_aggregate import RunningAggregateOperator

            return RunningAggregateOperator(spec)
        case WindowAggregateSpec() | WindowProcessSpec():
            from snapline.taskmanager.operators.windows.window_factory import create_window_operator

            return create_window_operator(spec)
        case KeyedProcessSpec():
            from snapline.taskmanager.operators.process.keyed_process import KeyedProcessOperator

            return KeyedProcessOperator(spec)


def _create_operator_of_two(
    spec: KeyedBatchProcessSpec | CoProcessSpec | WindowJoinSpec | IntervalJoinSpec | TemporalJoinSpec,
) -> StreamOperator:
    match spec:
        case KeyedBatchProcessSpec():
            from snapline.taskmanager.operators.process.keyed_batches import KeyedBatchesOperator

            inputs = [(spec.key_columns, spec.event_time_column)]
            return KeyedBatchesOperator(inputs, [spec.function.process_batch], spec.function, spec.output_schema)
        case CoProcessSpec():
            from snapline.taskmanager.operators.process.co_process import create_co_process_operator

            operator: StreamOperator = create_co_process_operator(spec)
            return operator
        case WindowJoinSpec():
            from snapline.taskmanager.operators.joins.window_join import create_window_join

            return create_window_join(spec)
        case IntervalJoinSpec():
            from snapline.taskmanager.operators.joins.stream_joins import IntervalJoinOperator

            return IntervalJoinOperator(spec)
        case TemporalJoinSpec():
            from snapline.taskmanager.operators.joins.stream_joins import TemporalJoinOperator

            return TemporalJoinOperator(spec)


def _create_custom_operator(spec: CustomOperatorSpec) -> StreamOperator:
    operator = spec.factory(**spec.arguments)
    if not isinstance(operator, StreamOperator):
        raise JobDefinitionError(
            f"a custom operator's factory must return a StreamOperator, not a {type(operator).__name__}"
        )
    return operator
