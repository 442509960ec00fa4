"""Rows that stay in their task because a window would drop them, in the simulator: through kills, restores and rescales
the windows say what they say without any fault."""

from __future__ import annotations

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.dataflow.graph.operator_specs import CombinerSpec
from snapline.taskmanager.operators.windows import beaten_rows
from snapline.taskmanager.operators.windows.beaten_rows import BeatenRows
from snapline.testing import simulate

ROWS = [{"k": "abc"[n % 3], "at": 10 * n, "v": n * 7 % 11} for n in range(200)]
SEEDS = pytest.mark.parametrize("seeds", [20, pytest.param(300, marks=[pytest.mark.rare, pytest.mark.timeout(1200)])])


@pytest.fixture(autouse=True)
def held_back(monkeypatch):
    """How many rows did not leave; the simulator's batches are small, so that all of them are looked at."""
    counts: list[int] = []
    real = BeatenRows.without_beaten

    def counted(self: BeatenRows, batch: pa.RecordBatch) -> pa.RecordBatch:
        left = real(self, batch)
        counts.append(batch.num_rows - left.num_rows)
        return left

    monkeypatch.setattr(beaten_rows, "LEAST_ROWS", 1)
    monkeypatch.setattr(BeatenRows, "without_beaten", counted)
    return counts


def tumbling(env):
    """One row of each key and window."""
    rows = env.from_collection(ROWS, uid="rows").assign_timestamps_and_watermarks(
        sl.WatermarkStrategy.for_monotonous_timestamps("at")
    )
    rows.key_by("k").window(sl.TumblingEventTimeWindows(200)).max_by("v", uid="best").sink_to(
        DiscardingSink(), uid="out"
    )


def sliding(env):
    """All rows with the least value, in windows that share their panes."""
    rows = env.from_collection(ROWS, uid="rows").assign_timestamps_and_watermarks(
        sl.WatermarkStrategy.for_monotonous_timestamps("at")
    )
    windows = rows.key_by("k").window(sl.SlidingEventTimeWindows(600, 200)).allowed_lateness(200)
    windows.min_by("v", ties="all", uid="best").sink_to(DiscardingSink(), uid="out")


@SEEDS
@pytest.mark.parametrize("job", [tumbling, sliding])
def test_windows_say_the_same_through_every_fault(job, seeds, held_back):
    """Most rows stay where they are, and none of them is missed."""
    report = simulate(job, seeds=seeds)

    assert report.ok, str(report)
    assert report.restarts > seeds // 2
    assert sum(held_back) > len(held_back)


def test_a_memory_that_outlives_its_rows_is_found(monkeypatch):
    """Beaten by a row that left and was lost with its task: a combiner must begin empty after a restore."""
    memories: dict[str, BeatenRows] = {}

    def remembered(spec: CombinerSpec) -> BeatenRows:
        memory = memories.setdefault(repr(spec), BeatenRows(spec))
        memory._fired_ms = MIN_WATERMARK_MS
        return memory

    monkeypatch.setattr(beaten_rows, "BeatenRows", remembered)

    report = simulate(tumbling, seeds=20, check=False)

    assert report.is_broken
