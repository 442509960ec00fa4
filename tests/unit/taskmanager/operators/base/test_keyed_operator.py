"""Keyed operators that are restored from what another one has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.elements import MAX_WATERMARK_MS, Watermark
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import KeyedBatchProcessSpec, KeyedProcessSpec, RunningAggregateSpec
from snapline.taskmanager.operators.factory import create_operator
from snapline.taskmanager.operators.joins.stream_joins import IntervalJoinOperator
from snapline.testing import OperatorHarness
from tests.unit.taskmanager.operators.harness import Harness, restored_state
from tests.unit.taskmanager.operators.windows.test_windows_outside_memory import SCHEMA, SPECS

ROWS = pa.RecordBatch.from_pylist([{"k": n % 3, "t": n, "v": n} for n in range(6)], SCHEMA)
COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])


class Counts(sl.KeyedProcessFunction):
    """Numbers the rows of each key."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, context: sl.RuntimeContext) -> None:
        self.n = context.get_state(sl.ValueStateDescriptor(self.name, pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        self.n.update((self.n.value() or 0) + 1)
        yield {"k": row["k"], "n": self.n.value()}


class LastValues(sl.KeyedBatchProcessFunction):
    """Keeps a value of each key."""

    last = sl.ValueStateDescriptor("last", pa.int64())

    def process_batch(self, keys: sl.BatchKeys, batch: pa.RecordBatch, state: sl.BatchState) -> None:
        """Keep the first of each key in the batch."""
        state.put(self.last, pa.array(range(len(keys))))


class Nothing(sl.KeyedProcessFunction):
    """Has no state."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        yield {"k": row["k"], "n": 0}


KINDS: dict[str, Any] = {
    **{name: SPECS[name] for name in ("tumbling", "sessions", "counted", "rows", "interval join", "temporal join")},
    "running": RunningAggregateSpec(("k",), (sl.Aggregate("total", "sum", "v"),), (), SCHEMA),
    "process": KeyedProcessSpec(("k",), Counts("n"), COUNTS, "t"),
    "renamed": KeyedProcessSpec(("k",), Counts("rows"), COUNTS, "t"),
    "batches": KeyedBatchProcessSpec(("k",), LastValues(), COUNTS, "t"),
}


SAME_NAMES = {*permutations(("tumbling", "rows")), *permutations(("interval join", "temporal join"))}
"""Pairs whose states have the same names."""


def operator(name: str) -> Any:
    return create_operator(KINDS[name], lambda: pytest.fail("not a source"))


def written(name: str) -> Any:
    return restored_state([Harness(operator(name)).start().process(ROWS).snapshot()])


@pytest.mark.parametrize(
    ("before", "now"),
    [pair for pair in permutations(KINDS, 2) if pair not in SAME_NAMES],
)
def test_an_operator_that_has_none_of_the_states_of_a_snapshot_is_refused(before: str, now: str) -> None:
    """It began without state, and rows of open windows never came out. Windows of one form have one name."""
    with pytest.raises(StateError, match=r"so that it would begin without state|in the snapshot and not in the job"):
        Harness(operator(now)).start(written(before))


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        ("tumbling", "rows", "hold accumulators of aggregates, and those of the job now whole rows"),
        ("rows", "tumbling", "hold whole rows, and those of the job now accumulators of aggregates"),
        ("tumbling", "running", "so that it would begin without state"),
        ("sessions", "running", "so that it would begin without state"),
        (
            "interval join",
            "temporal join",
            "holds rows of an interval join, or one without bounds, and the job now asks for a",
        ),
        (
            "temporal join",
            "interval join",
            "holds rows of a join as of a time, and the job now asks for an interval join",
        ),
    ],
)
def test_another_operator_is_told_in_words_of_the_job(before: str, now: str, line: str) -> None:
    """Not that the snapshot is damaged, nor that a count is gone which nobody had asked for; and a join as of a time
    took rows that an interval join had joined already."""
    with pytest.raises(StateError, match=line):
        Harness(operator(now)).start(written(before))


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.map(lambda row: row, uid="op"),
        lambda rows: rows.filter(sl.col("n") > 0, uid="op"),
        lambda rows: rows.map_batches(lambda batch: batch, uid="op"),
    ],
)
def test_an_operator_without_keys_does_not_take_the_place_of_one_with_keys(build: Callable[..., sl.DataStream]) -> None:
    """It was started under the uid, and the next snapshot had none of the state any more."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    sums = OperatorHarness(lambda rows: rows.key_by("k").running_aggregate(uid="op", n=sl.sum("n")), schema)
    snapshot = sums.push([{"k": 1, "n": 1}]).snapshot()
    with pytest.raises(StateError, match="'op': the snapshot holds keyed state for it, and it keeps none"):
        OperatorHarness(build, schema, restore_from=snapshot)


@pytest.mark.parametrize("name", KINDS)
def test_its_own_snapshot_is_taken(name: str) -> None:
    """With all of its keys."""
    harness = Harness(operator(name)).start(written(name))

    assert len(harness.operator.backend) == 3


def test_a_function_that_asks_for_no_state_is_started() -> None:
    """What it asks for while rows come is not known yet; the states stay in the next snapshot."""
    harness = Harness(
        create_operator(KeyedProcessSpec(("k",), Nothing(), COUNTS, "t"), lambda: pytest.fail("no source"))
    )

    assert harness.start(written("process")).process(ROWS).operator.backend.state_names == ["n"]


@pytest.mark.parametrize(
    "end", [lambda joined: joined.unbounded(), lambda joined: joined.between(-5, 5), lambda joined: joined.as_of()]
)
def test_rows_of_the_right_side_stay_with_their_key(end: Callable[..., sl.DataStream]) -> None:
    """Under another column of the same type they were found by the values of the one before."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("at", pa.int64())])

    def joined(key: str) -> Callable[..., sl.DataStream]:
        return lambda left, right: end(left.key_by("k").join(right.key_by(key)))

    before = OperatorHarness(joined("k"), schema, schema, event_time="at").push([{"k": 1, "n": 2, "at": 0}], input=1)
    snapshot = before.snapshot()
    with pytest.raises(StateError, match="rows of the right side by the key k, and the job now asks for n: keep the"):
        OperatorHarness(joined("n"), schema, schema, event_time="at", restore_from=snapshot)
    after = OperatorHarness(joined("k"), schema, schema, event_time="at", restore_from=snapshot, parallelism=2)
    [pair] = after.push([{"k": 1, "n": 9, "at": 1}]).end_input().rows()
    assert pair["n_right"] == 2


@pytest.mark.parametrize("had_bounds", [False, True])
def test_rows_without_times_do_not_become_those_of_a_join_with_bounds(had_bounds: bool) -> None:
    """With bounds none of them found a partner, and the first watermark forgot them; the other way round all do."""
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64())])

    def joined(bounded: bool) -> Callable[..., sl.DataStream]:
        def build(left: sl.DataStream, right: sl.DataStream) -> sl.DataStream:
            pairs = left.key_by("k").join(right.key_by("k"))
            return pairs.between(-5, 5) if bounded else pairs.unbounded()

        return build

    before = OperatorHarness(joined(had_bounds), schema, schema, event_time="at").push([{"k": 1, "at": 90}], input=1)
    snapshot = before.snapshot()
    if not had_bounds:
        with pytest.raises(StateError, match="rows of a join without bounds, which have no times"):
            OperatorHarness(joined(True), schema, schema, event_time="at", restore_from=snapshot)
        return
    after = OperatorHarness(joined(False), schema, schema, event_time="at", restore_from=snapshot)
    assert after.push([{"k": 1, "at": 10}]).rows() == [{"k": 1, "at": 10, "k_right": 1, "at_right": 90}]


def test_a_kind_of_join_that_nobody_knows_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may have more of them, and a file may say anything."""
    with monkeypatch.context() as later:
        later.setattr(IntervalJoinOperator, "kind", "sideways")
        snapshot = written("interval join")
    with pytest.raises(
        StateError, match="holds rows of another kind of join, and the job now asks for an interval join"
    ):
        Harness(operator("interval join")).start(snapshot)


@pytest.mark.parametrize("name", KINDS)
def test_the_last_watermark_passes_again_after_a_restore(name: str) -> None:
    """A barrier that overtook it left whoever is behind without it, and windows there never fired."""
    ended = Harness(operator(name)).start().process(ROWS).watermark(MAX_WATERMARK_MS)
    assert ended.take()[-1] == Watermark(MAX_WATERMARK_MS)

    again = Harness(operator(name)).start(restored_state([ended.snapshot()])).watermark(MAX_WATERMARK_MS)

    assert again.take() == [Watermark(MAX_WATERMARK_MS)]


@pytest.mark.parametrize("name", KINDS)
def test_a_watermark_passes_once_more_after_a_restore(name: str) -> None:
    """Windows behind the operator waited for the next row of a source that had gone quiet, where a barrier had
    overtaken what their operator was told before."""
    before = Harness(operator(name)).start().process(ROWS).watermark(3)

    again = Harness(operator(name)).start(restored_state([before.snapshot()])).watermark(2).watermark(2)

    behind = 60 if name == "interval join" else 0  # its pairs may still be as old as that
    assert again.take() == [Watermark(3 - behind)]
    assert again.watermark(4).take()[-1] == Watermark(4 - behind)


@pytest.mark.parametrize("name", ["tumbling", "sessions", "rows", "process", "batches"])
def test_what_the_last_watermark_made_due_comes_once(name: str) -> None:
    """Of a snapshot between the last watermark and its results, each result comes after the restore."""
    expected = Harness(operator(name)).start().process(ROWS).watermark(MAX_WATERMARK_MS).rows()
    due = Harness(operator(name)).start().process(ROWS)
    before = due.rows()
    written = due.watermark(MAX_WATERMARK_MS, work=False).snapshot()

    again = Harness(operator(name)).start(restored_state([written])).work().watermark(MAX_WATERMARK_MS)

    assert sorted(map(str, before + again.rows())) == sorted(map(str, expected))
