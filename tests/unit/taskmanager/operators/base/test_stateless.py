"""Operators over whole batches and single rows that keep no state."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.dataflow.api.functions import Function, KeyedBatchProcessFunction, ProcessWindowFunction, SideOutput
from snapline.dataflow.api.state import ValueStateDescriptor, register_serializer
from snapline.dataflow.errors import JobDefinitionError, StateError
from snapline.dataflow.graph.operator_specs import (
    CustomOperatorSpec,
    FilterRowsSpec,
    FilterSpec,
    FlatMapRowsSpec,
    MapBatchesSpec,
    MapRowsSpec,
)
from snapline.taskmanager.operators.base.failure import RowFailure
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.base.stateless import MapBatchesOperator, emit_side_output
from snapline.taskmanager.operators.factory import create_operator, load_spec
from snapline.taskmanager.operators.process.function_results import emit_result
from snapline.testing import OperatorHarness
from tests.unit.taskmanager.operators.harness import Harness, restored_state

ROWS = pa.record_batch({"k": [1, 2, 3]})


def no_source() -> Any:
    raise AssertionError("no push source here")


def run(spec: Any) -> Harness:
    return Harness(create_operator(spec, no_source)).start()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda b: b, [1, 2, 3]),
        (lambda b: None, []),
        (lambda b: [b.slice(0, 1), b.slice(1)], [1, 2, 3]),
        (lambda b: (part for part in [b.slice(2)]), [3]),
        (lambda b: pa.Table.from_batches([b, b]), [1, 2, 3, 1, 2, 3]),
        (lambda b: b.slice(0, 0), []),
    ],
)
def test_a_batch_function_returns_batches_or_nothing(function: Any, expected: list[int]) -> None:
    """One, several, a table, none; empty ones are dropped."""
    assert [row["k"] for row in run(MapBatchesSpec(function)).process(ROWS).rows()] == expected


@pytest.mark.parametrize("emit", [lambda side, harness: emit_result(side, None, harness), emit_side_output])
def test_a_table_for_a_side_output_goes_out_as_batches(emit: Any) -> None:
    """It may be the main result as well; whole, it came out of the edge behind it as no element of a stream."""
    harness = Harness(create_operator(MapBatchesSpec(lambda b: b), no_source))
    emit(SideOutput("aside", pa.Table.from_batches([ROWS, ROWS])), harness)

    assert [ROWS, ROWS] == harness.side["aside"]
    assert all(isinstance(batch, pa.RecordBatch) for batch in harness.side["aside"])


@pytest.mark.parametrize("result", [7, {"k": 1}, ["x"], "text"])
def test_anything_else_is_refused(result: Any) -> None:
    """With what it was."""
    with pytest.raises(TypeError, match=r"must return a pyarrow\.RecordBatch, an iterable of them, or None, not "):
        run(MapBatchesSpec(lambda b: result)).process(ROWS)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (pl.DataFrame({"k": [1]}), r"not polars\.DataFrame; frame\.to_arrow\(\) is a table"),
        (pa.array([1]), r"not pyarrow\.Int64Array$"),
        (1.5, "not float$"),
    ],
)
def test_what_was_returned_is_named_and_not_its_elements(result: Any, told: str) -> None:
    """A frame was told as text, because the names of its columns are."""
    with pytest.raises(TypeError, match=told):
        run(MapBatchesSpec(lambda b: result)).process(ROWS)


def test_one_row_where_rows_are_expected_is_told() -> None:
    """The names of its columns were taken for rows."""
    with pytest.raises(
        TypeError, match="'x' is no row; if it is a column's name, the function returned one row alone: put it"
    ):
        run(FlatMapRowsSpec(lambda row: {"x": 1}, None)).process(ROWS)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            lambda row: 5,
            "'int' object is not iterable: flat_map, process_element, on_timer, .* return an iterable of rows",
        ),
        (lambda row: list(row["k"]), "'int' object is not iterable$"),
    ],
    ids=["what it returned", "what it did"],
)
def test_what_is_no_iterable_of_rows_is_told(function: Any, told: str) -> None:
    """What the function returned is told from a mistake of its own, which has the same words."""
    with pytest.raises(RowFailure) as caught:
        run(FlatMapRowsSpec(function, None)).process(ROWS)

    assert re.match(told, str(caught.value.cause))


def test_a_declared_schema_picks_and_casts() -> None:
    """Columns by name, types where nothing is lost."""
    spec = MapBatchesSpec(lambda b: b.append_column("x", b["k"]), pa.schema([("x", pa.int16())]))

    assert run(spec).process(ROWS).take()[0].schema == pa.schema([("x", pa.int16())])
    with pytest.raises(TypeError, match="returned columns k, but schema= declares k, y: y missing"):
        run(MapBatchesSpec(lambda b: b, pa.schema([("k", pa.int64()), ("y", pa.int64())]))).process(ROWS)
    with pytest.raises(TypeError, match="returned column 'k' as int64, but schema= declares int8"):
        run(MapBatchesSpec(lambda b: pa.record_batch({"k": [1000]}), pa.schema([("k", pa.int8())]))).process(ROWS)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (lambda b: pc.greater(b["k"], 1), [2, 3]),
        (lambda b: pa.array([True, None, False]), [1]),
        (lambda b: [False, False, True], [3]),
        (lambda b: pa.array([True] * 3), [1, 2, 3]),
        (lambda b: pa.array([False] * 3), []),
    ],
)
def test_a_filter_keeps_what_is_true(predicate: Any, expected: list[int]) -> None:
    """Null is not true; lists and numpy arrays will do."""
    assert [row["k"] for row in run(FilterSpec(predicate)).process(ROWS).rows()] == expected


@pytest.mark.parametrize("mask", [pa.array([True]), pa.array([1, 2, 3])])
def test_a_filter_must_decide_on_every_row(mask: pa.Array) -> None:
    """Wrong length or type would drop the wrong rows."""
    with pytest.raises(TypeError, match="a filter must return one boolean per row"):
        run(FilterSpec(lambda b: mask)).process(ROWS)


@pytest.mark.parametrize("predicate", [lambda row: row["k"] > 2, lambda row: True, lambda row: None])
def test_a_filter_that_was_written_for_a_row_is_told_so(predicate: Any) -> None:
    """It heard that an Int64Array and an int cannot be compared, and nothing else."""
    with pytest.raises(TypeError, match="filter_rows calls it for each row"):
        run(FilterSpec(predicate)).process(ROWS)


def test_row_functions() -> None:
    """Map, flat map (None is no row), filter."""
    assert run(MapRowsSpec(lambda r: {"k": r["k"] + 1})).process(ROWS).rows() == [{"k": 2}, {"k": 3}, {"k": 4}]
    assert run(FlatMapRowsSpec(lambda r: [r] * r["k"] if r["k"] != 2 else None)).process(ROWS).rows() == [
        {"k": 1}, {"k": 3}, {"k": 3}, {"k": 3},
    ]  # fmt: skip
    assert run(FilterRowsSpec(lambda r: r["k"] % 2)).process(ROWS).rows() == [{"k": 1}, {"k": 3}]
    assert run(FilterRowsSpec(lambda r: True)).process(ROWS).take()[0] is ROWS


@pytest.mark.parametrize("spec", [MapRowsSpec, FlatMapRowsSpec, FilterRowsSpec])
def test_the_failing_row_is_known(spec: Any) -> None:
    """Whatever the loop."""
    with pytest.raises(RowFailure) as raised:
        run(spec(lambda r: 1 // (2 - r["k"]) and r)).process(ROWS)

    assert raised.value.row_index == 1
    with pytest.raises(RowFailure) as again:
        run(spec(lambda r: 1 // (2 - r["k"]) and r)).process(ROWS.slice(1))
    assert (again.value.row_index, again.value.digest) == (0, raised.value.digest)
    assert raised.value.digest


class Counting(Function):
    """A batch function with operator state, notifications and a life of its own."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen = 0

    def initialize_state(self, context: Any) -> None:
        self.state = context.operator_state_store.get_union_list_state("seen", "text")
        self.calls.append(f"initialize {context.restored_checkpoint_id}")
        self.seen = sum(int(value) for value in self.state.get())

    def open(self, context: Any) -> None:
        self.calls.append(f"open {context.task_name} {context.attempt_number} {context.execution_attempt}")

    def __call__(self, batch: pa.RecordBatch) -> None:
        self.seen += batch.num_rows

    def snapshot_state(self, context: Any) -> None:
        self.state.update([str(self.seen)])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(f"aborted {checkpoint_id}")

    def close(self) -> None:
        self.calls.append("close")


register_serializer("text", str.encode, bytes.decode)


def test_a_checkpointed_function_is_honoured_in_any_operator() -> None:
    """State, listener and life cycle, without a base class of ours being needed."""
    function = Counting()
    harness = Harness(MapBatchesOperator(MapBatchesSpec(function))).start().process(ROWS)
    written = harness.snapshot(3)
    harness.operator.notify_checkpoint_complete(3)
    harness.operator.notify_checkpoint_aborted(4)
    harness.operator.close()
    harness.operator.close()
    again = Counting()
    Harness(MapBatchesOperator(MapBatchesSpec(again))).start(restored_state([written, written]))

    assert function.calls == ["initialize 0", "open op 0 attempt-0", "complete 3", "aborted 4", "close"]
    assert again.seen == 6


class Publishes(Function):
    """Hears of complete checkpoints only."""

    heard = 0

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard = checkpoint_id

    def __call__(self, row: dict) -> dict:
        return row


def test_a_function_need_not_hear_of_checkpoints_that_fail() -> None:
    """It heard of none at all then."""
    function = Publishes()
    operator = run(MapRowsSpec(function)).operator
    operator.notify_checkpoint_complete(3)
    operator.notify_checkpoint_aborted(4)
    assert function.heard == 3


class WantsKeyedState(Function):
    def open(self, context: Any) -> None:
        context.get_state(ValueStateDescriptor("n", pa.int64()))

    def __call__(self, row: dict) -> dict:
        return row


def test_keyed_state_needs_a_keyed_stream() -> None:
    """The message says how to get one."""
    with pytest.raises(JobDefinitionError, match=r"operator 'op' asks for keyed state 'n', but its input is not keyed"):
        run(MapRowsSpec(WantsKeyedState()))


class BatchesWithState(KeyedBatchProcessFunction):
    def open(self, context: Any) -> None:
        context.get_state(ValueStateDescriptor("n", pa.int64()))

    def process_batch(self, keys: Any, batch: pa.RecordBatch, state: Any) -> None: ...


class WindowWithState(ProcessWindowFunction):
    def open(self, context: Any) -> None:
        context.get_state(ValueStateDescriptor("n", pa.int64()))

    def process(self, key: Any, context: Any, rows: Any) -> None: ...


class AggregateWithState(sl.BatchAggregateFunction):
    accumulator = pa.schema([("n", pa.int64())])

    def open(self, context: Any) -> None:
        context.get_state(ValueStateDescriptor("n", pa.int64()))

    def result_type(self, *input_types: pa.DataType) -> pa.DataType:
        return pa.int64()

    def add(self, accumulators: pa.RecordBatch, groups: Any, *columns: pa.Array) -> pa.RecordBatch:
        raise AssertionError("it is never opened")

    def merge(self, accumulators: pa.RecordBatch, groups: Any, others: pa.RecordBatch) -> pa.RecordBatch:
        raise AssertionError("it is never opened")

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        raise AssertionError("it is never opened")


@pytest.mark.parametrize(
    ("build", "way_out"),
    [
        (
            lambda s: s.key_by("k").running_aggregate(n=sl.batch_aggregate(AggregateWithState(), "k")),
            "functions of aggregates have none",
        ),
        (
            lambda s: s.key_by("k").count_window(2).aggregate(n=sl.batch_aggregate(AggregateWithState(), "k")),
            "functions of windows have none",
        ),
        (lambda s: s.key_by("k").process_batches(BatchesWithState()), r"state\.get\(descriptor\) in process_batch"),
        (lambda s: s.key_by("k").count_window(2).process(WindowWithState()), "functions of windows have none"),
    ],
)
def test_a_function_with_keys_hears_where_its_state_is(build: Callable[[Any], Any], way_out: str) -> None:
    """It was told that its input is not keyed, behind a `key_by`."""
    with pytest.raises(JobDefinitionError, match=way_out):
        OperatorHarness(build, pa.schema([("k", pa.string())]))


class TwoModes(Function):
    def initialize_state(self, context: Any) -> None:
        context.operator_state_store.get_list_state("x")
        context.operator_state_store.get_union_list_state("x")

    def snapshot_state(self, context: Any) -> None: ...

    def __call__(self, row: dict) -> dict:
        return row


def test_a_list_state_has_one_declaration() -> None:
    """Split and union cannot be one state."""
    with pytest.raises(StateError, match="list state 'x' was declared as split with serializer 'json' before"):
        run(MapRowsSpec(TwoModes()))


class CannotWrite(Function):
    def initialize_state(self, context: Any) -> None:
        self.state = context.operator_state_store.get_list_state("x")

    def snapshot_state(self, context: Any) -> None:
        self.state.add(object())

    def __call__(self, row: dict) -> dict:
        return row


def test_an_element_that_cannot_be_written_is_named() -> None:
    """State, value and serializer."""
    with pytest.raises(
        StateError, match=r"list state 'x': <object object at .*> cannot be written by the serializer 'json'"
    ):
        run(MapRowsSpec(CannotWrite())).snapshot()
    register_serializer("odd", lambda _value: None, bytes.decode)  # type: ignore[arg-type, return-value]
    with pytest.raises(StateError, match=r"list state 'y': 1 cannot be written by .* returned None and not bytes"):
        OperatorStateBackend().get_list_state("y", "odd").add(1)
    register_serializer("odd", str.encode, lambda data: int(data))
    with pytest.raises(StateError, match="list state 'y': serializer 'odd' cannot read what is stored: ValueError"):
        OperatorStateBackend({"y": (b"x",)}).get_list_state("y", "odd").get()


def test_a_custom_operator_must_be_one() -> None:
    """The factory's result is checked; a payload that cannot be unpickled names its operator."""
    with pytest.raises(JobDefinitionError, match="must return a StreamOperator, not a dict"):
        create_operator(CustomOperatorSpec(dict), no_source)
    with pytest.raises(JobDefinitionError, match="no operator for a int"):
        create_operator(3, no_source)
    with pytest.raises(
        JobDefinitionError, match="operator 'u' cannot be unpickled on the TaskManager: UnpicklingError"
    ):
        load_spec(b"nothing", "u")


def unspeakable() -> None:
    """Raise what cannot say what it is."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            return self.args[0]

    raise Unspeakable


@pytest.mark.parametrize(
    ("import_it", "said"),
    [
        (lambda: sys.exit(3), "SystemExit: 3; a module that calls sys.exit() does so under if __name__ == '__main__':"),
        (unspeakable, "Unspeakable: (its message cannot be had: __str__ raises IndexError); every module"),
    ],
)
def test_a_module_that_ends_its_importer_names_the_operator(import_it: Callable[[], None], said: str) -> None:
    """A script without a guard around its main was a defect of Snapline, and tried again."""
    with pytest.raises(JobDefinitionError, match=re.escape(f"'u' cannot be unpickled on the TaskManager: {said}")):
        load_spec(b"a script", "u", lambda _payload: import_it())
