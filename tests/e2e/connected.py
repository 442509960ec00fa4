"""A program on a session of Spark Connect: DataFrames in and out, a streaming one, a resumable function, a file that
travels with the job. It prints a line of what it has found of each.

python connected.py DIRECTORY; the server is in SPARK_REMOTE
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import snapline as sl

ROWS = 2_000
NUMBERS = pa.schema([("id", pa.int64())])


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Twice the number."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [2 * value for value in batch["id"].to_pylist()]})


def main() -> None:
    """Run it all on the active session."""
    directory = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    settings = {"execution.checkpointing.dir": str(directory / "checkpoints")}

    env = sl.StreamExecutionEnvironment.get_execution_environment(settings).set_parallelism(2)
    (directory / "added.txt").write_text("1")
    env.add_file(directory / "added.txt")
    stream = env.enable_checkpointing(200).from_dataframe(spark.range(0, ROWS, 1, 4), uid="frame")
    added = stream.map(lambda row: {"id": row["id"] + int(sl.job_file("added.txt").read_text())}, schema=NUMBERS)
    out = added.to_dataframe(spark)
    print("frame", sorted(row.id for row in out.collect()) == list(range(1, ROWS + 1)))

    (directory / "in").mkdir()
    for part in range(2):
        values = list(range(part * 10, part * 10 + 10))
        pq.write_table(pa.table({"id": values}, NUMBERS), directory / "in" / f"{part}.parquet")
    env = sl.StreamExecutionEnvironment.get_execution_environment(settings).enable_checkpointing(200)
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(directory / "in"))
    numbers = env.from_streaming_dataframe(frame, uid="stream", trigger={"availableNow": True})
    numbers.sink_to(sl.ParquetSink(str(directory / "out")), uid="sink")
    env.execute("streamed")
    print("stream", sorted(pq.read_table(directory / "out")["id"].to_pylist()) == list(range(20)))

    twice = sl.resumable(doubled, uid="twice", directory=str(directory / "progress"), interval_ms=50)
    answers = [spark.range(0, ROWS, 1, 2).mapInArrow(twice, "id long").collect() for _ in range(2)]
    wanted = [2 * number for number in range(ROWS)]
    print("resumable", [sorted(row.id for row in rows) for rows in answers] == [wanted, wanted])
    print("partitions", [(each.rows, each.is_finished) for each in twice.progress()])
    spark.stop()


if __name__ == "__main__":
    main()
