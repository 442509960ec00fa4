"""Watermarks of a user's own: by batch, by row and by the clock, in sources and in the middle of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.elements import Watermark
from snapline.dataflow.errors import InvalidArgument
from snapline.dataflow.graph.operator_specs import SourceSpec, WatermarkSpec
from snapline.taskmanager.operators.sources.source_operator import SourceOperator
from snapline.taskmanager.operators.sources.watermark_operator import WatermarkOperator
from tests.unit.taskmanager.operators.harness import Harness, restored_state
from tests.unit.taskmanager.task.local_job import ListSource

INTERVAL = {"pipeline.auto-watermark-interval": "10 ms"}


class Punctuated(sl.WatermarkGenerator):
    """A row that is marked ends what is before it."""

    def on_event(self, row: Any, timestamp_ms: int, output: sl.WatermarkOutput) -> None:
        if row["mark"]:
            output.emit_watermark(timestamp_ms)


class Median(sl.WatermarkGenerator):
    """The median time of a batch."""

    def on_batch(self, batch: pa.RecordBatch, times_ms: Any, output: sl.WatermarkOutput) -> None:
        output.emit_watermark(int(np.median(times_ms)))


class Counting(sl.WatermarkGenerator):
    """One more for each interval."""

    def __init__(self) -> None:
        self.count = 0

    def on_periodic_emit(self, output: sl.WatermarkOutput) -> None:
        self.count += 1
        output.emit_watermark(100 * self.count)


def rows(*times: int, marks: tuple[int, ...] = ()) -> pa.RecordBatch:
    return pa.record_batch({"t": list(times), "mark": [time in marks for time in times]})


def watermarks(harness: Harness) -> list[int]:
    return [item.timestamp_ms for item in harness.take() if isinstance(item, Watermark)]


def operator(generator: Any, **settings: str) -> Harness:
    strategy = sl.WatermarkStrategy.for_generator("t", generator)
    return Harness(WatermarkOperator(WatermarkSpec(strategy)), configuration=settings or None)


def test_by_row() -> None:
    """Only rows that are marked, and never back."""
    harness = operator(Punctuated).start().process(rows(5, 9, 7, marks=(9,)))
    assert watermarks(harness) == [9]
    assert watermarks(harness.process(rows(20, 30))) == []
    assert watermarks(harness.process(rows(8, marks=(8,)))) == []
    assert watermarks(harness.process(rows(31, marks=(31,)))) == [31]


def test_by_batch() -> None:
    """A call for each batch, with the times of its rows in milliseconds."""
    harness = operator(Median).start().process(rows(1, 50, 3))
    assert watermarks(harness) == [3]
    times = pa.array([4_000_000, 5_000_000, 6_000_000], pa.timestamp("us"))
    assert watermarks(harness.process(pa.record_batch({"t": times}))) == [5_000]


def test_by_the_clock() -> None:
    """Every interval, also while no rows come; from the first row on."""
    harness = operator(Counting, **INTERVAL).start()
    assert watermarks(harness.advance(1_000)) == []
    assert watermarks(harness.process(rows(1))) == [100]
    assert watermarks(harness.advance(1_009)) == []
    assert watermarks(harness.advance(1_010)) == [200]
    assert watermarks(harness.advance(1_020)) == [300]


def test_without_an_interval_it_is_asked_with_the_batches() -> None:
    """Its timer was due all the time, so that the task took no row any more."""
    harness = operator(Counting, **{"pipeline.auto-watermark-interval": "0 ms"}).start()
    assert watermarks(harness.process(rows(1))) == [100]
    assert watermarks(harness.advance(1_000)) == []
    assert watermarks(harness.process(rows(2))) == [200]


def test_each_split_has_its_own() -> None:
    """The least counts, and a split that has ended does not."""
    made = ListSource([[rows(5, marks=(5,)), rows(50, marks=(50,))], [rows(7, marks=(7,))]], {})
    spec = SourceSpec(made, made.spec_splits(), sl.WatermarkStrategy.for_generator("t", Punctuated))
    harness = Harness(SourceOperator(spec)).start()
    while harness.operator.emit_next() is InputStatus.MORE_AVAILABLE:
        pass
    assert watermarks(harness)[-1] == 50


def test_a_restored_stream_does_not_go_back() -> None:
    """What a generator had said before counts until it says more."""
    written = operator(Punctuated).start().process(rows(9, marks=(9,))).snapshot()
    harness = operator(Punctuated).start(restored_state([written])).process(rows(3, marks=(3,)))
    assert watermarks(harness) == [9]


@pytest.mark.parametrize("wrong", [Punctuated(), "Punctuated", None])
def test_what_makes_no_generator(wrong: Any) -> None:
    """One object for all splits is refused, because they would mix."""
    with pytest.raises(InvalidArgument, match="for_generator takes a WatermarkGenerator class"):
        sl.WatermarkStrategy.for_generator("t", wrong)


def test_a_function_that_makes_something_else() -> None:
    """It is named when the first rows come."""
    with pytest.raises(TypeError, match="makes a WatermarkGenerator, not 5"):
        operator(lambda: 5).start().process(rows(1))
