"""DataFrames in and out of a job: `env.from_dataframe` and `stream.to_dataframe`.

Decides when a frame is computed: once, when it is given to the environment; not at all, when the job starts from a
snapshot that holds the source, which reads on in the rows that were staged then. Who deletes them is the coordinator of
the job.
"""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from snapline.client import JobFailed
from snapline.connectors.files.filesystems import locate
from snapline.connectors.files.output_files import failures
from snapline.connectors.parquet import ParquetSink
from snapline.connectors.parquet.staged_rows import StagedRowsSource, new_staged_directory
from snapline.dataflow.api.watermarks import WatermarkStrategy, check_event_time_type, check_strategy
from snapline.dataflow.config import HA_TYPE, Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.ids import operator_id_of
from snapline.execution import translates_only
from snapline.spark.frame_staging import (
    checked_frame,
    configuration_of,
    require_open,
    staging_base,
    storage_options_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from snapline.environment import StreamExecutionEnvironment
    from snapline.stream import DataStream

OUTPUT_UID = "to-dataframe"
FRAME_PREFIX = "snapline-frame-"
"""How the names of directories begin that hold the rows of `to_dataframe`."""


def from_dataframe(
    environment: StreamExecutionEnvironment,
    frame: Any,
    event_time: str | WatermarkStrategy | None,
    uid: str,
    name: str,
) -> DataStream:
    """What `env.from_dataframe` does; its errors are said there."""
    from snapline.spark.frame_sink import stage_frame
    from snapline.spark.frame_types import arrow_schema_of_frame

    what = f"from_dataframe({uid or name or 'a frame without uid'!r})"
    frame = checked_frame(frame, what, streaming=False)
    schema = arrow_schema_of_frame(frame.schema, what)
    strategy, frame = _with_event_time(frame, schema, event_time, what)
    configuration = configuration_of(environment, frame.sparkSession)
    options = storage_options_of(configuration)
    if translates_only() or _is_in_snapshot(environment.savepoint_restore.path, configuration, uid):
        source = StagedRowsSource("", (), schema, options)
    else:
        directory = new_staged_directory(staging_base(configuration, frame.sparkSession, what))
        try:
            files = stage_frame(frame, directory, options, what).files
        except BaseException:
            _remove(directory, configuration)
            raise
        source = StagedRowsSource(directory, files, schema, options)
    return environment.from_source(source, strategy, uid=uid, name=name or "from_dataframe")


def _with_event_time(
    frame: DataFrame, schema: pa.Schema, event_time: str | WatermarkStrategy | None, what: str
) -> tuple[WatermarkStrategy | None, DataFrame]:
    """A column alone: each partition is sorted by it, so that no row is late. What cannot be event time is refused
    before Spark computes the frame."""
    if event_time is None:
        return None, frame
    if isinstance(event_time, str):
        column = event_time
    else:
        check_strategy(event_time, what)
        column = event_time.column
    if column not in schema.names:
        raise JobDefinitionError(f"{what}: there is no column {column!r}; columns: {', '.join(schema.names)}")
    check_event_time_type(schema.field(column).type, column, what)
    if not isinstance(event_time, str):
        return event_time, frame
    quoted = column.replace("`", "``")
    return WatermarkStrategy.for_monotonous_timestamps(column), frame.sortWithinPartitions(f"`{quoted}`")


def _is_in_snapshot(restore: str, configuration: Configuration, uid: str) -> bool:
    """Whether the job starts from a snapshot that holds this source."""
    if not restore or not uid:
        return False
    from snapline.coordinator.snapshots import read_snapshot
    from snapline.runtime.storage.object_storage import open_storage
    from snapline.runtime.storage.state_storages import StateStorages

    snapshot = read_snapshot(StateStorages(lambda url: open_storage(url, configuration)), restore)
    return any(operator.operator_id == operator_id_of(uid) for operator in snapshot.metadata.operators)


# --- out --------------------------------------------------------------------------------------------------------------


def to_dataframe(stream: DataStream, spark: Any, job_name: str, *, local: bool, threads: int) -> DataFrame:
    """What `stream.to_dataframe` does; its errors are said there."""
    from pyspark.sql import SparkSession

    from snapline.collecting import alone, refuse_unbounded
    from snapline.spark.committed_rows import FORMAT, CommittedDirectory
    from snapline.spark.data_source_registration import register_data_source
    from snapline.spark.frame_types import spark_schema_of

    what = f"to_dataframe({job_name!r})"
    if not isinstance(spark, SparkSession) and not hasattr(spark, "readStream"):
        raise JobDefinitionError(f"{what}: {type(spark).__name__} is no session of Spark")
    require_open(spark, what)
    environment, end = alone(stream)
    refuse_unbounded(environment.graph, "handed over as a DataFrame; write it to a sink and read that as a stream")
    if stream.schema is not None:
        spark_schema_of(stream.schema, what)
    configuration = configuration_of(environment, spark)
    base, options = staging_base(configuration, spark, what).rstrip("/"), storage_options_of(configuration)
    directory = f"{base}/{FRAME_PREFIX}{uuid.uuid4().hex}"
    end.sink_to(ParquetSink(directory, schema=stream.schema, storage_options=options), uid=OUTPUT_UID)
    try:
        result = environment.execute(job_name, local=local, threads=threads if local else None)
    except BaseException as error:
        is_over = isinstance(error, JobFailed | KeyboardInterrupt)
        if is_over or configuration.get_option(HA_TYPE) == "NONE":  # else the next program goes on with job and rows
            atexit.register(_remove, directory, configuration)
        raise
    written = directory_of_job(result.job_id, base, directory, options)
    for unneeded in (directory, written):
        atexit.register(_remove, unneeded, configuration)
    register_data_source(spark)
    reader = spark.read.format(FORMAT)
    for key, value in options.items():
        reader = reader.option(key, value)
    schema = stream.schema
    if schema is None:
        found = CommittedDirectory(written, options)
        if not found.parts():
            raise JobDefinitionError(
                f"{what}: no row came out, and what columns there would be is not known; give schema= to the last function"
            )
        schema = found.schema()
    return reader.schema(spark_schema_of(schema, what)).load(written)


def directory_of_job(job_id: str, base: str, own: str, storage_options: Mapping[str, str]) -> str:
    """The directory that the job has written its frame into: this program's own, or that of a program that was killed,
    whose job has gone on instead of the one of this program."""
    place = locate(base, storage_options)

    def names(path: str) -> list[str]:
        return [file.base_name for file in place.filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))]

    own_name = own.removeprefix(f"{base}/")
    with failures("list", base):
        for name in [own_name, *(name for name in names(place.path) if name.startswith(FRAME_PREFIX))]:
            if any(file.startswith(f"part-{job_id}-") for file in names(f"{place.path}/{name}")):
                return f"{base}/{name}"
    return own


def _remove(directory: str, configuration: Configuration) -> None:
    """Delete what nobody but this program knows."""
    import shutil

    from snapline.dataflow.errors import SnaplineError
    from snapline.runtime.storage.object_storage import open_storage

    if "://" not in directory:
        shutil.rmtree(Path(directory), ignore_errors=True)
        return
    try:
        open_storage(directory, configuration).delete_prefix("")
    except SnaplineError:  # what stays costs space, and the program is over
        pass
