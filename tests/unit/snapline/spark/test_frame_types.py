"""Which columns go between Spark and a stream, and what is said of those that do not."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from snapline.dataflow.errors import JobDefinitionError
from snapline.spark.frame_types import (
    arrow_schema_for_spark,
    arrow_schema_of_frame,
    conform_to_spark,
    spark_schema_of,
    with_numbers_of_spark,
)


def test_rows_without_columns_are_refused_both_ways() -> None:
    """In, Spark's tasks failed over a row group of no rows; out, the rows were lost without a word."""
    with pytest.raises(JobDefinitionError, match="in: the DataFrame has no columns"):
        arrow_schema_of_frame(StructType([]), "in")
    with pytest.raises(JobDefinitionError, match="out: the rows have no columns"):
        spark_schema_of(pa.schema([]), "out")


def test_a_record_may_be_null_whose_parts_may_not() -> None:
    """A frame with such a row could not be staged: Parquet was told that the parts are never null, and they are with
    their record."""
    inner = StructType([StructField("b", IntegerType(), nullable=False)])
    parts = [StructField("a", IntegerType(), nullable=False), StructField("m", MapType(StringType(), ArrayType(inner)))]

    schema = arrow_schema_of_frame(StructType([StructField("s", StructType(parts))]), "in")

    pq.write_table(pa.table({"s": pa.nulls(2, schema.field("s").type)}, schema), io.BytesIO())
    assert "a: int32, " in str(schema.field("s").type)
    assert "b: int32>" in str(schema.field("s").type)


def test_a_frame_may_have_records_that_are_null_whatever_the_stream_says_of_their_parts() -> None:
    """The rows that a job had written were not taken for those of its frame."""
    never_null = pa.struct([pa.field("a", pa.int64(), nullable=False)])

    frame = arrow_schema_for_spark(spark_schema_of(pa.schema([("s", never_null)]), "out"))

    conform_to_spark(pa.record_batch({"s": pa.nulls(1, frame.field("s").type)}), frame)
    assert frame.field("s").type == pa.struct({"a": pa.int64()})


@pytest.mark.parametrize("wide", [pa.decimal256(50, 3), pa.decimal128(5, -2), pa.list_(pa.decimal128(5, 7))])
def test_a_decimal_that_spark_has_not_is_refused_by_its_column(wide: pa.DataType) -> None:
    """Spark said so without the column, when the job had already run."""
    with pytest.raises(JobDefinitionError, match=r"out: column 'price[.a-z]*' is decimal.*38 digits at most"):
        spark_schema_of(pa.schema([("price", wide)]), "out")


def test_a_time_between_two_microseconds_is_named_by_its_column() -> None:
    """Of several columns nobody could tell which one it was, nor what to do."""
    rows = pa.record_batch({"n": [1], "at": pa.array([1001], pa.timestamp("ns"))})
    target = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us"))])
    with pytest.raises(pa.ArrowInvalid, match=r"column 'at': .*would lose data: 1001; cast it in the job"):
        conform_to_spark(rows, target)


def test_numbers_that_spark_has_not_are_collected_as_the_next_wider() -> None:
    """`to_spark` left them to PySpark, which refused what `to_dataframe` takes."""
    table = pa.table(
        {
            "small": pa.array([255, None], pa.uint8()),
            "inside": pa.array([{"n": [2**64 - 1]}, None], pa.struct({"n": pa.list_(pa.uint64())})),
            "at": pa.array([1, None], pa.timestamp("ns")),
        }
    )
    converted = with_numbers_of_spark(table)

    assert converted.to_pylist() == table.to_pylist()
    assert [str(each) for each in converted.schema.types] == [
        "int16",
        "struct<n: list<item: decimal128(20, 0)>>",
        "timestamp[ns]",
    ]


def test_a_type_that_spark_has_not_is_refused_by_its_column() -> None:
    """Of a UUID it was "Unsupported type in conversion from Arrow", without the column."""
    with pytest.raises(
        JobDefinitionError, match=r"out: column 'id' is extension<arrow\.uuid>, which Spark has no type"
    ):
        spark_schema_of(pa.schema([("id", pa.uuid())]), "out")
