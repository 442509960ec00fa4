"""Functions over keyed state that have operator state of their own, or hear of checkpoints: all kinds of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import (
    CoProcessSpec,
    KeyedBatchProcessSpec,
    KeyedProcessSpec,
    WindowProcessSpec,
)
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import UNION_STATES_OF_THE_ENGINE
from snapline.taskmanager.operators.factory import create_operator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

WINDOW = sl.TumblingEventTimeWindows(100)


class Hooked:
    """Counts its calls in operator state, and keeps what it hears."""

    def initialize_state(self, context: sl.FunctionInitializationContext) -> None:
        self.state = context.operator_state_store.get_list_state("calls")
        self.calls = sum(self.state.get())
        self.heard: list[tuple[str, int]] = []

    def snapshot_state(self, context: sl.FunctionSnapshotContext) -> None:
        self.state.update([self.calls])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.heard.append(("aborted", checkpoint_id))


class ByRow(Hooked, sl.KeyedProcessFunction):
    """Counts rows."""

    def process_element(self, row: sl.Row, context: Any) -> Any:
        self.calls += 1


class ByBatch(Hooked, sl.KeyedBatchProcessFunction):
    """Counts batches."""

    def process_batch(self, keys: Any, batch: pa.RecordBatch, state: Any) -> None:
        self.calls += 1


class OfTwo(Hooked, sl.KeyedBroadcastProcessFunction):
    """Counts rows of the first input."""

    def process_element(self, row: sl.Row, context: Any) -> Any:
        self.calls += 1

    def process_broadcast_element(self, row: sl.Row, context: Any) -> None:
        """None comes here."""


class OfWindow(Hooked, sl.ProcessWindowFunction):
    """Counts windows."""

    def process(self, key: Any, context: Any, rows: Sequence[sl.Row]) -> None:
        self.calls += 1


class OfWindowByBatch(Hooked):
    """Counts windows, too."""

    def __call__(self, key: Any, window: sl.TimeWindow, batch: pa.RecordBatch) -> None:
        self.calls += 1


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "row": (ByRow, lambda function: KeyedProcessSpec(("k",), function)),
    "batch": (ByBatch, lambda function: KeyedBatchProcessSpec(("k",), function)),
    "two inputs": (OfTwo, lambda function: CoProcessSpec((("k",), ()), ("", ""), function, None, ())),
    "window": (OfWindow, lambda function: WindowProcessSpec(("k",), "t", WINDOW, function)),
    "window by batch": (OfWindowByBatch, lambda function: WindowProcessSpec(("k",), "t", WINDOW, function, "batches")),
}


@pytest.mark.parametrize("case", CASES)
def test_its_state_comes_back_and_it_hears_of_checkpoints(case: str) -> None:
    """Functions over batches heard nothing of checkpoints, and window functions had no state of their own."""
    make, spec_of = CASES[case]
    function, again = make(), make()
    rows = pa.record_batch({"k": ["a"], "t": [1]})
    harness = Harness(create_operator(spec_of(function), lambda: pytest.fail("not a source"))).start()
    written = harness.process(rows).watermark(200).snapshot(1)
    harness.operator.notify_checkpoint_complete(1)
    harness.operator.notify_checkpoint_aborted(2)
    assert [("complete", 1), ("aborted", 2)] == function.heard
    Harness(create_operator(spec_of(again), lambda: pytest.fail("not a source"))).start(restored_state([written]))
    assert (1, 1) == (function.calls, again.calls)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", sorted(UNION_STATES_OF_THE_ENGINE))
def test_what_an_operator_keeps_for_itself_is_not_the_functions(case: str, name: str) -> None:
    """The operator wrote its watermark over the elements of a function that had chosen the same name."""
    make, spec_of = CASES[case]

    class Takes(make):  # type: ignore[misc, valid-type]
        def initialize_state(self, context: sl.FunctionInitializationContext) -> None:
            self.state = context.operator_state_store.get_union_list_state(name)

    harness = Harness(create_operator(spec_of(Takes()), lambda: pytest.fail("not a source")))
    with pytest.raises(
        JobDefinitionError, match=f"{name!r} is a name under which operators keep something of their own"
    ):
        harness.start()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("told", ["complete", "aborted"])
def test_a_function_may_have_one_of_the_two_methods_that_hear_of_checkpoints(case: str, told: str) -> None:
    """It was told of none without the other one, for which Flink has a default: nothing was ever published."""
    _, spec_of = CASES[case]
    heard: list[int] = []

    class Publishes(sl.KeyedProcessFunction, sl.KeyedBatchProcessFunction, sl.ProcessWindowFunction):
        process_element = process_batch = process = __call__ = lambda *_: None
        process_broadcast_element = None

    setattr(Publishes, f"notify_checkpoint_{told}", lambda _, checkpoint_id: heard.append(checkpoint_id))
    operator = create_operator(spec_of(Publishes()), lambda: pytest.fail("not a source"))
    Harness(operator).start().process(pa.record_batch({"k": ["a"], "t": [1]}))
    operator.notify_checkpoint_complete(CheckpointID(1))
    operator.notify_checkpoint_aborted(CheckpointID(2))
    assert heard == [1 if told == "complete" else 2]


@pytest.mark.parametrize("case", CASES)
def test_state_is_given_back_also_where_the_function_cannot_be_closed(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lay outside of memory stayed on the disk for as long as anybody knew the task."""
    make, spec_of = CASES[case]
    closed = list[str]()

    class Broken(make):  # type: ignore[misc, valid-type]
        def open(self, context: Any) -> None:
            closed.append("opened")

        def close(self) -> None:
            raise OSError("the connection is gone")

    harness = Harness(create_operator(spec_of(Broken()), lambda: pytest.fail("not a source"))).start()
    harness.process(pa.record_batch({"k": ["a"], "t": [1]}))
    monkeypatch.setattr(harness.operator.backend, "close", lambda: closed.append("state"))
    with pytest.raises(OSError, match="the connection is gone"):
        harness.operator.close()
    assert closed == ["opened", "state"]


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_before_the_first_row_finds_the_function_opened(case: str) -> None:
    """A subtask without rows failed with what only `open` gives the function, and so did the job, again and again."""
    make, spec_of = CASES[case]

    class Opened(make):  # type: ignore[misc, valid-type]
        def open(self, context: sl.RuntimeContext) -> None:
            self.asked: list[int] = []

        def snapshot_state(self, context: sl.FunctionSnapshotContext) -> None:
            self.asked.append(context.checkpoint_id)
            super().snapshot_state(context)

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            self.asked.remove(checkpoint_id)

    function = Opened()
    harness = Harness(create_operator(spec_of(function), lambda: pytest.fail("not a source"))).start()
    harness.snapshot(1)
    harness.snapshot(2)
    harness.operator.notify_checkpoint_complete(2)
    harness.process(pa.record_batch({"k": ["a"], "t": [1]})).watermark(200)
    assert (function.asked, function.calls) == ([1], 1)


def test_keyed_state_comes_to_a_function_that_was_opened_before_the_first_row() -> None:
    """Whoever takes part in checkpoints is opened when nobody knows the types of the key yet."""

    class Numbered(ByRow):
        def open(self, context: sl.RuntimeContext) -> None:
            self.n = context.get_state(sl.ValueStateDescriptor("n", pa.int64()))

        def process_element(self, row: sl.Row, context: Any) -> list[sl.Row]:
            self.n.update((self.n.value() or 0) + 1)
            return [{"k": context.current_key, "n": self.n.value()}]

    def make() -> Harness:
        spec = KeyedProcessSpec(("k",), Numbered())
        return Harness(create_operator(spec, lambda: pytest.fail("not a source")))

    rows = pa.record_batch({"k": ["a", "b", "a"]})
    harness = make().start()
    harness.snapshot(1)
    again = make().start(restored_state([harness.process(rows).snapshot(2)]))
    assert [row["n"] for one in (harness, again.process(rows)) for row in one.rows()] == [1, 1, 2, 3, 2, 4]
