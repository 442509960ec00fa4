"""Windows, sessions and joins with many more keys than memory has room for: what comes out is what comes out in
memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.api.triggers import ContinuousEventTimeTrigger, PurgingTrigger
from snapline.dataflow.api.windows import (
    Aggregate,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from snapline.dataflow.elements import MAX_WATERMARK_MS
from snapline.dataflow.graph.operator_specs import (
    IntervalJoinSpec,
    JoinSide,
    TemporalJoinSpec,
    WindowAggregateSpec,
    WindowJoinSpec,
    WindowProcessSpec,
)
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.operators.factory import create_operator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

KEYS, ROWS, STEPS, STEP_MS = 80, 30, 20, 40
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([("k2", pa.int64()), ("t2", pa.int64()), ("v2", pa.int64())])
PAIR = pa.schema([*SCHEMA, *RIGHT])
SIDES = JoinSide(("k",), "t", SCHEMA), JoinSide(("k2",), "t2", RIGHT)
AGGREGATES = (Aggregate("n", "count"), Aggregate("total", "sum", "v"), Aggregate("least", "min", "v"))
SMALL = {
    "state.backend.type": "rocksdb",
    "state.backend.rocksdb.memory.fixed-per-slot": "2500 b",
    "execution.checkpointing.incremental": "true",
}


def windows(assigner: Any, lateness_ms: int = 0) -> WindowAggregateSpec:
    return WindowAggregateSpec(("k",), "t", assigner, AGGREGATES, lateness_ms)


def values(key: Any, window: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a window, which must all be there."""
    return rows


SPECS: dict[str, Any] = {
    "tumbling": windows(TumblingEventTimeWindows(100)),
    "tumbling, kept": windows(TumblingEventTimeWindows(100), 150),
    "sliding": windows(SlidingEventTimeWindows(300, 100)),
    "sliding, kept": windows(SlidingEventTimeWindows(300, 100), 150),
    "sessions": windows(EventTimeSessionWindows(60)),
    "sessions, kept": windows(EventTimeSessionWindows(60), 150),
    "counted": windows(GlobalWindows(CountTrigger(3, purge=True))),
    "by the watermark": windows(GlobalWindows(ContinuousEventTimeTrigger(100))),
    "by the watermark, purged": windows(GlobalWindows(PurgingTrigger(ContinuousEventTimeTrigger(100)))),
    "clock": windows(TumblingProcessingTimeWindows(100)),
    "rows": WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(100), values, "batches", SCHEMA),
    "window join": WindowJoinSpec(*SIDES, TumblingEventTimeWindows(100), PAIR, "full"),
    "interval join": IntervalJoinSpec(*SIDES, PAIR, -80, 60),
    "temporal join": TemporalJoinSpec(*SIDES, PAIR, "left"),
}


def story(inputs: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches with rows up to three steps old, some of them too late."""
    numbers = random.Random(5)
    for step in range(STEPS):
        rows = [
            (numbers.randrange(KEYS), (step - numbers.choice((0, 0, 1, 3))) * STEP_MS + numbers.randrange(STEP_MS), n)
            for n in range(ROWS)
        ]
        schema = (SCHEMA, RIGHT)[step % inputs]
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        yield step, pa.RecordBatch.from_arrays(columns, schema=schema)


def told(create: Callable[[], StreamOperator], inputs: int, configuration: dict[str, str], restores: bool) -> Any:
    """What every step puts out, in whatever order; and how many keys were ever in memory at once."""
    subject = Harness(create(), configuration=configuration).start()
    seen, most = [], 0
    for step, batch in story(inputs):
        if restores and step % 8 == 5:
            written = subject.snapshot(step)
            subject = Harness(create(), configuration=configuration).start(restored_state([written])).work()
        subject.advance(step * STEP_MS)
        subject.work().operator.process_batch(batch, step % inputs)
        most = max(most, len(subject.operator.backend._index))
        subject.watermark((step - 1) * STEP_MS).checkpoint(step)
        seen.append(sorted(map(str, subject.rows())))
    subject.operator.finish()
    seen.append(sorted(map(str, subject.work().watermark(MAX_WATERMARK_MS).rows())))
    return seen, most


@pytest.mark.parametrize("name", SPECS)
def test_what_comes_out_is_what_comes_out_in_memory(name: str) -> None:
    """Step by step, with restores in between; and most keys are outside at any time."""
    spec = SPECS[name]
    inputs = 2 if "join" in name else 1

    def create() -> StreamOperator:
        return create_operator(spec, lambda: pytest.fail("not a source"))

    expected, all_keys = told(create, inputs, {}, restores=False)
    found, keys = told(create, inputs, SMALL, restores=True)
    assert found == expected
    assert sum(map(len, expected)) > ROWS
    assert keys < all_keys
    assert keys <= ROWS + 20  # those of a batch, and what there is room for
