"""Snapshots that an earlier Snapline has written: a job of today starts from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import snapline as sl
from tests.integration.savepoint_job import KEYS, build, committed

STOPPED = Path(__file__).parent / "savepoint_of_0_1"
"""Written by commit d55b510, when the rooms were packages of their own: `savepoint_job --rows 60000` at parallelism 2,
stopped with a savepoint after 59,100 rows."""
ROWS = 60_000
ROWS_BEFORE = 59_100


@pytest.mark.parametrize("parallelism", ["1", "3"])
def test_a_savepoint_of_an_earlier_snapline_is_restored(tmp_path, parallelism):
    """At either parallelism every key counts on where it was: no row is repeated and none is missing."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    arguments = ["--output", str(tmp_path / "out"), "--rows", str(ROWS), "--rate", "1e6", "--parallelism", parallelism]
    build(environment, arguments).restore_from(str(STOPPED))

    environment.execute("restored", local=True)

    found = committed(tmp_path / "out")
    assert ROWS - ROWS_BEFORE == sum(map(len, found.values()))
    last = ROWS // KEYS
    assert [list(range(counts[0], last + 1)) for counts in found.values()] == list(found.values())
