"""What a row costs in a row-wise function over keyed state: one operator, one thread, no exchange, CPU time.

    python -m benchmarks.row_state [--cases value map-small list timers] [--rows 400000] [--batch-rows 8192]

`value`: two ValueStates read and written per row (the function of `benchmarks.keyed_sum --rows`). `map-small`: 80 pairs
per key, one of them read and written per row. `map-large`: 100 keys of 10,000 pairs each. `list`: one row in a hundred
reads the list of its key, all others append to it. `timers`: each row sets a timer, which does nothing. `list-timers`:
each row appends a struct of four fields to the list of its key, of some 100 elements, and sets a timer, which reads the
list and drops what is too old; a watermark comes with each batch, so that timers fire a few at a time. States are full
before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.cluster import versions
from snapline.dataflow.api.function_contexts import ProcessContext, Row, RuntimeContext
from snapline.dataflow.api.functions import KeyedProcessFunction
from snapline.dataflow.api.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from snapline.dataflow.elements import Watermark
from snapline.dataflow.graph.operator_specs import KeyedProcessSpec
from snapline.dataflow.ids import JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.taskmanager.operators.base.operator_contract import OperatorContext, RestoredState
from snapline.taskmanager.operators.process.keyed_process import KeyedProcessOperator
from snapline.taskmanager.state.outside.segment_files import SegmentFiles
from snapline.taskmanager.task.processing_time import TaskProcessingTime

OUTPUT = pa.schema([("key", pa.int64()), ("total", pa.int64()), ("n", pa.int64())])


class RunningSum(KeyedProcessFunction):
    """A function that keeps two values for each key."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64()))
        self.count = context.get_state(ValueStateDescriptor("n", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        total = (self.total.value() or 0) + row["value"]
        n = (self.count.value() or 0) + 1
        self.total.update(total)
        self.count.update(n)
        return ({"key": row["key"], "total": total, "n": n},)


class SumsOfPairs(KeyedProcessFunction):
    """One pair of the key's map per row."""

    def open(self, context: RuntimeContext) -> None:
        self.sums = context.get_map_state(MapStateDescriptor("sums", pa.int64(), pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        total = (self.sums.get(row["pair"]) or 0) + row["value"]
        self.sums.put(row["pair"], total)
        return ({"key": row["key"], "total": total, "n": 1},)


class Recent(KeyedProcessFunction):
    """Appends, and now and then looks at all."""

    def open(self, context: RuntimeContext) -> None:
        self.recent = context.get_list_state(ListStateDescriptor("recent", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        if row["value"] % 100:
            self.recent.add(row["value"])
            return ()
        total = sum(self.recent.get())
        self.recent.update([total])
        return ({"key": row["key"], "total": total, "n": 1},)


SPAN_MS = 10_000


class Span(KeyedProcessFunction):
    """The last ten seconds of a key's rows, looked at when each of them is over."""

    def open(self, context: RuntimeContext) -> None:
        fields = {"at": pa.int64(), "value": pa.int64(), "weight": pa.float64(), "name": pa.string()}
        self.span = context.get_list_state(ListStateDescriptor("span", pa.struct(list(fields.items()))))

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        self.span.add({"at": row["pair"], "value": row["value"], "weight": row["value"] / 2, "name": "a row"})
        context.timer_service.register_event_time_timer(row["pair"] + SPAN_MS)
        return ()

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Row]:
        kept = [one for one in self.span.get() if one["at"] > timestamp_ms - SPAN_MS]
        self.span.update(kept)
        total = sum(one["value"] for one in kept)
        return ({"key": context.current_key, "total": total, "n": len(kept)},)


class Alarm(KeyedProcessFunction):
    """A timer for each row."""

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        context.timer_service.register_event_time_timer(row["pair"] + SPAN_MS)
        return ()

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Row]:
        return ()


TIMER_CASES: dict[str, tuple[Callable[[], KeyedProcessFunction], int]] = {
    "timers": (Alarm, 8_192),
    "list-timers": (Span, 1_024),
}
"""Function, and rows of a batch at most."""
CASES: dict[str, tuple[Callable[[], KeyedProcessFunction], int, int]] = {
    "value": (RunningSum, 100_000, 1),
    "map-small": (SumsOfPairs, 2_000, 80),
    "map-wide": (SumsOfPairs, 20_000, 80),
    "map-large": (SumsOfPairs, 100, 10_000),
    "list": (Recent, 10_000, 1),
}
"""Function, keys, pairs per key."""


class _Discard:
    """An output that throws away what the operator emits."""

    def emit_batch(self, batch: pa.RecordBatch) -> None: ...
    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None: ...
    def emit_watermark(self, watermark: Any) -> None: ...
    def emit_watermark_status(self, status: Any) -> None: ...


def _operator(function: KeyedProcessFunction) -> KeyedProcessOperator:
    operator = KeyedProcessOperator(KeyedProcessSpec(("key",), function, OUTPUT))
    context = OperatorContext(
        job_id=JobID("job"), operator_id=OperatorID("op"), operator_uid="op", operator_name="op", task_name="op",
        subtask_index=0, parallelism=1, max_parallelism=128, attempt_number=0, execution_attempt="0",
        key_group_range=KeyGroupRange(0, 127), processing_time=TaskProcessingTime(), configuration={},
        wake_up=lambda: None, open_segment_space=SegmentFiles,
    )  # fmt: skip
    operator.setup(context, _Discard())
    operator.initialize_state(RestoredState())
    operator.open()
    return operator


def _batch(keys: Any, pairs: Any, random: np.random.Generator) -> pa.RecordBatch:
    columns = {"key": keys, "pair": pairs, "value": random.integers(1, 1000, len(keys))}
    return pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})


def measure(case: str, rows: int, batch_rows: int) -> dict[str, Any]:
    """CPU microseconds per row, and what filling the state took."""
    make, keys, pairs = CASES[case]
    operator = _operator(make())
    random = np.random.default_rng(7)
    everything = random.permutation(keys * pairs)
    began = time.process_time()
    for first in range(0, len(everything), batch_rows):
        chosen = everything[first : first + batch_rows]
        operator.process_batch(_batch(chosen // pairs, chosen % pairs, random))
    filled = time.process_time() - began
    batches = [
        _batch(random.integers(0, keys, batch_rows), random.integers(0, pairs, batch_rows), random)
        for _ in range(max(1, rows // batch_rows))
    ]
    began = time.process_time()
    for batch in batches:
        operator.process_batch(batch)
    spent = time.process_time() - began
    operator.close()
    return {
        "case": case,
        "keys": keys,
        "pairs per key": pairs,
        "us per row": round(spent * 1e6 / (len(batches) * batch_rows), 2),
        "us per row while filling": round(filled * 1e6 / len(everything), 2),
    }


def measure_timers(case: str, rows: int, batch_rows: int) -> dict[str, Any]:
    """CPU microseconds for a row and its timer, over 1,000 keys with about 100 rows each."""
    make, most_rows = TIMER_CASES[case]
    keys, per_ms, batch_rows = 1_000, 10, min(batch_rows, most_rows)
    operator = _operator(make())
    random = np.random.default_rng(7)

    def run(first: int, count: int) -> float:
        began = time.process_time()
        for begin in range(first, first + count, batch_rows):
            at = np.arange(begin, begin + batch_rows) // per_ms
            operator.process_batch(_batch(random.integers(0, keys, batch_rows), at, random))
            operator.process_watermark(Watermark(int(at[-1])))
            while operator.has_pending_work:
                operator.continue_work()
        return time.process_time() - began

    full = SPAN_MS * per_ms // batch_rows * batch_rows
    filled = run(0, full)
    spent = run(full, rows)
    operator.close()
    return {
        "case": case,
        "keys": keys,
        "pairs per key": full // keys,
        "us per row": round(spent * 1e6 / rows, 2),
        "us per row while filling": round(filled * 1e6 / full, 2),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure the cases and print a line for each."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--cases", nargs="+", choices=[*CASES, *TIMER_CASES], default=[*CASES, *TIMER_CASES])
    cli.add_argument("--rows", type=int, default=400_000)
    cli.add_argument("--batch-rows", type=int, default=8_192)
    cli.add_argument("--json", action="store_true")
    options = cli.parse_args(arguments)
    figures = []
    for case in options.cases:
        if case in TIMER_CASES:
            figures.append(measure_timers(case, options.rows, options.batch_rows))
        else:
            figures.append(measure(case, options.rows, options.batch_rows))
        if not options.json:
            print(", ".join(f"{name} {value}" for name, value in figures[-1].items()), flush=True)
    if options.json:
        print(json.dumps({"figures": figures, "versions": versions()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
