"""Rows of a DataFrame, which were staged for one run of a job."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.connectors.parquet.staged_rows import StagedRowsSource, new_staged_directory
from snapline.dataflow.errors import JobDefinitionError


def test_a_second_run_is_told_that_the_rows_are_gone(tmp_path: Path) -> None:
    """They went with the first job; the second failed in its tasks, and with checkpoints restarted for ever."""
    directory = Path(new_staged_directory(str(tmp_path)))
    directory.mkdir()
    file = directory / f"part-00000-{'0' * 32}.parquet"
    rows = pa.table({"n": [1, 2, 3]})
    pq.write_table(rows, file)
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    source = StagedRowsSource(str(directory), [str(file)], rows.schema, {})
    stream = env.from_source(source, uid="orders")

    assert stream.execute_and_collect(local=True).to_arrow() == rows
    with pytest.raises(JobDefinitionError, match=r"from_dataframe\('orders'\).*call from_dataframe again"):
        stream.execute_and_collect(local=True)
