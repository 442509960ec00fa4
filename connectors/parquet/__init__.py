"""Parquet: exactly-once from files (`ParquetSource`) and into files (`ParquetSink`)."""

from snapline.connectors.parquet.parquet_sink import ParquetSink
from snapline.connectors.parquet.parquet_source import ParquetSource

__all__ = ["ParquetSink", "ParquetSource"]
