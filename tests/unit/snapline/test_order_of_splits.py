"""Splits of several time-sorted files are read in the order of their least event time, over all subtasks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import snapline as sl
from snapline.dataflow.graph.operator_specs import SourceSpec

FILES, GROUPS, ROWS = 8, 10, 100


def test_the_watermark_rises_while_splits_of_all_files_wait(tmp_path: Path) -> None:
    """Eight files of one span and two subtasks: at half of the rows, half of the windows have fired."""
    for number in range(FILES):
        times = pa.array([n * FILES + number for n in range(GROUPS * ROWS)], pa.int64())
        pq.write_table(pa.table({"t": times}), tmp_path / f"{number}.parquet", row_group_size=ROWS)
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("t")
    stream = environment.from_source(sl.ParquetSource(f"{tmp_path}/*.parquet"), strategy, uid="files")
    spec = stream.node.spec
    assert isinstance(spec, SourceSpec)
    splits = spec.splits
    for parallelism in (1, 2):
        shares = [splits[subtask::parallelism] for subtask in range(parallelism)]
        half = len(splits) // parallelism // 2
        waits = min(split.least_times_ms["t"] for share in shares for split in share[half:])
        assert FILES * GROUPS * ROWS // 2 <= waits + FILES
