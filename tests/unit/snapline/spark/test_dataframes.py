"""What is said of a DataFrame's event time before Spark computes it, and what is left of one that it cannot compute."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.spark import dataframes
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


@pytest.mark.parametrize("ends", [ValueError, KeyboardInterrupt])
def test_a_frame_that_cannot_be_computed_leaves_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException]
) -> None:
    """No job knows of what was staged until then, and so none would delete it."""

    def stage(_frame: Any, directory: str, *_: Any) -> None:
        Path(directory).mkdir()
        Path(directory, "part-00000.parquet").write_bytes(b"rows")
        raise ends

    monkeypatch.setattr(dataframes, "checked_frame", lambda frame, *_, **__: frame)
    monkeypatch.setattr(dataframes, "configuration_of", lambda *_: Configuration({}))
    monkeypatch.setattr(dataframes, "staging_base", lambda *_: str(tmp_path))
    monkeypatch.setattr("snapline.spark.frame_types.arrow_schema_of_frame", lambda *_: pa.schema([("n", pa.int64())]))
    monkeypatch.setattr("snapline.spark.frame_sink.stage_frame", stage)
    with pytest.raises(ends):
        env = sl.StreamExecutionEnvironment.get_execution_environment()
        env.from_dataframe(SimpleNamespace(schema=None, sparkSession=None), uid="frame")
    assert list(tmp_path.iterdir()) == []
