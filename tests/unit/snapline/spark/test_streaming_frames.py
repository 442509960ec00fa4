"""A streaming query that Spark does not start, that fails, or that is stopped while it is started again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.parquet.streamed_rows import Claim, StreamedBatches, StreamedRowsSource
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.runtime.storage.object_storage import ObjectStorage
from snapline.runtime.storage.storage_port import StorageError
from snapline.spark import streaming_frames
from snapline.spark.streaming_frames import StreamedFrame, start_queries, stop_queries


class Writer:
    """Takes everything but a trigger."""

    def __getattr__(self, name: str) -> Any:
        """Return itself as the one property, and from each method."""
        return self if name == "writeStream" else lambda *_: self

    def trigger(self, **_: Any) -> Writer:
        """Refuse it, as PySpark does at once and not when the query starts."""
        raise ValueError("Error parsing 'soon' to interval")


def test_a_trigger_that_spark_refuses_is_said_with_the_frame(tmp_path: Path) -> None:
    """The words of Spark came without a word of which of the job's frames they were about."""
    source = StreamedRowsSource(str(tmp_path), "q", pa.schema([]), {}, bounded=False, restored="", retained=1)
    frame: Any = Writer()
    streamed = StreamedFrame(frame, source, "append", {"processingTime": "soon"}, "from_streaming_dataframe('q')")

    with pytest.raises(JobDefinitionError, match=r"\('q'\): Spark does not start the query: .*'soon'"):
        start_queries([streamed], "job")


def test_a_snapshot_is_looked_for_with_the_settings_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the environment was asked where its store is, so that a job did not start whose program says it."""

    def connect(url: str, configuration: Mapping[str, str]) -> None:
        raise StorageError(f"no answer of {configuration.get('s3.endpoint', 'some other store')} for {url}")

    monkeypatch.setattr(ObjectStorage, "connect", connect)
    settings = Configuration({"s3.endpoint": "http://minio:9000"})
    with pytest.raises(SnaplineError, match="no answer of http://minio:9000 for s3://bucket/savepoint"):
        streaming_frames._directory_in_snapshot("s3://bucket/savepoint", settings, "q")


class FailedQuery:
    """One that fails, or ends, while somebody waits for it."""

    lastProgress = None

    def __init__(self, failure: Exception | None, may_end: threading.Event | None) -> None:
        self.failure, self.may_end = failure, may_end
        self.stops = 0

    def awaitTermination(self, timeout: float) -> bool:
        """Raise why it has failed."""
        if self.may_end is not None:
            self.may_end.wait(30)
        if self.failure is not None:
            raise self.failure
        return True

    def stop(self) -> None:
        """Count, which is all that there is to do."""
        self.stops += 1


class StartedWriter(Writer):
    """Starts queries, each of which ends as soon as it may."""

    def __init__(self, failure: Exception | None = None, may_end: threading.Event | None = None) -> None:
        self.queries: list[FailedQuery] = []
        self.failure, self.may_end = failure, may_end

    def start(self) -> FailedQuery:
        """Start one more."""
        self.queries.append(FailedQuery(self.failure, self.may_end))
        return self.queries[-1]


def streamed_of(writer: Writer, base: Path, *, bounded: bool) -> StreamedFrame:
    """A frame whose rows would lie there."""
    source = StreamedRowsSource(str(base), "q", pa.schema([]), {}, bounded=bounded, restored="", retained=1)
    frame: Any = writer
    return StreamedFrame(frame, source, "append", {}, "from_streaming_dataframe('q')")


class Pause(threading.Event):
    """An event that tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for as long as it takes."""
        self.is_awaited.set()
        return super().wait(30)


@pytest.mark.timeout(60)
def test_a_query_that_is_stopped_in_the_pause_after_a_failure_is_not_started_again(tmp_path: Path) -> None:
    """The job was cancelled, the pause ended at once, and a query that nobody stopped any more ran on."""
    pause, may_fail = Pause(), threading.Event()
    writer = StartedWriter(RuntimeError("the broker is gone"), may_fail)
    [running] = start_queries([streamed_of(writer, tmp_path, bounded=False)], "job")
    running._stopping = pause
    may_fail.set()
    assert pause.is_awaited.wait(30)

    running.stop()

    assert [query.stops for query in writer.queries] == [1]


@pytest.mark.timeout(60)
def test_the_end_of_a_query_is_noted_once_the_storage_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One answer of the storage that failed ended the thread, and the job waited for ever for more rows."""
    answers, noted = [StorageError("503 Slow Down")], threading.Event()
    put = StreamedBatches.end

    def end(batches: StreamedBatches, claim: Claim, failure: str) -> None:
        if answers:
            raise answers.pop()
        put(batches, claim, failure)
        noted.set()

    monkeypatch.setattr(StreamedBatches, "end", end)
    monkeypatch.setattr(streaming_frames, "PAUSE_S", 0.01)
    running = start_queries([streamed_of(StartedWriter(), tmp_path, bounded=True)], "job")

    assert noted.wait(30)
    stop_queries(running)
    assert "the end of the query is not noted yet: 503 Slow Down" in capsys.readouterr().err


class Unread:
    """Standard error, a pipe that nobody reads any more."""

    def write(self, text: str) -> None:
        """Fail as such a pipe does."""
        raise BrokenPipeError(f"{len(text)} characters")


@pytest.mark.timeout(60)
def test_a_query_is_started_again_also_where_nobody_reads_that_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line ended the thread that was to start it, and the job waited for ever for more rows."""
    ended = threading.Event()
    monkeypatch.setattr(sys, "stderr", Unread())
    monkeypatch.setattr(streaming_frames, "PAUSE_S", 0.01)
    monkeypatch.setattr(StreamedBatches, "end", lambda *_: ended.set())
    writer = StartedWriter(RuntimeError("the broker is gone"))
    running = start_queries([streamed_of(writer, tmp_path, bounded=False)], "job")

    assert ended.wait(30)
    stop_queries(running)
    assert len(writer.queries) == streaming_frames.ATTEMPTS


def test_a_frame_that_was_refused_has_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed in the environment, with a query, after a misspelled column: the one that took its place in the next
    cell of a notebook had its uid."""
    schema = pa.schema([("at", pa.timestamp("ms"))])
    monkeypatch.setattr("snapline.spark.frame_staging.checked_frame", lambda frame, *_, **__: frame)
    monkeypatch.setattr("snapline.spark.frame_staging.configuration_of", lambda env, _: env.configuration)
    monkeypatch.setattr("snapline.spark.frame_staging.staging_base", lambda *_: "/nowhere")
    monkeypatch.setattr("snapline.spark.frame_types.arrow_schema_of_frame", lambda *_: schema)
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    frame: Any = SimpleNamespace(schema=None, sparkSession=None)

    with pytest.raises(JobDefinitionError, match="att"):
        strategy = sl.WatermarkStrategy.for_monotonous_timestamps("att")
        env.from_streaming_dataframe(frame, uid="clicks", watermark_strategy=strategy)

    assert (env.streamed_frames, env.graph.nodes) == ([], [])
