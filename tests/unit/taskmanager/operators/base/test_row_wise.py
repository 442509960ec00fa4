"""Rows for which a function raises: the job fails, or goes on without them and hands them on once."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.api.bad_rows import BAD_ROWS_SCHEMA, BAD_ROWS_TAG
from snapline.dataflow.errors import ConnectorError
from snapline.dataflow.graph.operator_specs import FilterRowsSpec, FlatMapRowsSpec, MapRowsSpec, ProcessSpec
from snapline.taskmanager.operators.base.failure import RowFailure
from snapline.taskmanager.operators.factory import create_operator
from tests.unit.taskmanager.operators.harness import Harness

ROWS = pa.record_batch({"k": [1, 2, 3]})
NUMBERS = pa.schema([("k", pa.int64())])


def run(spec: Any) -> Harness:
    """Start its operator."""

    def no_source() -> Any:
        raise AssertionError("no push source here")

    return Harness(create_operator(spec, no_source)).start()


def aside(harness: Harness) -> list[tuple[Any, str]]:
    """Value and error of what was set aside."""
    batches = harness.side.get(BAD_ROWS_TAG, [])
    assert all(batch.schema == BAD_ROWS_SCHEMA for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all((row["operator"], row["split"], row["position"]) == ("op", None, None) for row in rows)
    return [(json.loads(row["value"]), row["error"]) for row in rows]


def not_two(row: sl.Row) -> sl.Row:
    """Change a row before its error is found."""
    row["k"] *= 10
    if row["k"] == 20:
        raise ValueError("no\ntwos")
    return row


def after_a_row(row: sl.Row) -> Iterator[sl.Row]:
    """Yield something before the error is found."""
    yield {"k": 0}
    yield not_two(row)


class Beside(sl.ProcessFunction):
    """Emits to a side output before the error is found."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        context.output("copy", dict(row))
        yield from after_a_row(row)


CASES = [
    (MapRowsSpec, not_two, [10, 30]),
    (FlatMapRowsSpec, after_a_row, [0, 10, 0, 30]),
    (FilterRowsSpec, not_two, [1, 3]),
    (ProcessSpec, Beside(), [0, 10, 0, 30]),
]


@pytest.mark.parametrize(("spec", "function", "expected"), CASES)
@pytest.mark.parametrize("on_error", ["drop", "side_output"])
def test_a_row_that_a_function_raises_for_is_left_out_whole(
    spec: Any, function: Any, expected: list[int], on_error: str
) -> None:
    """It is counted, and set aside as it came in if that is asked for; nothing of it is emitted."""
    harness = run(spec(function, on_error=on_error)).process(ROWS).process(ROWS)

    assert expected * 2 == [row["k"] for row in harness.rows()]
    assert ([({"k": 2}, "ValueError: no twos")] * 2 if on_error == "side_output" else []) == aside(harness)
    assert 2 == harness.context.metrics.counter("bad_rows").value
    if spec is ProcessSpec:
        copies = [row["k"] for batch in harness.side["copy"] for row in batch.to_pylist()]
        assert [1, 3] * 2 == copies


@pytest.mark.parametrize(("spec", "function", "expected"), CASES)
def test_without_bad_rows_everything_is_as_ever(spec: Any, function: Any, expected: list[int]) -> None:
    """No side output, and the same rows."""
    good = ROWS.filter(pa.array([True, False, True]))
    harness = run(spec(function, on_error="side_output")).process(good)

    assert (expected, []) == ([row["k"] for row in harness.rows()], aside(harness))


@pytest.mark.parametrize("error", [ConnectionError("away"), ConnectorError("wrong use"), MemoryError()])
@pytest.mark.parametrize("spec", [MapRowsSpec, FlatMapRowsSpec, FilterRowsSpec])
def test_what_is_no_fault_of_the_row_fails_the_job(spec: Any, error: Exception) -> None:
    """A service that is away would cost all rows."""

    def ask(row: sl.Row) -> sl.Row:
        if row["k"] == 2:
            raise error
        return row

    with pytest.raises(RowFailure) as raised:
        run(spec(ask, on_error="drop")).process(ROWS)
    assert (1, error) == (raised.value.row_index, raised.value.cause)


@pytest.mark.parametrize("schema", [NUMBERS, None])
def test_results_that_do_not_fit_are_bad_rows(schema: pa.Schema | None) -> None:
    """Whatever the function returns, and whether the schema was declared or found in the first rows."""
    results: dict[int, Any] = {1: {"k": 1}, 2: {"k": "two"}, 3: "no row", 4: None, 5: {"k": 5}, 6: {"k": 2**70}}
    harness = run(MapRowsSpec(lambda row: results[row["k"]], schema, "side_output"))
    harness.process(pa.record_batch({"k": [1, 6]})).process(pa.record_batch({"k": [2, 3, 4, 5]}))

    assert [{"k": 1}, {"k": 5}] == harness.rows()
    assert [{"k": 6}, {"k": 2}, {"k": 3}, {"k": 4}] == [value for value, _ in aside(harness)]


def test_a_row_of_any_types_is_set_aside_as_json() -> None:
    """Times in ISO 8601, bytes in Base64; numbers that JSON has not, and characters that no text may have, are no
    obstacle."""

    def refuse(row: sl.Row) -> sl.Row:
        raise ValueError("\ud800")

    row = {
        "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "price": Decimal("1.20"), "raw": b"\x00", "list": [{"x": 1.5}], "none": None,
        "word": "ä", "nan": float("nan"), "far": [float("-inf")],
    }  # fmt: skip
    harness = run(MapRowsSpec(refuse, on_error="side_output")).process(pa.RecordBatch.from_pylist([row]))

    expected = {
        **row, "at": "2026-01-02T03:00:00+00:00", "price": "1.20", "raw": "AA==", "nan": "nan", "far": ["-inf"],
    }  # fmt: skip
    assert [(expected, "ValueError: ?")] == aside(harness)


def speechless(row: sl.Row) -> sl.Row:
    """Raise what cannot say why."""

    class Speechless(Exception):
        def __str__(self) -> str:
            return self.args[1]

    if row["k"] == 2:
        raise Speechless("no twos")
    return row


def test_a_row_whose_error_cannot_say_why_is_set_aside_as_any_other() -> None:
    """The IndexError of its __str__ failed the job in spite of on_error."""
    harness = run(MapRowsSpec(speechless, on_error="side_output"))
    harness.process(ROWS)

    assert aside(harness) == [
        ({"k": 2}, "Speechless: (its message cannot be had: __str__ raises IndexError)"),
    ]
