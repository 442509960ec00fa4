"""Rows that were computed once for a job and lie in files of their own: a directory of Parquet files, read as splits.

Decides how such a directory is called and which files in it are ours, so that whoever cleans up can tell them from
others; what is read, and how, is ParquetSource's business. The rows belong to one job: they go when it has ended and no
snapshot of it is kept (see `docs/decisions/0130`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyarrow import fs

from snapline.connectors.files.filesystems import locate
from snapline.connectors.files.output_files import failures
from snapline.connectors.parquet.parquet_source import ParquetSource
from snapline.dataflow.api.connector_api import SourceSplit
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.staged import STAGED_PREFIX


def new_staged_directory(base: str) -> str:
    """A directory below `base` that nobody else has."""
    return f"{base.rstrip('/')}/{STAGED_PREFIX}{uuid.uuid4().hex}"


class StagedRowsSource(ParquetSource):
    """Reads what was staged for the job that it belongs to. Without a directory it reads only what a snapshot that the
    job starts from knows of."""

    def __init__(
        self, directory: str, files: Sequence[str], schema: pa.Schema, storage_options: Mapping[str, str]
    ) -> None:
        """`files`: all that were written, by their URLs. `directory`: empty when another job's rows are read."""
        super().__init__(list(files) or [directory or "nothing"], storage_options=storage_options)
        self.staged_directory = directory
        self._staged_files = tuple(files)
        self._staged_schema = schema

    def schema(self) -> pa.Schema:
        return self._staged_schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return super().enumerate_splits() if self._staged_files else ()

    def require_rows(self, uid: str) -> None:
        """Raise JobDefinitionError when the rows went with a job that has ended: a stream that is run once more would
        fail in its tasks, again at each restart."""
        if not self.staged_directory or not self._staged_files:
            return
        location = locate(self._staged_files[0], self.storage_options)
        with failures("read", location.url):
            [info] = location.filesystem.get_file_info([location.path])
        if info.type == fs.FileType.NotFound:
            raise JobDefinitionError(
                f"from_dataframe({uid!r}): the rows of this DataFrame were computed for one run and are gone with the job that "
                "has read them; call from_dataframe again for another run"
            )
