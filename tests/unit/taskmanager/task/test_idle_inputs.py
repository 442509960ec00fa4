"""Two inputs of one task, of which one is silent for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.elements import Watermark
from snapline.dataflow.graph.operator_specs import CustomOperatorSpec, SourceSpec
from snapline.dataflow.partitioning import Partitioning
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from tests.unit.taskmanager.task.local_job import Gates, ListSource, LocalJob, Operator, batch, edge, job_graph


class Late(StreamOperator):
    """Writes down the rows that come behind the watermark."""

    reached_ms: ClassVar[int] = 0
    taken: ClassVar[list[int]] = []
    late: ClassVar[list[int]] = []

    def open(self) -> None:
        type(self).reached_ms = 0
        self.taken.clear()
        self.late.clear()

    def process_batch(self, rows: pa.RecordBatch, input_index: int = 0) -> None:
        for time in rows.column("k").to_pylist():
            (self.late if time <= self.reached_ms else self.taken).append(time)

    def process_watermark(self, watermark: Watermark) -> None:
        type(self).reached_ms = watermark.timestamp_ms


def test_rows_of_an_input_that_was_silent_are_not_late_in_a_join() -> None:
    """Its first row is newer than all that was joined so far. The other input then ran ahead of it, because its
    watermark, which allows for disorder, was behind, and did not count until it had caught up."""
    ordered = WatermarkStrategy.for_monotonous_timestamps("k")
    disordered = WatermarkStrategy.for_bounded_out_of_orderness("k", 50).with_idleness(100)
    steady = ListSource([[batch(k=[1_000]), batch(k=[2_000])]], {"s0": 1})
    silent = ListSource([[], [batch(k=[900]), batch(k=[1_010]), batch(k=[1_030])]], {"s1": 1})
    operators = [
        Operator("steady", SourceSpec(steady, steady.spec_splits(), ordered)),
        Operator("silent", SourceSpec(silent, silent.spec_splits(), disordered)),
        Operator("late", CustomOperatorSpec(Late), [edge(n, Partitioning.REBALANCE) for n in (0, 1)]),
    ]
    graph = job_graph(operators)
    first, second = graph.edges
    job = LocalJob(replace(graph, edges=(first, replace(second, target_input=1)))).run()
    job.advance(110)
    assert Late.reached_ms == 999, "the silent input holds nobody up"

    Gates.opened.add("s1")
    job.find("silent").world.awake = True
    job.step(job.find("silent"))
    job.step(job.find("late"))
    Gates.opened.add("s0")
    job.find("steady").world.awake = True
    job.find("silent").paused = True
    job.run()
    job.find("silent").paused = False
    job.run_to_end()

    assert (sorted(Late.taken), Late.late) == ([900, 1_000, 1_010, 1_030, 2_000], [])
