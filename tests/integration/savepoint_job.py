"""The job of the savepoint tests, as a script that a user would write: running sums per key of generated rows.

Every part that a test wants to change is an option.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

import snapline as sl
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.parquet.parquet_sink import ParquetSink
from tests.services.gate import GatedGenerator

KEYS = 40


def build(environment: sl.StreamExecutionEnvironment, arguments: Sequence[str]) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    cli = argparse.ArgumentParser()
    cli.add_argument("--output", required=True)
    cli.add_argument("--rows", type=int, default=0)
    cli.add_argument("--gate", help="the job does not end before this file is there")
    cli.add_argument("--rate", type=float, default=20_000)
    cli.add_argument("--uid", default="sums")
    cli.add_argument("--parallelism", type=int, default=2)
    cli.add_argument("--max-parallelism", type=int, default=0)
    cli.add_argument("--smallest", action="store_true", help="one aggregate more")
    cli.add_argument("--only-counts", action="store_true", help="one aggregate less")
    options = cli.parse_args(arguments)
    environment.set_parallelism(options.parallelism)
    shape = {"keys": KEYS, "rows_per_second": options.rate, "batch_rows": 200, "splits": 8}
    if options.gate:
        source: GeneratorSource = GatedGenerator(Path(options.gate), rows=options.rows, **shape)
    else:
        source = GeneratorSource(rows=options.rows or None, **shape)
    keyed = environment.from_source(source, uid="generator").key_by("key")
    more: dict[str, Any] = {} if options.only_counts else {"total": sl.sum("value")}
    if options.smallest:
        more["low"] = sl.min("value")
    sums = keyed.running_aggregate(uid=options.uid, name="sums", n=sl.count(), **more)
    if options.max_parallelism:
        sums.set_max_parallelism(options.max_parallelism)
    sums.sink_to(ParquetSink(options.output), uid="sink")
    return environment


def committed(output: Path) -> dict[int, list[int]]:
    """Per key, the counts that were committed, sorted. Exactly-once means 1, 2, 3, ... for every key."""
    dataset = ds.dataset(output, format="parquet") if output.exists() else None
    if dataset is None or not dataset.files:
        return {}
    table = dataset.to_table()
    found: dict[int, list[int]] = {}
    for key, n in zip(table.column("key").to_pylist(), table.column("n").to_pylist(), strict=True):
        found.setdefault(key, []).append(n)
    return {key: sorted(counts) for key, counts in found.items()}


def assert_exactly_once(output: Path, rows: int | None = None) -> int:
    """No hole and no repetition in any key; the number of rows."""
    found = committed(output)
    for key, counts in found.items():
        assert counts == list(range(1, len(counts) + 1)), f"key {key}: {counts[:20]} ... {counts[-5:]}"
    total = sum(len(counts) for counts in found.values())
    assert rows is None or total == rows
    return total


if __name__ == "__main__":
    import sys

    job = build(sl.StreamExecutionEnvironment.get_execution_environment(), sys.argv[1:])
    print(job.execute("savepoint job").summary)
