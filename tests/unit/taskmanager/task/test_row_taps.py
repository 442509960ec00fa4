"""What a tap takes off a stream, and what it costs."""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.ids import ExecutionAttemptID, JobID, JobVertexID, OperatorID
from snapline.dataflow.wire.messages import TapTask
from snapline.taskmanager.task.row_taps import MOST_OPEN, RowTaps, first_rows

BATCH = pa.record_batch({"n": list(range(1_000))})


def read(written: bytes) -> pa.Table:
    with pa.ipc.open_stream(written) as reader:
        return reader.read_all()


def tap(name: str, rows: int = 2) -> TapTask:
    attempt = ExecutionAttemptID("graph", JobVertexID("v"), 0, 0)
    return TapTask(JobID("j"), attempt, name, OperatorID("o"), rows, 10_000)


def test_a_tap_takes_the_first_rows_of_one_batch_and_is_gone() -> None:
    """Nothing waits afterwards, so that who has died costs nothing."""
    seen: list[tuple[str, int, int]] = []
    taps = RowTaps()
    taps.add(tap("one"), lambda asked, rows, taken, of: seen.append((asked.tap_id, read(rows).num_rows, of)))
    assert taps.wait
    taps.show(BATCH)
    taps.show(BATCH)
    assert (seen, taps.wait) == ([("one", 2, 1_000)], False)


def test_of_many_taps_the_oldest_are_forgotten() -> None:
    """Whoever asks without end does not fill the memory of a task where no rows flow."""
    seen: list[str] = []
    taps = RowTaps()
    for number in range(MOST_OPEN + 3):
        taps.add(tap(str(number)), lambda asked, rows, taken, of: seen.append(asked.tap_id))
    taps.show(BATCH)
    assert seen == [str(number) for number in range(3, MOST_OPEN + 3)]


def test_rows_have_no_more_bytes_than_were_allowed() -> None:
    """Fewer rows, or none where a single one is too large."""
    written, rows = first_rows(BATCH, 1_000, 2_000)
    assert len(written) <= 2_000
    assert 0 < rows == read(written).num_rows < 1_000
    large = pa.record_batch({"text": ["x" * 100_000]})
    written, rows = first_rows(large, 10, 2_000)
    assert (rows, read(written).num_rows, read(written).column_names) == (0, 0, ["text"])


def test_a_large_row_further_on_hides_no_small_ones() -> None:
    """The mean of the batch says that not even one row fits, but the first ones do."""
    batch = pa.record_batch({"text": [*"abc", "x" * 1_000_000]})
    written, rows = first_rows(batch, 10, 2_000)
    assert 0 < rows == read(written).num_rows
    assert len(written) <= 2_000
