"""Timers of the clock and everything else that a task does take turns, and none outlives its data."""

from __future__ import annotations

import functools
from typing import ClassVar

import pyarrow as pa

from snapline.dataflow.graph.operator_specs import CustomOperatorSpec, SourceSpec
from snapline.dataflow.partitioning import Partitioning
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from tests.unit.taskmanager.task.local_job import ListSource, LocalJob, Operator, batch, edge


class AlwaysDue(StreamOperator):
    """Its timer asks for the next one at once, until as many rows have come as are wanted."""

    wanted: ClassVar[int] = 3
    seen: ClassVar[list[int]] = []
    clock: ClassVar[LocalJob]

    def open(self) -> None:
        self.seen.clear()
        self.fire(0)

    def fire(self, _: int) -> None:
        if len(self.seen) < self.wanted:
            self.clock.now_ms += 1  # so long did it take
            self.context.processing_time.register_timer(self.clock.now_ms, self.fire)

    def process_batch(self, rows: pa.RecordBatch, input_index: int = 0) -> None:
        self.seen.extend(rows.column("k").to_pylist())


def job_with_timers_always_due() -> LocalJob:
    source = ListSource([[batch(k=[1]), batch(k=[2]), batch(k=[3])]])
    due = Operator("due", CustomOperatorSpec(AlwaysDue), [edge(0, Partitioning.REBALANCE)])
    AlwaysDue.clock = LocalJob([Operator("src", SourceSpec(source, source.spec_splits())), due])
    return AlwaysDue.clock


def test_timers_that_are_always_due_let_rows_in() -> None:
    """The rows of a function whose timers took longer than until the next was due waited for ever."""
    job_with_timers_always_due().run_to_end()
    assert AlwaysDue.seen == [1, 2, 3]


def test_all_timers_that_are_due_fire_before_the_next_row(monkeypatch) -> None:
    """Each let a batch go first, so that the third of a chain of operators, all of them due, waited for two batches."""
    order: list[str] = []

    def note(name: str, _: int) -> None:
        order.append(name)

    def open_operator(operator: AlwaysDue) -> None:
        for name in "abc":
            operator.context.processing_time.register_timer(0, functools.partial(note, name))

    def process_batch(_: AlwaysDue, rows: pa.RecordBatch, input_index: int = 0) -> None:
        order.append(f"row {rows.column('k')[0]}")

    monkeypatch.setattr(AlwaysDue, "open", open_operator)
    monkeypatch.setattr(AlwaysDue, "process_batch", process_batch)
    job_with_timers_always_due().run_to_end()
    assert order == ["a", "b", "c", "row 1", "row 2", "row 3"]


def test_timers_that_are_always_due_let_the_job_end(monkeypatch) -> None:
    """They went on when the input had ended, and the operators were never finished."""
    monkeypatch.setattr(AlwaysDue, "wanted", 4)
    job_with_timers_always_due().run_to_end()
    assert AlwaysDue.seen == [1, 2, 3]
