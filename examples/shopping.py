"""A year at the till as streams: sessions, a static table, and a join of two streams, on 1.5 million real purchases.

Three results, each written exactly once:

* `spells`: spells of shopping of a household: purchases less than two days apart, with items and money (session
  windows);
* `departments`: items and money per department and week (products looked up in a static table, tumbling windows);
* `redeemed`: every item that a household bought within a day of redeeming a coupon (interval join).

Run by itself it runs the job on Spark, and compares every row with polars (`examples.shopping_answer`).

    python -m examples.shopping --input .venv/data/shopping [--output DIRECTORY]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import snapline as sl

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS
GAP_MS = 2 * DAY_MS
"""Purchases of a household this far apart belong to two spells."""
ITEM_COLUMNS = ["household_id", "product_id", "quantity", "sales_cents", "bought_at"]
ITEMS = pa.schema(
    [
        ("household_id", pa.int64()),
        ("product_id", pa.int64()),
        ("quantity", pa.int64()),
        ("sales_cents", pa.int64()),
        ("bought_at", pa.timestamp("ms")),
    ]
)


def build(environment: sl.StreamExecutionEnvironment, data: str, output: str) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    items = environment.from_source(
        sl.ParquetSource(f"{data}/transactions.parquet", columns=ITEM_COLUMNS),
        sl.WatermarkStrategy.for_monotonous_timestamps("bought_at"),
        uid="items",
    )
    coupons = environment.from_source(
        sl.ParquetSource(f"{data}/redemptions.parquet"),
        sl.WatermarkStrategy.for_monotonous_timestamps("redeemed_at"),
        uid="coupons",
    )
    spells = (
        items.key_by("household_id")
        .window(sl.EventTimeSessionWindows(GAP_MS))
        .aggregate(uid="spells", name="spells", items=sl.count(), sales_cents=sl.sum("sales_cents"))
    )
    departments = (
        items.enrich(f"{data}/products.parquet", "product_id", how="inner", uid="products", name="products")
        .key_by("department")
        .window(sl.TumblingEventTimeWindows(WEEK_MS))
        .aggregate(uid="departments", name="departments", items=sl.count(), sales_cents=sl.sum("sales_cents"))
    )
    redeemed = (
        coupons.key_by("household_id")
        .join(items.key_by("household_id"))
        .between(0, DAY_MS - 1, uid="redeemed", name="redeemed")
    )
    for name, stream in (("spells", spells), ("departments", departments), ("redeemed", redeemed)):
        stream.sink_to(sl.ParquetSink(f"{output}/{name}"), uid=f"{name}-sink", name=f"{name} sink")
    return environment


def main(arguments: list[str] | None = None) -> int:
    """Run the job to its end and compare; one line for an error that the user can mend."""
    from examples.shopping_answer import compare_outputs

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", required=True, help="directory, as made by `make shopping`")
    parser.add_argument("--output", default="", help="directory (default: a temporary one)")
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="snapline-shopping-") as temporary:
        output = Path(options.output or temporary).resolve()
        try:
            environment = sl.StreamExecutionEnvironment.get_execution_environment()
            environment.set_parallelism(options.parallelism).enable_checkpointing(1000)
            environment.set_checkpoint_dir(str(output / "_checkpoints"))
            result = build(environment, options.input, str(output)).execute("shopping")
        except sl.SnaplineError as error:
            print(f"shopping: {error}", file=sys.stderr)
            return 1
        print(f"shopping: {result.summary}")
        comparisons = compare_outputs(Path(options.input), output)
    for one in comparisons:
        verdict = "equal to polars" if one.equal else "DIFFERENT"
        print(f"{one.output}: {one.actual_rows:,} rows, {verdict}")
        for line in one.differences:
            print(f"  {line}")
    return 0 if all(one.equal for one in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main())
