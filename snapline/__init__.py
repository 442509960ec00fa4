"""Snapline: exactly-once streaming Python on Spark. Everything that a user touches starts here."""

from dataflow.config import ConfigurationError
from dataflow.connector_api import Sink, SinkWriter, Source, SourceReader
from dataflow.connectors.generator import GeneratorSource
from dataflow.connectors.parquet import ParquetSink, ParquetSource
from dataflow.errors import ConnectorError, JobDefinitionError, SnaplineError
from dataflow.functions import (
    CheckpointedFunction,
    CheckpointListener,
    Function,
    KeyedProcessFunction,
    ProcessContext,
    Row,
    RuntimeContext,
    SourceContext,
    SourceFunction,
)
from dataflow.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from dataflow.two_phase_commit import SinkFunction, TwoPhaseCommitSinkFunction
from dataflow.watermarks import WatermarkStrategy
from dataflow.windows import Aggregate, TumblingEventTimeWindows
from snapline.aggregates import count, max_, mean, min_, sum_
from snapline.environment import StreamExecutionEnvironment
from snapline.stream import DataStream, KeyedStream, WindowedStream

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AggregatingStateDescriptor",
    "CheckpointListener",
    "CheckpointedFunction",
    "ConfigurationError",
    "ConnectorError",
    "DataStream",
    "Function",
    "GeneratorSource",
    "JobDefinitionError",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ParquetSink",
    "ParquetSource",
    "ProcessContext",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "Sink",
    "SinkFunction",
    "SinkWriter",
    "SnaplineError",
    "Source",
    "SourceContext",
    "SourceFunction",
    "SourceReader",
    "StreamExecutionEnvironment",
    "TumblingEventTimeWindows",
    "TwoPhaseCommitSinkFunction",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "WindowedStream",
    "count",
    "max_",
    "mean",
    "min_",
    "sum_",
]
