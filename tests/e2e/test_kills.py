"""A few runs of the kill matrix; `python -m tests.e2e.kill_matrix` does as many as one likes."""

from __future__ import annotations

import json

import pytest

from tests.e2e.programs import ROOT, python, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param({"executor": False}, id="executor"),
        pytest.param({"sink": False, "all": True, "decommission": False}, id="others", marks=pytest.mark.rare),
    ],
)
def test_whatever_is_killed_leaves_no_trace_in_the_output(tmp_path, victims):
    """An executor's Java process ends by signal 9; in the long form also the sink side, all TaskManagers, and an
    executor that Spark has told to go. Every row equals polars'. By victim: whether checkpoints are unaligned."""
    results = tmp_path / "results.json"
    matrix = python(
        "-m", "tests.e2e.kill_matrix", "--runs", "1", "--victims", ",".join(victims), "--in-turn", "--kills", "1"
    )
    # Spark takes its time to kill what it has told to go.
    slow = ("--rows", "80000" if "decommission" in victims else "40000", "--rows-per-second", "6000")
    done = run([*matrix, *slow, "--json", results], cwd=ROOT, timeout=600, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    assert done.code == 0, done.out + done.err
    runs = json.loads(results.read_text())
    assert [(r["victim"], r["unaligned"], r["equal"]) for r in runs] == [
        (victim, unaligned, True) for victim, unaligned in victims.items()
    ]
    assert all(r["kills"] == 1 and r["restarts"] >= 1 for r in runs)
