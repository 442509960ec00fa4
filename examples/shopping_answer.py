"""The right answer to `examples.shopping`, computed without Snapline: polars over the same files; and the comparison.

Everything is compared, every row of the three outputs as often as it occurs.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from examples.flights_answer import Comparison, compare, read_output
from examples.shopping import DAY_MS, GAP_MS, WEEK_MS


def expected_spells(items: pl.DataFrame) -> pl.DataFrame:
    """Purchases of a household that are less than the gap apart."""
    gap = pl.duration(milliseconds=GAP_MS)
    begins = (pl.col("bought_at") - pl.col("bought_at").shift(1).over("household_id") >= gap).fill_null(value=True)
    return (
        items.sort("household_id", "bought_at")
        .with_columns(spell=begins.cum_sum())
        .group_by("household_id", "spell")
        .agg(
            window_start=pl.col("bought_at").min(),
            window_end=pl.col("bought_at").max() + gap,
            items=pl.len().cast(pl.Int64),
            sales_cents=pl.col("sales_cents").sum(),
        )
        .drop("spell")
    )


def expected_departments(items: pl.DataFrame, products: pl.DataFrame) -> pl.DataFrame:
    """Per department and week since the epoch, a Thursday."""
    start = pl.from_epoch(pl.col("bought_at").dt.epoch("ms") // WEEK_MS * WEEK_MS, time_unit="ms")
    return (
        items.join(products, on="product_id", how="inner")
        .with_columns(window_start=start)
        .group_by("department", "window_start")
        .agg(items=pl.len().cast(pl.Int64), sales_cents=pl.col("sales_cents").sum())
        .with_columns(window_end=pl.col("window_start") + pl.duration(milliseconds=WEEK_MS))
        .select("department", "window_start", "window_end", "items", "sales_cents")
    )


def expected_redeemed(items: pl.DataFrame, coupons: pl.DataFrame) -> pl.DataFrame:
    """Items within a day of a coupon of the household."""
    apart = pl.col("bought_at") - pl.col("redeemed_at")
    within = (apart >= pl.duration(milliseconds=0)) & (apart < pl.duration(milliseconds=DAY_MS))
    return coupons.join(items, on="household_id", how="inner").filter(within)


def compare_outputs(data: Path, output: Path) -> list[Comparison]:
    """All three outputs of the job against polars."""
    items = pl.read_parquet(data / "transactions.parquet").drop("basket_id")
    coupons, products = pl.read_parquet(data / "redemptions.parquet"), pl.read_parquet(data / "products.parquet")
    expected = {
        "spells": expected_spells(items),
        "departments": expected_departments(items, products),
        "redeemed": expected_redeemed(items, coupons),
    }
    found = []
    for name, frame in expected.items():
        wanted, actual = (counted(one) for one in (frame, read_output(output / name, frame)))
        found.append(compare(name, wanted, actual, [column for column in wanted.columns if column != "times"]))
    return found


def counted(frame: pl.DataFrame) -> pl.DataFrame:
    """Every distinct row, and how often it occurs."""
    return frame.group_by(frame.columns).len(name="times")
