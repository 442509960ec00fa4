"""The scripted source: signs take effect where and when the script says."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from snapline.connectors.builtin.scripted import (
    Abort,
    AwaitCheckpoint,
    End,
    Pause,
    ScriptedAbort,
    ScriptedSource,
    ScriptItem,
    Stall,
)
from snapline.dataflow.api.connector_api import InputStatus, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place


def play(source: ScriptedSource, splits: Sequence[SourceSplit] | None = None, attempt: int = 0) -> SourceReader:
    reader = source.create_reader(Place(attempt_number=attempt))
    reader.add_splits(source.enumerate_splits() if splits is None else splits)
    return reader


def emitted(reader: SourceReader, now_ms: int = 0) -> tuple[list[int], InputStatus]:
    """What comes until the reader waits or ends."""
    values: list[int] = []
    while (polled := reader.poll_next(now_ms)).batch is not None:
        values += polled.batch["a"].to_pylist()
    return values, polled.status


def rows(*values: int) -> list[ScriptItem]:
    return [{"a": value} for value in values]


def test_a_script_is_played_to_its_end_or_to_the_sign() -> None:
    """End cuts off what follows."""
    assert emitted(play(ScriptedSource(rows(1, 2, 3)))) == ([1, 2, 3], InputStatus.END_OF_INPUT)
    assert emitted(play(ScriptedSource([*rows(1), End(), *rows(2)]))) == ([1], InputStatus.END_OF_INPUT)


def test_each_abort_has_its_attempt() -> None:
    """Two aborts: two attempts fail, the third goes through."""
    source = ScriptedSource([*rows(1), Abort("first"), *rows(2), Abort("second"), *rows(3)])
    for attempt, message in enumerate(["first", "second"]):
        with pytest.raises(ScriptedAbort, match=message):
            emitted(play(source, attempt=attempt))

    assert emitted(play(source, attempt=2)) == ([1, 2, 3], InputStatus.END_OF_INPUT)


def test_a_pause_is_measured_on_the_readers_clock() -> None:
    """It begins when it is reached, and wake_at_ms says when it ends."""
    reader = play(ScriptedSource([*rows(1), Pause(500), *rows(2)]))

    assert emitted(reader, 1_000) == ([1], InputStatus.NOTHING_AVAILABLE)
    assert reader.poll_next(1_200).wake_at_ms == 1_500
    assert emitted(reader, 1_499) == ([], InputStatus.NOTHING_AVAILABLE)
    assert emitted(reader, 1_500) == ([2], InputStatus.END_OF_INPUT)


def test_awaiting_a_checkpoint_that_covers_what_was_emitted() -> None:
    """One whose snapshot was taken before the sign does not count, nor does an aborted one."""
    reader = play(ScriptedSource([*rows(1, 2), AwaitCheckpoint(), *rows(3)]))
    reader.poll_next(0)
    reader.snapshot_splits(1)
    assert emitted(reader)[0] == [2]
    reader.snapshot_splits(2)
    reader.notify_checkpoint_complete(1)
    reader.notify_checkpoint_aborted(2)
    assert emitted(reader) == ([], InputStatus.NOTHING_AVAILABLE)

    reader.snapshot_splits(3)
    reader.notify_checkpoint_complete(3)

    assert emitted(reader) == ([3], InputStatus.END_OF_INPUT)


def test_the_checkpoint_of_a_restore_is_awaited_no_more() -> None:
    """It covers what was emitted, so that a restarted job goes on; one from before the sign does not."""
    source = ScriptedSource([*rows(1), AwaitCheckpoint(), *rows(2)])
    reader = play(source)
    before = reader.snapshot_splits(1)
    reader.poll_next(0)
    after = reader.snapshot_splits(2)
    assert ([1], InputStatus.NOTHING_AVAILABLE) == emitted(play(source, before, attempt=1))
    assert ([2], InputStatus.END_OF_INPUT) == emitted(play(source, after, attempt=1))


def test_a_stalled_script_never_ends() -> None:
    """For jobs that are cancelled or stopped from outside."""
    source = ScriptedSource([*rows(1), Stall(), *rows(2)])

    assert emitted(play(source)) == ([1], InputStatus.NOTHING_AVAILABLE)
    assert not source.bounded and ScriptedSource(rows(1)).bounded


def test_a_restored_script_goes_on_behind_its_position() -> None:
    """Scripts are splits: they take turns, and each has its own position and end."""
    source = ScriptedSource(rows(1, 2, 3), rows(10, 20))
    reader = play(source)
    before = [polled.batch["a"].to_pylist()[0] for _ in range(3) if (polled := reader.poll_next(0)).batch]
    snapshot = reader.snapshot_splits(1)

    assert before == [1, 10, 2]
    assert emitted(play(source, snapshot, attempt=1)) == ([3, 20], InputStatus.END_OF_INPUT)


def test_ends_are_told_split_by_split() -> None:
    """For watermarks."""
    reader = play(ScriptedSource(rows(1), rows(10, 20)))
    told = [reader.poll_next(0).finished_splits for _ in range(5)]

    assert [split for splits in told for split in splits] == ["script-0", "script-1"]


def test_what_is_no_script_is_refused() -> None:
    """At construction."""
    with pytest.raises(ConnectorError, match="a script holds batches, rows and signs, not 42"):
        ScriptedSource([42])
    with pytest.raises(ConnectorError, match="at least one script"):
        ScriptedSource()


def test_rows_of_a_script_are_not_cut_to_their_schema() -> None:
    """A fraction was left out where whole numbers are, and the test of a job saw other rows than it was given."""
    with pytest.raises(ConnectorError, match=r"{'n': 1.5} does not fit schema= \(column 'n': 1.5 is no whole number\)"):
        ScriptedSource([{"n": 1.5}], schema=pa.schema([("n", pa.int64())]))
