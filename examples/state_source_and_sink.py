"""State of one's own in a source and in a sink: the program by which Flink's articles explain checkpoints.

* `StateSource` emits numbers in a loop of its own. It holds the checkpoint lock while it emits one and moves its
  position, so that every snapshot has both or neither.
* A keyed sum adds them up.
* `StateSink` gathers sums and flushes so many at a time. What it has not flushed is in its snapshot, so that no crash
  loses it. What it flushed after the last checkpoint is flushed again after a crash: at least once (for exactly once,
  see `TwoPhaseCommitSinkFunction`).

    snapline run --local examples/state_source_and_sink.py -- --output DIRECTORY
    python -m examples.state_source_and_sink --output DIRECTORY                       # on Spark
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl

KEYS = 10
FLUSH_ROWS = 100
"""A multiple of it is emitted: what would be left in the buffer at the end of the data would stay there."""
NUMBERS = pa.schema([("key", pa.int64()), ("number", pa.int64())])


class StateSource(sl.SourceFunction):
    """The numbers from 0 up to `rows`, in order, with or without a pause after each hundred."""

    def __init__(self, rows: int, pause_seconds: float = 0.0) -> None:
        self._rows = rows
        self._pause_seconds = pause_seconds

    def open(self, context: sl.RuntimeContext) -> None:
        self._cancelled = threading.Event()

    def initialize_state(self, context: sl.FunctionInitializationContext) -> None:
        self._state = context.operator_state_store.get_list_state("position")
        self._position = max(self._state.get(), default=0)

    def snapshot_state(self, context: sl.FunctionSnapshotContext) -> None:
        """Called while nobody holds the lock."""
        self._state.update([self._position])

    def run(self, context: sl.SourceContext) -> None:
        while self._position < self._rows and not self._cancelled.is_set():
            with context.get_checkpoint_lock():
                context.collect({"key": self._position % KEYS, "number": self._position})
                self._position += 1
            if self._pause_seconds and self._position % FLUSH_ROWS == 0:
                self._cancelled.wait(self._pause_seconds)

    def cancel(self) -> None:
        self._cancelled.set()


class StateSink(sl.SinkFunction):
    """Writes a file for every `FLUSH_ROWS` rows."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def initialize_state(self, context: sl.FunctionInitializationContext) -> None:
        self._state = context.operator_state_store.get_list_state("buffer")
        self._buffer: list[dict[str, Any]] = list(self._state.get())

    def snapshot_state(self, context: sl.FunctionSnapshotContext) -> None:
        self._state.update(self._buffer)

    def invoke(self, value: pa.RecordBatch) -> None:
        self._buffer += value.to_pylist()
        while len(self._buffer) >= FLUSH_ROWS:
            self._flush(self._buffer[:FLUSH_ROWS])
            self._buffer = self._buffer[FLUSH_ROWS:]

    def _flush(self, rows: list[dict[str, Any]]) -> None:
        """Whole or not at all."""
        hidden = Path(self._directory, f".{uuid.uuid4().hex}")
        hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        hidden.rename(hidden.with_name(f"{hidden.name[1:]}.jsonl"))


def build(
    environment: sl.StreamExecutionEnvironment, output: str, rows: int, pause_seconds: float = 0.0
) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    numbers = environment.add_source(StateSource(rows, pause_seconds), uid="numbers", schema=NUMBERS).set_parallelism(1)
    sums = numbers.key_by("key").running_aggregate(uid="sums", total=sl.sum("number"))
    sums.add_sink(StateSink(output), uid="files").set_parallelism(1)
    return environment


def expected(rows: int) -> set[tuple[int, int]]:
    """Every key with each of its sums."""
    totals = dict.fromkeys(range(KEYS), 0)
    found = set()
    for number in range(rows):
        totals[number % KEYS] += number
        found.add((number % KEYS, totals[number % KEYS]))
    return found


def flushed(output: str) -> list[tuple[int, int]]:
    """Read the key and the sum of every row that the files in `output` hold."""
    lines = [line for file in sorted(Path(output).glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [(row["key"], row["total"]) for row in map(json.loads, lines)]


def main() -> int:
    """Run the job and compare what it flushed; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", required=True, help="an empty directory")
    parser.add_argument("--rows", type=int, default=10_000)
    given = parser.parse_args()
    output = str(Path(given.output).resolve())  # executors have directories of their own
    Path(output).mkdir(parents=True, exist_ok=True)
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    environment.enable_checkpointing(500)
    build(environment, output, given.rows).execute("state source and sink")
    found = flushed(output)
    print(f"{len(found)} sums flushed, {len(expected(given.rows) - set(found))} missing")
    return 0 if set(found) == expected(given.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
