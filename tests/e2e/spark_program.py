"""A driver that goes through one of the doors between Spark and Snapline, slowly enough to be killed on the way, and
that goes on when it is started again.

python spark_program.py DOOR DIRECTORY MASTER PARALLELISM [RESTORE]; its output is DIRECTORY/out, the numbers up to ROWS
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import snapline as sl
from snapline.dataflow.graph.external_tasks import external_job
from snapline.dataflow.graph.jobgraph import SavepointRestoreSettings
from snapline.dataflow.ids import JobID
from snapline.session import open_spark, stop_spark
from snapline.sidecar import EmbeddedCluster, run_in, silent_logger, slots_required
from tests.e2e.programs import MARK

JOB = "door"
ROWS = 4_000
FILES = 16
PER_FILE = ROWS // FILES
PAUSE_S = 0.002
"""For each row, so that the whole takes some seconds."""
SPARK_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.task.maxFailures": "8",
    "spark.decommission.enabled": "true",
    "spark.executor.decommission.forceKillTimeout": "1s",
}
NUMBERS = pa.schema([("n", pa.int64())])


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, after a while."""
    time.sleep(batch.num_rows * PAUSE_S)
    return batch


def in_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function for `sl.resumable`."""
    for batch in batches:
        yield slowly(batch)


def write_input(directory: Path) -> None:
    """Files of numbers, once."""
    (directory / "in").mkdir(exist_ok=True)
    for number in range(FILES):
        path = directory / "in" / f"{number:03d}.parquet"
        if not path.exists():
            values = list(range(number * PER_FILE, (number + 1) * PER_FILE))
            pq.write_table(pa.table({"n": values}, NUMBERS), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)


class Doors:
    """One method for each."""

    def __init__(self, spark: Any, directory: Path, parallelism: int, restore: str) -> None:
        self._spark, self._directory, self._restore, self._parallelism = spark, directory, restore, parallelism
        self._out = str(directory / "out")
        settings = {
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            "execution.checkpointing.interval": "200 ms",
            "high-availability.type": "embedded",
            "high-availability.storageDir": str(directory / "ha"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "20",
            "restart-strategy.fixed-delay.delay": "50 ms",
        }
        self._environment = sl.StreamExecutionEnvironment.get_execution_environment(settings)
        self._environment.set_parallelism(parallelism)
        if restore:
            self._environment.restore_from(restore)

    def frame_in(self) -> None:
        """A DataFrame into a job."""
        frame = self._spark.read.parquet(str(self._directory / "in")).repartition(FILES)  # else all comes at once
        stream = self._environment.from_dataframe(frame, uid="frame")
        self._to_files(stream, self._out)

    def stream_in(self) -> None:
        """A streaming DataFrame into a job."""
        files = self._spark.readStream.schema("n long").option("maxFilesPerTrigger", 2)
        frame = files.parquet(str(self._directory / "in"))
        stream = self._environment.from_streaming_dataframe(frame, uid="stream", trigger={"availableNow": True})
        self._to_files(stream, self._out)

    def frame_out(self) -> None:
        """Rows of a job as a DataFrame."""
        rows = self._stream_of_files().map_batches(slowly, schema=NUMBERS).to_dataframe(self._spark)
        rows.write.mode("overwrite").parquet(self._out)

    def stream_out(self) -> None:
        """What a job commits, while it runs, as a streaming DataFrame."""
        sink = self._directory / "sink"
        sink.mkdir(exist_ok=True)
        source = sl.register_data_source(self._spark).readStream.format("snapline").schema("n long").load(str(sink))
        writer = source.writeStream.format("parquet").option("checkpointLocation", str(self._directory / "query"))
        meanwhile = writer.start(self._out)
        if not (self._directory / "job-is-done").exists():
            self._to_files(self._stream_of_files(), str(sink))
            (self._directory / "job-is-done").touch()
        meanwhile.stop()
        writer.trigger(availableNow=True).start(self._out).awaitTermination()

    def resumable(self) -> None:
        """A function over partitions."""
        function = sl.resumable(in_pieces, uid="r", directory=str(self._directory / "progress"), interval_ms=200)
        frame = self._spark.read.parquet(str(self._directory / "in")).coalesce(2)
        frame.mapInArrow(function, "n long").write.mode("overwrite").parquet(self._out)

    def external_source(self) -> None:
        """Rows of programs outside into a job."""
        rows = self._environment.from_external("source", NUMBERS, uid="source")
        rows.sink_to(sl.ParquetSink(self._out), uid="sink")
        self._environment.execute(JOB)

    def external_operator(self) -> None:
        """Rows of a job through programs outside."""
        numbers = self._stream_of_files().map_batches(slowly, schema=NUMBERS)
        rows = numbers.via_external("operator", NUMBERS, uid="operator")
        rows.sink_to(sl.ParquetSink(self._out), uid="sink")
        self._environment.execute(JOB)

    def external_only(self) -> None:
        """Programs outside, and nothing else, whose coordinator runs beside this driver."""
        settings = self._environment.configuration
        savepoint = SavepointRestoreSettings(self._restore) if self._restore else None
        job = external_job(
            JobID(uuid.uuid4().hex), JOB, {"alone": self._parallelism}, dict(settings.items()), savepoint
        )
        with EmbeddedCluster(open_spark(JOB), settings, slots_required(job), silent_logger()) as cluster:
            run_in(cluster, job)

    def _stream_of_files(self) -> sl.DataStream:
        return self._environment.from_source(sl.ParquetSource(str(self._directory / "in")), uid="files")

    def _to_files(self, stream: sl.DataStream, path: str) -> None:
        stream.map_batches(slowly, schema=NUMBERS).sink_to(sl.ParquetSink(path), uid="sink")
        self._environment.execute(JOB)


def main() -> None:
    """Go through the door."""
    door, directory, master, parallelism = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    write_input(directory)
    marks = {f"spark.executorEnv.{MARK}": os.environ.get(MARK, "")}  # those of a cluster are not children of ours
    spark = open_spark(JOB, {"spark.master": master, **marks, **SPARK_SETTINGS})
    getattr(Doors(spark.session, directory, parallelism, "".join(sys.argv[5:6])), door)()
    stop_spark(spark)


if __name__ == "__main__":
    main()
