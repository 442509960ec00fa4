"""`env.from_streaming_dataframe`: a query of Structured Streaming stages its micro-batches, and the job reads them.

Decides when the query runs (from the moment the job is submitted to its end, in this program), how often it is started
again when it fails, and what its end means to the job. Spark's own log of offsets fixes what a micro-batch is made of,
and `snapline.connectors.parquet.streamed_rows` that each is staged once, so that a query that is started again, by this
program or the next one, goes on where it was.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapline.connectors.parquet.streamed_rows import (
    ROWS,
    Claim,
    StreamedBatches,
    StreamedRowsSource,
    streamed_directory,
)
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.config import CHECKPOINTS_NUM_RETAINED, Configuration
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.reporting import tell
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from snapline.environment import StreamExecutionEnvironment
    from snapline.stream import DataStream

LOOK_S = 0.5
ATTEMPTS = 4
"""So often a query is started that has staged nothing since its last failure."""
PAUSE_S = 1.0
"""Before the second start; each pause is twice the one before."""
_RAISED = re.compile(r"(\w+\.)*\w+(Error|Exception): .")
_LATE = "Python worker failed to connect back"
"""What a Connect server says whose Python takes longer than ten seconds to start, because the machine is busy."""
_FENCED = "snapline: another program stages the rows of this query now"


@dataclass
class StageBatch:
    """What `foreachBatch` is given: it writes one micro-batch, and lets it count. It travels to the server of Spark
    Connect, so it knows everything by itself."""

    directory: str
    storage_options: dict[str, str]
    claim: Claim
    what: str
    is_registered: bool = False
    """Whether the session of the query knows our data source; Spark warns of each that it knows already."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Raise RuntimeError when another program has taken the query over."""
        from snapline.spark.frame_sink import stage_frame

        batches = StreamedBatches(open_storage(self.directory, Configuration(self.storage_options)))
        if batches.holder() != self.claim:
            raise RuntimeError(_FENCED)
        if batches.has(batch_id):
            return
        staged = stage_frame(
            frame,
            f"{self.directory}/{ROWS}",
            self.storage_options,
            self.what,
            manifest=f"_rows-{uuid.uuid4().hex}.json",
            is_registered=self.is_registered,
        )
        self.is_registered = True
        batches.add(batch_id, staged.row_groups)


@dataclass
class StreamedFrame:
    """A streaming DataFrame that a job reads."""

    frame: DataFrame
    source: StreamedRowsSource
    output_mode: str
    trigger: Mapping[str, Any]
    what: str


class RunningQuery:
    """The query of one frame, on a thread that starts it again when it fails."""

    def __init__(self, streamed: StreamedFrame, job_id: str) -> None:
        """Starts the query. Raises JobDefinitionError when Spark refuses it."""
        self._streamed = streamed
        source = streamed.source
        self._directory = source.restored or streamed_directory(source.base, job_id, source.uid)
        storage = open_storage(self._directory, Configuration(source.storage_options))
        self._batches = StreamedBatches(storage)
        self._claim = self._batches.claim(job_id)
        self._stopping = threading.Event()
        self._query: Any = self._start()
        self._thread = threading.Thread(target=self._watch, name=f"query of {source.uid}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the query; the next program can go on with it."""
        self._stopping.set()
        _stop(self._query)
        self._thread.join(LOOK_S * 20)

    def _start(self) -> Any:
        streamed, source = self._streamed, self._streamed.source
        stage = StageBatch(self._directory, source.storage_options, self._claim, streamed.what)
        writer = streamed.frame.writeStream.foreachBatch(stage).outputMode(streamed.output_mode)
        writer = writer.option("checkpointLocation", _for_spark(f"{self._directory}/query"))
        for attempt in range(ATTEMPTS):
            try:
                return (writer.trigger(**streamed.trigger) if streamed.trigger else writer).start()
            except Exception as error:
                if _LATE not in str(error) or attempt + 1 == ATTEMPTS:
                    why = f"{streamed.what}: Spark does not start the query: {_reason(error)}"
                    raise JobDefinitionError(why) from None
        return None

    def _watch(self) -> None:
        """Until the query has ended for good. A failure that lasts ends the job, with its reason."""
        failures, staged = 0, -1
        while not self._stopping.is_set():
            try:
                if not self._query.awaitTermination(LOOK_S):
                    continue
                why = "" if self._streamed.source.bounded else "it was stopped by somebody else"
            except Exception as error:
                why = _reason(error)
            if self._stopping.is_set():
                return
            if _FENCED in why:
                tell(f"snapline: {self._streamed.what}: another program has taken the query over")
                return
            if not why:
                self._end("")
                return
            newest = self._newest()
            failures, staged = (1 if newest > staged else failures + 1), newest
            if failures >= ATTEMPTS:
                self._end(why)
                return
            tell(f"snapline: {self._streamed.what}: the query has failed and is started again: {why}")
            if self._stopping.wait(PAUSE_S * 2 ** (failures - 1)):
                return
            try:
                self._query = self._start()
            except JobDefinitionError as error:
                self._end(str(error))
                return
        _stop(self._query)  # which may be one that was just started

    def _end(self, why: str) -> None:
        """Tell the job, which waits until it is told; a storage that does not answer is asked again."""
        said = ""
        while not self._stopping.is_set():
            try:
                self._batches.end(self._claim, why)
                return
            except StorageError as error:
                if str(error) != said:
                    said = str(error)
                    tell(f"snapline: {self._streamed.what}: the end of the query is not noted yet: {said}")
            self._stopping.wait(PAUSE_S)

    def _newest(self) -> int:
        try:
            return int((self._query.lastProgress or {}).get("batchId", -1))
        except Exception:  # Spark may be gone, and with it what it knew
            return -1


@contextmanager
def running_queries(streamed: Sequence[StreamedFrame], job_id: str) -> Iterator[None]:
    """Within, the queries of a job's streaming frames run. Raises JobDefinitionError when Spark refuses one."""
    running = start_queries(streamed, job_id)
    try:
        yield
    finally:
        stop_queries(running)


def start_queries(streamed: Sequence[StreamedFrame], job_id: str) -> list[RunningQuery]:
    """Start the queries of a job's streaming frames. Raises JobDefinitionError when Spark refuses one."""
    running: list[RunningQuery] = []
    try:
        running.extend(RunningQuery(one, job_id) for one in streamed)
    except BaseException:
        stop_queries(running)
        raise
    return running


def stop_queries(running: Sequence[RunningQuery]) -> None:
    """End these queries; the next program can go on with them."""
    for query in running:
        query.stop()


def from_streaming_dataframe(
    environment: StreamExecutionEnvironment,
    frame: Any,
    uid: str,
    watermark_strategy: WatermarkStrategy | None,
    output_mode: str,
    trigger: Mapping[str, Any],
    name: str,
) -> DataStream:
    """What `env.from_streaming_dataframe` does; its errors are said there."""
    from snapline.spark.frame_staging import checked_frame, configuration_of, staging_base, storage_options_of
    from snapline.spark.frame_types import arrow_schema_of_frame

    what = f"from_streaming_dataframe({uid!r})"
    if not uid:
        raise JobDefinitionError("from_streaming_dataframe: give a uid, by which a snapshot finds the rows again")
    frame = checked_frame(frame, what, streaming=True)
    if output_mode not in ("append", "update"):
        raise JobDefinitionError(
            f"{what}: output mode {output_mode!r} gives all rows again in each micro-batch, which are no stream: take 'append', or "
            "'update' for the new value of each row that has changed"
        )
    if not isinstance(trigger, Mapping):
        raise JobDefinitionError(f"{what}: trigger={trigger!r}: write {{'processingTime': '1 second'}}")
    if unknown := set(trigger) - {"processingTime", "availableNow"}:
        raise JobDefinitionError(
            f"{what}: trigger {min(unknown)!r} has no micro-batches that can be staged: take processingTime, or availableNow "
            "for a stream that ends"
        )
    schema = arrow_schema_of_frame(frame.schema, what)
    configuration = configuration_of(environment, frame.sparkSession)
    source = StreamedRowsSource(
        staging_base(configuration, frame.sparkSession, what),
        uid,
        schema,
        storage_options_of(configuration),
        bounded=bool(trigger.get("availableNow")),
        restored=_directory_in_snapshot(environment.savepoint_restore.path, configuration, uid),
        retained=configuration.get_option(CHECKPOINTS_NUM_RETAINED),
    )
    stream = environment.from_source(source, watermark_strategy, uid=uid, name=name or "from_streaming_dataframe")
    environment.streamed_frames.append(StreamedFrame(frame, source, output_mode, dict(trigger), what))
    return stream


def _directory_in_snapshot(path: str, configuration: Configuration, uid: str) -> str:
    """Where the rows lie that the snapshot, which the job starts from, has a position in; empty: there are none."""
    import json

    from snapline.state_reader import StateReader

    if not path:
        return ""
    storages = StateStorages(lambda url: open_storage(url, configuration))
    for states in StateReader(path, storages).lists():
        if states.uid == f"{uid}-splits":
            for element in states.elements.get("split-enumerator", ()):
                return str(json.loads(element)["found"].get("directory", ""))
    return ""


def _for_spark(url: str) -> str:
    """The location as Spark's file systems know it."""
    if "://" not in url:
        return Path(url).as_uri()
    return url.replace("s3://", "s3a://", 1) if url.startswith("s3://") else url


def _stop(query: Any) -> None:
    try:
        query.stop()
    except Exception:  # Spark may have ended before
        return


def _reason(error: Exception) -> str:
    """What a query has failed of, in one line: the innermost of what Spark has wrapped, as Python says it."""
    lines = [line.strip() for line in str(error).partition("JVM stacktrace")[0].splitlines() if line.strip()]
    if isinstance(error, SnaplineError) or not lines:
        return str(error) or type(error).__name__
    fenced = next((line for line in lines if _FENCED in line), None)
    python = [line for line in lines if _RAISED.match(line)]
    return (fenced or (python[-1] if python else lines[0]))[:500]
