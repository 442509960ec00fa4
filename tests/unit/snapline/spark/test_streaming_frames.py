"""What is said of a streaming query that Spark does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors.parquet.streamed_rows import StreamedRowsSource
from snapline.dataflow.errors import JobDefinitionError
from snapline.spark.streaming_frames import StreamedFrame, start_queries


class Writer:
    """Takes everything but a trigger."""

    def __getattr__(self, name: str) -> Any:
        """Return itself as the one property, and from each method."""
        return self if name == "writeStream" else lambda *_: self

    def trigger(self, **_: Any) -> Writer:
        """Refuse it, as PySpark does at once and not when the query starts."""
        raise ValueError("Error parsing 'soon' to interval")


def test_a_trigger_that_spark_refuses_is_said_with_the_frame(tmp_path: Path) -> None:
    """The words of Spark came without a word of which of the job's frames they were about."""
    source = StreamedRowsSource(str(tmp_path), "q", pa.schema([]), {}, bounded=False, restored="", retained=1)
    frame: Any = Writer()
    streamed = StreamedFrame(frame, source, "append", {"processingTime": "soon"}, "from_streaming_dataframe('q')")

    with pytest.raises(JobDefinitionError, match=r"\('q'\): Spark does not start the query: .*'soon'"):
        start_queries([streamed], "job")
