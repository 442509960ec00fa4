"""A ProcessFunction without keys: rows, side outputs and times, and what belongs to keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import ProcessSpec
from snapline.taskmanager.operators.process.process_operator import ProcessOperator
from tests.unit.taskmanager.operators.harness import Harness


class Doing(sl.ProcessFunction):
    """What the test says."""

    def __init__(self, do: Callable[[sl.Row, Any], Any]) -> None:
        self.do = do

    def process_element(self, row: sl.Row, context: Any) -> Any:
        return self.do(row, context)


def harness_of(do: Callable[[sl.Row, Any], Any], time: str = "") -> Harness:
    return Harness(ProcessOperator(ProcessSpec(Doing(do), None, time))).start()


BATCH = pa.record_batch({"v": [1, 2, 3], "t": [10, 20, 30]})


def test_rows_side_outputs_and_times() -> None:
    """Any number of rows for each, some aside, with the event time of the row and the times of the task."""

    def do(row: sl.Row, context: Any) -> Iterator[sl.Row]:
        if row["v"] == 2:
            context.output("two", {"at": context.timestamp_ms})
        else:
            times = context.timer_service
            yield {"v": row["v"], "now": times.current_processing_time(), "mark": times.current_watermark()}
            yield {"v": -row["v"], "now": 0, "mark": 0}

    harness = harness_of(do, "t").advance(1_000).watermark(7).process(BATCH)
    assert [(row["v"], row["now"], row["mark"]) for row in harness.rows()] == [
        (1, 1_000, 7), (-1, 0, 0), (3, 1_000, 7), (-3, 0, 0),
    ]  # fmt: skip
    assert [batch.to_pylist() for batch in harness.side["two"]] == [[{"at": 20}]]


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda _, context: context.current_key, "'op' asks for the key of a row, but its input is not keyed"),
        (
            lambda _, context: context.timer_service.register_event_time_timer(5),
            "'op' sets a timer, but its input is not keyed",
        ),
    ],
)
def test_what_belongs_to_keys_is_refused(do: Any, message: str) -> None:
    """With the way out."""
    with pytest.raises(Exception, match=message):
        harness_of(do).process(BATCH)


def test_functions_of_keyed_streams_are_refused_when_the_job_is_built() -> None:
    """They would ask for state that there is not."""

    class Keyed(sl.KeyedProcessFunction):
        def process_element(self, row: sl.Row, context: Any) -> None: ...

    rows = sl.StreamExecutionEnvironment.get_execution_environment().from_collection([{"v": 1}])
    with pytest.raises(JobDefinitionError, match="Keyed is no ProcessFunction; functions with keyed state"):
        rows.process(Keyed())  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="Doing is a class: hand over Doing"):
        rows.process(Doing)  # type: ignore[arg-type]
