"""Rows a second from a DataFrame into a stream, and back, beside Spark writing and reading the same rows as Parquet.

There: `from_dataframe` and a job that reads all rows. There and back: `from_dataframe`, `to_dataframe`, and Spark reads
all rows, beside Spark that writes and reads them twice. Spark and the job have two threads each, and run in turn.

    python -m benchmarks.dataframe [--rows 2000000] [--repeat 5] [--json results.json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import snapline as sl
import snapline.connectors as sl_connectors
from benchmarks.cluster import BOTH_COMPILERS, spread, versions
from snapline.session import open_spark

THREADS = 2
COLUMNS = (
    "id", "id % 1000 as shop", "cast(id * 0.25 as double) as amount", "concat('customer-', id % 50000) as customer",
    "timestamp_micros(1700000000000000 + id * 1000) as at",
)  # fmt: skip


class Rows:
    """The rows, and what is done with them."""

    def __init__(self, spark: Any, rows: int, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self._frame = spark.range(0, rows, 1, THREADS).selectExpr(*COLUMNS)
        self._runs = 0

    def spark_writes_and_reads(self) -> None:
        """Spark alone: Parquet, and all of it read again."""
        path = f"{self._fresh()}/parquet"
        self._frame.write.parquet(path)
        self._read(self._spark.read.parquet(path))

    def spark_twice(self) -> None:
        """The same, and once more with what was read."""
        path = f"{self._fresh()}/parquet"
        self._frame.write.parquet(path)
        self._spark.read.parquet(path).write.parquet(f"{path}-2")
        self._read(self._spark.read.parquet(f"{path}-2"))

    def there(self) -> None:
        """From the frame through a job that throws its rows away."""
        self._stream().sink_to(sl_connectors.DiscardingSink(), uid="nowhere")
        self._environment.execute("there", local=True, threads=THREADS)

    def there_and_back(self) -> None:
        """From the frame through a job into another frame."""
        self._read(self._stream().to_dataframe(self._spark, local=True, threads=THREADS))

    def _stream(self) -> sl.DataStream:
        settings: dict[str, object] = {
            "execution.checkpointing.dir": str(self._fresh()), "execution.checkpointing.interval": "1 s"
        }  # fmt: skip
        self._environment = sl.StreamExecutionEnvironment.get_execution_environment(settings).set_parallelism(THREADS)
        return self._environment.from_dataframe(self._frame, uid="frame")

    @staticmethod
    def _read(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _fresh(self) -> Path:
        self._runs += 1
        for old in self._directory.iterdir():
            shutil.rmtree(old, ignore_errors=True)
        made = self._directory / str(self._runs)
        made.mkdir()
        return made


def seconds(action: Callable[[], None]) -> float:
    """How long the function takes, in seconds."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="snapline-dataframe-"))
    spark = open_spark("dataframe", {"spark.master": f"local[{THREADS}]", **BOTH_COMPILERS}).session
    taken: dict[str, list[tuple[float, float]]] = {"there": [], "there and back": []}
    try:
        rows = Rows(spark, options.rows, directory)
        pairs = {
            "there": (rows.there, rows.spark_writes_and_reads),
            "there and back": (rows.there_and_back, rows.spark_twice),
        }
        for repeat in range(options.repeat + 1):
            for name, (ours, theirs) in pairs.items():
                both = seconds(ours), seconds(theirs)
                if repeat:  # the first of each warms up
                    taken[name].append(both)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(versions()))
    results = {}
    for name, times in taken.items():
        ratio = spread([theirs / ours for ours, theirs in times])
        rates = [spread([options.rows / each[side] for each in times])["median"] for side in (0, 1)]
        results[name] = {"ours": rates[0], "spark": rates[1], "ratio": ratio}
        print(
            f"{name:<15} {rates[0]:>12,.0f} rows/s   Spark alone {rates[1]:>12,.0f} rows/s   ratio {ratio['median']:.2f} "
            f"({ratio['min']:.2f} to {ratio['max']:.2f}, n = {ratio['n']})"
        )
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), "rows": options.rows, **results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
