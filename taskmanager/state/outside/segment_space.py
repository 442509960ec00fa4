"""The port behind which the rows lie that memory has no room for: pieces of storage that are filled once, from their
beginning to their end, and its twin in memory.

A space belongs to one operator of one attempt, and what has to last is in snapshots. The bytes of a segment stay
readable, by any thread, as long as somebody refers to it, and its room is given back after that.
`snapline.taskmanager.state.outside.segment_files` is the real one. Takes the place of the RocksDB handle in Flink's
RocksDBKeyedStateBackend.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BytesArray


class Segment(Protocol):
    """A piece of storage of a fixed size."""

    @property
    def data(self) -> BytesArray:
        """All bytes, to be read; what was not written yet means nothing. Lies at the same address for good."""
        ...

    def write(self, position: int, rows: BytesArray) -> None:
        """Put these bytes there. StateError where there is no room for them."""
        ...

    def seal(self) -> None:
        """Take note that nothing more is written."""
        ...


class SegmentSpace(Protocol):
    """The storage of one operator, which hands out segments."""

    @property
    def segment_bytes(self) -> int:
        """How large a segment is, unless one row needs more."""
        ...

    def new_segment(self, size_bytes: int) -> Segment:
        """Room for so many bytes. StateError where there is none."""
        ...


class _MemorySegment:
    __slots__ = ("data",)

    def __init__(self, size_bytes: int) -> None:
        self.data: BytesArray = np.empty(size_bytes, np.uint8)

    def write(self, position: int, rows: BytesArray) -> None:
        self.data[position : position + len(rows)] = rows

    def seal(self) -> None:
        pass


class MemorySegmentSpace:
    """The twin: for tests and the simulator. Its segments are small, so that there are several of them."""

    segment_bytes = 1 << 13

    def new_segment(self, size_bytes: int) -> Segment:
        """Return a segment in memory."""
        return _MemorySegment(size_bytes)
