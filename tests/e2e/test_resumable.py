"""An ordinary PySpark job whose workers, and whose driver, are killed by signal 9 goes on where its partitions were."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.e2e import programs
from tests.e2e.scoring import rows

ROWS, PARTITIONS = 40_000, 2
HALF = ROWS // PARTITIONS
PLACES = [int(HALF * share) + HALF * partition for partition in range(PARTITIONS) for share in (0.3, 0.6, 0.9)]


def scored(directory: Path, kind: str, places: list[int]) -> programs.Ended:
    """Run the driver."""
    arguments = [directory, ROWS, PARTITIONS, 50, kind, *places]
    command = programs.python(Path(__file__).with_name("scoring.py"), *map(str, arguments))
    return programs.run(command, programs.ROOT, PYTHONPATH=str(programs.ROOT))


def check_output(directory: Path) -> None:
    """Each row once, with the sum of its partition so far."""
    table = ds.dataset(directory / "out", format="parquet").to_table().sort_by("id")
    wanted, total = [], 0
    for number in range(ROWS):
        total = number if number % HALF == 0 else total + number
        wanted.append(total)
    assert table["id"].to_pylist() == list(range(ROWS))
    assert table["total"].to_pylist() == wanted


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)  # three drivers of Spark, one after the other
def test_killed_workers_and_a_driver_that_is_started_again(tmp_path: Path) -> None:
    """Workers die at 30, 60 and 90 percent of each partition, then the driver; the next run only reads output back. No
    kill costs more than what comes between two checkpoints."""
    first = scored(tmp_path, "driver", [PLACES[0] // 2])
    assert first.code == -9, first.err
    ended = scored(tmp_path, "worker", PLACES)
    assert ended.code == 0, ended.err
    assert ended.out.strip() == f"{ROWS} True"
    check_output(tmp_path)
    died = {path.name for path in tmp_path.glob("died-*")}  # partition 1 may be past a place when the driver dies
    assert died >= {f"died-0-{place}" for place in [PLACES[0] // 2, *PLACES[:3]]}
    work = sum(rows(tmp_path))
    assert work < 1.5 * ROWS
    again = scored(tmp_path, "worker", PLACES)
    assert again.code == 0, again.err
    assert sum(rows(tmp_path)) == work
    check_output(tmp_path)
