"""Writes the data files of a table, where they stay: no reader sees a file before a commit of the table names it.

Decides how data files are called (job, sink, subtask and attempt, so that no two share a name, and a file that was
never committed tells whose it was) and that a subtask hands out one committable a checkpoint. Which rows go where, and
what a commit must know of a file, is said by the table's own `TableRows`. It does not know how a table commits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.connectors.files.file_writer import FilesWanted, PartitionedFileWriter, SealedFile, monotonic_ms
from snapline.connectors.files.output_files import OutputFiles
from snapline.connectors.files.staging import SinkPlace
from snapline.connectors.formats.file_format import FileEncoder, ParquetEncoder
from snapline.dataflow.api.connector_api import Committable
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.runtime.cores.machine import check


class TableRows(Protocol):
    """How rows become the data files of one table."""

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """(directory below the table's data, the rows of a file there) for a batch."""
        ...

    def note(self) -> dict[str, Any]:
        """What the commit must know of all files of this writer; JSON-like."""
        ...

    def note_of_file(self, file: SealedFile) -> dict[str, Any]:
        """What the commit must know of one file besides its path, size and number of rows; its `summary` is the
        footer."""
        ...


class TableWriter(PartitionedFileWriter):
    """Fills data files of one subtask."""

    def __init__(
        self, sink: FilesWanted, files: OutputFiles, place: SinkPlace, rows: TableRows, metrics: MetricGroup
    ) -> None:
        """`place.directory` is where the data files lie, and paths are handed out as they are below it."""
        super().__init__(sink, files, monotonic_ms, metrics)
        self._place = place
        self._rows = rows
        self._token = secrets.token_hex(4)
        """So that no name comes twice, whatever an attempt is called: a file that a table has must not be replaced."""

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        return self._rows.split(batch)

    def paths(self, partition: str, sequence: int) -> tuple[str, str]:
        place = self._place
        whose = f"{place.job}-{place.uid}-{place.subtask:04d}-{place.attempt_number}-{place.attempt}-{self._token}"
        directory = f"{place.directory}/{partition}" if partition else place.directory
        path = f"{directory}/part-{whose}-{sequence:04d}{self._wanted.format.suffix}"
        return path, path

    def summary(self, encoder: FileEncoder) -> pq.FileMetaData:
        check(isinstance(encoder, ParquetEncoder), "the data files of a table are Parquet")
        return encoder.metadata  # type: ignore[attr-defined]  # checked on the line before

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        sealed = self.take_sealed()
        if not sealed:
            return []
        files = [
            {
                "path": file.path.removeprefix(f"{self._place.directory}/"),
                "bytes": file.size_bytes,
                "rows": file.rows,
                **self._rows.note_of_file(file),
            }
            for file in sealed
        ]
        return [Committable({**self._rows.note(), "files": files, "checkpoint_id": checkpoint_id})]
