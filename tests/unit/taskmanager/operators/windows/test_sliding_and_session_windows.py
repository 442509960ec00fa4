"""Sliding, session and count windows of all contents, against dictionaries and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.function_contexts import Row, WindowContext
from snapline.dataflow.api.functions import ProcessWindowFunction
from snapline.dataflow.api.windows import (
    Aggregate,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    RowsBy,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import WindowAggregateSpec, WindowProcessSpec
from snapline.taskmanager.operators.windows import pane_windows
from snapline.taskmanager.operators.windows.row_contents import RowContents
from snapline.taskmanager.operators.windows.window_contents import AccumulatorContents
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from tests.unit.taskmanager.operators.driving import ROW, SCHEMA, Subtasks, ms, steps
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend_and_checkpoints")

AGGREGATES = (
    Aggregate("n", "count"),
    Aggregate("total", "sum", "v"),
    Aggregate("least", "min", "v"),
    Aggregate("greatest", "max", "v"),
)


class Summary(ProcessWindowFunction):
    """The aggregates, row by row."""

    def process(self, key: Any, context: WindowContext, rows: Sequence[Row]) -> list[Row]:
        assert all((row["k"], row["g"]) == key for row in rows)
        window = context.window
        return [{"k": key[0], "g": key[1], "s": window.start_ms, "e": window.end_ms, **summary(rows)}]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    values = [row["v"] for row in rows if row["v"] is not None]
    return {
        "n": len(rows),
        "total": sum(values) if values else None,
        "least": min(values, default=None),
        "greatest": max(values, default=None),
    }


def summary_of_batch(key: Any, window: TimeWindow, batch: pa.RecordBatch) -> pa.RecordBatch:
    row = {"k": key[0], "g": key[1], "s": window.start_ms, "e": window.end_ms, **summary(batch.to_pylist())}
    schema = [
        ("k", pa.string()),
        ("g", pa.int32()),
        *((n, pa.int64()) for n in ("s", "e", "n", "total", "least", "greatest")),
    ]
    return pa.RecordBatch.from_pylist([row], schema=pa.schema(schema))


SUMMARY_SCHEMA = summary_of_batch((None, 1), TimeWindow(0, 1), pa.RecordBatch.from_pylist([], schema=SCHEMA)).schema


def create(assigner: Any, form: str, lateness: int = 0) -> Any:
    time = "" if isinstance(assigner, GlobalWindows) else "t"
    if form == "aggregate":
        return lambda: create_window_operator(
            WindowAggregateSpec(("k", "g"), time, assigner, AGGREGATES, lateness, "late")
        )
    function = Summary() if form == "rows" else summary_of_batch
    return lambda: create_window_operator(
        WindowProcessSpec(("k", "g"), time, assigner, function, form, SUMMARY_SCHEMA, lateness, "late")
    )


def found(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    results = []
    for row in rows:
        start = row["s"] if "s" in row else ms(row["window_start"]) if "window_start" in row else MIN_WATERMARK_MS
        end = row["e"] if "e" in row else ms(row["window_end"]) if "window_end" in row else MAX_WATERMARK_MS
        results.append((row["k"], row["g"], start, end, *(row[name] for name in ("n", "total", "least", "greatest"))))
    return in_order(results)


def in_order(results: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(results, key=lambda one: (str(one[0]), one[1:4], str(one)))


class Sliding:
    """Row by row; a result is computed from all rows of the window."""

    def __init__(self, size: int, slide: int, offset: int, lateness: int) -> None:
        self.size, self.slide, self.offset, self.lateness = size, slide, offset, lateness
        self.watermark = MIN_WATERMARK_MS
        self.rows: dict[tuple[Any, Any], list[Row]] = {}
        self.late: list[Row] = []

    def windows(self, time: int) -> list[int]:
        last = time - (time - self.offset) % self.slide
        return [
            start
            for start in range(last, last - self.size - self.slide, -self.slide)
            if start <= time < start + self.size
        ]

    def result(self, key: tuple[Any, Any], start: int) -> tuple[Any, ...]:
        rows = [row for row in self.rows[key] if start <= row["t"] < start + self.size]
        return (*key, start, start + self.size, *summary(rows).values())

    def batch(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        changed = set()
        for row in rows:
            windows = self.windows(row["t"])
            if not windows:
                continue
            if windows[0] + self.size - 1 + self.lateness <= self.watermark:
                self.late.append(row)
                continue
            key = (row["k"], row["g"])
            self.rows.setdefault(key, []).append(row)
            for start in windows:
                if start + self.size - 1 <= self.watermark < start + self.size - 1 + self.lateness:
                    changed.add((key, start))
        return in_order([self.result(*one) for one in changed])

    def advance(self, watermark: int) -> list[tuple[Any, ...]]:
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        due = {
            (key, start)
            for key, rows in self.rows.items()
            for row in rows
            for start in self.windows(row["t"])
            if before < start + self.size - 1 <= self.watermark
        }
        return in_order([self.result(*one) for one in due])


class Sessions:
    """Row by row: Flink's MergingWindowSet with lists; windows that only touch stay apart."""

    def __init__(self, gap: int, lateness: int) -> None:
        self.gap, self.lateness = gap, lateness
        self.watermark = MIN_WATERMARK_MS
        self.sessions: dict[tuple[Any, Any], list[list[Row]]] = {}
        self.late: list[Row] = []

    def interval(self, rows: list[Row]) -> tuple[int, int]:
        return min(row["t"] for row in rows), max(row["t"] for row in rows) + self.gap

    def result(self, key: tuple[Any, Any], rows: list[Row]) -> tuple[Any, ...]:
        return (*key, *self.interval(rows), *summary(rows).values())

    def batch(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        changed: list[tuple[Any, Any]] = []
        touched: list[tuple[tuple[Any, Any], Row]] = []
        for row in rows:
            key = (row["k"], row["g"])
            merged: list[list[Row]] = []
            others: list[list[Row]] = []
            for session in self.sessions.get(key, []):
                start, end = self.interval(session)
                (merged if start < row["t"] + self.gap and row["t"] < end else others).append(session)
            flat = [r for one in merged for r in one] + [row]
            if self.interval(flat)[1] - 1 + self.lateness <= self.watermark:
                self.late.append(row)
                continue
            self.sessions[key] = [*others, flat]
            touched.append((key, row))
        for key, row in touched:
            session = next(one for one in self.sessions[key] if any(r is row for r in one))
            if self.interval(session)[1] - 1 <= self.watermark and not any(session is one for _, one in changed):
                changed.append((key, session))
        return in_order([self.result(key, session) for key, session in changed])

    def advance(self, watermark: int) -> list[tuple[Any, ...]]:
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        out = []
        for key, sessions in self.sessions.items():
            for session in list(sessions):
                last = self.interval(session)[1] - 1
                if before < last <= self.watermark:
                    out.append(self.result(key, session))
                if last + self.lateness <= self.watermark:
                    sessions.remove(session)
        return in_order(out)


def tell(reference: Any, subtasks: Subtasks, story: list[Any]) -> None:
    for step in [*story, MAX_WATERMARK_MS]:
        rows = found(subtasks.step(step))
        if isinstance(step, str):
            assert rows == []
        elif isinstance(step, tuple):
            assert rows == reference.batch(step[1])
        else:
            assert rows == reference.advance(step)
    key = lambda row: str(sorted(row.items(), key=str))  # noqa: E731
    assert sorted(subtasks.side.get("late", []), key=key) == sorted(reference.late, key=key)


FORMS = st.sampled_from(["aggregate", "rows", "batches"])


@settings(max_examples=40, deadline=None)
@given(
    steps(), st.sampled_from([(20, 5), (15, 10), (10, 10), (10, 10), (7, 3), (5, 12)]), st.integers(-20, 20),
    st.sampled_from([0, 0, 15]), FORMS, st.integers(1, 5), st.sampled_from([1, 3, 1_000]),
)  # fmt: skip
def test_sliding_windows_equal_the_reference_whatever_the_cuts(
    story: list, shape: tuple[int, int], offset: int, lateness: int, form: str, slice_windows: int, whole_rows: int
) -> None:
    """Any batches, any watermarks, snapshots and rescales in between: same results, same late rows."""
    assigner = SlidingEventTimeWindows(*shape, offset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pane_windows, "WHOLE_WINDOW_ROWS", whole_rows)
        patch.setattr(AccumulatorContents, "windows_per_slice", slice_windows)
        patch.setattr(RowContents, "windows_per_slice", slice_windows)
        tell(Sliding(*shape, offset, lateness), Subtasks(create(assigner, form, lateness)), story)


@settings(max_examples=40, deadline=None)
@given(steps(), st.sampled_from([1, 5, 12, 40]), st.sampled_from([0, 0, 15]), FORMS)
def test_session_windows_equal_the_reference_whatever_the_cuts(story: list, gap: int, lateness: int, form: str) -> None:
    """Merging in any order, late rows that a session saves or not, snapshots and rescales in between."""
    tell(Sessions(gap, lateness), Subtasks(create(EventTimeSessionWindows(gap), form, lateness)), story)


class Counting:
    """Row by row."""

    def __init__(self, count: int, purge: bool) -> None:
        self.count, self.purge = count, purge
        self.rows: dict[tuple[Any, Any], list[Row]] = {}
        self.seen: dict[tuple[Any, Any], int] = {}
        self.late: list[Row] = []

    def batch(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        out = []
        for row in rows:
            key = (row["k"], row["g"])
            self.rows.setdefault(key, []).append(row)
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] % self.count == 0:
                out.append((*key, MIN_WATERMARK_MS, MAX_WATERMARK_MS, *summary(self.rows[key]).values()))
                if self.purge:
                    self.rows[key] = []
        return in_order(out)

    def advance(self, watermark: int) -> list[tuple[Any, ...]]:
        return []


@settings(max_examples=40, deadline=None)
@given(steps(), st.integers(1, 5), st.booleans(), FORMS)
def test_count_windows_equal_the_reference_whatever_the_cuts(story: list, count: int, purge: bool, form: str) -> None:
    """Also when a batch fires a key's window several times."""
    assigner = GlobalWindows(CountTrigger(count, purge))
    tell(Counting(count, purge), Subtasks(create(assigner, form)), story)


def larger(left: Row, right: Row) -> Row:
    return left if (left["v"], left["t"]) >= (right["v"], right["t"]) else right


@settings(max_examples=40, deadline=None)
@given(
    steps(rows=6),
    st.sampled_from([TumblingEventTimeWindows(10), SlidingEventTimeWindows(20, 5), EventTimeSessionWindows(9)]),
)
def test_reduced_windows_hold_one_row(story: list, assigner: Any) -> None:
    """The same windows as the aggregate's, with the row that has the greatest value."""
    story = [
        (0, [{**row, "v": row["v"] or 0} for row in step[1]]) if isinstance(step, tuple) else step for step in story
    ]
    spec = WindowProcessSpec(("k", "g"), "t", assigner, larger, "reduce")
    reduced, aggregated = Subtasks(lambda: create_window_operator(spec)), Subtasks(create(assigner, "aggregate"))
    for step in [*story, MAX_WATERMARK_MS]:
        one = [(r["k"], r["g"], ms(r["window_start"]), ms(r["window_end"]), r["v"]) for r in reduced.step(step)]
        other = [
            (r["k"], r["g"], ms(r["window_start"]), ms(r["window_end"]), r["greatest"]) for r in aggregated.step(step)
        ]
        assert in_order(one) == in_order(other)


def chosen_by_hand(by: RowsBy) -> Any:
    """A function over all rows of a window that keeps what RowsBy keeps."""

    def choose(_key: Any, window: Any, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        values = batch.column("v").to_pylist()
        best = (max if by.largest else min)(values)
        rows = [row for row, value in enumerate(values) if value == best]
        kept = {"all": rows, "first": rows[:1], "last": rows[-1:]}[by.ties]
        chosen = batch.take(pa.array(kept))
        for name, at in (("window_start", window.start_ms), ("window_end", window.end_ms)):
            chosen = chosen.append_column(name, pa.array([at] * len(kept), pa.timestamp("ms")))
        return chosen

    return choose


@pytest.mark.parametrize("stories", [40, pytest.param(100, marks=pytest.mark.rare)])
def test_windows_that_keep_the_best_rows_emit_what_all_their_rows_would_give(stories: int) -> None:
    """Through snapshots, rescales and late rows: the same rows as a function that is handed everything."""
    drawn = given(
        steps(rows=6),
        st.sampled_from([TumblingEventTimeWindows(10), SlidingEventTimeWindows(20, 5), EventTimeSessionWindows(9)]),
        st.builds(RowsBy, st.just("v"), st.booleans(), st.sampled_from(["first", "last", "all"])),
        st.sampled_from([0, 12]),
    )(tell_of_best_rows)
    settings(max_examples=stories)(drawn)()


def tell_of_best_rows(story: list, assigner: Any, by: RowsBy, lateness_ms: int) -> None:
    story = [
        (0, [{**row, "v": (row["v"] or 0) % 3} for row in step[1]]) if isinstance(step, tuple) else step
        for step in story
    ]

    def subtasks(function: Any, form: str) -> Subtasks:
        spec = WindowProcessSpec(("k", "g"), "t", assigner, function, form, None, lateness_ms)
        return Subtasks(lambda: create_window_operator(spec))

    kept, handed = subtasks(by, "rows_by"), subtasks(chosen_by_hand(by), "batches")
    for step in [*story, MAX_WATERMARK_MS]:
        assert sorted(map(repr, kept.step(step))) == sorted(map(repr, handed.step(step)))


def test_rows_without_a_value_are_never_the_best() -> None:
    """Nulls and NaN lose against every value, and a window that has nothing else has no result."""
    spec = WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(10), RowsBy("v", largest=True), "rows_by")
    rows = {"k": ["a", "a", "a", "b"], "t": [1, 2, 3, 4], "v": [float("nan"), None, -1.5, None]}
    harness = Harness(create_window_operator(spec)).start().process(pa.record_batch(rows))
    found = harness.watermark(MAX_WATERMARK_MS).work().rows()
    assert [(row["k"], row["t"], row["v"]) for row in found] == [("a", 3, -1.5)]


def test_the_greatest_of_categories_of_numbers_is_the_greatest_number() -> None:
    """Where nobody had declared the columns their places in the dictionary were compared, which say nothing."""
    spec = WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(10), RowsBy("v", largest=True), "rows_by")
    harness = Harness(create_window_operator(spec)).start()
    for values in ([70, 5, 3], [8, 90, 2]):
        category = pa.array(values, pa.int64()).dictionary_encode()
        harness.process(pa.record_batch({"k": pa.array(["a", "b", "b"]), "t": pa.array([1, 2, 3]), "v": category}))
    found = harness.watermark(MAX_WATERMARK_MS).work().rows()
    assert sorted((row["k"], row["v"]) for row in found) == [("a", 70), ("b", 90)]


def test_the_greatest_list_is_refused() -> None:
    """Where nobody had declared the columns it was the one that lay last in its batch."""
    spec = WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(10), RowsBy("v", largest=True), "rows_by")
    harness = Harness(create_window_operator(spec)).start()
    with pytest.raises(TypeError, match=r"column 'v' is list<.*>, which has no greatest value here; order by another"):
        harness.process(pa.record_batch({"k": ["a"], "t": [1], "v": [[1, 2]]}))


def test_windows_of_processing_time_fire_by_the_clock() -> None:
    """And the rest at the end; a snapshot keeps what has not fired."""
    spec = WindowAggregateSpec(("k",), "", TumblingProcessingTimeWindows(10), (Aggregate("n", "count"),))
    batch = pa.record_batch({"k": ["a", "a", "b"]})
    harness = Harness(create_window_operator(spec)).start().advance(1003).process(batch).advance(1009)
    assert harness.rows() == []
    rows = harness.advance(1010).work().rows()
    assert [(row["k"], ms(row["window_start"]), row["n"]) for row in rows] == [("a", 1000, 2), ("b", 1000, 1)]
    written = harness.process(batch).snapshot()
    again = Harness(create_window_operator(spec))
    again.time.advance(1015)
    again.start(restored_state([written])).process(batch)
    assert sorted((row["k"], row["n"]) for row in again.advance(1020).work().rows()) == [("a", 4), ("b", 2)]
    again.process(batch).operator.finish()
    assert sorted((row["k"], row["n"]) for row in again.work().rows()) == [("a", 2), ("b", 1)]


def test_a_snapshot_of_other_sessions_is_refused() -> None:
    """A gap is part of what a state means."""
    rows = pa.RecordBatch.from_pylist([{"k": "a", "g": 0, "t": 1, "v": 1}], schema=SCHEMA)
    written = Harness(create(EventTimeSessionWindows(5), "aggregate")()).start().process(rows).snapshot()
    with pytest.raises(StateError, match="sessions with a gap of 5 ms, and the job now asks for 7 ms"):
        Harness(create(EventTimeSessionWindows(7), "aggregate")()).start(restored_state([written]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlidingEventTimeWindows(0, 5), "a window's size must be positive, got 0 ms"),
        (lambda: SlidingEventTimeWindows(5, -5), "a window's slide must be positive, got -5 ms"),
        (lambda: EventTimeSessionWindows(0), "a session's gap must be positive, got 0 ms"),
        (lambda: TumblingEventTimeWindows(1.5), "a window's size is whole milliseconds, got 1.5"),  # type: ignore[arg-type]
        (lambda: CountTrigger(0), "a count trigger fires after at least 1 row, got 0"),
        (lambda: CountTrigger(2**63), f"a count trigger fires after at most {2**63 - 1} rows, got {2**63}"),
    ],
)
def test_windows_without_extent_are_refused(make: Any, message: str) -> None:
    """Where they are written down."""
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=40), st.integers(0, 130), st.integers(0, 6), st.integers(1, 4),
    st.sampled_from([
        SlidingEventTimeWindows(20, 5), SlidingEventTimeWindows(15, 10), SlidingEventTimeWindows(30, 30), EventTimeSessionWindows(6)
    ]),
    st.sampled_from([0, 15]), FORMS,
)  # fmt: skip
def test_a_snapshot_between_two_slices_says_what_is_out(
    rows: list, watermark: int, slices: int, slice_windows: int, assigner: Any, lateness: int, form: str
) -> None:
    """What was emitted before it is not emitted after the restore, and nothing is missing."""
    reference = (
        Sessions(assigner.gap_ms, lateness)
        if isinstance(assigner, EventTimeSessionWindows)
        else Sliding(assigner.size_ms, assigner.slide_ms, 0, lateness)
    )
    reference.batch(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AccumulatorContents, "windows_per_slice", slice_windows)
        patch.setattr(RowContents, "windows_per_slice", slice_windows)
        patch.setattr(pane_windows, "WHOLE_WINDOW_ROWS", 1)
        make = create(assigner, form, lateness)
        harness = Harness(make()).start()
        for part in (rows[:1], rows[1:]):  # the first batch never waits
            harness.process(pa.RecordBatch.from_pylist(part, schema=SCHEMA))
        harness.watermark(watermark, work=False)
        for _ in range(slices):
            if harness.operator.has_pending_work:
                harness.operator.continue_work()
        before = harness.rows()
        again = Harness(make()).start(restored_state([harness.snapshot()])).work()
        assert found(before + again.rows()) == reference.advance(watermark)
        assert found(again.watermark(MAX_WATERMARK_MS).rows()) == reference.advance(MAX_WATERMARK_MS)
