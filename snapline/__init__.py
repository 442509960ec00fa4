"""Snapline: exactly-once streaming Python on Spark. Everything that a user touches starts here.

Public are the names in `__all__` here and in `snapline.client`, `snapline.connectors`, `snapline.sidecar`,
`snapline.state` and `snapline.testing`; every other module is for Snapline itself, and may change from one
version to the next (decision 7).

Names are loaded when they are first asked for (PEP 562): a coordinator or a client that imports one room of Snapline
does not pay for Arrow and for the operators that it never uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snapline.moved_names import MOVED_NAMES, name_moved, tell_where_former_rooms_are
from snapline.runtime import version

if TYPE_CHECKING:
    from snapline.aggregates import count, mean
    from snapline.aggregates import max as max  # noqa: A004 - said again, it is public without being in __all__
    from snapline.aggregates import min as min  # noqa: A004
    from snapline.aggregates import sum as sum  # noqa: A004
    from snapline.checkpointing import Checkpointing
    from snapline.client import JobFailed
    from snapline.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from snapline.connectors.builtin.generator import GeneratorSource
    from snapline.connectors.parquet import ParquetSink, ParquetSource
    from snapline.dataflow.api.accumulators import DoubleCounter, Histogram, LongCounter
    from snapline.dataflow.api.connector_api import (
        Committable,
        Committer,
        InputStatus,
        Polled,
        Sink,
        SinkWriter,
        Source,
        SourceContextInfo,
        SourceReader,
        SourceSplit,
    )
    from snapline.dataflow.api.functions import (
        AsyncFunction,
        BatchKeys,
        BatchResult,
        BatchState,
        BroadcastContext,
        CheckpointedFunction,
        CheckpointListener,
        CoProcessFunction,
        Function,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        KeyedBatchProcessFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoBatchProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        OperatorListState,
        OperatorStateStore,
        ProcessContext,
        ProcessWindowFunction,
        Row,
        RuntimeContext,
        SideOutput,
        SourceContext,
        SourceFunction,
        TimerService,
        WindowContext,
    )
    from snapline.dataflow.api.master_hooks import MasterTriggerRestoreHook, WithMasterCheckpointHook
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
        StateError,
        ValueState,
        ValueStateDescriptor,
        register_serializer,
    )
    from snapline.dataflow.api.state_ttl import StateTtlConfig, TtlError, TtlUpdate
    from snapline.dataflow.api.two_phase_commit import SinkFunction, TwoPhaseCommitSinkFunction
    from snapline.dataflow.api.watermarks import WatermarkAlignmentParams, WatermarkStrategy
    from snapline.dataflow.api.windows import (
        Aggregate,
        CountTrigger,
        EventTimeSessionWindows,
        GlobalWindows,
        SlidingEventTimeWindows,
        TimeWindow,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from snapline.dataflow.config import ConfigurationError
    from snapline.dataflow.errors import ConnectorError, InvalidArgument, JobDefinitionError, SnaplineError
    from snapline.dataflow.snapshot.state_evolution import with_default
    from snapline.environment import StreamExecutionEnvironment
    from snapline.expressions.expression import Expr, coalesce, col, concat_str, lit, when
    from snapline.job_result import JobExecutionResult
    from snapline.joined import JoinedStreams
    from snapline.stream import DataStream, DataStreamSink, KeyedStream
    from snapline.windowed import WindowedStream

__version__ = version.VERSION

# `sum`, `min` and `max` are left out: `from snapline import *` must not take Python's own away (decision 6).
__all__ = [
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AsyncFunction",
    "BatchKeys",
    "BatchResult",
    "BatchState",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastStream",
    "CheckpointListener",
    "CheckpointedFunction",
    "Checkpointing",
    "CoProcessFunction",
    "Committable",
    "Committer",
    "ConfigurationError",
    "ConnectedStreams",
    "ConnectorError",
    "CountTrigger",
    "DataStream",
    "DataStreamSink",
    "DoubleCounter",
    "EventTimeSessionWindows",
    "Expr",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GeneratorSource",
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
    "NamedSerializer",
    "OperatorListState",
    "OperatorStateStore",
    "ParquetSink",
    "ParquetSource",
    "Polled",
    "ProcessContext",
    "ProcessWindowFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "SideOutput",
    "Sink",
    "SinkFunction",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SnaplineError",
    "Source",
    "SourceContext",
    "SourceContextInfo",
    "SourceFunction",
    "SourceReader",
    "SourceSplit",
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
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowContext",
    "WindowedStream",
    "WithMasterCheckpointHook",
    "coalesce",
    "col",
    "concat_str",
    "count",
    "lit",
    "mean",
    "register_serializer",
    "when",
    "with_default",
]

_PLACES = {
    "snapline.aggregates": "count max mean min sum",
    "snapline.checkpointing": "Checkpointing",
    "snapline.client": "JobFailed",
    "snapline.connected": "BroadcastConnectedStream BroadcastStream ConnectedStreams",
    "snapline.connectors.builtin.generator": "GeneratorSource",
    "snapline.connectors.parquet": "ParquetSink ParquetSource",
    "snapline.dataflow.api.connector_api": """
        Committable Committer InputStatus Polled Sink SinkWriter Source SourceContextInfo SourceReader
        SourceSplit
    """,
    "snapline.dataflow.api.functions": """
        AsyncFunction BatchKeys BatchResult BatchState BroadcastContext CheckpointedFunction CheckpointListener
        CoProcessFunction Function FunctionInitializationContext FunctionSnapshotContext
        KeyedBatchProcessFunction KeyedBroadcastProcessFunction KeyedCoBatchProcessFunction
        KeyedCoProcessFunction KeyedProcessFunction OperatorListState OperatorStateStore ProcessContext
        ProcessWindowFunction Row RuntimeContext SideOutput SourceContext SourceFunction TimerService
        WindowContext
    """,
    "snapline.dataflow.api.master_hooks": "MasterTriggerRestoreHook WithMasterCheckpointHook",
    "snapline.dataflow.api.state": """
        AggregateFunction AggregatingState AggregatingStateDescriptor ListState ListStateDescriptor MapState
        MapStateDescriptor NamedSerializer ReducingState ReducingStateDescriptor StateDescriptor StateError
        ValueState ValueStateDescriptor register_serializer
    """,
    "snapline.dataflow.api.state_ttl": "StateTtlConfig TtlError TtlUpdate",
    "snapline.dataflow.api.two_phase_commit": "SinkFunction TwoPhaseCommitSinkFunction",
    "snapline.dataflow.api.watermarks": "WatermarkAlignmentParams WatermarkStrategy",
    "snapline.dataflow.api.windows": """
        Aggregate CountTrigger EventTimeSessionWindows GlobalWindows SlidingEventTimeWindows TimeWindow
        TumblingEventTimeWindows TumblingProcessingTimeWindows WindowAssigner
    """,
    "snapline.dataflow.api.accumulators": "DoubleCounter Histogram LongCounter",
    "snapline.dataflow.config": "ConfigurationError",
    "snapline.dataflow.errors": "ConnectorError InvalidArgument JobDefinitionError SnaplineError",
    "snapline.dataflow.snapshot.state_evolution": "with_default",
    "snapline.environment": "StreamExecutionEnvironment",
    "snapline.expressions.expression": "Expr coalesce col concat_str lit when",
    "snapline.job_result": "JobExecutionResult",
    "snapline.joined": "JoinedStreams",
    "snapline.stream": "DataStream DataStreamSink KeyedStream",
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
