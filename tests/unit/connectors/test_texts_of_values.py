"""Values as bytes, for stores that know no types: Redis, HBase, and keys of Kafka."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from snapline.connectors.texts_of_values import texts_of_values
from snapline.dataflow.errors import ConnectorError

LATEST = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([b"\xff", None, b"\xff"]).dictionary_encode(), [b"\xff", None, b"\xff"]),
        (pa.array(["a", None]).dictionary_encode(), [b"a", None]),
        (pa.array([b"\xff", None], pa.binary_view()), [b"\xff", None]),
        (pa.array([-0.0, None]), [b"-0", None]),
        (pa.array([LATEST], pa.timestamp("us", "Europe/Berlin")), [b"10000-01-01 00:59:59.999999+0100"]),
        (pa.array([None], pa.timestamp("us")), [None]),
        (pa.array([], pa.date32()), []),
        (pa.array([uuid.UUID(int=255), None], pa.uuid()), [b"00000000-0000-0000-0000-0000000000ff", None]),
    ],
)
def test_values_that_have_a_text(column, expected):
    """Bytes are kept in whatever layout: those of categories and views were an error of Arrow's."""
    assert expected == texts_of_values(column, "sink: column 'c'")


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([0, (1 << 63) - 1], pa.timestamp("us")), "has 9223372036854775807 .*, which is no year that can be written"),
        (pa.array([(1 << 63) - 1], pa.timestamp("us", "Europe/Berlin")), "has 9223372036854775807 .*, which is no year"),
        (pa.array([(1 << 31) - 1], pa.date32()), "has 2147483647 .*, which is no year"),
        (pa.array([1 << 62], pa.timestamp("us")).dictionary_encode(), "has 4611686018427387904 .*, which is no year"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "is month_day_nano_interval; make it a text"),
        (pa.array([[1]]), r"is list<item: int64>; make it a text"),
    ],
)  # fmt: skip
def test_values_that_have_none(column, says):
    """Arrow's words for a year that it cannot write were written as the value, with a zone even another year."""
    with pytest.raises(ConnectorError, match=f"sink: column 'c' {says}"):
        texts_of_values(column, "sink: column 'c'")
