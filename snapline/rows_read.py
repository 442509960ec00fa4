"""How many rows the sources of a job have emitted, from the counters of its subtasks."""

from __future__ import annotations

from snapline.dataflow.partitioning import behind_sources
from snapline.protos import client_pb2 as pb


class RowsRead:
    """Rows that sources emitted, over all attempts: what is read again after a restart counts again.

    >>> from snapline.client import JobDetails
    >>> from snapline.sidecar import RowsRead
    >>> rows = RowsRead()
    >>> rows.note(JobDetails())
    >>> rows.total
    0
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int, int], int] = {}

    def note(self, details: pb.JobDetails) -> None:
        """Take the newest counters; those of an earlier attempt stay."""
        behind = behind_sources(details.edges)
        for vertex in details.vertices:
            if vertex.vertex_id not in behind:
                for subtask in vertex.subtasks:
                    key = (vertex.vertex_id, subtask.subtask_index, subtask.attempt_number)
                    self._rows[key] = max(subtask.records_in, self._rows.get(key, 0))

    @property
    def total(self) -> int:
        """Return how many rows were read so far."""
        return sum(self._rows.values())
