"""What a person sees while a job runs: one live line on a terminal, one line now and then otherwise nothing."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from snapline.dataflow.graph.declared_payload import load_payload
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.graph.operator_specs import SourceSpec
from snapline.dataflow.wire.codec import decode_job_status
from snapline.protos import client_pb2 as pb


def rows_expected(job_graph: JobGraph) -> int | None:
    """Rows of all sources, when every split says how many it has; else None."""
    total = 0
    for vertex in job_graph.vertices:
        if not vertex.is_source:
            continue
        if vertex.is_external:  # whatever its programs do, it has no rows, and no code to look into
            return None
        spec = load_payload(vertex.operators[0].payload)
        if not isinstance(spec, SourceSpec) or not spec.source.bounded:
            return None
        for split in spec.splits:
            rows = split.description.get("rows")
            if not isinstance(rows, int):
                return None
            total += rows
    return total


class ProgressDisplay:
    """A bar for bounded jobs of known size, a counter for others; silent where nobody looks."""

    def __init__(self, name: str, total_rows: int | None, stream: IO[str]) -> None:
        """`stream` is where the line goes, if it is a terminal."""
        self._name = name
        self._total = total_rows
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=stream),
            disable=not stream.isatty(),
            redirect_stdout=sys.stdout.isatty(),  # else what the program prints would go to this terminal, too
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressDisplay:
        """Begin to draw the line of progress."""
        self._progress.start()
        self._task = self._progress.add_task(self._name, total=self._total, text="waiting for TaskManagers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the line of progress from the terminal."""
        self._progress.stop()

    def show(self, details: pb.JobDetails, rows: int) -> None:
        """Draw the newest figures; `rows` were read."""
        if self._task is None:
            return
        overview = details.overview
        text = (
            f"{decode_job_status(overview.status).value.lower()}  {rows:,} rows  "
            f"{details.checkpoint_counts.completed} checkpoints  {overview.restarts} restarts"
        )
        if overview.status_detail:
            text = f"{text}  {overview.status_detail}"
        shown = rows if self._total is None else min(rows, self._total)
        self._progress.update(self._task, completed=shown, text=text)
