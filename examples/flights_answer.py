"""The right answer to `examples.flights`, computed without Snapline: polars over the same file; and the comparison.

Everything is compared: every row of both outputs, as multisets, mean delays within 1e-9. A row that is lost, doubled or
different is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from examples.flights import DAY_MS, IN_A_ROW, LATE_MINUTES

DAILY_KEYS = ["origin", "carrier", "window_start", "window_end"]
ALERT_KEYS = ["tailnum", "scheduled_departure", "origin", "carrier", "flight"]


@dataclass(frozen=True)
class Comparison:
    """What came out against what should have."""

    output: str
    expected_rows: int
    actual_rows: int
    differences: tuple[str, ...]
    """One line for each of the first wrong rows."""

    @property
    def equal(self) -> bool:
        """Whether every row is right."""
        return not self.differences


def expected_daily(flights: pl.DataFrame) -> pl.DataFrame:
    """Per origin, carrier and day."""
    day = pl.col("scheduled_departure").dt.truncate("1d").dt.cast_time_unit("ms")
    return (
        flights.with_columns(window_start=day)
        .group_by("origin", "carrier", "window_start")
        .agg(
            flights=pl.len().cast(pl.Int64),
            cancelled=pl.col("dep_time").is_null().sum().cast(pl.Int64),
            mean_delay=pl.col("dep_delay").mean(),
            max_delay=pl.col("dep_delay").max(),
        )
        .with_columns(window_end=pl.col("window_start") + pl.duration(milliseconds=DAY_MS))
        .select(*DAILY_KEYS, "flights", "cancelled", "mean_delay", "max_delay")
        .sort(DAILY_KEYS)
    )


def expected_alerts(flights: pl.DataFrame) -> pl.DataFrame:
    """The third of each run of late departures of an aircraft."""
    order = ["tailnum", "scheduled_departure", "origin", "carrier", "flight"]
    left = flights.filter(pl.col("tailnum").is_not_null() & pl.col("dep_delay").is_not_null()).sort(order)
    late = pl.col("dep_delay") >= LATE_MINUTES
    return (
        left.with_columns(late=late, run=late.rle_id().over("tailnum"))
        .with_columns(in_a_row=pl.int_range(1, pl.len() + 1).over("tailnum", "run"))
        .filter(pl.col("late") & (pl.col("in_a_row") == IN_A_ROW))
        .select(*ALERT_KEYS, "dep_delay")
        .sort(ALERT_KEYS)
    )


def read_output(directory: Path, like: pl.DataFrame) -> pl.DataFrame:
    """Every visible row below the directory, in the order and types of `like`."""
    files = sorted(
        p for p in directory.glob("**/*.parquet") if not any(part.startswith(("_", ".")) for part in p.parts)
    )
    frames = [pl.read_parquet(file).select(like.columns).cast(like.schema) for file in files]
    return pl.concat(frames) if frames else like.clear()


def compare(name: str, expected: pl.DataFrame, actual: pl.DataFrame, keys: list[str], shown: int = 10) -> Comparison:
    """Row by row, duplicates included."""
    differences: list[str] = []
    doubled = actual.group_by(keys).len().filter(pl.col("len") > 1).sort(keys)
    differences += [
        f"{name}: {row['len']} times instead of once: {_key(row, keys)}" for row in doubled.head(shown).to_dicts()
    ]
    lost = expected.join(actual, on=keys, how="anti", nulls_equal=True)
    differences += [f"{name}: lost: {_key(row, keys)}" for row in lost.head(shown).to_dicts()]
    invented = actual.join(expected, on=keys, how="anti", nulls_equal=True)
    differences += [f"{name}: must not be there: {_key(row, keys)}" for row in invented.head(shown).to_dicts()]
    both = expected.join(actual, on=keys, how="inner", suffix="_actual", nulls_equal=True)
    for column in (c for c in expected.columns if c not in keys):
        want, got = pl.col(column), pl.col(f"{column}_actual")
        same = (want - got).abs() <= 1e-9 if expected.schema[column].is_float() else want == got
        wrong = both.filter(~(same.fill_null(value=False) | (want.is_null() & got.is_null())))
        differences += [
            f"{name}: {column} is {row[f'{column}_actual']}, should be {row[column]}: {_key(row, keys)}"
            for row in wrong.head(shown).to_dicts()
        ]
    return Comparison(name, expected.height, actual.height, tuple(differences[:shown]))


def compare_outputs(flights_file: Path, output: Path) -> list[Comparison]:
    """Both outputs of the job against polars."""
    flights = pl.read_parquet(flights_file)
    daily, alerts = expected_daily(flights), expected_alerts(flights)
    return [
        compare("daily", daily, read_output(output / "daily", daily), DAILY_KEYS),
        compare("alerts", alerts, read_output(output / "alerts", alerts), ALERT_KEYS),
    ]


def _key(row: dict[str, object], keys: list[str]) -> str:
    return ", ".join(f"{key}={row[key]}" for key in keys)
