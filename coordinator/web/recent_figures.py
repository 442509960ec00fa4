"""The figures of the last hour, and of the last day by minutes: plots of the page, without any other system.

Decides what a minute is: the mean of its rates, and the most of everything else, so that what was hot for five seconds
of a night is seen in the morning. Bounded in time, in jobs and so in bytes. A point is what the coordinator said when
the server looked; what happens while nobody serves the page is not there, and a restart forgets all.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from snapline.dataflow.partitioning import behind_sources
from snapline.protos import client_pb2 as pb

PERIOD_SECONDS = 5.0
UNSEEN_PERIOD_SECONDS = 60.0
"""While nobody looks at the page: what happened at night is there in the morning, and costs next to nothing."""
HOUR_SECONDS = 3_600
MINUTE_SECONDS = 60
POINTS = 720
"""Points of one job in the last hour that are kept."""
MINUTES = 1_440
"""Minutes of one job in the last day that are kept."""
MAX_JOBS = 50
ENDED_SECONDS = 3 * UNSEEN_PERIOD_SECONDS
"""A job of which there was no point for so long has ended, and gives its place to another one."""

COLUMNS = ("time", "rows_in", "rows_out", "busy", "backpressured", "checkpoint_duration", "checkpoint_size", "restarts")
"""Seconds since 1970, rows a second of sources and sinks, percent of the hottest subtask, ms and bytes of the latest
completed checkpoint, restarts."""
_RATES = frozenset({"rows_in", "rows_out"})
_WIDTH = len(COLUMNS)

Point = tuple[float, ...]


class PointSeries:
    """The latest points of one job, the oldest first: eight bytes for each figure."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values = array("d")

    def add(self, point: Point) -> None:
        """Append it, and let the oldest go when there are more than may be."""
        self._values.extend(point)
        if len(self._values) > self._most * _WIDTH:
            del self._values[:_WIDTH]

    def since(self, seconds: float) -> list[Point]:
        """The points that are not older than this."""
        times = self._values[::_WIDTH]
        rows = (tuple(self._values[n * _WIDTH : (n + 1) * _WIDTH]) for n, at in enumerate(times) if at >= seconds)
        return list(rows)


class JobFigures:
    """The points of one job in both resolutions."""

    def __init__(self) -> None:
        self._fine = PointSeries(POINTS)
        self._minutes = PointSeries(MINUTES)
        self._minute: list[Point] = []
        """The points of the minute that is not over."""

    def add(self, point: Point) -> None:
        """Take the point of this moment."""
        self._fine.add(point)
        if self._minute and point[0] // MINUTE_SECONDS != self._minute[0][0] // MINUTE_SECONDS:
            self._minutes.add(_together(self._minute))
            self._minute = []
        self._minute.append(point)

    @property
    def last_seconds(self) -> float:
        """Return the time of the latest point."""
        return self._minute[-1][0]

    def latest(self, hours: int) -> list[Point]:
        """The points of the last hours, by minutes when the hours are more than one and a minute is over."""
        if not self._minute:
            return []
        last = self._minute[-1][0]
        minutes = self._minutes.since(last - hours * HOUR_SECONDS) if hours > 1 else []
        return [*minutes, _together(self._minute)] if minutes else self._fine.since(last - HOUR_SECONDS)


class RecentFigures:
    """The figures of each job."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, JobFigures] = OrderedDict()

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
        job_id = details.overview.job_id
        if job_id not in self._jobs and len(self._jobs) >= MAX_JOBS:
            seen_longest_ago = next(iter(self._jobs))
            if point[0] - self._jobs[seen_longest_ago].last_seconds < ENDED_SECONDS:
                return  # all of them run: if each came in the place of another one, none would have a second point
            del self._jobs[seen_longest_ago]
        self._jobs.setdefault(job_id, JobFigures()).add(point)
        self._jobs.move_to_end(job_id)

    def columns_of(self, job_id: str, hours: int = 1) -> dict[str, list[float]]:
        """The points of one job in the last hours, column by column; empty columns when there are none."""
        known = self._jobs.get(job_id)
        rows = known.latest(hours) if known is not None else []
        return {name: [row[number] for row in rows] for number, name in enumerate(COLUMNS)}


def _together(points: Sequence[Point]) -> Point:
    """One point for those of a minute, at the time of the last one."""
    columns = zip(COLUMNS, zip(*points, strict=True), strict=True)
    return tuple(sum(each) / len(each) if name in _RATES else max(each) for name, each in columns)
