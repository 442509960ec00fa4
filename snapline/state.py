"""State in snapshots as data: read it as a table or a DataFrame, compare two snapshots, write a savepoint to start
from.

What a function does with its state while a job runs is in `snapline` itself (ValueStateDescriptor and the others).
Takes the role of Flink's State Processor API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snapline.state_files import StateWriteError
from snapline.state_reader import KeyedTable, ListStates, StateColumn, StateReader, StateReadError, diff, open_state
from snapline.state_writer import SavepointWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "KeyedTable",
    "ListStates",
    "SavepointWriter",
    "StateColumn",
    "StateReadError",
    "StateReader",
    "StateWriteError",
    "diff",
    "open_state",
    "read",
]


def read(spark: SparkSession, snapshot: str, uid: str, *, partitions: int | None = None) -> DataFrame:
    """The keyed state of an operator as a DataFrame (see snapline.spark.state_source)."""
    from snapline.spark.state_source import read_state

    return read_state(spark, snapshot, uid, partitions=partitions)
