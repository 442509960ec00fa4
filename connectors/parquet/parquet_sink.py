"""Parquet files as a sink: a `FileSink` in that format, with the names of its settings that Parquet has."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from snapline.connectors.files.file_sink import FileSink
from snapline.connectors.files.file_writer import ROLL_BYTES, RollingPolicy
from snapline.connectors.files.filesystems import PathLike
from snapline.connectors.formats.file_format import ROW_GROUP_ROWS, ParquetFormat
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.errors import ConnectorError


class ParquetSink(FileSink):
    """Writes Parquet files into a directory; rows are visible once their checkpoint is complete.

    >>> _ = orders.sink_to(sl.ParquetSink(f"{tmp}/orders", compression="snappy"), uid="orders-sink")
    """

    def __init__(
        self,
        path: PathLike,
        *,
        compression: str = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        roll_bytes: int = ROLL_BYTES,
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
        ignore_missing: bool = False,
    ) -> None:
        """`roll_bytes`: begin another file beyond this size. `schema`: default is that of the first batch.
        `ignore_missing`: a restore may find a committed file gone, because a consumer takes files away."""
        require_positive("ParquetSink", row_group_rows=row_group_rows, roll_bytes=roll_bytes)
        if compression not in ParquetFormat.compressions:
            raise ConnectorError(
                f"ParquetSink: unknown compression {compression!r}; use zstd, snappy, gzip, lz4 or none"
            )
        super().__init__(
            path,
            ParquetFormat(compression=compression, row_group_rows=row_group_rows),
            rolling=RollingPolicy(roll_bytes),
            schema=schema,
            storage_options=storage_options,
            ignore_missing=ignore_missing,
        )
