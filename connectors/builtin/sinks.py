"""Sinks without a second phase: print rows, or throw them away and count.

`DiscardingSink` is what benchmarks end in: it counts rows, measures how old they are when one column says when they
were made, and writes its figures where the benchmark finds them, one JSON line per checkpoint and subtask.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.api.connector_api import Committable, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.columnar.python_values import row_maker, shown_values
from snapline.dataflow.errors import JobDefinitionError

PERCENTILES = (("p50", 50.0), ("p99", 99.0), ("p999", 99.9))
BUCKETS_PER_OCTAVE = 32
"""Latencies are counted in buckets 2 % wide, whatever their size."""
BUCKETS = 40 * BUCKETS_PER_OCTAVE


class PrintSink(Sink):
    """Prints every row on the standard output of the task's process, after its subtask's number if there are several
    (Flink: print).

    >>> _ = orders.sink_to(sl_connectors.PrintSink("orders"), uid="print")
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    @property
    def two_phase(self) -> bool:
        return False

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        number = str(context.subtask_index + 1) if context.parallelism > 1 else ""
        said = ":".join(part for part in (self.prefix, number) if part)
        return PrintWriter(f"{said}> " if said else "")


class PrintWriter(SinkWriter):
    """Prints one line for each row of one subtask."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def write(self, batch: pa.RecordBatch) -> None:
        names, columns = batch.schema.names, [shown_values(column) for column in batch.columns]
        if not names:
            rows: Iterable[object] = [{}] * batch.num_rows
        elif len(set(names)) == len(names):
            rows = row_maker(tuple(names))(*columns)
        else:
            rows = _rows_of_all_columns(names, columns)
        try:
            sys.stdout.write("".join(f"{self._prefix}{row}\n" for row in rows))
            sys.stdout.flush()
        except BrokenPipeError:  # as of `| head`: nobody will ever read there again
            raise JobDefinitionError("nobody reads the standard output of this process any more") from None

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        return ()


def _rows_of_all_columns(names: Sequence[str], columns: Sequence[list[Any]]) -> Iterator[str]:
    """Rows as they are printed, where a dictionary has not all columns because two have one name."""
    for row in zip(*columns, strict=True):
        yield f"{{{', '.join(f'{name!r}: {value!r}' for name, value in zip(names, row, strict=True))}}}"


class DiscardingSink(Sink):
    """Counts rows and forgets them.

    >>> _ = orders.sink_to(sl_connectors.DiscardingSink(), uid="nowhere")
    """

    def __init__(self, *, report_directory: str | os.PathLike[str] = "", created_at_column: str = "") -> None:
        """`report_directory`: append figures to `<operator uid>-<subtask>-<attempt>.jsonl` there, at every checkpoint
        and at the end. `created_at_column`: int64 microseconds since the epoch, from which latencies are measured."""
        self.report_directory: str = os.fspath(report_directory)
        self.created_at_column = created_at_column

    @property
    def two_phase(self) -> bool:
        return False

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        name = f"{context.operator_uid}-{context.subtask_index}-{context.attempt_number}.jsonl"
        report = Path(self.report_directory) / name.replace("/", "-") if self.report_directory else None
        return DiscardingWriter(report, self.created_at_column)


class LatencyHistogram:
    """Counts of latencies in buckets that grow with them."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(BUCKETS, dtype=np.int64)

    def add(self, latencies_us: npt.NDArray[np.int64]) -> None:
        """Count them; what is negative, because clocks differ, counts as none."""
        exact: Any = np.maximum(latencies_us, 1).astype(np.float64)
        buckets = np.minimum((np.log2(exact) * BUCKETS_PER_OCTAVE).astype(np.int64), BUCKETS - 1)
        self._counts += np.bincount(buckets, minlength=BUCKETS)

    def counts(self) -> dict[int, int]:
        """Bucket -> count, without empty ones; add them up over subtasks with `latency_percentiles_ms`."""
        return {int(bucket): int(self._counts[bucket]) for bucket in np.flatnonzero(self._counts)}


def latency_percentiles_ms(counts: Sequence[dict[Any, int]]) -> dict[str, float]:
    """p50, p99, p999 over the histograms of several subtasks (keys may be text, as JSON makes them)."""
    total: npt.NDArray[np.int64] = np.zeros(BUCKETS, dtype=np.int64)
    for each in counts:
        for bucket, count in each.items():
            total[int(bucket)] += count
    rows = int(total.sum())
    if not rows:
        return {}
    cumulative = np.cumsum(total)
    upper_us = {
        name: float(2 ** ((int(np.searchsorted(cumulative, rows * percent / 100)) + 1) / BUCKETS_PER_OCTAVE))
        for name, percent in PERCENTILES
    }
    return {name: round(value / 1000, 3) for name, value in upper_us.items()}


class DiscardingWriter(SinkWriter):
    """Counts the rows of one subtask and throws them away."""

    def __init__(
        self, report: Path | None, created_at_column: str, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self.rows = 0
        self._report = report
        self._column = created_at_column
        self._clock_us = clock_us
        self._latencies = LatencyHistogram()

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if self._column:
            created: Any = batch.column(batch.schema.get_field_index(self._column)).to_numpy(zero_copy_only=False)
            self._latencies.add(self._clock_us() - created)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        self._write_report({"checkpoint_id": checkpoint_id})
        return ()

    def close(self) -> None:
        self._write_report({"closed": True})

    def _write_report(self, event: dict[str, Any]) -> None:
        if self._report is None:
            return
        figures = {**event, "time_us": self._clock_us(), "rows": self.rows}
        if self._column:
            figures["latency_counts"] = self._latencies.counts()
        self._report.parent.mkdir(parents=True, exist_ok=True)
        with self._report.open("a") as file:
            file.write(json.dumps(figures) + "\n")
