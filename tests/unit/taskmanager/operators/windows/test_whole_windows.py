"""Rows of tumbling windows wait outside of the state, as long as nobody asks by key; the stories of the windows' and
joins' own tests are told both ways."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.dataflow.api.windows import SlidingEventTimeWindows, TumblingEventTimeWindows, WindowAssigner
from snapline.dataflow.graph.operator_specs import WindowProcessSpec
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.operators.windows import whole_windows
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64())])
ROWS = 4_000
TEN_SECONDS = TumblingEventTimeWindows(10_000)


def counted(_key: int, _window: object, batch: pa.RecordBatch) -> pa.RecordBatch:
    """How many rows a window has, and that they came in the order of their arrival."""
    times = batch.column("t").to_pylist()
    return pa.record_batch({"k": batch.column("k")[:1], "n": [len(times)], "in_order": [times == sorted(times)]})


def create(assigner: WindowAssigner = TEN_SECONDS, lateness_ms: int = 0) -> StreamOperator:
    return create_window_operator(
        WindowProcessSpec(("k",), "t", assigner, counted, "batches", allowed_lateness_ms=lateness_ms)
    )


def started(assigner: WindowAssigner = TEN_SECONDS, lateness_ms: int = 0) -> Harness:
    return Harness(create(assigner, lateness_ms)).start()


def batch_of(first_ms: int, keys: int = 100) -> pa.RecordBatch:
    times = range(first_ms, first_ms + ROWS)
    return pa.record_batch([pa.array([t % keys for t in times]), pa.array(list(times))], schema=SCHEMA)


def keys_in_state(harness: Harness) -> int:
    return len(harness.operator.backend)


EXPECTED = [{"k": key, "n": 2 * ROWS // 100, "in_order": True} for key in range(100)]
FIRST = pa.record_batch([pa.array([0]), pa.array([90_000])], schema=SCHEMA)
"""The first batch of a schema never waits."""


def test_a_window_fires_whole_and_leaves_the_state_alone() -> None:
    """Its keys were never in it."""
    harness = started().process(FIRST).process(batch_of(0)).process(batch_of(ROWS))
    assert keys_in_state(harness) == 1
    assert sorted(harness.watermark(9_999).rows(), key=lambda row: row["k"]) == EXPECTED
    assert keys_in_state(harness) == 1 and not harness.operator._waiting.rows


def test_a_snapshot_takes_in_what_waits() -> None:
    """And what comes after it belongs to the same window."""
    harness = started().process(FIRST).process(batch_of(0))
    written = [harness.snapshot()]
    assert keys_in_state(harness) == 100 and not harness.operator._waiting.rows
    for goes_on in (harness, Harness(create()).start(restored_state(written))):
        goes_on.process(batch_of(ROWS)).watermark(9_999)
        assert sorted(goes_on.rows(), key=lambda row: row["k"]) == EXPECTED


@pytest.mark.parametrize("bound", ["MAX_WAITING_ROWS", "MAX_WAITING_BYTES"])
def test_no_more_wait_than_the_bounds_say(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Then all of them come into the state."""
    monkeypatch.setattr(whole_windows, bound, ROWS)
    harness = started().process(FIRST).process(batch_of(0)).process(batch_of(ROWS))
    assert keys_in_state(harness) == 100 and not harness.operator._waiting.rows
    assert sorted(harness.watermark(9_999).rows(), key=lambda row: row["k"]) == EXPECTED


def test_a_task_that_has_time_lets_fewer_rows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes them into the state while nothing else is to do, so that a checkpoint need not."""
    monkeypatch.setattr(whole_windows, "ROWS_OF_AN_IDLE_TASK", ROWS)
    harness = started().process(FIRST).process(batch_of(0)).process(batch_of(ROWS))
    assert keys_in_state(harness) == 1
    harness.time.found_nothing()
    harness.process(batch_of(10_000))
    assert keys_in_state(harness) == 100 and not harness.operator._waiting.rows
    assert sorted(harness.watermark(9_999).rows(), key=lambda row: row["k"]) == EXPECTED


def test_a_key_of_another_type_is_told_with_the_batch_that_has_it() -> None:
    """And not by the window that would have it."""
    harness = started().process(FIRST).process(batch_of(0))
    with pytest.raises(TypeError, match="key column 'k' changed its type"):
        harness.process(pa.record_batch({"k": ["a"], "t": [1]}))


@pytest.mark.parametrize(
    ("assigner", "lateness_ms"),
    [(TEN_SECONDS, 1), (SlidingEventTimeWindows(10_000, 5_000), 0)],
    ids=["allowed lateness", "panes are shared"],
)
def test_windows_that_may_fire_twice_keep_to_the_state(assigner: WindowAssigner, lateness_ms: int) -> None:
    """Of a row that waits nobody knows that its window has fired."""
    harness = started(assigner, lateness_ms).process(FIRST).process(batch_of(0))
    assert keys_in_state(harness) == 100
