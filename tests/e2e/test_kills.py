"""A few runs of the kill matrix; `python -m tests.e2e.kill_matrix` does as many as one likes."""

from __future__ import annotations

import json

import pytest

from tests.e2e.programs import ROOT, python, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_killed_sides_and_executors_leave_no_trace_in_the_output(tmp_path):
    """Sink side and all TaskManagers at once, by signal 9, aligned and unaligned: every row equal to polars'."""
    results = tmp_path / "results.json"
    matrix = python("-m", "tests.e2e.kill_matrix", "--runs", "1", "--victims", "sink,all", "--both", "--kills", "1")
    done = run([*matrix, "--rows", "60000", "--json", results], cwd=ROOT, TMPDIR=str(tmp_path))
    assert done.code == 0, done.out + done.err
    runs = json.loads(results.read_text())
    assert [(r["victim"], r["unaligned"], r["equal"]) for r in runs] == [
        (victim, unaligned, True) for victim in ("sink", "all") for unaligned in (False, True)
    ]
    assert all(r["kills"] == 1 and r["restarts"] >= 1 for r in runs)
