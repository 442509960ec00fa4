"""SegmentSpace on the local disk: each segment is a file without a name, written by calls and read through a mapping.

What lies in a segment is memory of the page cache, which the operating system takes back when it needs it, and not of
the process. A file has no name, so nothing is left behind however the process ends. A call that writes says when a disk
is full, where writing through a mapping would end the process. Nothing like it in Flink, where RocksDB keeps its files.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BytesArray
from snapline.dataflow.errors import StateError
from snapline.runtime.open_files import raise_file_limit
from snapline.taskmanager.state.outside.segment_space import Segment

SEGMENT_BYTES = 32 << 20


class SegmentFiles:
    """Segments in files of one directory."""

    segment_bytes = SEGMENT_BYTES

    def __init__(self, directory: str) -> None:
        """`directory`: empty for the system's temporary directory. StateError where no file can be made."""
        raise_file_limit()  # a mapping holds its file, and a thousand of them are 32 GiB of state
        self._directory = directory or tempfile.gettempdir()
        try:
            Path(self._directory).mkdir(parents=True, exist_ok=True)
            os.close(self._open())
        except OSError as error:
            raise self.refusal(error) from error

    def new_segment(self, size_bytes: int) -> Segment:
        """An empty file of this size, which takes room on the disk only where it is written."""
        try:
            file = self._open()
            os.ftruncate(file, size_bytes)
            return _FileSegment(file, size_bytes, self)
        except OSError as error:
            raise self.refusal(error) from error

    def _open(self) -> int:
        file, name = tempfile.mkstemp(prefix="snapline-state-", dir=self._directory)
        Path(name).unlink()
        return file

    def refusal(self, error: OSError) -> StateError:
        """Return the error that says which setting to change."""
        return StateError(
            f"state that memory has no room for cannot be written in {self._directory}: {error}; set "
            "state.backend.rocksdb.localdir to a directory with room that can be written"
        )


class _FileSegment:
    __slots__ = ("_file", "_space", "data")

    def __init__(self, file: int, size_bytes: int, space: SegmentFiles) -> None:
        self._file, self._space = file, space
        mapping = mmap.mmap(file, size_bytes, prot=mmap.PROT_READ)
        mapping.madvise(mmap.MADV_RANDOM)
        self.data: BytesArray = np.frombuffer(mapping, np.uint8)

    def write(self, position: int, rows: BytesArray) -> None:
        rest = memoryview(rows.data)
        try:
            while rest:
                written = os.pwrite(self._file, rest, position)
                position, rest = position + written, rest[written:]
        except OSError as error:
            raise self._space.refusal(error) from error

    def seal(self) -> None:
        """The mapping keeps the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __del__(self) -> None:
        self.seal()
