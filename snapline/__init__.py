"""Snapline: exactly-once streaming Python on Spark. Everything that a user touches starts here."""

from dataflow.config import ConfigurationError
from dataflow.connector_api import Sink, SinkWriter, Source, SourceReader
from dataflow.connectors.generator import GeneratorSource
from dataflow.connectors.parquet import ParquetSink, ParquetSource
from dataflow.errors import ConnectorError, JobDefinitionError, SnaplineError
from dataflow.functions import (
    AsyncFunction,
    BatchKeys,
    BatchState,
    BroadcastContext,
    CheckpointedFunction,
    CheckpointListener,
    CoProcessFunction,
    Function,
    KeyedBatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoBatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessContext,
    ProcessWindowFunction,
    Row,
    RuntimeContext,
    SideOutput,
    SourceContext,
    SourceFunction,
    WindowContext,
)
from dataflow.master_hooks import MasterTriggerRestoreHook, WithMasterCheckpointHook
from dataflow.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from dataflow.state_evolution import with_default
from dataflow.state_ttl import StateTtlConfig, TtlUpdate
from dataflow.two_phase_commit import SinkFunction, TwoPhaseCommitSinkFunction
from dataflow.watermarks import WatermarkStrategy
from dataflow.windows import (
    Aggregate,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from snapline.aggregates import count, max_, mean, min_, sum_
from snapline.client import JobFailed
from snapline.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from snapline.environment import StreamExecutionEnvironment
from snapline.joined import JoinedStreams
from snapline.stream import DataStream, KeyedStream
from snapline.windowed import WindowedStream

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AggregatingStateDescriptor",
    "AsyncFunction",
    "BatchKeys",
    "BatchState",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastStream",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoProcessFunction",
    "ConfigurationError",
    "ConnectedStreams",
    "ConnectorError",
    "CountTrigger",
    "DataStream",
    "EventTimeSessionWindows",
    "Function",
    "GeneratorSource",
    "GlobalWindows",
    "JobDefinitionError",
    "JobFailed",
    "JoinedStreams",
    "KeyedBatchProcessFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoBatchProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "MasterTriggerRestoreHook",
    "ParquetSink",
    "ParquetSource",
    "ProcessContext",
    "ProcessWindowFunction",
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
    "SourceFunction",
    "SourceReader",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "TimeWindow",
    "TtlUpdate",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TwoPhaseCommitSinkFunction",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "WindowContext",
    "WindowedStream",
    "WithMasterCheckpointHook",
    "count",
    "max_",
    "mean",
    "min_",
    "sum_",
    "with_default",
]
