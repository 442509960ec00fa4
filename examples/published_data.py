"""What the examples' data share: it is refused unless its SHA-256 is the known one, and appears under its name only
when whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq


class PublishedDataError(Exception):
    """The archive is not the one that the example was written for."""


def check_digest(data: bytes, known: str, what: str, make_target: str) -> bytes:
    """The data again. Raises PublishedDataError, which names `what` and the way out."""
    digest = hashlib.sha256(data).hexdigest()
    if digest != known:
        raise PublishedDataError(f"{what} has SHA-256 {digest}, not {known}: delete it and run make {make_target}")
    return data


def write_parquet(frame: pl.DataFrame, output: Path, rows_per_group: int) -> None:
    """Strings with 32-bit offsets, as most readers want them."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(".partial")
    table = frame.to_arrow()
    fields = [f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), partial, row_group_size=rows_per_group, compression="zstd")
    partial.replace(output)
