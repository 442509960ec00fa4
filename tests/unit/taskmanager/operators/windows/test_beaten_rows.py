"""Rows that a window would drop do not leave their task, and nothing of what it says becomes another."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.api.windows import RowsBy
from snapline.dataflow.graph.operator_specs import CombinerSpec
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.windows import beaten_rows
from snapline.taskmanager.operators.windows.beaten_rows import BeatenRows
from snapline.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.float64()), ("n", pa.int64())])
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60), st.sampled_from([None, float("nan"), 1, 2, 3.5])),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(st.one_of(ROWS, st.integers(0, 60)), min_size=1, max_size=12)
"""Batches, and watermarks."""


def combiner(assigner: sl.TumblingEventTimeWindows | sl.SlidingEventTimeWindows, by: RowsBy) -> BeatenRows:
    """What keeps rows back."""
    return BeatenRows(CombinerSpec(("k",), "at", assigner, by))


def batch_of(rows: list[tuple[str | None, int, float | None]], first: int = 0) -> pa.RecordBatch:
    """Rows with numbers."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    numbers = range(first, first + len(rows))
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip([*columns, numbers], SCHEMA, strict=True)], schema=SCHEMA
    )


@given(steps=STEPS, size=st.integers(1, 30), slides=st.integers(1, 3), ties=st.sampled_from(["first", "last", "all"]), largest=st.booleans(), lateness=st.sampled_from([0, 15]))  # fmt: skip
@example(steps=[[("a", 1, 3.5)], 40, [("a", 2, 2)], [("a", 50, 1), ("a", 51, 1)]], size=10, slides=1, ties="all", largest=True, lateness=15)  # fmt: skip
def test_a_window_says_the_same(
    steps: list[list[tuple[str | None, int, float | None]] | int],
    size: int,
    slides: int,
    ties: str,
    largest: bool,
    lateness: int,
) -> None:
    """Results, when they come, and late rows are those of a window that gets every row."""
    assigner = sl.SlidingEventTimeWindows(size * slides, size) if slides > 1 else sl.TumblingEventTimeWindows(size)

    def build(rows: sl.DataStream) -> sl.DataStream:
        windows = rows.key_by("k").window(assigner).allowed_lateness(lateness).side_output_late_data("late")
        return windows.max_by("v", ties=ties) if largest else windows.min_by("v", ties=ties)

    told = []
    for between in (None, combiner(assigner, RowsBy("v", largest, ties))):
        harness = OperatorHarness(build, SCHEMA, event_time="at", parallelism=1)
        said: list[object] = []
        number = 0
        for step in steps:
            if isinstance(step, int):
                if between is not None:
                    between.on_watermark(step)
                found = harness.watermark(step)
            else:
                batch = batch_of(step, number)
                number += len(step)
                found = harness.push(batch if between is None else between.without_beaten(batch))
            said.append((sorted(map(repr, found.rows())), repr(found.side_rows("late"))))
        told.append((said, sorted(map(repr, harness.end_input().rows()))))
        harness.close()
    assert told[0] == told[1]


@pytest.fixture(autouse=True)
def every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, too."""
    monkeypatch.setattr(beaten_rows, "LEAST_ROWS", 1)


def left(keeps: BeatenRows, rows: list[tuple[str | None, int, float | None]]) -> list[int]:
    """The numbers of those that leave."""
    found: list[int] = keeps.without_beaten(batch_of(rows)).column("n").to_pylist()
    return found


def test_what_is_beaten_stays() -> None:
    """By rows of its own batch, and by those that left before."""
    keeps = combiner(sl.TumblingEventTimeWindows(10), RowsBy("v", largest=True))
    assert left(keeps, [("a", 1, 2), ("a", 2, 3.5), ("b", 2, 1), ("a", 11, 1), ("a", 3, 3.5)]) == [1, 2, 3]
    assert left(keeps, [("a", 1, 2), ("a", 2, 3.5), ("b", 2, 3), ("a", 12, 1), ("a", 19, 2)]) == [2, 4]


def test_rows_of_a_window_that_may_have_fired_leave() -> None:
    """They are late, which the window counts."""
    keeps = combiner(sl.TumblingEventTimeWindows(10), RowsBy("v", largest=True))
    assert left(keeps, [("a", 1, 2)]) == [0]
    keeps.on_watermark(9)
    assert left(keeps, [("a", 1, 1), ("a", 12, 2), ("a", 12, 1)]) == [0, 1, 2]


def test_where_most_rows_leave_most_batches_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking costs as much as it would save. It is tried again and again all the same."""
    keeps = combiner(sl.TumblingEventTimeWindows(10), RowsBy("v", largest=True))
    looked: Counter[int] = Counter()
    monkeypatch.setattr(
        beaten_rows, "event_times_ms", lambda batch, name: looked.update([1]) or event_times_ms(batch, name)
    )
    for window in range(400):
        left(keeps, [("a", 10 * window, 1), ("b", 10 * window, 1)])
    assert 8 <= looked.total() <= 16
    while keeps._to_skip:
        left(keeps, [("a", 0, 1)])
    assert left(keeps, [("a", 9_000, 1)] * 8) == [0]
    assert left(keeps, [("a", 9_000, 1)] * 8) == []


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is forgotten at some time, and then more rows leave."""
    monkeypatch.setattr(beaten_rows, "MOST_PANES", 3)
    keeps = combiner(sl.TumblingEventTimeWindows(10), RowsBy("v", largest=True))
    for window in range(20):
        assert left(keeps, [("a", 10 * window, 1)] * 9) == [0]
        assert len(keeps._index) <= 4


def test_a_batch_that_the_window_will_refuse_leaves_whole() -> None:
    """Whoever owns the window is told, by the window."""
    keeps = combiner(sl.TumblingEventTimeWindows(10), RowsBy("v", largest=True))
    whole = batch_of([("a", 1, 1)] * 3)
    nulls = pa.RecordBatch.from_pylist([{"k": "a", "at": None, "v": 1.0, "n": 1}] * 3, schema=SCHEMA)
    texts = whole.set_column(2, "v", pa.array(["x"] * 3))
    for strange in (whole.drop_columns("at"), whole.drop_columns("k"), nulls, texts):
        assert keeps.without_beaten(strange) is strange


def test_which_edges_have_it() -> None:
    """Those to windows of event time that keep the best rows, unless a trigger counts rows, or late ones are handed on:
    a window is ahead of an edge that was idle, or begins after a restore, and does not know that its rows are late."""

    def of(build: object) -> int:
        environment = sl.StreamExecutionEnvironment.get_execution_environment({})
        strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
        rows = environment.from_source(CollectionSource([], schema=SCHEMA), strategy, uid="rows")
        build(rows.key_by("k")).sink_to(DiscardingSink(), uid="nowhere")  # type: ignore[operator]
        return sum(bool(edge.combiner) for edge in environment.translate("a job").job_graph.edges)

    tumbling = sl.TumblingEventTimeWindows(10)
    assert of(lambda keyed: keyed.window(tumbling).max_by("v", uid="w")) == 1
    assert of(lambda keyed: keyed.window(sl.SlidingEventTimeWindows(20, 10)).min_by("v", uid="w")) == 1
    assert of(lambda keyed: keyed.window(sl.EventTimeSessionWindows(10)).max_by("v", uid="w")) == 0
    assert of(lambda keyed: keyed.window(sl.TumblingProcessingTimeWindows(10)).max_by("v", uid="w")) == 0
    assert of(lambda keyed: keyed.window(tumbling).trigger(sl.CountTrigger(2)).max_by("v", uid="w")) == 0
    assert of(lambda keyed: keyed.window(tumbling).side_output_late_data("late").max_by("v", uid="w")) == 0
    assert of(lambda keyed: keyed.window(tumbling).aggregate(uid="w", n=sl.max("v"))) == 0
