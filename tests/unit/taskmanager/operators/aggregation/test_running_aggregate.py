"""Running aggregates: after every row, against a dictionary."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.elements import Watermark
from snapline.dataflow.graph.operator_specs import RunningAggregateSpec
from snapline.taskmanager.operators.aggregation.running_aggregate import RunningAggregateOperator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend")

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.float64()), ("note", pa.string())])
SPEC = RunningAggregateSpec(
    ("k",),
    (
        Aggregate("total", "sum", "v"),
        Aggregate("n", "count"),
        Aggregate("low", "min", "w"),
        Aggregate("avg", "mean", "v"),
        Aggregate("notes", "count", "note"),
    ),
    ("note",),
)
ROW = st.fixed_dictionaries(
    {
        "k": st.integers(0, 3),
        "v": st.one_of(st.integers(-5, 5), st.none()),
        "w": st.one_of(st.floats(-5, 5), st.none()),
        "note": st.one_of(st.text(max_size=3), st.none()),
    }
)
WITHOUT_NULLS = st.fixed_dictionaries(
    {"k": st.integers(0, 3), "v": st.integers(-5, 5), "w": st.floats(-5, 5), "note": st.text(max_size=3)}
)


def reference(state: dict[int, list[dict[str, Any]]], row: dict[str, Any]) -> dict[str, Any]:
    rows = state.setdefault(row["k"], [])
    rows.append(row)
    values = [r["v"] for r in rows if r["v"] is not None]
    low = [r["w"] for r in rows if r["w"] is not None]
    return {
        "k": row["k"],
        "note": row["note"],
        "total": sum(values) if values else None,
        "n": len(rows),
        "low": min(low, default=None),
        "avg": sum(values) / len(values) if values else None,
        "notes": sum(r["note"] is not None for r in rows),
    }


STEPS = st.lists(
    st.one_of(st.lists(WITHOUT_NULLS, max_size=8), st.lists(ROW, max_size=8), st.sampled_from(["restore", "rescale"])),
    max_size=10,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_row_gets_its_keys_aggregates_so_far(steps: list) -> None:
    """Nulls come at any time, on some subtasks earlier than on others, and across rescales."""
    state: dict[int, list[dict[str, Any]]] = {}
    subtasks = [Harness(RunningAggregateOperator(SPEC)).start()]
    for step in steps:
        if isinstance(step, str):
            written = [one.snapshot() for one in subtasks]
            count = len(subtasks) if step == "restore" else 3 - len(subtasks)
            subtasks = [
                Harness(RunningAggregateOperator(SPEC), subtask=i, parallelism=count).start(restored_state(written))
                for i in range(count)
            ]
            continue
        expected = [reference(state, row) for row in step]
        parts = split_batch(pa.RecordBatch.from_pylist(step, schema=SCHEMA), ["k"], 128, len(subtasks))
        for one, part in zip(subtasks, parts, strict=True):
            one.process(part)
        found = [row for one in subtasks for row in one.rows()]
        assert sorted(found, key=lambda r: (r["k"], r["n"])) == sorted(expected, key=lambda r: (r["k"], r["n"]))


def test_rows_keep_their_order_and_watermarks_pass() -> None:
    """One batch of as many rows, then the watermark."""
    harness = Harness(RunningAggregateOperator(SPEC)).start()
    rows = [{"k": k, "v": 1, "w": 0.0, "note": "x"} for k in (2, 1, 2)]
    harness.process(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)).watermark(7)
    emitted = harness.take()

    assert [(row["k"], row["n"]) for row in emitted[0].to_pylist()] == [(2, 1), (1, 1), (2, 2)]
    assert emitted[1] == Watermark(7)
    assert emitted[0].schema.names == ["k", "note", "total", "n", "low", "avg", "notes"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RunningAggregateSpec(("x",), (Aggregate("n", "count"),)), "no key column 'x'"),
        (RunningAggregateSpec(("k",), (Aggregate("s", "sum", "x"),)), "no column 'x' for sum() as 's'"),
        (
            RunningAggregateSpec(("k",), (Aggregate("s", "sum", "note"),)),
            "column 'note' is string, which cannot be added up",
        ),
        (RunningAggregateSpec(("k",), (Aggregate("n", "count"),), ("x",)), "no column 'x' to pass through"),
    ],
)
def test_unusable_columns_are_named(spec: RunningAggregateSpec, message: str) -> None:
    """With what is there instead."""
    harness = Harness(RunningAggregateOperator(spec)).start()
    with pytest.raises((KeyError, TypeError)) as raised:
        harness.process(pa.RecordBatch.from_pylist([{"k": 1, "v": 1, "w": 1.0, "note": "x"}], schema=SCHEMA))

    assert message in str(raised.value).replace('\\"', '"')


def test_a_count_alone_counts_rows() -> None:
    """No column is aggregated; rows have their own count from the start, and after a restore."""
    spec = RunningAggregateSpec(("k",), (Aggregate("n", "count"),))
    rows = pa.record_batch({"k": [1, 1, 2]})
    harness = Harness(RunningAggregateOperator(spec)).start().process(rows)
    again = Harness(RunningAggregateOperator(spec)).start(restored_state([harness.snapshot()])).process(rows)

    assert [row["n"] for row in harness.rows()] == [1, 2, 1]
    assert [row["n"] for row in again.rows()] == [3, 4, 2]
