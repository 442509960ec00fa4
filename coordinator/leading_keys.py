"""Which values of a key most rows have that come to a vertex: from a sample of them, when somebody asks.

Decides what to tap and how long, and counts what has come. The sample comes from TaskManagers, so it is bounded and
validated before anybody computes with it. Loads Arrow, and what computes key groups, which nobody needs who does not
ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.columnar.row_samples import read_sample
from snapline.dataflow.columnar.validated import DAMAGE
from snapline.dataflow.errors import SnaplineError
from snapline.protos import client_pb2 as pb

ROWS_FOR_KEYS = 5_000
"""So many rows of each subtask are looked at for the keys that lead."""
BYTES_FOR_KEYS = 1 << 20
MAX_TAPPED_BYTES = 1 << 26
"""The rows of a tap have no more in memory, all subtasks together and each value counted as often as it stands there:
32 times of what an answer may have, for dictionaries."""
KEYS_SHOWN = 3
ROUNDS = 5
"""Looks, of a second each, until rows have come."""


def tap_of_keys(details: pb.JobDetails, vertex_id: str) -> pb.TapOperatorRequest | None:
    """What to tap to see the rows that the vertex takes in by a key; None: its rows come by none. What it takes in, not
    what those before put out: they may put out nothing for long, because a skewed key holds them up."""
    if not _key_columns(details, vertex_id):
        return None
    vertex = next(vertex for vertex in details.vertices if vertex.vertex_id == vertex_id)
    return pb.TapOperatorRequest(
        job_id=details.overview.job_id,
        uid=vertex.operator_uids[0],
        max_rows=ROWS_FOR_KEYS,
        max_bytes=BYTES_FOR_KEYS,
        of_input=True,
    )


class UnreadableRows(SnaplineError):
    """What a TaskManager has sent as the rows of a tap is damaged, or becomes too much in memory."""


class UncountableKeys(SnaplineError):
    """Arrow cannot group by keys of this type, or what a TaskManager has sent is damaged."""


def count_keys(details: pb.JobDetails, vertex_id: str, parts: Sequence[pb.TappedRows]) -> list[str]:
    """The most frequent keys of the rows that were tapped, as `key=7 (key group 75): 61 %`, the most frequent first;
    none when no rows flow, or the key is made by a function and so no column of them. Each subtask has shown as many
    rows as it pleased: they count for all that it gets. Raises UncountableKeys."""
    try:
        return _count_keys(details, vertex_id, parts)
    except (pa.ArrowException, OSError, UnreadableRows) as error:
        why = f"the keys of the rows that were looked at cannot be counted: {_line_of(error)}"
        raise UncountableKeys(why) from error


def _count_keys(details: pb.JobDetails, vertex_id: str, parts: Sequence[pb.TappedRows]) -> list[str]:
    columns = _key_columns(details, vertex_id)
    vertex = next((vertex for vertex in details.vertices if vertex.vertex_id == vertex_id), pb.VertexDetails())
    rates = {subtask.subtask_index: max(1, subtask.records_in_per_second) for subtask in vertex.subtasks}
    weights: Counter[tuple[Any, ...]] = Counter()
    groups: dict[tuple[Any, ...], int] = {}
    for part in parts:
        table = table_of([part], ROWS_FOR_KEYS, MAX_TAPPED_BYTES // len(parts))
        if not table.num_rows or not columns or not set(columns) <= set(table.column_names):
            continue
        weight = rates.get(part.subtask_index, 1) / table.num_rows
        counted = table.group_by(columns).aggregate([([], "count_all")])
        rows = counted.to_pylist()
        keys = [tuple(str(row[name]) for name in columns) for row in rows]
        for key, row in zip(keys, rows, strict=True):
            weights[key] += row["count_all"] * weight
        groups.update(zip(keys, _key_groups(counted.select(columns), vertex.max_parallelism), strict=False))
    total = max(sum(weights.values()), sum(rates.values()))  # the keys of a subtask that has shown none are not known
    return [
        f"{', '.join(map('='.join, zip(columns, key, strict=True)))}{_group(groups.get(key))}: {100 * weight / total:.0f} %"
        for key, weight in weights.most_common(KEYS_SHOWN)
    ]


def _group(key_group: int | None) -> str:
    return "" if key_group is None else f" (key group {key_group})"


def _key_groups(keys: pa.Table, max_parallelism: int) -> list[int]:
    """The key group of each row; none where an older coordinator does not say how many there are, and for values that
    can be no key."""
    # numba is loaded by this, and by nothing else that shows rows
    from snapline.dataflow.columnar.key_partition import assign_to_key_groups

    try:
        return [int(group) for group in assign_to_key_groups(keys.columns, max_parallelism)]
    except (TypeError, ValueError):
        return []


def _key_columns(details: pb.JobDetails, vertex_id: str) -> list[str]:
    return next((list(edge.key_columns) for edge in details.edges if edge.target == vertex_id and edge.key_columns), [])


def table_of(parts: Sequence[pb.TappedRows], rows: int, most_bytes: int = MAX_TAPPED_BYTES) -> pa.Table:
    """The rows of all subtasks as one table, no more than were asked for. `most_bytes`: what they have in memory at
    most, when no value is shared. Raises UnreadableRows."""
    batches: list[pa.RecordBatch] = []
    for part in parts:
        try:
            batches += read_sample(part.rows, rows, most_bytes // len(parts))
        except DAMAGE as error:
            raise UnreadableRows(f"rows of subtask {part.subtask_index} cannot be read: {_line_of(error)}") from error
    schemas = [batch.schema for batch in batches]
    if not batches or any(schema != schemas[0] for schema in schemas):
        batches = batches[:1]
    return pa.Table.from_batches(batches).slice(0, rows) if batches else pa.table({})


def _line_of(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
