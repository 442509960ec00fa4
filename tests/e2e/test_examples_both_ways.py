"""The examples and the tutorial run in one process and on Spark, and write the same rows. The examples whose point is
that processes are killed (demo, pipeline, resumable) need processes: they have no local form."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from snapline.local.local_execution import LOCAL_VARIABLE
from tests.e2e.programs import ROOT, python, run
from tests.e2e.test_tutorial import PROGRAMS
from tests.unit.examples.test_shopping import small_year

LOCALLY: dict[str, Any] = {LOCAL_VARIABLE: "1"}
ON_SPARK: dict[str, Any] = {"MASTER": "local-cluster[2,2,1024]"}

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.rare, pytest.mark.timeout(600)]


def rows_by_directory(output: Path) -> dict[str, Counter[str]]:
    """What each sink has written, every row as often; hidden files and checkpoints belong to no sink."""
    found: dict[str, Counter[str]] = {}
    for file in sorted(output.rglob("*.*")):
        parts = file.relative_to(output).parts
        if file.suffix not in (".parquet", ".jsonl") or any(part.startswith((".", "_")) for part in parts):
            continue
        rows = pl.read_parquet(file) if file.suffix == ".parquet" else pl.read_ndjson(file)
        found.setdefault(str(Path(*parts[:-1])), Counter()).update(
            json.dumps(row, default=str) for row in rows.to_dicts()
        )
    return found


def write_inputs(program: str, directory: Path, flights: Path) -> list[str | Path]:
    """Prepare what the program reads and return the rest of its command."""
    match program:
        case "flights":
            return [ROOT / "examples" / "flights.py", "--input", flights, "--output", "out"]
        case "shopping":
            data = small_year(directory / "data")
            return [ROOT / "examples" / "shopping.py", "--input", data, "--output", "out"]
        case "state_source_and_sink":
            return [ROOT / "examples" / "state_source_and_sink.py", "--output", "out"]
        case _:
            for name, text in PROGRAMS.items():
                (directory / name).write_text(text)
            orders = run(python("make_orders.py"), directory, PYTHONPATH=str(ROOT))
            assert orders.code == 0, orders.err
            return ["job.py"]


@pytest.mark.parametrize("program", ["flights", "shopping", "state_source_and_sink", "tutorial"])
def test_the_same_rows_in_one_process_and_on_spark(tmp_path, flights, program):
    """Every sink of the program has every row as often on Spark as it has locally."""
    written = []
    for name, where in (("locally", LOCALLY), ("on Spark", ON_SPARK)):
        directory = tmp_path / name
        directory.mkdir()
        command = write_inputs(program, directory, flights)
        done = run(python(*command), directory, PYTHONPATH=str(ROOT), **where)
        assert done.code == 0, done.err
        written.append(rows_by_directory(directory))
    locally, on_spark = written
    assert locally == on_spark
    assert sum(rows.total() for rows in locally.values()) > 0
