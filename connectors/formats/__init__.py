"""Formats: how rows are bytes. One value is one row, as in a message of Kafka or a line of a file, or a file is many;
whole batches are decoded at once."""

from snapline.connectors.formats.avro import AvroFormat
from snapline.connectors.formats.csv_lines import CsvFormat
from snapline.connectors.formats.file_format import (
    FileFormat,
    OrcFormat,
    ParquetFormat,
)
from snapline.connectors.formats.file_reading import FileRows
from snapline.connectors.formats.json_lines import JsonFormat
from snapline.connectors.formats.row_format import BadValue, RawFormat, RowFormat
from snapline.connectors.formats.schema_registry import ConfluentAvroFormat

__all__ = [
    "AvroFormat",
    "BadValue",
    "ConfluentAvroFormat",
    "CsvFormat",
    "FileFormat",
    "FileRows",
    "JsonFormat",
    "OrcFormat",
    "ParquetFormat",
    "RawFormat",
    "RowFormat",
]
