"""What expressions cost against the same by hand: ten queries over whole batches, CPU time of one thread.

    python -m benchmarks.expressions [--rows 1000000] [--batch-rows 65536] [--rounds 15] [--queries time] [--json]

Each query is a function from batch to batch, as `map_batches` and `filter` call it: made of Snapline's expressions,
written with pyarrow.compute, and written with Polars (from and to Arrow, which copies nothing but what Polars makes
anew). Results are compared first, row by row. In each round every contender has its turn, and what is shown is the
median over the rounds of the ratio to the better one by hand within the same round.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from benchmarks.cluster import versions
from snapline.expressions.projection import Predicate, Projection, as_columns

os.environ["POLARS_MAX_THREADS"] = "1"  # before Polars is loaded

Step = Callable[[pa.RecordBatch], Any]
COUNTRIES = ["Austria", "Belgium", "Chile", "Denmark", "Estonia", "France", "Ghana", "Hungary"]


def rows(count: int, batch_rows: int) -> list[pa.RecordBatch]:
    """Purchases, with nulls among the discounts and texts."""
    random = np.random.default_rng(7)
    start = int(dt.datetime(2024, 1, 1, tzinfo=dt.UTC).timestamp() * 1_000_000)
    table = pa.table(
        {
            "price": random.uniform(0, 200, count),
            "pieces": random.integers(-20, 100, count),
            "discount": pa.array(random.uniform(0, 0.5, count), mask=random.random(count) < 0.1),
            "country": pa.array(
                np.array(COUNTRIES)[random.integers(0, len(COUNTRIES), count)], mask=random.random(count) < 0.05
            ),
            "at": pa.array(start + random.integers(0, 365 * 86_400_000_000, count)).cast(pa.timestamp("us", "UTC")),
        }
    )
    return table.combine_chunks().to_batches(batch_rows)


@dataclass(frozen=True)
class Query:
    """One question in three forms."""

    ours: Step
    pyarrow: Step
    polars: Callable[[Any, Any], Any]
    """Of the module and a frame."""
    filters: bool = False


def _select(**named: Any) -> Step:
    return Projection(as_columns((), named, "select"), keep=False)


def _filter(condition: sl.Expr) -> Step:
    predicate = Predicate(condition)
    return lambda batch: batch.filter(predicate(batch))


def _columns(**named: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))


def queries() -> dict[str, Query]:
    """The ten queries that are compared, by their names."""
    price, pieces, discount, country, at = map(sl.col, ("price", "pieces", "discount", "country", "at"))
    return {
        "arithmetic": Query(
            _select(gross=price * 1.19 + 2.0),
            lambda b: _columns(gross=pc.add(pc.multiply(b["price"], 1.19), 2.0)),
            lambda pl, f: f.select(gross=pl.col("price") * 1.19 + 2.0),
        ),
        "columns": Query(
            _select(total=price * pieces * (1 - discount)),
            lambda b: _columns(
                total=pc.multiply(pc.multiply(b["price"], b["pieces"]), pc.subtract(1.0, b["discount"]))
            ),
            lambda pl, f: f.select(total=pl.col("price") * pl.col("pieces") * (1 - pl.col("discount"))),
        ),
        "filter": Query(
            _filter(price > 50),
            lambda b: b.filter(pc.greater(b["price"], 50.0)),
            lambda pl, f: f.filter(pl.col("price") > 50),
        ),
        "conditions": Query(
            _filter((price > 50) & (pieces < 10) & discount.is_not_null()),
            lambda b: b.filter(
                pc.and_(pc.and_(pc.greater(b["price"], 50.0), pc.less(b["pieces"], 10)), pc.is_valid(b["discount"]))
            ),
            lambda pl, f: f.filter((pl.col("price") > 50) & (pl.col("pieces") < 10) & pl.col("discount").is_not_null()),
        ),
        "cases": Query(
            _select(kind=sl.when(price > 100).then("dear").when(price > 50).then("middle").otherwise("cheap")),
            lambda b: _columns(
                kind=pc.case_when(
                    pa.StructArray.from_arrays(
                        [pc.greater(b["price"], 100.0), pc.greater(b["price"], 50.0)], ["a", "b"]
                    ),
                    "dear",
                    "middle",
                    "cheap",
                )
            ),
            lambda pl, f: f.select(
                kind=pl.when(pl.col("price") > 100)
                .then(pl.lit("dear"))
                .when(pl.col("price") > 50)
                .then(pl.lit("middle"))
                .otherwise(pl.lit("cheap"))
            ),
        ),
        "nulls": Query(
            _select(net=(price * (1 - discount.fill_null(0.0))).cast(pa.float32())),
            lambda b: _columns(
                net=pc.multiply(b["price"], pc.subtract(1.0, pc.fill_null(b["discount"], 0.0))).cast(pa.float32())
            ),
            lambda pl, f: f.select(net=(pl.col("price") * (1 - pl.col("discount").fill_null(0.0))).cast(pl.Float32)),
        ),
        "text": Query(
            _select(
                upper=country.str.to_uppercase(), starts=country.str.starts_with("A"), length=country.str.len_chars()
            ),
            lambda b: _columns(
                upper=pc.utf8_upper(b["country"]),
                starts=pc.starts_with(b["country"], "A"),
                length=pc.utf8_length(b["country"]),
            ),
            lambda pl, f: f.select(
                upper=pl.col("country").str.to_uppercase(),
                starts=pl.col("country").str.starts_with("A"),
                length=pl.col("country").str.len_chars(),
            ),
        ),
        "time": Query(
            _select(hour=at.dt.hour(), day=at.dt.truncate("1d"), month=at.dt.month()),
            lambda b: _columns(
                hour=pc.hour(b["at"]), day=pc.floor_temporal(b["at"], 1, "day"), month=pc.month(b["at"])
            ),
            lambda pl, f: f.select(
                hour=pl.col("at").dt.hour(), day=pl.col("at").dt.truncate("1d"), month=pl.col("at").dt.month()
            ),
        ),
        "membership": Query(
            _filter(country.is_in(["Chile", "Ghana", "Hungary"])),
            lambda b: b.filter(pc.is_in(b["country"], value_set=pa.array(["Chile", "Ghana", "Hungary"]))),
            lambda pl, f: f.filter(pl.col("country").is_in(["Chile", "Ghana", "Hungary"])),
        ),
        "modulo": Query(
            _select(box=pieces // 12, rest=pieces % 12),
            _modulo_by_hand,
            lambda pl, f: f.select(box=pl.col("pieces") // 12, rest=pl.col("pieces") % 12),
        ),
    }


def _modulo_by_hand(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rounded down, also below zero."""
    pieces = batch["pieces"]
    quotient = pc.divide(pieces, 12)
    rest = pc.subtract(pieces, pc.multiply(quotient, 12))
    below = pc.less(rest, 0).cast(pa.int64())
    return _columns(box=pc.subtract(quotient, below), rest=pc.add(rest, pc.multiply(below, 12)))


def by_polars(query: Query) -> Step:
    """A function from batch to batch."""
    import polars as pl

    def step(batch: pa.RecordBatch) -> Any:
        return query.polars(pl, pl.from_arrow(batch)).to_arrow()

    return step


def check_equal(name: str, batch: pa.RecordBatch, steps: dict[str, Step]) -> None:
    """Raise unless all contenders give the same rows, floats as far as they are exact."""
    found = {who: _comparable(step(batch)) for who, step in steps.items()}
    for who, columns in found.items():
        if columns.keys() != found["expressions"].keys():
            raise AssertionError(f"{name}: {who} gives {list(columns)}, expressions {list(found['expressions'])}")
        for column, values in columns.items():
            ours = found["expressions"][column]
            same = (
                np.allclose(values, ours, equal_nan=True, rtol=1e-6)
                if values.dtype.kind == "f"
                else (values == ours).all()
            )
            if len(values) != len(ours) or not same:
                raise AssertionError(f"{name}: {who} and expressions differ in {column!r}")


def _comparable(result: Any) -> dict[str, Any]:
    found = {}
    for name in result.schema.names:
        column = result.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_floating(column.type):
            found[name] = column.fill_null(float("nan")).to_numpy(zero_copy_only=False).astype(np.float64)
        else:
            found[name] = np.array(column.to_pylist(), object)
    return found


def cpu_seconds(step: Step, batches: list[pa.RecordBatch]) -> float:
    """CPU time of all batches."""
    began = time.process_time()
    for batch in batches:
        step(batch)
    return time.process_time() - began


def measure(name: str, query: Query, batches: list[pa.RecordBatch], rounds: int) -> dict[str, Any]:
    """The medians of one query."""
    steps: dict[str, Step] = {"expressions": query.ours, "pyarrow": query.pyarrow, "polars": by_polars(query)}
    check_equal(name, batches[0], steps)
    times: dict[str, list[float]] = {who: [] for who in steps}
    for number in range(rounds + 1):
        for who in list(steps) if number % 2 else list(reversed(steps)):
            seconds = cpu_seconds(steps[who], batches)
            if number:  # the first round warms up
                times[who].append(seconds)
    ratios = [
        ours / min(arrow, polars)
        for ours, arrow, polars in zip(times["expressions"], times["pyarrow"], times["polars"], strict=True)
    ]
    quarters = statistics.quantiles(ratios, n=4)
    medians = {f"{who} ms": round(statistics.median(spent) * 1000, 2) for who, spent in times.items()}
    return {
        "query": name,
        **medians,
        "ratio": round(quarters[1], 2),
        "quartiles": [round(quarters[0], 2), round(quarters[2], 2)],
    }


def main(arguments: list[str]) -> int:
    """Print a table, or JSON."""
    known = queries()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch-rows", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--queries", nargs="+", choices=list(known), default=list(known))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    batches = rows(options.rows, options.batch_rows)
    results = [measure(name, known[name], batches, options.rounds) for name in options.queries]
    if options.json:
        print(json.dumps({"versions": versions(), "rows": options.rows, "results": results}))
        return 0
    print(versions())
    for one in results:
        shown = "  ".join(f"{key} {value}" for key, value in one.items() if key != "query")
        print(f"{one['query']:12} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
