"""Sources and sinks that come with Snapline, and parts to build others from. Names are loaded when they are first asked
for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "snapline.connectors":
    raise ImportError(
        "connectors is a part of Snapline, and snapline its only name in Python: import snapline.connectors"
    )

if TYPE_CHECKING:
    from snapline.connectors.builtin.collection import CollectionSource, CollectSink
    from snapline.connectors.builtin.generator import GeneratorSource
    from snapline.connectors.builtin.hybrid_source import HybridSource
    from snapline.connectors.builtin.rate_limit import RateLimiter
    from snapline.connectors.builtin.sinks import DiscardingSink, PrintSink
    from snapline.connectors.delta.delta_sink import DeltaSink
    from snapline.connectors.delta.delta_source import DeltaSource
    from snapline.connectors.files.file_sink import FileSink
    from snapline.connectors.files.file_source import FileSource
    from snapline.connectors.files.file_writer import RollingPolicy
    from snapline.connectors.formats import (
        AvroFormat,
        ConfluentAvroFormat,
        CsvFormat,
        FileFormat,
        FileRows,
        JsonFormat,
        OrcFormat,
        ParquetFormat,
        RawFormat,
        RowFormat,
    )
    from snapline.connectors.hbase.hbase_sink import HBaseSink
    from snapline.connectors.iceberg.iceberg_sink import IcebergSink
    from snapline.connectors.iceberg.iceberg_source import IcebergSource
    from snapline.connectors.kafka import KafkaSink, KafkaSource
    from snapline.connectors.parquet import ParquetSink, ParquetSource
    from snapline.connectors.postgres.changes_source import PostgresChangesSource
    from snapline.connectors.postgres.postgres_lookup import PostgresLookup
    from snapline.connectors.postgres.postgres_sink import PostgresSink
    from snapline.connectors.redis.redis_lookup import RedisLookup
    from snapline.connectors.redis.redis_sink import RedisSink

__all__ = [
    "AvroFormat",
    "CollectSink",
    "CollectionSource",
    "ConfluentAvroFormat",
    "CsvFormat",
    "DeltaSink",
    "DeltaSource",
    "DiscardingSink",
    "FileFormat",
    "FileRows",
    "FileSink",
    "FileSource",
    "GeneratorSource",
    "HBaseSink",
    "HybridSource",
    "IcebergSink",
    "IcebergSource",
    "JsonFormat",
    "KafkaSink",
    "KafkaSource",
    "OrcFormat",
    "ParquetFormat",
    "ParquetSink",
    "ParquetSource",
    "PostgresChangesSource",
    "PostgresLookup",
    "PostgresSink",
    "PrintSink",
    "RateLimiter",
    "RawFormat",
    "RedisLookup",
    "RedisSink",
    "RollingPolicy",
    "RowFormat",
]

_PLACES = {
    "snapline.connectors.builtin.collection": "CollectSink CollectionSource",
    "snapline.connectors.builtin.generator": "GeneratorSource",
    "snapline.connectors.builtin.hybrid_source": "HybridSource",
    "snapline.connectors.builtin.rate_limit": "RateLimiter",
    "snapline.connectors.builtin.sinks": "DiscardingSink PrintSink",
    "snapline.connectors.delta.delta_sink": "DeltaSink",
    "snapline.connectors.delta.delta_source": "DeltaSource",
    "snapline.connectors.files.file_sink": "FileSink",
    "snapline.connectors.files.file_writer": "RollingPolicy",
    "snapline.connectors.files.file_source": "FileSource",
    "snapline.connectors.formats": """
        AvroFormat ConfluentAvroFormat CsvFormat FileFormat FileRows JsonFormat
        OrcFormat ParquetFormat RawFormat RowFormat
    """,
    "snapline.connectors.hbase.hbase_sink": "HBaseSink",
    "snapline.connectors.iceberg.iceberg_sink": "IcebergSink",
    "snapline.connectors.iceberg.iceberg_source": "IcebergSource",
    "snapline.connectors.kafka": "KafkaSink KafkaSource",
    "snapline.connectors.parquet": "ParquetSink ParquetSource",
    "snapline.connectors.postgres.changes_source": "PostgresChangesSource",
    "snapline.connectors.postgres.postgres_lookup": "PostgresLookup",
    "snapline.connectors.postgres.postgres_sink": "PostgresSink",
    "snapline.connectors.redis.redis_lookup": "RedisLookup",
    "snapline.connectors.redis.redis_sink": "RedisSink",
}
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'snapline.connectors' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACE_OF[name]), name)
    return value
