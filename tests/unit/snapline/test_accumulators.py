"""What functions count up: in the result of a job, and nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.api.accumulators import Accumulators, AccumulatorValue, HistogramCount, results_of
from snapline.dataflow.config import Configuration

FEW = 40


class Counting(sl.Function):
    """Counts rows, sums and digits; fails once, in its first attempt, when it is told where to write that down."""

    def __init__(self, failed_once: str = "") -> None:
        self.failed_once = failed_once

    def open(self, context: sl.RuntimeContext) -> None:
        self.rows = context.add_accumulator("rows", sl.LongCounter())
        context.add_accumulator("sum", sl.DoubleCounter())
        self.digits = context.add_accumulator("digits", sl.Histogram())
        self.context = context

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for value in batch.column("n").to_pylist():
            self.rows.add()
            self.context.get_accumulator("sum").add(value / 2)
            self.digits.add(len(str(value)))
        if self.failed_once and not Path(self.failed_once).exists():
            Path(self.failed_once).touch()
            raise RuntimeError("the first attempt fails after it has counted")
        return batch


def counted(function: Counting, parallelism: int) -> dict[str, Any]:
    restarts = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 ms"}
    env = sl.StreamExecutionEnvironment(Configuration(restarts))
    rows: list[dict[str, object]] = [{"n": number} for number in range(FEW)]
    stream = env.from_collection(rows, uid="numbers")
    stream.rebalance().map_batches(function, uid="counting").set_parallelism(parallelism).sink_to(
        DiscardingSink(), uid="out"
    )
    return dict(env.execute("counting", local=True).accumulators)


EXPECTED = {"digits": {1: 10, 2: FEW - 10}, "rows": FEW, "sum": sum(range(FEW)) / 2}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_result_of_a_job_has_the_sums_over_all_subtasks(parallelism: int) -> None:
    """By name, of each kind."""
    assert counted(Counting(), parallelism) == EXPECTED


def test_attempt_that_failed_does_not_count(tmp_path: Path) -> None:
    """Without a checkpoint all rows are counted again, by the attempt that succeeds."""
    assert counted(Counting(str(tmp_path / "failed")), 1) == EXPECTED
    assert (tmp_path / "failed").exists()


def test_names_are_taken_once_and_have_to_be_known() -> None:
    """One line that says what to do."""
    accumulators = Accumulators()
    rows = accumulators.add("rows", sl.LongCounter())

    assert accumulators.get("rows") is rows
    with pytest.raises(sl.JobDefinitionError, match="'rows' was added twice"):
        accumulators.add("rows", sl.DoubleCounter())
    with pytest.raises(sl.JobDefinitionError, match=r"no accumulator 'row' here \(there are: rows\)"):
        accumulators.get("row")
    with pytest.raises(sl.JobDefinitionError, match="is a int: take one of LongCounter"):
        accumulators.add("number", 7)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["", None, 5, b"rows", ["rows"], "\ud800"])
def test_what_cannot_travel_is_no_name(name: Any) -> None:
    """The end of the task could not be sent, or the message spoke of a name that was added twice."""
    with pytest.raises(sl.JobDefinitionError, match="is no name of an accumulator: give it a text"):
        Accumulators().add(name, sl.LongCounter())


def test_whole_numbers_have_bounds_where_they_are_counted() -> None:
    """What cannot travel is refused in the function, not by the connection."""
    counter = sl.LongCounter()
    counter.add(2**63 - 1)

    with pytest.raises(OverflowError, match="use a DoubleCounter"):
        counter.add()
    with pytest.raises(OverflowError, match="64 bits"):
        sl.Histogram().add(2**63)
    assert counter.local_value == 2**63 - 1


@pytest.mark.parametrize("accumulator", [sl.LongCounter(), sl.Histogram()])
def test_a_part_of_a_number_is_not_cut_off(accumulator: Any) -> None:
    """Four times 1.5 made 4."""
    accumulator.add(2.0)
    with pytest.raises(ValueError, match=r"1\.5 is no whole number: a DoubleCounter takes others"):
        accumulator.add(1.5)

    assert accumulator.local_value in (2, {2: 1})


def test_values_of_one_name_and_two_kinds_stay_apart() -> None:
    """Two operators may have chosen the same name."""
    values = [
        AccumulatorValue("seen", "LongCounter", whole=2),
        AccumulatorValue("seen", "Histogram", counts=(HistogramCount(5, 1),)),
        AccumulatorValue("seen", "LongCounter", whole=3),
        AccumulatorValue("seen", "of a newer version"),
    ]

    assert results_of(values) == {"seen (Histogram)": {5: 1}, "seen (LongCounter)": 5}
