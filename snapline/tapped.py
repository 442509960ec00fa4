"""Rows that were taken off a running job by `job.tap(...)` and `snapline tap`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from snapline.client import ClusterClient
from snapline.protos import client_pb2 as pb

ROWS_FOR_KEYS = 5_000
"""So many rows of each subtask are looked at for the keys that lead."""
BYTES_FOR_KEYS = 1 << 20
KEYS_SHOWN = 3
ROUND_SECONDS = 1.0
"""A job is asked for rows so often, so that the rows of one round are those of one second."""


def table_of(parts: Sequence[pb.TappedRows], rows: int) -> pa.Table:
    """The rows of all subtasks as one table, no more than were asked for."""
    batches: list[pa.RecordBatch] = []
    for part in parts:
        with pa.ipc.open_stream(part.rows) as reader:
            for batch in reader:
                batch.validate(full=True)
                batches.append(batch)
    schemas = [batch.schema for batch in batches]
    if not batches or any(schema != schemas[0] for schema in schemas):
        batches = batches[:1]
    return pa.Table.from_batches(batches).slice(0, rows) if batches else pa.table({})


def leading_keys(client: ClusterClient, job_id: str, vertex_id: str) -> list[str]:
    """The keys that most of the rows have which are on their way to the vertex now, as `key=7: 61 %`, the most frequent
    first; none when the rows come by no key, or none flow."""
    details = client.get_job(job_id)
    edge = next((edge for edge in details.edges if edge.target == vertex_id and list(edge.key_columns)), None)
    if edge is None:
        return []
    source = next(vertex for vertex in details.vertices if vertex.vertex_id == edge.source)
    parts = client.tap(job_id, source.operator_uids[-1], rows=ROWS_FOR_KEYS, max_bytes=BYTES_FOR_KEYS)
    table, columns = table_of(parts, ROWS_FOR_KEYS * len(parts)), list(edge.key_columns)
    if not table.num_rows or not set(columns) <= set(table.column_names):
        return []
    counted = table.group_by(columns).aggregate([([], "count_all")]).sort_by([("count_all", "descending")])
    return [
        f"{', '.join(f'{name}={row[name]}' for name in columns)}: {100 * row['count_all'] // table.num_rows} %"
        for row in counted.slice(0, KEYS_SHOWN).to_pylist()
    ]


def follow(
    client: ClusterClient,
    job_id: str,
    uid: str,
    *,
    rows_per_second: int,
    bytes_per_second: int,
    limit: int | None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Any]]:
    """Rows of an operator, so many a second at most, until `limit` rows have come. Raises RequestRefused when the job
    has ended."""
    shown = 0
    while limit is None or shown < limit:
        began = clock()
        wanted = rows_per_second if limit is None else min(rows_per_second, limit - shown)
        table = table_of(client.tap(job_id, uid, rows=wanted, max_bytes=bytes_per_second), wanted)
        for row in table.to_pylist():
            shown += 1
            yield row
        if limit is None or shown < limit:
            sleep(max(0.0, ROUND_SECONDS - (clock() - began)))


def as_json(row: dict[str, Any]) -> str:
    """One row in one line."""
    return json.dumps(row, default=str, ensure_ascii=False)
