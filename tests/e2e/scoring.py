"""A driver that scores rows with a resumable function, whose worker ends itself by signal 9 at given places, once each.

python scoring.py DIRECTORY ROWS PARTITIONS INTERVAL_MS KIND PLACE... ["driver" kills the driver at the last place]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl


class Score(sl.ResumableFunction):
    """A running sum that takes its time, writes down what it has done, and dies at places."""

    def __init__(self, directory: Path, places: list[int], victim: int) -> None:
        self.directory, self.places, self.victim = directory, places, victim
        self.total = 0

    def process(self, item: pa.RecordBatch) -> pa.RecordBatch:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = -1 if context is None else context.partitionId()
        with (self.directory / f"work-{partition}").open("a") as work:
            work.write(f"{item.num_rows}\n")
        sums = []
        for value in item["id"].to_pylist():
            place = self.directory / f"died-{partition}-{value}"
            if value in self.places and not place.exists():
                place.touch()
                os.kill(self.victim or os.getpid(), signal.SIGKILL)
                if self.victim:
                    time.sleep(60)
            self.total += value
            sums.append(self.total)
        time.sleep(item.num_rows * 20e-6)
        return pa.RecordBatch.from_pydict({"id": item["id"], "total": pa.array(sums, pa.int64())})

    def snapshot(self) -> int:
        return self.total

    def restore(self, state: Any) -> None:
        self.total = state


def rows(directory: Path) -> Iterator[int]:
    """How many rows the function has been given, attempt by attempt."""
    for work in directory.glob("work-*"):
        yield from map(int, work.read_text().split())


def main() -> None:
    """Run the driver."""
    from pyspark.sql import SparkSession

    directory = Path(sys.argv[1])
    count, partitions, interval_ms = map(int, sys.argv[2:5])
    kind, places = sys.argv[5], [int(place) for place in sys.argv[6:]]
    spark = SparkSession.builder.master("local[2,8]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.range(0, count, 1, partitions)
    function = Score(directory, places, os.getpid() if kind == "driver" else 0)
    score = sl.resumable(function, uid="score", directory=str(directory / "progress"), interval_ms=interval_ms)
    scored = frame.mapInArrow(score, "id long, total long")
    scored.write.mode("overwrite").parquet(str(directory / "out"))
    print(sum(each.rows for each in score.progress()), all(each.is_finished for each in score.progress()))
    spark.stop()


if __name__ == "__main__":
    main()
