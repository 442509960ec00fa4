"""The function with state, timers and time-to-live that the guide shows does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

import snapline as sl
from snapline.connectors import CollectionSource, CollectSink

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "guide.md").read_text()
HOUR_MS = 3_600_000
SCHEMA = pa.schema([("customer", pa.string()), ("cents", pa.int64()), ("at", pa.int64())])


def test_the_function_of_the_guide_adds_up_by_hour():
    """One row for each customer and hour, whatever the watermark was when its rows came."""
    (program,) = (found for found in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "class Hourly" in found)
    names: dict[str, object] = {}
    exec(program, names)
    rows = [("x", 5, 0), ("y", 7, 1), ("x", 6, HOUR_MS - 1), ("x", 1, HOUR_MS), ("y", 8, 3 * HOUR_MS)]
    source = CollectionSource.of_rows([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    orders = env.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="orders")
    hourly = names["hourly"]
    assert callable(hourly)
    hourly(orders).sink_to(CollectSink("hourly"), uid="sink")
    CollectSink.clear("hourly")
    env.execute("hourly", local=True)
    said = sorted((row["customer"], row["hour"] // HOUR_MS, row["cents"]) for row in CollectSink.rows("hourly"))
    CollectSink.clear("hourly")
    assert [("x", 0, 11), ("x", 1, 1), ("y", 0, 7), ("y", 3, 8)] == said
