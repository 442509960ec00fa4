"""Figures of the last hour, so that the page has plots without any other system. Bounded in time and in jobs.

A point is what the coordinator said when the server looked; what happens while nobody serves the page is not there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from snapline.dataflow.partitioning import behind_sources
from snapline.protos import client_pb2 as pb

PERIOD_SECONDS = 5.0
UNSEEN_PERIOD_SECONDS = 60.0
"""While nobody looks at the page: what happened at night is there in the morning, and costs next to nothing."""
POINTS = 720
MAX_JOBS = 50

COLUMNS = ("time", "rows_in", "rows_out", "busy", "backpressured", "checkpoint_duration", "checkpoint_size", "restarts")
"""Seconds since 1970, rows a second of sources and sinks, percent of the hottest subtask, ms and bytes of the latest
completed checkpoint, restarts."""


class RecentFigures:
    """The points of each job."""

    def __init__(self) -> None:
        self._points: OrderedDict[str, deque[tuple[float, ...]]] = OrderedDict()

    def add(self, details: pb.JobDetails, latest: pb.CheckpointOverview | None, now_ms: int) -> None:
        """Take the point of one job, of this moment."""
        behind = behind_sources(details.edges)
        sources = {edge.source for edge in details.edges}
        subtasks = [(vertex.vertex_id, each) for vertex in details.vertices for each in vertex.subtasks]
        point = (
            now_ms / 1000,
            sum(s.records_in_per_second for vertex, s in subtasks if vertex not in behind),
            sum(s.records_in_per_second for vertex, s in subtasks if vertex not in sources),
            max((s.busy_ms_per_second / 10 for _, s in subtasks), default=0),
            max((s.backpressured_ms_per_second / 10 for _, s in subtasks), default=0),
            latest.end_to_end_duration_ms if latest is not None else 0,
            latest.checkpointed_size_bytes if latest is not None else 0,
            details.overview.restarts,
        )
        points = self._points.setdefault(details.overview.job_id, deque(maxlen=POINTS))
        points.append(point)
        self._points.move_to_end(details.overview.job_id)
        while len(self._points) > MAX_JOBS:
            self._points.popitem(last=False)

    def columns_of(self, job_id: str) -> dict[str, list[float]]:
        """The points of one job, column by column; empty columns when there are none."""
        points: Iterable[tuple[float, ...]] = self._points.get(job_id, ())
        rows = list(points)
        return {name: [row[number] for row in rows] for number, name in enumerate(COLUMNS)}
