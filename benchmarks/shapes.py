"""Rows and graphs that are not two integers and one key: what they cost, one shape at a time, on Spark.

`--shape pairs`: a key of two columns; `sessions`: a key's session ends after ten seconds of event time, and others
begin; `panes`: sliding windows of 100 panes; `broadcast`: each row goes to `--targets` tasks, of which each is counted;
`wide`: rows of `--columns` integers; `fat`: rows with a text of `--text-bytes` bytes; `nested`: a list of structs and a
map in each row. Rows of the last three are dealt out by key, and their values summed up.

    python -m benchmarks.shapes --shape wide --columns 1000 --seconds 10 [--keys 10000] --json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from benchmarks.cluster import keyed_environment, keyed_parser, measure_job
from snapline.connectors.builtin.generator import DEFAULT_SPLITS, GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink

EVENT_INTERVAL_US = 10
SESSION_US = 10_000_000
GAP_MS = 2_000
PANES_MS = 100_000
PANE_MS = 1_000
GENERATED = GeneratorSource(event_time_column="at").schema()
NESTED = pa.schema(
    [
        ("items", pa.list_(pa.struct([("id", pa.int64()), ("name", pa.string())]))),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)
PER_ROW = 3
"""Elements of each nested value."""
TEXTS = 64
"""So many different texts there are."""


def with_pair(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Two columns in place of the key: its thousands, and the rest."""
    key = batch.column(0).to_numpy()
    return batch.add_column(0, "thousands", pa.array(key // 1000)).set_column(1, "key", pa.array(key % 1000))


def with_session(batch: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    """Other keys every ten seconds of event time, so that sessions end."""
    at = batch.column("at").cast(pa.int64()).to_numpy()
    return batch.set_column(0, "key", pa.array(batch.column(0).to_numpy() + keys * (at // SESSION_US)))


def with_columns(batch: pa.RecordBatch, columns: int) -> pa.RecordBatch:
    """As many columns of integers as are asked for; the first two are the key and the value."""
    more = [batch.column(1)] * (columns - 2)
    return pa.RecordBatch.from_arrays([*batch.columns[:2], *more], schema=wide_schema(columns))


def wide_schema(columns: int) -> pa.Schema:
    """Its key, its value, and so many more that there are `columns`."""
    return pa.schema([(name, pa.int64()) for name in ("key", "value", *(f"c{n}" for n in range(columns - 2)))])


def with_text(batch: pa.RecordBatch, size: int) -> pa.RecordBatch:
    """Add a text of `size` bytes to each row."""
    texts = pa.array([chr(ord("0") + n) * size for n in range(TEXTS)])
    return batch.append_column("text", texts.take(pc.bit_wise_and(batch.column(1), TEXTS - 1)))


def with_nested(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add a list of three structs and a map of three entries to each row."""
    rows = batch.num_rows
    offsets = pa.array(np.arange(0, PER_ROW * rows + 1, PER_ROW, dtype=np.int32))
    numbers = batch.column(1).take(pa.array(np.repeat(np.arange(rows), PER_ROW)))
    names = pa.array([f"name-{n}" for n in range(TEXTS)]).take(pc.bit_wise_and(numbers, TEXTS - 1))
    items = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([numbers, names], ["id", "name"]))
    labels = pa.MapArray.from_arrays(offsets, names, numbers)
    columns = [*batch.columns[:2], items.cast(NESTED.field("items").type), labels]
    return pa.RecordBatch.from_arrays(columns, schema=_with(NESTED))


def _with(schema: pa.Schema) -> pa.Schema:
    return pa.schema([("key", pa.int64()), ("value", pa.int64()), *schema])


def _summed(rows: sl.DataStream, *key: str) -> sl.DataStream:
    return rows.key_by(*key).running_aggregate(uid="shaped", name="shaped", total=sl.sum("value"), n=sl.count())


def _pairs(events: sl.DataStream, _options: argparse.Namespace) -> sl.DataStream:
    schema = pa.schema([(name, pa.int64()) for name in ("thousands", "key", "value")]).append(GENERATED.field("at"))
    return _summed(events.map_batches(with_pair, uid="rows", schema=schema), "thousands", "key")


def _sessions(events: sl.DataStream, options: argparse.Namespace) -> sl.DataStream:
    keys = options.keys
    moving = events.map_batches(lambda batch: with_session(batch, keys), uid="rows", schema=events.schema)
    windows = moving.key_by("key").window(sl.EventTimeSessionWindows(GAP_MS))
    return windows.aggregate(uid="shaped", name="shaped", total=sl.sum("value"), n=sl.count())


def _panes(events: sl.DataStream, _options: argparse.Namespace) -> sl.DataStream:
    windows = events.key_by("key").window(sl.SlidingEventTimeWindows(PANES_MS, PANE_MS))
    return windows.aggregate(uid="shaped", name="shaped", total=sl.sum("value"), n=sl.count())


def _broadcast(events: sl.DataStream, options: argparse.Namespace) -> sl.DataStream:
    everywhere = events.broadcast().map_batches(lambda batch: batch, uid="shaped", name="shaped", schema=events.schema)
    return everywhere.set_parallelism(options.targets)


def _wide(events: sl.DataStream, options: argparse.Namespace) -> sl.DataStream:
    columns = options.columns
    rows = events.map_batches(lambda batch: with_columns(batch, columns), uid="rows", schema=wide_schema(columns))
    return _summed(rows, "key")


def _fat(events: sl.DataStream, options: argparse.Namespace) -> sl.DataStream:
    size = options.text_bytes
    schema = GENERATED.append(pa.field("text", pa.string()))
    return _summed(events.map_batches(lambda batch: with_text(batch, size), uid="rows", schema=schema), "key")


def _nested(events: sl.DataStream, _options: argparse.Namespace) -> sl.DataStream:
    return _summed(events.map_batches(with_nested, uid="rows", schema=_with(NESTED)), "key")


SHAPES: dict[str, tuple[Callable[[sl.DataStream, argparse.Namespace], sl.DataStream], int]] = {
    "pairs": (_pairs, 65_536),
    "sessions": (_sessions, 65_536),
    "panes": (_panes, 65_536),
    "broadcast": (_broadcast, 16_384),
    "wide": (_wide, 1_024),
    "fat": (_fat, 1_024),
    "nested": (_nested, 16_384),
}
"""What is built, and how many rows a batch of the source has."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = keyed_parser(__doc__, keys=10_000)
    cli.add_argument("--shape", choices=sorted(SHAPES), required=True)
    cli.add_argument("--columns", type=int, default=1_000, help="of a wide row")
    cli.add_argument("--text-bytes", type=int, default=10_000, help="of the text of a fat row")
    cli.add_argument("--targets", type=int, default=64, help="tasks to which each row is broadcast")
    cli.add_argument("--batch-rows", type=int, default=0, help="rows per generated batch (default: by shape)")
    options = cli.parse_args(arguments)
    if options.columns < 2:
        cli.error("--columns: a row has its key and its value, so that it needs 2 at least")
    build_shape, batch_rows = SHAPES[options.shape]

    def build(directory: str) -> sl.StreamExecutionEnvironment:
        environment = keyed_environment(options, directory)
        source = GeneratorSource(
            keys=options.keys,
            batch_rows=options.batch_rows or batch_rows,
            event_time_column="at",
            event_interval_us=EVENT_INTERVAL_US,
            splits=max(DEFAULT_SPLITS, options.parallelism),
        )
        events = environment.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="generator")
        build_shape(events, options).sink_to(DiscardingSink(), uid="sink")
        return environment

    title = f"{options.shape}, {options.keys:,} keys, parallelism {options.parallelism}, {options.backend}"
    return measure_job(build, options, name="shapes", vertex="shaped", title=title)


if __name__ == "__main__":
    sys.exit(main())
