"""What is said of a DataFrame's event time before Spark computes it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError
from snapline.spark.dataframes import _with_event_time


class Frame:
    """Notes by what it is sorted."""

    def sortWithinPartitions(self, column: str) -> str:
        """Return what the frame is sorted by."""
        return column


def sorted_by(column: Any, data_type: pa.DataType) -> Any:
    """By what a frame with one such column is sorted."""
    frame: Any = Frame()
    return _with_event_time(frame, pa.schema([("a`t", data_type)]), column, "frame")[1]


def test_a_column_with_a_backtick_is_event_time() -> None:
    """Spark said that there was an error in the name."""
    assert sorted_by("a`t", pa.timestamp("us")) == "`a``t`"


@pytest.mark.parametrize("column", ["a`t", sl.WatermarkStrategy.for_monotonous_timestamps("a`t")])
def test_a_column_that_is_no_time_is_refused_before_the_frame_is_computed(column: Any) -> None:
    """It was refused after Spark had computed and sorted the whole frame, a map with Spark's own words."""
    with pytest.raises(JobDefinitionError, match=r"frame: column 'a`t' is string: it must be a timestamp"):
        sorted_by(column, pa.string())
