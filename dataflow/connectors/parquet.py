"""Parquet: exactly-once from files (`ParquetSource`) and into files (`ParquetSink`)."""

from snapline.dataflow.connectors.parquet_sink import ParquetSink
from snapline.dataflow.connectors.parquet_source import ParquetSource

__all__ = ["ParquetSink", "ParquetSource"]
