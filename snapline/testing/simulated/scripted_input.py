"""The source that takes the place of a user's: its rows are given, it can be replayed, and it takes its time.

Each subtask reads its splits in turns, in small batches with pauses between them, as the seed says, so that checkpoints
and faults come between any two rows. The position of a split is the number of rows that were emitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapline.dataflow.api.connector_api import (
    InputStatus,
    Polled,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
)
from snapline.testing.simulated.run_state import current_run

POLLS_PER_SPLIT = 8
"""About so many batches a split is read in, whatever its size."""


class SimulatedInput(Source):
    """Rows given to `simulate`, one table for each split."""

    def __init__(self, tables: Sequence[pa.Table], schema: pa.Schema) -> None:
        self._batches = tuple(table.combine_chunks().to_batches() for table in tables)
        self._schema = schema

    def schema(self) -> pa.Schema:
        return self._schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return [SourceSplit(f"input-{number}", {"number": number}) for number in range(len(self._batches))]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return _InputReader([batches[0] if batches else None for batches in self._batches])


class _InputReader(SourceReader):
    """Reads the splits of one subtask."""

    def __init__(self, batches: Sequence[pa.RecordBatch | None]) -> None:
        self._batches = batches
        self._splits: list[SourceSplit] = []
        self._rows: dict[str, int] = {}
        self._finished: set[str] = set()
        self._paused: frozenset[str] = frozenset()
        self._turn = 0
        self._resume_at_ms: int | None = None

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits = list(splits)
        self._rows = {split.split_id: int(split.position.get("rows", 0)) for split in splits}
        self._finished = {split.split_id for split in splits if split.finished}

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        self._paused = frozenset(split_ids)

    def poll_next(self, now_ms: int) -> Polled:
        if self._resume_at_ms is not None and now_ms < self._resume_at_ms:
            return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=self._resume_at_ms)
        run = current_run()
        for _ in self._splits:
            split = self._splits[self._turn % len(self._splits)]
            self._turn += 1
            if split.split_id not in self._finished and split.split_id not in self._paused:
                self._resume_at_ms = now_ms + run.rng.randint(0, run.pause_ms)
                return self._read(split)
        if len(self._finished) == len(self._splits):
            return Polled(InputStatus.END_OF_INPUT)
        return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + 10)

    def _read(self, split: SourceSplit) -> Polled:
        batch = self._batches[split.description["number"]]
        rows = 0 if batch is None else batch.num_rows
        begin = self._rows[split.split_id]
        end = min(rows, begin + current_run().rng.randint(1, 1 + 2 * rows // POLLS_PER_SPLIT))
        self._rows[split.split_id] = end
        ended: tuple[str, ...] = ()
        if end == rows:
            self._finished.add(split.split_id)
            ended = (split.split_id,)
        if batch is None or begin == end:
            return Polled(InputStatus.MORE_AVAILABLE, finished_splits=ended)
        part = batch.slice(begin, end - begin)
        return Polled(InputStatus.MORE_AVAILABLE, part, split_id=split.split_id, finished_splits=ended)

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        return [
            SourceSplit(
                one.split_id, one.description, {"rows": self._rows[one.split_id]}, one.split_id in self._finished
            )
            for one in self._splits
        ]
