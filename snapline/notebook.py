"""Snapline in notebooks: pictures that follow a job, and cells that are run again.

A cell that is run again replaces the jobs that it has started before: they are cancelled first. Which cell runs is
asked of IPython; where a front end does not say, two jobs of one name stand for one cell. Outside of IPython nothing
here does anything, and nothing is imported.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snapline.pictures import Box, picture_of_stream

if TYPE_CHECKING:
    from snapline.job_handle import JobHandle
    from snapline.stream import DataStream

REFRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RunningCell:
    """Where a program is in a notebook."""

    cell_id: str
    """Empty: the front end does not say."""
    execution: int
    """The execution of a cell, which is another one each time that the cell is run."""


def running_cell() -> RunningCell | None:
    """The cell that runs now; None outside of a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return None
    cell_id = ""
    with suppress(Exception):  # what a front end sends is its own business
        cell_id = str(kernel.get_parent("shell").get("metadata", {}).get("cellId") or "")
    return RunningCell(cell_id, int(shell.execution_count))


_started: list[tuple[RunningCell, JobHandle]] = []
"""The jobs that cells of this kernel have started, as long as they run."""


def replace_former_jobs(job_name: str) -> None:
    """Cancel what an earlier run of this cell has started, and wait for its end."""
    cell = running_cell()
    if cell is None:
        return
    _started[:] = [(where, job) for where, job in _started if not job.has_ended]
    for where, job in _started:
        is_same = where.cell_id == cell.cell_id if cell.cell_id else job.name == job_name
        if is_same and where.execution != cell.execution:
            sys.stderr.write(f"snapline: job {job.name!r} of the last run of this cell is cancelled\n")
            job.cancel()


def note_job(job: JobHandle) -> JobHandle:
    """Remember which cell has started the job."""
    cell = running_cell()
    if cell is not None:
        _started.append((cell, job))
    return job


def picture_of(stream: DataStream) -> str:
    """A stream before it runs: what it comes from, and its columns."""
    nodes = stream.environment.graph.nodes
    needed: set[int] = set()
    waiting = [edge.source for edge in stream.edges]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += [edge.source for edge in nodes[number].inputs]
    boxes, edges = [], []
    for node in (nodes[number] for number in sorted(needed)):
        lines = [node.name, *([f"uid {node.uid}"] if node.uid else [])]
        boxes.append(Box(str(node.node_id), lines))
        edges += [(str(edge.source), str(node.node_id)) for edge in node.inputs]
    schema = None if stream.schema is None else [(column.name, str(column.type)) for column in stream.schema]
    return picture_of_stream(boxes, edges, schema)


def follow(job: JobHandle) -> None:
    """Show the job in the cell's output, and draw it anew while it runs; in a terminal, which shows no pictures, as
    text."""
    from IPython import display, get_ipython

    ipython: Any = display
    kinds = type(get_ipython()).__mro__  # embed() has one of its own
    if any(kind.__name__ == "TerminalInteractiveShell" for kind in kinds):  # prints what stands for each picture
        sys.stdout.write(f"{job!r}\n")
        return
    shown = ipython.display(ipython.HTML(job._repr_html_()), display_id=True)
    if shown is None or job.has_ended:
        return
    ended = threading.Event()
    job.call_at_end(ended.set)

    def draw() -> None:
        while not ended.wait(REFRESH_SECONDS):
            shown.update(ipython.HTML(job._repr_html_()))
        shown.update(ipython.HTML(job._repr_html_()))

    threading.Thread(target=draw, name=f"picture {job.name}", daemon=True).start()
