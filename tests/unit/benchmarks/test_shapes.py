"""Every shape of `benchmarks.shapes` gives the rows that it is said to measure, in a local run."""

from __future__ import annotations

from argparse import Namespace

import pyarrow as pa
import pytest

import snapline as sl
from benchmarks import shapes
from snapline.connectors.builtin.generator import GeneratorSource

ROWS = 4_000
KEYS = 50
OPTIONS = Namespace(keys=KEYS, columns=20, text_bytes=100, targets=3)


def rows_of(shape: str, *, interval_us: int = 10) -> list[dict[str, object]]:
    """What comes out of the shape's last operator."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 1})
    source = GeneratorSource(
        keys=KEYS, rows=ROWS, batch_rows=500, event_time_column="at", event_interval_us=interval_us
    )
    events = environment.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="generator")
    build, _ = shapes.SHAPES[shape]
    with build(events, OPTIONS).execute_and_collect(local=True) as rows:
        return list(rows)


@pytest.mark.parametrize(("shape", "keys"), [("wide", 50), ("fat", 50), ("nested", 50), ("pairs", 50)])
def test_sums_of_rows_of_any_shape_are_those_of_their_values(shape: str, keys: int) -> None:
    """The last row of each key has the sum of all of its values, whatever else was in the rows."""
    last = {(row.get("thousands"), row["key"]): row for row in rows_of(shape)}

    assert len(last) == keys
    assert sum(row["total"] for row in last.values()) == sum(i % 1000 for i in range(ROWS))  # type: ignore[misc]
    assert sum(row["n"] for row in last.values()) == ROWS  # type: ignore[misc]


def test_sessions_end_after_ten_seconds_of_event_time() -> None:
    """A key has one for each ten seconds, with all that came in them."""
    sessions = rows_of("sessions", interval_us=10_000)

    assert len(sessions) == KEYS * 4
    assert sum(row["n"] for row in sessions) == ROWS  # type: ignore[misc]


def test_each_row_is_in_a_hundred_windows() -> None:
    """A window has a hundred panes, and each of them is in a hundred windows."""
    windows = rows_of("panes", interval_us=10_000)

    assert sum(row["n"] for row in windows) == 100 * ROWS  # type: ignore[misc]


def test_each_row_reaches_each_target() -> None:
    """So many rows come out of all targets together."""
    assert len(rows_of("broadcast")) == 3 * ROWS


def test_what_travels_is_as_large_as_it_is_said_to_be() -> None:
    """Columns of a wide row, characters of a fat one, and elements of a nested one."""
    plain = pa.record_batch({"key": [1, 2], "value": [3, 4], "at": pa.array([0, 1], pa.timestamp("us"))})

    assert len(shapes.with_columns(plain, 1_000).schema) == 1_000
    assert [len(text) for text in shapes.with_text(plain, 10_000)["text"].to_pylist()] == [10_000, 10_000]
    nested = shapes.with_nested(plain).to_pylist()[0]
    assert nested["items"] == [{"id": 3, "name": "name-3"}] * 3
    assert nested["labels"] == [("name-3", 3)] * 3
