"""One attempt at one partition: skip what is done, hand out its output again, go on, and take checkpoints on the way.

Decides when a checkpoint is taken: when the function asks for its next input, the interval is over and all output of
the inputs before has come. It is skipped when the storage does not answer, because a checkpoint that is missing costs
work and not correctness. Batches are cut so that a piece takes a tenth of the interval, as the pieces before took.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapline.embed.input_digest import InputDigest
from snapline.embed.partition_log import PartitionCheckpoint, PartitionLog, PartitionProgress, ResumableError
from snapline.reporting import tell
from snapline.runtime.storage.storage_port import StorageError

FIRST_PIECE_ROWS = 256
PIECES_PER_INTERVAL = 10
PENDING_BYTES_MAX = 64 << 20
PENDING_ROWS_MAX = 100_000
"""Output is written down earlier when it comes to so much."""


@dataclass(frozen=True)
class RunSettings:
    """What holds for every partition of a function."""

    uid: str
    interval_s: float
    expected_rows: int | tuple[int, ...] | None

    def expected_of(self, partition: int) -> int | None:
        """Return how many rows a partition has, as far as the user has said it."""
        if isinstance(self.expected_rows, tuple):
            return self.expected_rows[partition] if partition < len(self.expected_rows) else None
        return self.expected_rows


class PartitionRun:
    """Feeds a function with the rows that are left, and keeps what it gives."""

    def __init__(
        self,
        log: PartitionLog,
        settings: RunSettings,
        rows: Iterator[Any],
        attempt: int,
        snapshot: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`snapshot`: of the function's state; None for none."""
        self._log, self._settings, self._attempt, self._snapshot, self._clock = log, settings, attempt, snapshot, clock
        self._where = f"{settings.uid}: partition {log.partition}"
        self._input = rows
        self._digest = InputDigest()
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self._times_more = 1
        """While the storage does not answer, output may come to so many times of what it may else."""
        self._segments: tuple[str, ...] = ()
        self._rows_out = 0
        self._began_s = self._saved_s = clock()
        self._skipped = 0
        self._piece_rows = FIRST_PIECE_ROWS
        self.checkpoint: PartitionCheckpoint | None = None
        """Where it goes on from; None: from the beginning."""

    # --- going on -----------------------------------------------------------------------------------------------------

    def skip(self) -> Iterator[Any]:
        """Pass over the rows that are done. Raises ResumableError when they are others now. Then the output of them."""
        self.checkpoint = found = self._log.latest()
        if found is None:
            return iter(())
        for item in self._input:
            left = found.rows - self._digest.rows
            if isinstance(item, pa.RecordBatch):
                if left:
                    self._digest.add_batch(item.slice(0, left))
                if item.num_rows > left:
                    self._input = itertools.chain([item.slice(left)], self._input)
            elif left:
                self._digest.add_row(item)
            else:
                self._input = itertools.chain([item], self._input)
            if self._digest.rows == found.rows and (isinstance(item, pa.RecordBatch) or not left):
                break
        is_longer = found.progress.is_finished and self._has_more()
        if self._digest.hexdigest() != found.digest or is_longer:
            raise ResumableError(
                f"{self._where}: its first {found.rows:,} rows are not those that were read before, so its output cannot go on; "
                "give it an input that comes out the same each time (written to files, without rand() and with the same "
                "partitions), or clear() the progress"
            )
        self._skipped, self._segments, self._rows_out = found.rows, found.segments, found.progress.rows_out
        self._began_s = self._saved_s = self._clock()
        return self._log.read(found.segments)

    def _has_more(self) -> bool:
        return any(not isinstance(item, pa.RecordBatch) or item.num_rows > 0 for item in self._input)

    # --- the function's input and output ------------------------------------------------------------------------------

    def feed(self) -> Iterator[Any]:
        """What is left of the input; a checkpoint may be taken before each piece of it."""
        for item in self._input:
            if not isinstance(item, pa.RecordBatch):
                self._digest.add_row(item)
                yield item
                self._save_if_due()
                continue
            position = 0
            while position < item.num_rows:
                piece = item.slice(position, self._piece_rows)
                self._digest.add_batch(piece)
                position += piece.num_rows
                began_s = self._clock()
                yield piece
                self._choose_piece(piece.num_rows, self._clock() - began_s)
                self._save_if_due()

    def keep(self, output: Any) -> None:
        """Output that the function has given, and that goes on to Spark."""
        is_batch = isinstance(output, pa.RecordBatch)
        self._pending.append(output.copy() if isinstance(output, (dict, list)) else output)
        self._pending_bytes += output.nbytes if is_batch else 0
        self._rows_out += output.num_rows if is_batch else 1
        bytes_max, rows_max = PENDING_BYTES_MAX * self._times_more, PENDING_ROWS_MAX * self._times_more
        if self._pending_bytes >= bytes_max or len(self._pending) >= rows_max:
            try:
                self._write_pending()
            except StorageError as error:
                self._times_more *= 2
                tell(f"snapline: {self._where}: no output is written, the work goes on: {error}")

    def finish(self) -> None:
        """The function has come to the end of its input."""
        if self._has_more():
            raise ResumableError(f"{self._where}: the function has ended before its input; let it read all of it")
        self._save(is_finished=True)

    def _choose_piece(self, rows: int, took_s: float) -> None:
        wanted_s = self._settings.interval_s / PIECES_PER_INTERVAL
        if not wanted_s:
            return
        if took_s > wanted_s:
            self._piece_rows = max(1, int(rows * wanted_s / took_s))
        elif took_s < wanted_s / 2 and rows == self._piece_rows:
            self._piece_rows *= 2

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        """Before the next piece would come to lie beyond the interval: a kill costs no more than that."""
        if self._clock() - self._saved_s >= self._settings.interval_s * (1 - 1 / PIECES_PER_INTERVAL):
            self._save(is_finished=False)

    def _save(self, *, is_finished: bool) -> None:
        now_s = self._clock()
        seconds = max(now_s - self._began_s, 1e-9)
        done = self._digest.rows
        rate = (done - self._skipped) / seconds
        expected = self._settings.expected_of(self._log.partition)
        left = None if expected is None else max(0, expected - done)
        state = None if is_finished else self._checked_state()
        try:
            self._write_pending()
            progress = PartitionProgress(
                partition=self._log.partition,
                rows=done,
                rows_out=self._rows_out,
                rows_per_second=round(rate, 3),
                remaining_s=0.0 if is_finished else None if left is None or not rate else round(left / rate, 3),
                attempt=self._attempt,
                is_finished=is_finished,
                updated_ms=int(time.time() * 1000),
            )
            self._log.write(PartitionCheckpoint(done, self._digest.hexdigest(), state, self._segments, progress))
        except StorageError as error:
            tell(f"snapline: {self._where}: no checkpoint, the work goes on: {error}")
        self._saved_s = self._clock()

    def _write_pending(self) -> None:
        if self._pending:
            self._segments = (*self._segments, self._log.append(self._pending))
            self._pending, self._pending_bytes, self._times_more = [], 0, 1

    def _checked_state(self) -> Any:
        state = self._snapshot()
        try:
            same = _is_same(json.loads(json.dumps(state)), state)
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ResumableError(
                f"{self._where}: snapshot() returned {type(state).__name__} that cannot be restored: return numbers, strings, "
                "lists and dictionaries with names as keys"
            )
        return state


def _is_same(read: Any, written: Any) -> bool:
    """Whether what is read back is equal to what was written; a NaN is."""
    if isinstance(written, dict):
        return (
            isinstance(read, dict)
            and read.keys() == written.keys()
            and all(_is_same(read[name], written[name]) for name in read)
        )
    if isinstance(written, list):
        return isinstance(read, list) and len(read) == len(written) and all(map(_is_same, read, written))
    if isinstance(written, float) and math.isnan(written):
        return isinstance(read, float) and math.isnan(read)
    return bool(read == written)


def outputs_of(answer: Any) -> Iterable[Any]:
    """What a function has returned for one input: nothing, one batch or table, or an iterable of batches or rows.
    Raises ResumableError for what is one row or value, or has columns: names and characters would be taken for rows."""
    if answer is None:
        return ()
    if isinstance(answer, pa.RecordBatch):
        return (answer,)
    if isinstance(answer, pa.Table):
        return answer.to_batches()
    is_whole = isinstance(answer, (str, bytes, Mapping, pa.Array, pa.ChunkedArray)) or hasattr(answer, "columns")
    if is_whole or not isinstance(answer, Iterable):
        raise ResumableError(
            f"the function returned a {type(answer).__module__}.{type(answer).__qualname__}: let it return a pyarrow.RecordBatch, an "
            "iterable of batches or rows (one row alone in a list), or None"
        )
    return answer
