"""The flights of the examples in a Spark session of the user's, seen from its driver: how many executors there were,
and how many copies of one Spark task ran at once. The last line of the output says it, as JSON.

    spark-submit --conf spark.speculation=true tests/e2e/observed_flights.py --input flights.parquet --output out
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession

from examples.flights import main

LOOK_SECONDS = 0.05


class Observer:
    """A thread that asks Spark's status tracker, while it is entered."""

    def __init__(self, context: Any) -> None:
        self._tracker = context.statusTracker()
        self._all = context._jsc.sc().statusTracker()  # PySpark's own does not say which executors there are
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer")
        self.executors: list[int] = []
        """Without those before, each change."""
        self.copies = 0

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            there = len(self._all.getExecutorInfos()) - 1  # one is the driver
            if self.executors[-1:] != [there]:
                self.executors.append(there)
            for stage_id in self._tracker.getActiveStageIds():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    self.copies = max(self.copies, stage.numActiveTasks)


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    with Observer(session.sparkContext) as observer:
        code = main(sys.argv[1:])
    session.stop()
    print(json.dumps({"executors": observer.executors, "copies": observer.copies}))
    sys.exit(code)
