"""Pictures of streams and jobs for notebooks: HTML with an SVG in it, which needs nothing but a browser.

Decides where the boxes of a graph stand (a column for each step from the sources, so that arrows go to the right) and
what is said in them. Pure: what is known goes in, text comes out. What comes from a user's program is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from snapline.dataflow.wire.codec import decode_job_status
from snapline.protos import client_pb2 as pb

BOX_WIDTH, LINE_HEIGHT, PADDING, GAP_X, GAP_Y = 220, 16, 8, 48, 16
LONGEST_TEXT = 32
MOST_BOXES = 60
"""A larger graph is said in words."""
BACKPRESSURE_SEEN = 0.1
STATUS_COLOURS = {
    "RUNNING": "#1a7f37",
    "FINISHED": "#0969da",
    "FAILED": "#cf222e",
    "FAILING": "#cf222e",
    "RESTARTING": "#9a6700",
    "CANCELED": "#57606a",
}
OTHER_COLOUR = "#57606a"


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a graph."""

    key: str
    lines: Sequence[str]
    """The first one is its title."""
    colour: str = OTHER_COLOUR
    busy: float = 0.0
    """Share of the box that is filled, from the left."""
    title: str = ""
    """Shown where the mouse rests."""


@dataclass(slots=True)
class Rates:
    """Rows a second and shares of time of each vertex, between the last two looks at a job."""

    rows_in: dict[str, float] = field(default_factory=dict)
    rows_out: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    backpressured: dict[str, float] = field(default_factory=dict)
    _before: tuple[float, dict[str, tuple[int, int, int, int, int]]] | None = None

    def note(self, details: pb.JobDetails, now_s: float) -> None:
        """Take the newest counters. Those of a new attempt begin at nothing: then the last rates stay for a look."""
        counters = {
            vertex.vertex_id: (
                sum(subtask.records_in for subtask in vertex.subtasks),
                sum(subtask.records_out for subtask in vertex.subtasks),
                sum(subtask.busy_ms for subtask in vertex.subtasks),
                sum(subtask.backpressured_ms for subtask in vertex.subtasks),
                sum(subtask.idle_ms for subtask in vertex.subtasks),
            )
            for vertex in details.vertices
        }
        if self._before is None:
            self._before = (now_s, counters)
            return
        before_s, before = self._before
        if now_s <= before_s or counters == before:
            return
        self._before = (now_s, counters)
        for key, newest in counters.items():
            rows_in, rows_out, busy, pressed, idle = (
                new - old for new, old in zip(newest, before.get(key, newest), strict=True)
            )
            if min(rows_in, rows_out, busy, pressed, idle) < 0:
                continue
            spent = max(1, busy + pressed + idle)
            self.rows_in[key], self.rows_out[key] = rows_in / (now_s - before_s), rows_out / (now_s - before_s)
            self.busy[key], self.backpressured[key] = busy / spent, pressed / spent


def picture_of_stream(
    boxes: Sequence[Box], edges: Sequence[tuple[str, str]], schema: Sequence[tuple[str, str]] | None
) -> str:
    """A stream before it runs: its operators, and the columns that it has."""
    columns = (
        "<p>The columns are not known before the job runs.</p>"
        if schema is None
        else _table([("column", "type"), *schema])
    )
    return _framed(f"{graph(boxes, edges)}{columns}")


def picture_of_job(details: pb.JobDetails, checkpoints: pb.ListCheckpointsResponse, rates: Rates) -> str:
    """A job as it is now: status, graph with rows a second and back-pressure, and its checkpoints."""
    overview = details.overview
    status = decode_job_status(overview.status).value
    colour = STATUS_COLOURS.get(status, OTHER_COLOUR)
    head = (
        f'<b>{escape(overview.name)}</b> <span style="color:{colour};font-weight:bold">{status}</span> '
        f'<span style="color:{OTHER_COLOUR}">{escape(overview.job_id[:8])}, {overview.restarts} restarts'
        f"{', ' + escape(overview.status_detail) if overview.status_detail else ''}</span>"
    )
    names = {vertex.vertex_id for vertex in details.vertices}
    edges = [(edge.source, edge.target) for edge in details.edges if {edge.source, edge.target} <= names]
    drawn = graph([_box_of(vertex, rates) for vertex in details.vertices], edges)
    failure = ""
    if overview.HasField("failure") and overview.failure.summary:
        red = STATUS_COLOURS["FAILED"]
        failure = f'<p style="color:{red}">{escape(overview.failure.summary)}</p>'
    return _framed(f"<p>{head}</p>{failure}{drawn}{_checkpoints(checkpoints)}")


def _box_of(vertex: pb.VertexDetails, rates: Rates) -> Box:
    key = vertex.vertex_id
    rows_in = sum(subtask.records_in for subtask in vertex.subtasks)
    rows_out = sum(subtask.records_out for subtask in vertex.subtasks)
    pressed = rates.backpressured.get(key, 0.0)
    lines = [vertex.name, f"{vertex.parallelism} subtasks, {rows_in or rows_out:,} rows"]
    speed = rates.rows_in.get(key) or rates.rows_out.get(key) or 0.0
    lines.append(f"{speed:,.0f} rows/s, {rates.busy.get(key, 0.0):.0%} busy")
    if pressed >= BACKPRESSURE_SEEN:
        lines.append(f"{pressed:.0%} back-pressured")
    colour = STATUS_COLOURS["FAILED"] if pressed >= 0.5 else STATUS_COLOURS["RUNNING"]
    return Box(key, lines, colour, rates.busy.get(key, 0.0), vertex.name)


def _checkpoints(found: pb.ListCheckpointsResponse) -> str:
    counts = found.counts
    if not found.history:
        return ""
    rows: list[tuple[str, ...]] = [("checkpoint", "status", "duration", "size")]
    for each in found.history[:3]:
        status = pb.CheckpointStatus.Name(each.status).removeprefix("CHECKPOINT_STATUS_").lower()
        size = f"{each.checkpointed_size_bytes:,} B"
        rows.append((str(each.checkpoint_id), status, f"{each.end_to_end_duration_ms} ms", size))
    return f"<p>{counts.completed} checkpoints completed, {counts.failed} failed</p>{_table(rows)}"


def graph(boxes: Sequence[Box], edges: Sequence[tuple[str, str]]) -> str:
    """An SVG with a box for each operator, from left to right."""
    if len(boxes) > MOST_BOXES:
        return f"<p>{len(boxes)} operators</p>"
    columns = _columns([box.key for box in boxes], edges)
    places: dict[str, tuple[int, int, int]] = {}
    width = height = 0
    for column, keys in enumerate(columns):
        y = PADDING
        for box in (box for box in boxes if box.key in keys):
            tall = len(box.lines) * LINE_HEIGHT + 2 * PADDING
            x = PADDING + column * (BOX_WIDTH + GAP_X)
            places[box.key] = (x, y, tall)
            y += tall + GAP_Y
            width, height = max(width, x + BOX_WIDTH + PADDING), max(height, y)
    drawn = [_arrow(places[source], places[target]) for source, target in edges]
    drawn += [_drawn(box, *places[box.key]) for box in boxes]
    marker = (
        '<defs><marker id="snapline-arrow" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        f'<path d="M0,0 L7,3 L0,6 z" fill="{OTHER_COLOUR}"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">{marker}{"".join(drawn)}</svg>'
    )


def _columns(keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[set[str]]:
    """The longest way from a source says in which column an operator stands."""
    column = dict.fromkeys(keys, 0)
    for _ in keys:
        for source, target in edges:
            if column[target] <= column[source] < len(keys):
                column[target] = column[source] + 1
    return [{key for key in keys if column[key] == number} for number in range(max(column.values(), default=-1) + 1)]


def _drawn(box: Box, x: int, y: int, tall: int) -> str:
    filled = round(BOX_WIDTH * min(1.0, max(0.0, box.busy)))
    texts = "".join(
        f'<text x="{x + PADDING}" y="{y + PADDING + (number + 1) * LINE_HEIGHT - 4}"'
        f'{" font-weight=" + chr(34) + "bold" + chr(34) if number == 0 else ""} fill="#1f2328">{escape(_short(line))}</text>'
        for number, line in enumerate(box.lines)
    )
    return (
        f"<g><title>{escape(box.title or box.lines[0])}</title>"
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{tall}" rx="6" fill="#ffffff" stroke="{box.colour}" '
        f'stroke-width="1.5"/><rect x="{x}" y="{y + tall - 4}" width="{filled}" height="4" fill="{box.colour}"/>{texts}</g>'
    )


def _arrow(source: tuple[int, int, int], target: tuple[int, int, int]) -> str:
    x1, y1 = source[0] + BOX_WIDTH, source[1] + source[2] // 2
    x2, y2 = target[0] - 2, target[1] + target[2] // 2
    middle = (x1 + x2) // 2
    return (
        f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" fill="none" stroke="{OTHER_COLOUR}" '
        'marker-end="url(#snapline-arrow)"/>'
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _table(rows: Sequence[Sequence[str]]) -> str:
    cell = 'style="padding:2px 8px;text-align:left"'
    head = "".join(f"<th {cell}>{escape(text)}</th>" for text in rows[0])
    body = "".join("<tr>" + "".join(f"<td {cell}>{escape(text)}</td>" for text in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _framed(content: str) -> str:
    return f'<div style="font-family:sans-serif;font-size:13px;overflow-x:auto">{content}</div>'
