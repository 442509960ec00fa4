"""Snapline: exactly-once streaming Python on Spark. Everything that a user touches starts here.

Public are the names in `__all__` here and in `snapline.client`, `snapline.connectors`, `snapline.external`,
`snapline.sidecar`, `snapline.state` and `snapline.testing`; every other module is for Snapline itself, and may change
from one version to the next (decision 7).

Names are loaded when they are first asked for (PEP 562): a coordinator or a client that imports one room of Snapline
does not pay for Arrow and for the operators that it never uses.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from snapline.moved_names import MOVED_NAMES, name_moved, tell_where_former_rooms_are
from snapline.runtime import version

# gRPC reads these when it is imported, which is after this module wherever Snapline uses it. With its fork handlers a
# child that is forked beside open channels starts gRPC's threads again, and dies of them now and then before it becomes
# another program, such as the Java that PySpark starts. Early versions of gRPC write a line at level INFO for each
# connection that ends, into the console of the user.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

if TYPE_CHECKING:
    from snapline.aggregates import (
        approx_count_distinct,
        approx_quantile,
        batch_aggregate,
        collect_list,
        count,
        count_distinct,
        first,
        last,
        mean,
        median,
        quantile,
        top_n,
    )
    from snapline.aggregates import max as max  # noqa: A004 - said again, it is public without being in __all__
    from snapline.aggregates import min as min  # noqa: A004
    from snapline.aggregates import sum as sum  # noqa: A004
    from snapline.checkpointing import Checkpointing
    from snapline.client import JobFailed
    from snapline.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from snapline.connectors.builtin.generator import GeneratorSource
    from snapline.connectors.parquet import ParquetSink, ParquetSource
    from snapline.dataflow.api.accumulators import DoubleCounter, Histogram, LongCounter
    from snapline.dataflow.api.async_retries import AsyncRetryStrategy
    from snapline.dataflow.api.bad_rows import BadRow
    from snapline.dataflow.api.batch_aggregates import BatchAggregateFunction
    from snapline.dataflow.api.connector_api import (
        Committable,
        Committer,
        Discovery,
        GlobalCommittable,
        GlobalCommitter,
        InputStatus,
        Polled,
        Sink,
        SinkWriter,
        Source,
        SourceContextInfo,
        SourceReader,
        SourceSplit,
        SplitEnumerator,
    )
    from snapline.dataflow.api.function_contexts import (
        BatchKeys,
        BatchState,
        BroadcastContext,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        OperatorListState,
        OperatorStateStore,
        ProcessContext,
        Row,
        RuntimeContext,
        SourceContext,
        TimerService,
        WindowContext,
    )
    from snapline.dataflow.api.functions import (
        AsyncFunction,
        BatchResult,
        BroadcastProcessFunction,
        CheckpointedFunction,
        CheckpointListener,
        CoProcessFunction,
        Function,
        KeyedBatchProcessFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoBatchProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        ProcessWindowFunction,
        SideOutput,
        SourceFunction,
    )
    from snapline.dataflow.api.master_hooks import MasterTriggerRestoreHook, WithMasterCheckpointHook
    from snapline.dataflow.api.process_function import ProcessFunction
    from snapline.dataflow.api.state import (
        AggregateFunction,
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        NamedSerializer,
        ReducingState,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueState,
        ValueStateDescriptor,
        register_serializer,
    )
    from snapline.dataflow.api.state_ttl import StateTtlConfig, TtlError, TtlUpdate
    from snapline.dataflow.api.triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountTrigger,
        ProcessingTimeoutTrigger,
        PurgingTrigger,
    )
    from snapline.dataflow.api.two_phase_commit import SinkFunction, TwoPhaseCommitSinkFunction
    from snapline.dataflow.api.user_metrics import BucketHistogram, Counter, Gauge, MetricGroup
    from snapline.dataflow.api.watermark_generators import WatermarkGenerator, WatermarkOutput
    from snapline.dataflow.api.watermarks import WatermarkAlignmentParams, WatermarkStrategy
    from snapline.dataflow.api.windows import (
        Aggregate,
        EventTimeSessionWindows,
        GlobalWindows,
        ProcessingTimeSessionWindows,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TimeWindow,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from snapline.dataflow.config import ConfigurationError
    from snapline.dataflow.errors import ConnectorError, InvalidArgument, JobDefinitionError, SnaplineError, StateError
    from snapline.dataflow.snapshot.state_evolution import with_default
    from snapline.embed import PartitionProgress, Resumable, ResumableError, ResumableFunction, resumable
    from snapline.environment import StreamExecutionEnvironment
    from snapline.expressions.expression import Expr, coalesce, col, concat_str, lit, when
    from snapline.job_files import job_file
    from snapline.job_result import JobExecutionResult
    from snapline.joined import JoinedStreams
    from snapline.keyed import KeyedStream
    from snapline.spark.data_source_registration import register_data_source
    from snapline.stream import DataStream
    from snapline.stream_sink import DataStreamSink
    from snapline.windowed import WindowedStream

__version__ = version.VERSION

# `sum`, `min` and `max` are left out: `from snapline import *` must not take Python's own away (decision 6).
__all__ = [
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "BadRow",
    "BatchAggregateFunction",
    "BatchKeys",
    "BatchResult",
    "BatchState",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "BucketHistogram",
    "CheckpointListener",
    "CheckpointedFunction",
    "Checkpointing",
    "CoProcessFunction",
    "Committable",
    "Committer",
    "ConfigurationError",
    "ConnectedStreams",
    "ConnectorError",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "Counter",
    "DataStream",
    "DataStreamSink",
    "Discovery",
    "DoubleCounter",
    "EventTimeSessionWindows",
    "Expr",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "Gauge",
    "GeneratorSource",
    "GlobalCommittable",
    "GlobalCommitter",
    "GlobalWindows",
    "Histogram",
    "InputStatus",
    "InvalidArgument",
    "JobDefinitionError",
    "JobExecutionResult",
    "JobFailed",
    "JoinedStreams",
    "KeyedBatchProcessFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoBatchProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "LongCounter",
    "MapState",
    "MapStateDescriptor",
    "MasterTriggerRestoreHook",
    "MetricGroup",
    "NamedSerializer",
    "OperatorListState",
    "OperatorStateStore",
    "ParquetSink",
    "ParquetSource",
    "PartitionProgress",
    "Polled",
    "ProcessContext",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "ReducingState",
    "ReducingStateDescriptor",
    "Resumable",
    "ResumableError",
    "ResumableFunction",
    "Row",
    "RuntimeContext",
    "SideOutput",
    "Sink",
    "SinkFunction",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SnaplineError",
    "Source",
    "SourceContext",
    "SourceContextInfo",
    "SourceFunction",
    "SourceReader",
    "SourceSplit",
    "SplitEnumerator",
    "StateDescriptor",
    "StateError",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "TimeWindow",
    "TimerService",
    "TtlError",
    "TtlUpdate",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TwoPhaseCommitSinkFunction",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkAlignmentParams",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowContext",
    "WindowedStream",
    "WithMasterCheckpointHook",
    "approx_count_distinct",
    "approx_quantile",
    "batch_aggregate",
    "coalesce",
    "col",
    "collect_list",
    "concat_str",
    "count",
    "count_distinct",
    "first",
    "job_file",
    "last",
    "lit",
    "mean",
    "median",
    "quantile",
    "register_data_source",
    "register_serializer",
    "resumable",
    "top_n",
    "when",
    "with_default",
]

_PLACES = {
    "snapline.aggregates": """
        approx_count_distinct approx_quantile batch_aggregate collect_list count count_distinct first last max mean
        median min quantile sum top_n
    """,
    "snapline.checkpointing": "Checkpointing",
    "snapline.client": "JobFailed",
    "snapline.connected": "BroadcastConnectedStream BroadcastStream ConnectedStreams",
    "snapline.connectors.builtin.generator": "GeneratorSource",
    "snapline.connectors.parquet": "ParquetSink ParquetSource",
    "snapline.dataflow.api.connector_api": """
        Committable Committer Discovery GlobalCommittable GlobalCommitter InputStatus Polled Sink SinkWriter Source
        SourceContextInfo SourceReader SourceSplit SplitEnumerator
    """,
    "snapline.dataflow.api.function_contexts": """
        BatchKeys BatchState BroadcastContext FunctionInitializationContext FunctionSnapshotContext
        OperatorListState OperatorStateStore ProcessContext Row RuntimeContext SourceContext TimerService
        WindowContext
    """,
    "snapline.dataflow.api.functions": """
        AsyncFunction BatchResult BroadcastProcessFunction CheckpointedFunction CheckpointListener CoProcessFunction
        Function KeyedBatchProcessFunction KeyedBroadcastProcessFunction KeyedCoBatchProcessFunction KeyedCoProcessFunction
        KeyedProcessFunction ProcessWindowFunction SideOutput SourceFunction
    """,
    "snapline.dataflow.api.master_hooks": "MasterTriggerRestoreHook WithMasterCheckpointHook",
    "snapline.dataflow.api.process_function": "ProcessFunction",
    "snapline.dataflow.api.state": """
        AggregateFunction AggregatingState AggregatingStateDescriptor ListState ListStateDescriptor MapState
        MapStateDescriptor NamedSerializer ReducingState ReducingStateDescriptor StateDescriptor
        ValueState ValueStateDescriptor register_serializer
    """,
    "snapline.dataflow.api.state_ttl": "StateTtlConfig TtlError TtlUpdate",
    "snapline.dataflow.api.two_phase_commit": "SinkFunction TwoPhaseCommitSinkFunction",
    "snapline.dataflow.api.watermarks": "WatermarkAlignmentParams WatermarkStrategy",
    "snapline.dataflow.api.windows": """
        Aggregate EventTimeSessionWindows GlobalWindows ProcessingTimeSessionWindows SlidingEventTimeWindows
        SlidingProcessingTimeWindows TimeWindow TumblingEventTimeWindows TumblingProcessingTimeWindows WindowAssigner
    """,
    "snapline.dataflow.api.async_retries": "AsyncRetryStrategy",
    "snapline.dataflow.api.bad_rows": "BadRow",
    "snapline.dataflow.api.batch_aggregates": "BatchAggregateFunction",
    "snapline.dataflow.api.watermark_generators": "WatermarkGenerator WatermarkOutput",
    "snapline.dataflow.api.triggers": """
        ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger CountTrigger ProcessingTimeoutTrigger PurgingTrigger
    """,
    "snapline.dataflow.api.accumulators": "DoubleCounter Histogram LongCounter",
    "snapline.dataflow.api.user_metrics": "BucketHistogram Counter Gauge MetricGroup",
    "snapline.dataflow.config": "ConfigurationError",
    "snapline.dataflow.errors": "ConnectorError InvalidArgument JobDefinitionError SnaplineError StateError",
    "snapline.dataflow.snapshot.state_evolution": "with_default",
    "snapline.embed": "PartitionProgress Resumable ResumableError ResumableFunction resumable",
    "snapline.environment": "StreamExecutionEnvironment",
    "snapline.expressions.expression": "Expr coalesce col concat_str lit when",
    "snapline.job_files": "job_file",
    "snapline.job_result": "JobExecutionResult",
    "snapline.joined": "JoinedStreams",
    "snapline.keyed": "KeyedStream",
    "snapline.spark.data_source_registration": "register_data_source",
    "snapline.stream": "DataStream",
    "snapline.stream_sink": "DataStreamSink",
    "snapline.windowed": "WindowedStream",
}
"""The module of each public name."""
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for. Raises NameMoved for one that is called otherwise now."""
    if name in MOVED_NAMES:
        raise name_moved(name)
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'snapline' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


tell_where_former_rooms_are()
