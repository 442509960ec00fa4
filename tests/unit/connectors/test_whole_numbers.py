"""A size, count or time of a source or sink that is no whole number is refused where the program gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import (
    FileSink,
    FileSource,
    HBaseSink,
    KafkaSink,
    KafkaSource,
    ParquetFormat,
    RedisLookup,
    RedisSink,
    RollingPolicy,
)
from snapline.dataflow.errors import ConnectorError

NUMBERS: dict[str, Callable[[Any], object]] = {
    "FileSink: compact_below": lambda given: FileSink("out", compact_below=given),
    "RollingPolicy: max_bytes": lambda given: RollingPolicy(max_bytes=given),
    "RollingPolicy: max_age_ms": lambda given: RollingPolicy(max_age_ms=given),
    "FileSource: remember": lambda given: FileSource("in", remember=given),
    "ParquetSink: roll_bytes": lambda given: sl.ParquetSink("out", roll_bytes=given),
    "ParquetSink: row_group_rows": lambda given: sl.ParquetSink("out", row_group_rows=given),
    "ParquetFormat: row_group_rows": lambda given: ParquetFormat(row_group_rows=given),
    "ParquetSource: batch_rows": lambda given: sl.ParquetSource("in", batch_rows=given),
    "KafkaSource: batch_rows": lambda given: KafkaSource("t", bootstrap_servers="b", batch_rows=given),
    "KafkaSource: give_up_after_ms": lambda given: KafkaSource("t", bootstrap_servers="b", give_up_after_ms=given),
    "KafkaSink: transaction_timeout_ms": lambda given: KafkaSink(
        "t", bootstrap_servers="b", transaction_timeout_ms=given
    ),
    "HBaseSink: timeout_ms": lambda given: HBaseSink("t", host="h", row_key="k", family="f", timeout_ms=given),
    "RedisSink p:*: expire_ms": lambda given: RedisSink("k", url="redis://h", prefix="p:", expire_ms=given),
    "RedisLookup p:*: batch_keys": lambda given: redis_lookup(batch_keys=given),
    "RedisLookup p:*: connections": lambda given: redis_lookup(connections=given),
    "RedisLookup p:*: query_timeout_ms": lambda given: redis_lookup(query_timeout_ms=given),
}
KEPT = ("cache_keys", "cache_ms", "cache_absent_ms")


def redis_lookup(**options: Any) -> RedisLookup:
    return RedisLookup("k", url="redis://h", prefix="p:", columns={"town": pa.string()}, **options)


@pytest.mark.parametrize("given", ["32", "5 s", 1.5, True, [1]])
@pytest.mark.parametrize("what", NUMBERS)
def test_what_is_no_whole_number_is_refused_by_name(what: str, given: object) -> None:
    """A text ended in a TypeError that compares texts with numbers, and names nothing."""
    with pytest.raises(ConnectorError) as refused:
        NUMBERS[what](given)

    assert str(refused.value) == f"{what} must be a whole number, got {given!r}"


@pytest.mark.parametrize("what", NUMBERS)
def test_nothing_is_no_size(what: str) -> None:
    """The same line for all, which names the number."""
    with pytest.raises(ConnectorError) as refused:
        NUMBERS[what](0)

    assert str(refused.value) == f"{what} must be at least 1, got 0"


@pytest.mark.parametrize("name", KEPT)
def test_a_lookup_may_keep_nothing_and_no_part_of_a_key(name: str) -> None:
    """Nothing is a size here; a text, a fraction and less than nothing are none."""
    redis_lookup(**{name: 0})
    for given, said in (
        ("30 s", "a whole number, got '30 s'"),
        (1.5, "a whole number, got 1.5"),
        (-1, "at least 0, got -1"),
    ):
        with pytest.raises(ConnectorError, match=f"{name} must be {said}"):
            redis_lookup(**{name: given})


@pytest.mark.parametrize("given", ["5000", True, [1], 0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("source", ["ParquetSource", "GeneratorSource"])
def test_what_is_no_rate_is_refused_by_name(source: str, given: Any) -> None:
    """A fraction is one; what no clock can count is none."""
    make = {
        "ParquetSource": lambda rate: sl.ParquetSource("in", rows_per_second=rate),
        "GeneratorSource": lambda rate: sl.GeneratorSource(rows_per_second=rate),
    }[source]
    make(0.5)
    with pytest.raises(ConnectorError) as refused:
        make(given)

    assert str(refused.value) == f"{source}: rows_per_second must be a positive number, got {given!r}"
