"""A job from Parquet to Parquet beside polars on the same file: what each takes of the clock and of the processors.

Rows have two integers, a float, a time and a text of one in a thousand. Both keep the rows whose value is odd, add a
column of twice the price, and write one Parquet file with zstd a writer. Each run is a process of its own, with all
that it starts: `local` is `env.execute("job", local=True)`, `spark` the job on Spark's local mode, whose Java process
is counted apart from its Python workers. Outputs are compared before anything is printed.

    python -m benchmarks.parquet_job --rows 6000000 --runs 3 --json
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import snapline as sl
from benchmarks.cluster import report, spread, versions
from snapline.connectors import FileSink, FileSource

ROW_GROUP = 250_000
SAMPLE_S = 0.02


def made(path: Path, rows: int) -> None:
    """Write a Parquet file with so many rows, compressed with zstd."""
    number = np.arange(rows)
    table = pa.table(
        {
            "id": number,
            "value": number * 2_654_435_761 % 1_000_003,
            "price": np.sqrt(number),
            "at": pa.array(number * 1_000).cast(pa.timestamp("us")),
            "name": pa.array([f"name-{i:04}" for i in range(1_000)]).take(pa.array(number % 1_000)),
        }
    )
    pq.write_table(table, path, row_group_size=ROW_GROUP, compression="zstd")


def with_polars(source: str, target: str) -> None:
    """Read, filter and write the file by a lazy query of polars, which streams."""
    query = pl.scan_parquet(source).filter(pl.col("value") % 2 == 1).with_columns(double=pl.col("price") * 2)
    query.sink_parquet(f"{target}/part.parquet", compression="zstd", mkdir=True)


def with_a_job(source: str, target: str, *, local: bool) -> None:
    """Read, filter and write the file by a job of Snapline, in this process or on Spark."""
    settings = {"execution.checkpointing.dir": f"{target}-checkpoints", "parallelism.default": 1 if local else 2}
    environment = sl.StreamExecutionEnvironment.get_execution_environment(settings)
    rows = environment.from_source(FileSource(source), uid="in")
    rows = rows.filter(sl.col("value") % 2 == 1, name="odd").with_columns(double=sl.col("price") * 2)
    rows.sink_to(FileSink(target, compression="zstd"), uid="out")
    environment.execute("parquet", local=local)


KINDS: dict[str, Callable[[str, str], None]] = {
    "polars": with_polars,
    "local": lambda source, target: with_a_job(source, target, local=True),
    "spark": lambda source, target: with_a_job(source, target, local=False),
}


class _Processes(threading.Thread):
    """Watches the processor time of all processes below this one, until they are gone."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.python_s: dict[int, float] = {}
        self.java_s: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(SAMPLE_S):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it has ended since
                    times = process.cpu_times()
                    (self.java_s if process.name() == "java" else self.python_s)[process.pid] = (
                        times.user + times.system
                    )


def measured(kind: str, source: Path, target: Path) -> dict[str, float]:
    """Run it in a process: seconds of the clock, and of the processors."""
    processes, begin = _Processes(), time.monotonic()
    processes.start()
    command = [sys.executable, "-m", "benchmarks.parquet_job", "--one", kind, str(source), str(target)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wall_s = time.monotonic() - begin
    processes.over.set()
    processes.join()
    return {
        "wall_s": wall_s,
        "python_cpu_s": sum(processes.python_s.values()),
        "java_cpu_s": sum(processes.java_s.values()),
    }


def figures(target: Path) -> tuple[int, float, int]:
    """Rows, sum of the new column, and sum of the ids: what outputs are compared by."""
    table = ds.dataset([str(path) for path in target.rglob("*.parquet")]).to_table(columns=["id", "double"])
    return table.num_rows, round(pc.sum(table["double"]).as_py(), 3), pc.sum(table["id"]).as_py()


def main(arguments: list[str] | None = None) -> int:
    """Run all kinds in turn and print their medians."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--rows", type=int, default=6_000_000)
    cli.add_argument("--runs", type=int, default=3)
    cli.add_argument("--kind", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    cli.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    if options.one:
        kind, source, target = options.one
        KINDS[kind](source, target)
        return 0
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in options.kind}
    results = set()
    with tempfile.TemporaryDirectory(prefix="snapline-parquet-") as directory:
        source = Path(directory) / "in.parquet"
        made(source, options.rows)
        for run in range(options.runs):
            for kind in options.kind:
                target = Path(directory) / f"{kind}-{run}"
                runs[kind].append(measured(kind, source, target))
                results.add(figures(target))
    if len(results) != 1:
        print(f"outputs differ: {results}", file=sys.stderr)
        return 1
    medians = {
        kind: {name: round(spread([one[name] for one in them])["median"], 2) for name in them[0]}
        for kind, them in runs.items()
    }
    report(f"parquet_job, {options.rows} rows", {**medians, "versions": versions()}, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
