"""Frames that a job takes, and where their rows lie between Spark and the job.

Decides which frames fit, and that rows lie below the directory of checkpoints, which all machines reach, or in a
temporary one where everything runs on this machine.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from snapline.dataflow.config import CHECKPOINTS_DIRECTORY, COORDINATOR_ADDRESS, HA_TYPE, Configuration, is_secret
from snapline.dataflow.errors import JobDefinitionError
from snapline.runtime.settings import from_spark
from snapline.spark.own_python import use_own_python
from snapline.spark.spark_hosts import LOOPBACK_MASTERS, host_of, is_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from snapline.environment import StreamExecutionEnvironment


def checked_frame(frame: Any, what: str, *, streaming: bool) -> DataFrame:
    """The frame itself, whose session takes the program's Python from now on. Raises JobDefinitionError for anything
    else, and for the other kind of frame."""
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        raise JobDefinitionError(
            f"{what}: {type(frame).__name__} is no DataFrame of Spark; for others take from_source"
        )
    require_open(frame.sparkSession, what)
    if frame.isStreaming and not streaming:
        raise JobDefinitionError(f"{what}: the DataFrame is a streaming one; give it to from_streaming_dataframe")
    if streaming and not frame.isStreaming:
        raise JobDefinitionError(f"{what}: the DataFrame is not a streaming one; give it to from_dataframe")
    use_own_python(frame.sparkSession)
    return frame


def require_open(session: Any, what: str) -> None:
    """Raise JobDefinitionError for a session that was stopped, of which Java would say that something is null."""
    if is_stopped(session):
        raise JobDefinitionError(f"{what}: its session of Spark was stopped; open another one")


def configuration_of(environment: StreamExecutionEnvironment, session: Any) -> Configuration:
    """All settings of the environment's job, those that the session has in Spark conf included."""
    return environment.configuration_with(from_spark(host_of(session).conf().items()))


def storage_options_of(configuration: Configuration) -> dict[str, str]:
    """What connectors have to know of the store, without credentials: those come from the environment of each
    process."""
    return {key: value for key, value in configuration.items() if key.startswith("s3.") and not is_secret(key)}


def staging_base(configuration: Configuration, spark: SparkSession, what: str) -> str:
    """Where rows between Spark and jobs lie. Raises JobDefinitionError when there is no place that all reach."""
    base = configuration.get_option(CHECKPOINTS_DIRECTORY)
    if base:
        return base
    service = COORDINATOR_ADDRESS.key in configuration or configuration.get_option(HA_TYPE) == "zookeeper"
    if service or not _runs_here(spark):
        raise JobDefinitionError(
            f"{what}: its rows lie in files between Spark and the job: set {CHECKPOINTS_DIRECTORY.key} to a directory or URL "
            "that this program, the executors and the coordinator reach"
        )
    return _own_directory()


@functools.cache
def _own_directory() -> str:
    """A directory that no other user of the machine can look into, until this program ends."""
    directory = tempfile.mkdtemp(prefix="snapline-rows-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _runs_here(spark: SparkSession) -> bool:
    """Whether all executors are on this machine; a Connect session does not say."""
    master = spark.conf.get("spark.master", "") or ""
    return master.startswith(LOOPBACK_MASTERS)
