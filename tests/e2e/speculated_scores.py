"""A resumable function whose first attempt stands still in the middle of a partition until a speculative copy is done.
The last line of the output says, as JSON, whether the rows are right and which attempts ran.

    spark-submit --conf spark.speculation=true tests/e2e/speculated_scores.py DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import snapline as sl

ROWS = 4_000
STANDS_AT = 500


class Numbered(sl.ResumableFunction):
    """Says how many rows were before; counts what it has done in files, which outlive the attempt."""

    def __init__(self, directory: str) -> None:
        self.directory, self.seen = directory, 0

    def process(self, item: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        place = Path(self.directory) / f"attempt-{context.attemptNumber()}"
        place.touch()
        if context.partitionId() == 0 and context.attemptNumber() == 0 and self.seen >= STANDS_AT:
            while not (Path(self.directory) / "attempt-1-is-done").exists():
                time.sleep(0.05)
        numbers = list(range(self.seen, self.seen + item.num_rows))
        self.seen += item.num_rows
        yield pa.RecordBatch.from_pydict({"id": item["id"], "number": numbers})
        if context.partitionId() == 0 and self.seen == ROWS // 2:
            (Path(self.directory) / f"attempt-{context.attemptNumber()}-is-done").touch()

    def snapshot(self) -> int:
        return self.seen

    def restore(self, state: int) -> None:
        self.seen = state


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    score = sl.resumable(Numbered(str(directory)), uid="score", directory=str(directory / "progress"), interval_ms=50)
    rows = spark.range(0, ROWS, 1, 2).mapInArrow(score, "id long, number long").collect()
    right = sorted((row.id, row.number) for row in rows) == [(n, n % (ROWS // 2)) for n in range(ROWS)]
    finished = [(each.partition, each.rows, each.is_finished) for each in score.progress()]
    again = spark.range(0, ROWS, 1, 2).mapInArrow(score, "id long, number long").count()
    print(
        json.dumps({"right": right, "copies": (directory / "attempt-1").exists(), "finished": finished, "again": again})
    )
    spark.stop()
