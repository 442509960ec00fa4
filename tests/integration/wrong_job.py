"""A small job with one thing wrong, chosen by name: `python wrong_job.py CASE INPUT OUTPUT`. As a user would write
it."""

from __future__ import annotations

import sys
import threading

import pyarrow as pa

import snapline as sl


def divide(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails in the second batch."""
    return pa.record_batch({"n": [10 // (2500 - n) for n in batch.column("n").to_pylist()]})


def text_to_number(row: dict[str, str]) -> dict[str, object]:
    """Fails at the first row."""
    return {"n": int(row["word"])}


case, path, output = sys.argv[1:4]
environment = sl.StreamExecutionEnvironment.get_execution_environment()
environment.set_parallelism(1)
# What a checkpoint has pre-committed stays staged when the job fails, as in Flink: none comes before the failure.
interval_ms = 60_000 if case == "exception" else 100
environment.enable_checkpointing(interval_ms).configure("restart-strategy.type", "none")
if case == "setting":
    environment.configure("execution.checkpointing.intervall", "1 s")
columns = ["n", "wrod"] if case == "source column" else None
strategy = sl.WatermarkStrategy.for_monotonous_timestamps("word") if case == "time type" else None
source = environment.from_source(sl.ParquetSource(path, columns=columns), strategy, uid="source")
lock = threading.Lock()
match case:
    case "key column":
        stream = source.key_by("wrod").running_aggregate(uid="sums", total=sl.sum("n"))
    case "value column":
        stream = source.key_by("word").running_aggregate(uid="sums", total=sl.sum("m"))
    case "value type":
        stream = source.key_by("n").running_aggregate(uid="sums", total=sl.sum("word"))
    case "time type":
        stream = source.key_by("n").window(sl.TumblingEventTimeWindows(1000)).aggregate(uid="sums", total=sl.sum("n"))
    case "no uid":
        environment.configure("pipeline.auto-generate-uids", "false")
        stream = source.key_by("word").running_aggregate(total=sl.sum("n"))
    case "pickle":
        stream = source.map_batches(lambda batch: batch if lock.locked() else batch.slice(0), uid="locked")
    case "exception":
        stream = source.map_batches(divide, uid="divide", name="divide")
    case "row exception":
        stream = source.map(text_to_number, uid="to-number", name="to number")
    case _:
        stream = source.filter(lambda batch: batch.column("n").is_valid(), uid="all")
stream.sink_to(sl.ParquetSink(output), uid="sink")
print(environment.execute("wrong").summary)
