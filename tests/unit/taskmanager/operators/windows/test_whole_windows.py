"""Rows of tumbling windows wait outside of the state, as long as nobody asks by key; the stories of the windows' and
joins' own tests are told both ways."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.dataflow.api.windows import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from snapline.dataflow.elements import Watermark
from snapline.dataflow.graph.operator_specs import WindowProcessSpec
from snapline.dataflow.snapshot.state_format import decode_keyed_state
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.operators.windows import whole_windows, window_contents
from snapline.taskmanager.operators.windows.row_contents import RowContents
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

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


def rows_in(written: Written) -> dict[int, object]:
    """The rows of each key in the file, by window, without what says that a window has fired."""
    (file,) = written.keyed
    _, batches = decode_keyed_state(file.read_range, file.key_group_range)
    table = pa.Table.from_batches(list(batches)).to_pydict()
    (column,) = [name for name in table if name != "k"]
    return dict(
        zip(table["k"], [[(start, entry["rows"]) for start, entry in maps] for maps in table[column]], strict=True)
    )


EXPECTED = [{"k": key, "n": 2 * ROWS // 100, "in_order": True} for key in range(100)]
FIRST = pa.record_batch([pa.array([0]), pa.array([90_000])], schema=SCHEMA)
"""The first batch of a schema never waits."""


def test_a_window_fires_whole_and_leaves_the_state_alone() -> None:
    """Its keys were never in it."""
    harness = started().process(FIRST).process(batch_of(0)).process(batch_of(ROWS))
    assert keys_in_state(harness) == 1
    assert sorted(harness.watermark(9_999).rows(), key=lambda row: row["k"]) == EXPECTED
    assert keys_in_state(harness) == 1 and not harness.operator._waiting.rows


def test_a_snapshot_holds_what_waits_and_leaves_it_waiting() -> None:
    """Its file is that of the state that would hold the rows; whoever starts from it lets them wait as well."""
    harness = started().process(FIRST).process(batch_of(0))
    written = harness.snapshot()
    assert harness.operator._waiting.rows == ROWS + 1, "the first batch, too"
    taken_in = started(lateness_ms=1).process(FIRST).process(batch_of(0)).snapshot()
    assert rows_in(written) == rows_in(taken_in)
    restored = Harness(create()).start(restored_state([written]))
    assert restored.operator._waiting.rows == ROWS + 1
    for goes_on in (harness, restored):
        goes_on.process(batch_of(ROWS)).watermark(9_999)
        assert sorted(goes_on.rows(), key=lambda row: row["k"]) == EXPECTED


def test_a_snapshot_of_a_window_that_is_half_out_holds_the_other_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key comes out once, by the operator and by the one that starts from the snapshot."""
    monkeypatch.setattr(RowContents, "windows_per_slice", 30)
    harness = started().process(FIRST).process(batch_of(0)).process(batch_of(ROWS))
    harness.operator.process_watermark(Watermark(9_999))
    harness.operator.continue_work()
    written = harness.snapshot()
    first = harness.rows()
    assert len(first) == 30
    for goes_on in (harness, Harness(create()).start(restored_state([written]))):
        assert sorted([*first, *goes_on.work().rows()], key=lambda row: row["k"]) == EXPECTED


def test_an_incremental_snapshot_takes_in_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds what has changed in the state, so that few rows wait from the start."""
    incremental = {"execution.checkpointing.incremental": "true", "pipeline.auto-watermark-interval": "0 ms"}
    harness = Harness(create(), configuration=incremental).start().process(FIRST).process(batch_of(0))
    harness.snapshot()
    assert keys_in_state(harness) == 100 and not harness.operator._waiting.rows
    monkeypatch.setattr(whole_windows, "MAX_ROWS_TO_TAKE_IN", ROWS - 1)
    harness.process(batch_of(ROWS))
    assert not harness.operator._waiting.rows
    assert sorted(harness.watermark(9_999).rows(), key=lambda row: row["k"]) == EXPECTED


@pytest.mark.parametrize("bound", ["MAX_WAITING_ROWS", "MAX_WAITING_BYTES"])
def test_no_more_wait_than_the_bounds_say(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Then all of them come into the state."""
    monkeypatch.setattr(whole_windows, bound, ROWS)
    harness = started().process(FIRST).process(batch_of(0)).process(batch_of(ROWS))
    assert keys_in_state(harness) == 100 and not harness.operator._waiting.rows
    assert sorted(harness.watermark(9_999).rows(), key=lambda row: row["k"]) == EXPECTED


@pytest.mark.parametrize(
    ("assigner", "lateness_ms"),
    [
        (TEN_SECONDS, 0),
        (TEN_SECONDS, 1),
        (SlidingEventTimeWindows(10_000, 5_000), 0),
        (EventTimeSessionWindows(10_000), 0),
    ],
    ids=["a window that fires whole", "tumbling", "sliding", "sessions"],
)
def test_windows_of_many_rows_come_out_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, assigner: WindowAssigner, lateness_ms: int
) -> None:
    """A thousand keys were handed to functions in one step, however many rows they had, which all became Python's at
    once, and no barrier passed meanwhile."""
    monkeypatch.setattr(window_contents, "ROWS_PER_SLICE", 100)
    harness = started(assigner, lateness_ms).process(FIRST).process(batch_of(0))
    harness.operator.process_watermark(Watermark(20_000))
    slices = list[int]()
    while harness.operator.has_pending_work:
        harness.operator.continue_work()
        slices.append(sum(row["n"] for row in harness.rows()))
    assert max(slices) <= 100
    assert sum(slices) == ROWS * (2 if isinstance(assigner, SlidingEventTimeWindows) else 1)


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


@pytest.mark.parametrize("rows", [100, 1_000], ids=["few rows", "a window that fires whole"])
def test_categories_of_batches_that_wait_may_be_more_than_each_batch_can_have(rows: int) -> None:
    """Eight bits number the categories of each batch, as pandas has them; those of a window are more."""

    def batch(first: int) -> pa.RecordBatch:
        names = pa.array([str(first + number % 100) for number in range(rows)]).dictionary_encode()
        categories = names.cast(pa.dictionary(pa.int8(), pa.string()))
        return pa.record_batch({"k": pa.array([0] * rows), "t": pa.array([5] * rows), "name": categories})

    harness = started().process(batch(0)).process(batch(100)).process(batch(200))
    again = Harness(create()).start(restored_state([harness.snapshot()]))
    for one in (harness, again):
        assert [row["n"] for row in one.watermark(9_999).rows()] == [3 * rows]


def test_rows_that_do_not_wait_come_behind_those_that_do() -> None:
    """A batch whose rows go to and fro between windows comes into the state, where nothing of its windows was yet."""
    times = [first + row for row in range(30) for first in (ROWS, 10_000)]
    to_and_fro = pa.record_batch([pa.array([t % 100 for t in times]), pa.array(times)], schema=SCHEMA)
    harness = started().process(FIRST).process(batch_of(0)).process(to_and_fro)
    again = Harness(create()).start(restored_state([harness.snapshot()]))
    for one in (harness, again):
        assert all(row["in_order"] for row in one.watermark(9_999).rows())
