"""Aggregates that change between a snapshot and the job that starts from it: added, dropped, over wider columns, or
refused by column."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.api.batch_aggregates import AnyAggregate, HeldAggregate
from snapline.dataflow.api.windows import (
    Aggregate,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    TumblingEventTimeWindows,
)
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import RunningAggregateSpec, WindowAggregateSpec
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.operators.aggregation.held_columns import HELD_FUNCTION_METADATA, HELD_TYPES_METADATA
from snapline.taskmanager.operators.aggregation.held_factory import restored_held_columns
from snapline.taskmanager.operators.base.operator_contract import RestoredState
from snapline.taskmanager.operators.factory import create_operator
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

pytestmark = pytest.mark.usefixtures("state_backend_and_checkpoints")

KEYS = 20
"""More than the smaller backend has memory for."""
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int32())])
WIDE = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
FORMS = ["tumbling", "sessions", "counted", "running"]
DROP = {"state.schema-evolution.drop-columns": "true"}
N, TOTAL, MOST, MEAN = (
    Aggregate("n", "count"),
    Aggregate("total", "sum", "v"),
    Aggregate("most", "max", "v"),
    Aggregate("mean", "mean", "v"),
)
ASSIGNERS: dict[str, Any] = {
    "tumbling": TumblingEventTimeWindows(100),
    "sessions": EventTimeSessionWindows(50),
    "counted": GlobalWindows(CountTrigger(2)),
}


def job(form: str, *aggregates: AnyAggregate, schema: pa.Schema | None = SCHEMA) -> Any:
    if form == "running":
        spec: Any = RunningAggregateSpec(("k",), aggregates, input_schema=schema)
    else:
        spec = WindowAggregateSpec(("k",), "t", ASSIGNERS[form], aggregates, input_schema=schema)
    return create_operator(spec, lambda: pytest.fail("not a source"))


def batch(value: int, schema: pa.Schema = SCHEMA, keys: range = range(KEYS)) -> pa.RecordBatch:
    """A row for each key, with its number added to the value."""
    return pa.RecordBatch.from_pylist([{"k": key, "t": 10, "v": value + key} for key in keys], schema=schema)


def results(subject: Harness) -> dict[int, dict[str, Any]]:
    """By key; what the keys and windows are called aside."""
    rows = subject.watermark(1_000).rows()
    return {row.pop("k"): {n: v for n, v in row.items() if not isinstance(v, dt.datetime)} for row in rows}


def before(form: str, *aggregates: AnyAggregate) -> Written:
    """A snapshot after one batch with values from 10 on."""
    return Harness(job(form, *aggregates)).start().process(batch(10)).snapshot()


def after(operator: Any, written: list[Written], **configuration: str) -> Harness:
    return Harness(operator, configuration=configuration).start(restored_state(written))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_added_starts_empty(form: str) -> None:
    """What was there goes on; a mean that is added divides by the rows that it has seen. So it is after another
    restore."""
    subject = after(job(form, N, TOTAL, MOST, MEAN), [before(form, N, TOTAL)])
    subject = after(job(form, N, TOTAL, MOST, MEAN), [subject.snapshot()])
    found = results(subject.process(batch(-100)))
    assert found == {key: {"n": 2, "total": 2 * key - 90, "most": key - 100, "mean": key - 45.0} for key in range(KEYS)}


@pytest.mark.parametrize("form", FORMS)
def test_a_mean_that_is_added_knows_only_later_rows(form: str) -> None:
    """There was no sum; and the count of values, which there was, is another one's."""
    values = Aggregate("values", "count", "v")
    subject = after(job(form, values, MEAN, N), [before(form, values)]).process(batch(20))
    assert results(subject) == {key: {"values": 2, "mean": key + 20.0, "n": 1} for key in range(KEYS)}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_dropped_needs_leave_and_is_gone(form: str) -> None:
    """By column, before there is a row; what comes back later starts empty."""
    written = before(form, N, TOTAL, MOST)
    with pytest.raises(StateError, match="column 'v': max of it is in the snapshot and not in the job any more"):
        after(job(form, N, TOTAL), [written])
    subject = after(job(form, N, TOTAL), [written], **DROP).process(batch(0))
    again = after(job(form, N, TOTAL, MOST), [subject.snapshot()])
    if form == "counted":  # fires with the second row of a key, which there was
        again.process(batch(0))
    found = results(again.process(batch(-5)))
    rows = 4 if form == "counted" else 3
    assert found == {
        key: {"n": rows, "total": rows * key + 5, "most": key if form == "counted" else key - 5} for key in range(KEYS)
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beside", [(TOTAL,), ()])
def test_the_last_aggregate_that_holds_values_needs_leave_and_is_gone(form: str, beside: tuple[Aggregate, ...]) -> None:
    """Whether there is another beside it or not; what comes back later starts empty."""
    held = HeldAggregate("values", "collect_list", "v")
    written = before(form, *beside, held)
    with pytest.raises(StateError, match=r"values.* is in the snapshot and not in the job any more"):
        after(job(form, TOTAL), [written])
    subject = after(job(form, TOTAL), [written], **DROP)
    if form != "counted":
        subject.process(batch(0))
    found = results(after(job(form, TOTAL, held), [subject.snapshot()]).process(batch(-5)))
    rows, total = {(): (1, -5), (TOTAL,): (2, 5)}[beside]
    if form != "counted":
        rows += 1
    assert found == {key: {"total": total + rows * key, "values": [key - 5]} for key in range(KEYS)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (("first", "v"), ("last", "v"), r"first\('v'\) .* last\('v'\)"),
        (("first", "v"), ("first", "v", "t"), r"first\('v'\) .* first\('v', by='t'\)"),
        (("count_distinct", "v"), ("collect_list", "v"), r"count_distinct\('v'\) .* collect_list\('v'\)"),
        (("top_n", "v", "", 2), ("top_n", "v", "", 3), r"top_n\('v', 2\) .* top_n\('v', 3\)"),
        (("collect_list", "v"), ("collect_list", "t"), r"collect_list\('v'\) .* collect_list\('t'\)"),
    ],
)
def test_another_aggregate_under_the_name_of_one_that_held_values_is_refused(
    form: str, was: tuple[Any, ...], now: tuple[Any, ...], said: str
) -> None:
    """Its results would be made of what the other has left; leave to drop columns changes nothing."""
    with pytest.raises(StateError, match=f"aggregate 'x' is {said} in the job"):
        after(job(form, TOTAL, HeldAggregate("x", *now)), [before(form, TOTAL, HeldAggregate("x", *was))], **DROP)


@pytest.mark.parametrize(
    "said",
    [b"\xff", b"[1]", b"[[], {}, 0, null]", b'["top_n", "w", "", "x"]', b'["first", "v", "", null]', b"[" * 100_000],
)
def test_what_a_snapshot_says_of_an_aggregate_may_be_damaged(said: bytes) -> None:
    """It is a line then, too, and no error of Python's."""
    top = HeldAggregate("x", "top_n", "v", "", 2)
    metadata = {HELD_TYPES_METADATA: b"", HELD_FUNCTION_METADATA: said}
    field = pa.field("held:x", pa.large_list(pa.int64()), metadata=metadata)
    with pytest.raises(StateError, match="'x': what its column of the snapshot says of it is damaged"):
        restored_held_columns([top], [field], pa.schema({"v": pa.int64()}))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("now", [("top_n", 2.0), ("quantile", 1.0)])
def test_a_smaller_top_and_another_quantile_go_on(form: str, now: tuple[str, float]) -> None:
    """What was held is enough for them."""
    function, parameter = now
    was = HeldAggregate("x", function, "v", "", 3 if function == "top_n" else 0.5)
    subject = after(job(form, HeldAggregate("x", function, "v", "", parameter)), [before(form, was)])
    found = results(subject.process(batch(0)))
    expected = {key: [key + 10, key] if function == "top_n" else key + 10.0 for key in range(KEYS)}
    assert found == {key: {"x": value} for key, value in expected.items()}


@pytest.mark.parametrize("form", ["tumbling", "sessions"])
def test_a_count_trigger_that_is_removed_needs_leave_and_windows_go_on(form: str) -> None:
    """What it counted is a column of the state as others are, and no damage."""
    triggered = WindowAggregateSpec(
        ("k",), "t", ASSIGNERS[form], (TOTAL,), input_schema=SCHEMA, early_trigger=CountTrigger(5)
    )
    written = Harness(create_operator(triggered, lambda: pytest.fail("not a source"))).start().process(batch(10))
    snapshot = written.snapshot()
    with pytest.raises(StateError, match=r"rows-since-fired' .* is in the snapshot and not in the job any more"):
        after(job(form, TOTAL), [snapshot])
    found = results(after(job(form, TOTAL), [snapshot], **DROP).process(batch(-5)))
    assert found == {key: {"total": 2 * key + 5} for key in range(KEYS)}


@pytest.mark.parametrize("form", FORMS)
def test_the_column_that_counts_may_be_dropped(form: str) -> None:
    """Rows are counted on."""
    subject = after(job(form, N), [before(form, TOTAL, N)], **DROP).process(batch(0))
    assert results(subject) == {key: {"n": 2} for key in range(KEYS)}


@pytest.mark.parametrize("schema", [WIDE, None])
@pytest.mark.parametrize("form", FORMS)
def test_a_column_may_become_wider(form: str, schema: pa.Schema | None) -> None:
    """Whether that is known before the first row or not."""
    subject = after(job(form, TOTAL, MOST, schema=schema), [before(form, TOTAL, MOST)]).process(batch(1 << 40, WIDE))
    found = results(subject)
    assert found == {key: {"total": 2 * key + 10 + (1 << 40), "most": key + (1 << 40)} for key in range(KEYS)}


@pytest.mark.parametrize("form", FORMS)
def test_other_types_are_refused_by_column(form: str) -> None:
    """What was summed as integers is no float."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.float64())])
    with pytest.raises(StateError, match=r"column 'v' is int.* in the snapshot and double in the job"):
        after(job(form, TOTAL, schema=schema), [before(form, TOTAL)])


@pytest.mark.parametrize("form", FORMS)
def test_subtasks_without_keys_go_on_with_the_same_accumulators(form: str) -> None:
    """One of two gets keys only after the change: after a rescale to one, its keys and those of the other fit
    together."""
    one = Harness(job(form, N, TOTAL), parallelism=2).start()
    other = Harness(job(form, N, TOTAL), subtask=1, parallelism=2).start()
    by_subtask: tuple[list[int], list[int]] = ([], [])
    for key in range(KEYS):
        groups = one.context.key_group_range
        by_subtask[0 if group_of(key) in groups else 1].append(key)
    first, second = (
        pa.RecordBatch.from_pylist([{"k": k, "t": 10, "v": k} for k in keys], SCHEMA) for keys in by_subtask
    )
    written = [one.process(first).snapshot(), other.snapshot()]
    aggregates = (N, TOTAL, MOST)
    one = Harness(job(form, *aggregates), parallelism=2).start(restored_state([written[0]]))
    nothing = RestoredState(CheckpointID(7), (), restored_state(written).operator_lists)
    other = Harness(job(form, *aggregates), subtask=1, parallelism=2).start(nothing)
    written = [one.snapshot(), other.process(second).snapshot()]
    found = results(after(job(form, *aggregates), written).process(batch(-100)))
    assert {key: row["n"] for key, row in found.items()} == dict.fromkeys(range(KEYS), 2)
    assert {row["most"] - key for key, row in found.items() if key in by_subtask[0]} == {-100}
    assert {row["most"] - key for key, row in found.items() if key in by_subtask[1]} == {0}


def test_a_subtask_that_has_had_no_row_since_an_aggregate_was_added_comes_together_with_one_that_has() -> None:
    """Only the latter has written what the new aggregate holds: after a rescale to one, the first batch failed, and
    each attempt after it as well."""
    held = HeldAggregate("values", "collect_list", "v")
    keys: tuple[list[int], list[int]] = ([], [])
    for key in range(KEYS):
        keys[group_of(key) // 64].append(key)
    written = []
    for subtask in (0, 1):
        rows = pa.RecordBatch.from_pylist([{"k": k, "t": 10, "v": k} for k in keys[subtask]], SCHEMA)
        old = Harness(job("running", N), subtask=subtask, parallelism=2).start().process(rows).snapshot()
        new = Harness(job("running", N, held, schema=None), subtask=subtask, parallelism=2).start(restored_state([old]))
        written.append(new.snapshot() if subtask else new.process(rows).snapshot())
    found = results(after(job("running", N, held, schema=None), written).process(batch(0)))
    of_both = {key: {"n": 3, "values": [key, key]} for key in keys[0]}
    assert found == of_both | {key: {"n": 2, "values": [key]} for key in keys[1]}


def group_of(key: int) -> int:
    """The key group."""
    return int(assign_to_key_groups([pa.array([key], pa.int64())], 128)[0])
