"""What several processes may do at one place at once: one of them is thought dead, and is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from snapline.connectors import FileSink, JsonFormat
from snapline.connectors.formats.file_format import LinesFormat
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

NUMBERS = pa.schema([("n", pa.int64())])


def test_who_is_thought_dead_does_not_touch_the_file_that_another_one_puts_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on, emptied the half of the file that was there, and ended: the rest was published without it."""
    sink = FileSink(tmp_path, JsonFormat(NUMBERS), compact_below=1 << 20)
    waiting: list[Committable] = []
    for number in range(2):
        writer = sink.create_writer(Place(number, 2), ())
        writer.write(pa.RecordBatch.from_pydict({"n": [number] * 3}))
        waiting += writer.prepare_commit(1)
    due = GlobalCommittable("job", "uid", 1, tuple(waiting), may_repeat=True)
    living, thought_dead = sink.create_global_committer(Place()), sink.create_global_committer(Place())
    begun: list[Any] = []

    def merge(_: Any, sources: Sequence[Any], stream: Any) -> None:
        begun.append(stream)
        if len(begun) == 2:
            raise OSError("it was ended")
        lines = b"".join(source.read() for source in sources)
        stream.write(lines[:5])
        with pytest.raises(ConnectorError, match="it was ended"):
            thought_dead.commit(due)
        stream.write(lines[5:])

    monkeypatch.setattr(LinesFormat, "merge", merge)
    living.commit(due)
    for each in (living, thought_dead):
        each.close()

    assert pl.read_ndjson(f"{tmp_path}/*.jsonl")["n"].to_list() == [0, 0, 0, 1, 1, 1]
    assert [path.name for path in tmp_path.rglob("*.merging*")] == []
