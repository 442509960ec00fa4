"""The examples and the tutorial run in one process and on Spark, and write the same rows. The notebook does so in
tests/integration/test_notebook.py. Programs outside are processes of their own, so that their job has no local form:
here it runs on Spark, in tests/integration/test_external_rows.py on TaskManagers without Spark, with the same rows."""

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
from tests.integration.test_external_rows import expected, written
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
        case "demo":
            demo: list[str | Path] = ["--input", flights, "--kills", "0", "--rows-per-second", "0", "--output", "out"]
            return [ROOT / "examples" / "demo.py", *demo]
        case "pipeline":
            few = ["--flights", "20000", "--rows-per-second", "10000", "--kills", "0", "--breaks", "1"]
            return [ROOT / "examples" / "pipeline.py", "--input", flights, *few, "--output", "out"]
        case "resumable":
            (directory / "out").mkdir()
            few = ["--rows", "12000", "--no-timing", "--output", "out/scores.parquet"]
            return [ROOT / "examples" / "resumable.py", "--input", flights, *few]
        case _:
            for name, text in PROGRAMS.items():
                (directory / name).write_text(text)
            orders = run(python("make_orders.py"), directory, PYTHONPATH=str(ROOT))
            assert orders.code == 0, orders.err
            return ["job.py"]


@pytest.mark.parametrize(
    "program", ["flights", "shopping", "state_source_and_sink", "tutorial", "demo", "pipeline", "resumable"]
)
def test_the_same_rows_in_one_process_and_on_spark(tmp_path, flights, program):
    """Every sink of the program has every row as often on Spark as it has locally."""
    by_way = []
    for name, where in (("locally", LOCALLY), ("on_spark", ON_SPARK)):
        directory = tmp_path / name
        directory.mkdir()
        command = write_inputs(program, directory, flights)
        done = run(python(*command), directory, PYTHONPATH=str(ROOT), **where)
        assert done.code == 0, done.err
        by_way.append(rows_by_directory(directory))
    locally, on_spark = by_way
    assert locally == on_spark
    assert sum(rows.total() for rows in locally.values()) > 0


OUTSIDE = """
import threading
from pathlib import Path

import snapline as sl
from examples.external_rows import NUMBERS, TOTALS, Files, Numbers, Totals
from snapline.beside_drivers import running
from snapline.external import participate
from tests.integration.test_external_rows import UNTIL

env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.enable_checkpointing(200).set_checkpoint_dir("checkpoints")
numbers = env.from_external("numbers", NUMBERS, uid="numbers")
numbers.key_by("key").via_external("totals", TOTALS, uid="totals").to_external("files", uid="files")
job = env.execute_async("outside")
beside = running()[0]
where = {"job": job.job_id, "coordinator": beside.address, "settings": {"security.auth.token": beside.token}}
for name, task in {"numbers": Numbers(UNTIL, 0.01), "totals": Totals(), "files": Files(Path("out"))}.items():
    threading.Thread(target=participate, args=(task,), kwargs={"task_name": name, **where}, daemon=True).start()
print(job.wait().status)
"""


def test_the_job_of_programs_outside_runs_on_spark(tmp_path):
    """The rows of `examples/external_rows.py`, whose programs are threads of the driver here."""
    (tmp_path / "job.py").write_text(OUTSIDE)
    done = run(python("job.py"), tmp_path, PYTHONPATH=str(ROOT), SNAPLINE_RUNTIME_DIR=str(tmp_path), **ON_SPARK)
    assert done.code == 0, done.err
    assert "FINISHED" in done.printed
    assert written(tmp_path / "out") == expected()
