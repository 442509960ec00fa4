"""The generator's events, positions and ideal times."""

from __future__ import annotations

from typing import Any

import pytest

from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.api.connector_api import InputStatus, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place


def expected(rows: int, keys: int) -> list[tuple[int, int]]:
    return sorted(((i * 2_654_435_761) % keys, i % 1000) for i in range(rows))


def read(reader: SourceReader, polls: int = 10**9, now_ms: int = 0) -> tuple[list[tuple[int, int]], list[str]]:
    """Events and finished splits of so many polls."""
    events: list[tuple[int, int]] = []
    finished: list[str] = []
    for _ in range(polls):
        polled = reader.poll_next(now_ms)
        finished += polled.finished_splits
        if polled.batch is not None:
            events += zip(polled.batch["key"].to_pylist(), polled.batch["value"].to_pylist(), strict=True)
        if polled.status is InputStatus.END_OF_INPUT:
            break
    return events, finished


def reader_of(source: GeneratorSource, splits: list[SourceSplit] | None = None) -> SourceReader:
    reader = source.create_reader(Place())
    reader.add_splits(list(source.enumerate_splits()) if splits is None else splits)
    return reader


@pytest.mark.parametrize("keys", [1, 7, 1000, 100_000, 2**31])
@pytest.mark.parametrize(("rows", "splits", "batch_rows"), [(10_007, 3, 100), (5, 16, 100), (64, 1, 64), (0, 4, 10)])
def test_all_events_once(keys: int, rows: int, splits: int, batch_rows: int) -> None:
    """Whatever the sizes, the events are those of the formula; every split is reported finished once."""
    source = GeneratorSource(keys=keys, rows=rows, splits=splits, batch_rows=batch_rows)

    events, finished = read(reader_of(source))

    assert sorted(events) == expected(rows, keys)
    assert sorted(finished) == sorted(split.split_id for split in source.enumerate_splits())


@pytest.mark.parametrize("polls", [0, 1, 5, 50])
def test_a_restore_at_another_parallelism_goes_on_where_it_was(polls: int) -> None:
    """Positions in the snapshot lie behind what was emitted, split by split."""
    source = GeneratorSource(keys=1000, rows=20_000, splits=8, batch_rows=333)
    first = reader_of(source)
    before, _ = read(first, polls)
    snapshot = list(first.snapshot_splits(1))
    read(first, 3)  # emitted after the snapshot: lost and made again

    after = [event for part in range(3) for event in read(reader_of(source, snapshot[part::3]))[0]]

    assert sorted(before + after) == expected(20_000, 1000)


def test_rate_and_ideal_times() -> None:
    """10,000 events a second over two subtasks: each event has its own due time, and none comes early."""
    source = GeneratorSource(rows_per_second=10_000, splits=2, created_at_column="created_us", emit_interval_ms=5)
    split_ids = source.enumerate_splits()
    reader = source.create_reader(Place(0, 2))
    reader.add_splits([split_ids[0]])
    now = 1_000_000
    times: list[int] = []
    while len(times) < 1000:
        polled = reader.poll_next(now)
        if polled.batch is None:
            assert polled.status is InputStatus.NOTHING_AVAILABLE and polled.wake_at_ms is not None
            now = polled.wake_at_ms
            continue
        created: list[Any] = polled.batch["created_us"].to_pylist()
        assert max(created) <= now * 1000
        times += created

    assert times == [1_000_000_000 + 200 * (n + 1) for n in range(len(times))]


def test_portions_of_any_size_are_the_events_of_the_formula_at_their_times() -> None:
    """A paced reader computes rows ahead: pauses of any length, a full batch between two small portions and a split
    that comes later leave events and times as they are."""
    source = GeneratorSource(
        keys=1000, rows=30_000, splits=2, batch_rows=2_000, rows_per_second=10_000, created_at_column="t"
    )
    first, second = source.enumerate_splits()
    reader = reader_of(source, [first])
    events: list[tuple[int, int]] = []
    times: list[int] = []
    now_ms = 0
    for poll in range(400):
        now_ms += (1, 7, 3, 90, 1, 500)[poll % 6]
        for _ in range(1 + poll % 3):
            batch = reader.poll_next(now_ms).batch
            if batch is not None:
                events += zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
                times += batch["t"].to_pylist()
                assert times[-1] <= now_ms * 1000
        if poll == 20:
            before = len(times)
            reader.add_splits([second])
    events += read(reader, now_ms=10**9)[0]

    assert sorted(events) == expected(30_000, 1000)
    assert 0 < before < len(times)
    assert times[:before] == [times[0] + 200 * number for number in range(before)]
    assert times[before:] == [times[before] + 100 * number for number in range(len(times) - before)]


@pytest.mark.parametrize(
    ("rate", "readers", "rows"), [(1_000, 1, 100), (4_000, 2, 200), (10_000, 1, 50), (10_000, 2, 25)]
)
def test_a_slow_stream_is_not_cut_into_crumbs(rate: int, readers: int, rows: int) -> None:
    """Below 2,500 rows a second a subtask emits ten times a second; a thousand rows came in two hundred portions."""
    source = GeneratorSource(rows_per_second=rate, splits=2)
    reader = source.create_reader(Place(0, readers))
    reader.add_splits(source.enumerate_splits()[: 2 // readers])
    now = 0
    portions: list[int] = []
    while len(portions) < 20:
        polled = reader.poll_next(now)
        if polled.batch is not None:
            portions.append(polled.batch.num_rows)
        elif polled.wake_at_ms is not None:
            now = polled.wake_at_ms

    assert portions == [rows] * 20


def test_free_running_events_are_created_now() -> None:
    """Without a rate the creation time is the time of the poll."""
    source = GeneratorSource(splits=1, batch_rows=4, created_at_column="t")
    polled = reader_of(source).poll_next(77)

    assert polled.batch is not None and polled.batch["t"].to_pylist() == [77_000] * 4
    assert not source.bounded and polled.batch.schema == source.schema()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": 0}, "keys must be a whole number, 1 to 2"),
        ({"rows": -1}, "rows must be a whole number, at least 0"),
        ({"rows_per_second": 0}, "rows_per_second must be a positive number"),
        ({"splits": 0}, "splits must be a whole number, at least 1"),
        ({"batch_rows": 0}, "batch_rows must be a whole number, at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """At construction, not in a task."""
    with pytest.raises(ConnectorError, match=message):
        GeneratorSource(**arguments)


def test_event_times_are_those_of_the_numbers_whatever_the_splits() -> None:
    """Event i happens i times the interval after the epoch, also after a restore."""
    source = GeneratorSource(keys=7, rows=20, batch_rows=3, splits=2, event_time_column="at", event_interval_us=5)
    times = []
    for split in source.enumerate_splits():
        reader = source.create_reader(None)  # type: ignore[arg-type]
        reader.add_splits([split])
        first = reader.poll_next(0).batch
        assert first is not None
        again = source.create_reader(None)  # type: ignore[arg-type]
        again.add_splits(reader.snapshot_splits(1))
        times += first.column("at").view("int64").to_pylist()
        while (batch := again.poll_next(0).batch) is not None:
            times += batch.column("at").view("int64").to_pylist()

    assert sorted(times) == [i * 5 for i in range(20)]
