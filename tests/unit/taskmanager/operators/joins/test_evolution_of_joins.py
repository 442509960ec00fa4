"""Columns of joins that change between a snapshot and the job that starts from it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.api.windows import TumblingEventTimeWindows
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import IntervalJoinSpec, JoinSide, WindowJoinSpec
from snapline.taskmanager.operators.factory import create_operator
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

pytestmark = pytest.mark.usefixtures("state_backend_and_checkpoints")

KEYS = 20
LEFT = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int32())])
RIGHT = pa.schema([("k2", pa.int64()), ("t2", pa.int64())])
WIDER = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64()), ("note", pa.string())])
LESS = pa.schema([("k", pa.int64()), ("t", pa.int64())])
FORMS = ["interval", "window"]


def job(form: str, left: pa.Schema) -> Any:
    sides = JoinSide(("k",), "t", left), JoinSide(("k2",), "t2", RIGHT)
    output = pa.schema([*left, *RIGHT])
    if form == "interval":
        return create_operator(IntervalJoinSpec(*sides, output, -50, 50), lambda: pytest.fail("not a source"))
    spec = WindowJoinSpec(*sides, TumblingEventTimeWindows(100), output)
    return create_operator(spec, lambda: pytest.fail("not a source"))


def before(form: str) -> Written:
    """Left rows that wait."""
    rows = pa.RecordBatch.from_pylist([{"k": key, "t": 10, "v": key} for key in range(KEYS)], schema=LEFT)
    return Harness(job(form, LEFT)).start().process(rows).snapshot()


def met(operator: Any, written: Written, **configuration: str) -> dict[int, Any]:
    """The left rows that right rows meet after a restore, by key; what they have in common aside."""
    subject = Harness(operator, configuration=configuration).start(restored_state([written]))
    rows = pa.RecordBatch.from_pylist([{"k2": key, "t2": 20} for key in range(KEYS)], schema=RIGHT)
    subject.operator.process_batch(rows, 1)
    found = subject.watermark(1_000).rows()
    return {row["k"]: {name: row[name] for name in row if name not in ("k", "t", "k2", "t2")} for row in found}


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_added_and_become_wider(form: str) -> None:
    """Rows that wait have null in a column that they had not."""
    assert met(job(form, WIDER), before(form)) == {key: {"v": key, "note": None} for key in range(KEYS)}


@pytest.mark.parametrize("form", FORMS)
def test_a_column_is_dropped_with_leave_only(form: str) -> None:
    """By name."""
    written = before(form)
    with pytest.raises(StateError, match=r"left.*\.v' \(int32\) is in the snapshot and not in the job any more"):
        met(job(form, LESS), written)
    allowed = {"state.schema-evolution.drop-columns": "true"}
    assert met(job(form, LESS), written, **allowed) == {key: {} for key in range(KEYS)}
