"""Rows that were taken off a running job by `job.tap(...)` and `snapline tap`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from snapline.client import ClusterClient, RequestRefused
from snapline.coordinator.jobmaster.taps import MOST_BYTES
from snapline.coordinator.leading_keys import ROUNDS, count_keys, table_of, tap_of_keys
from snapline.dataflow.columnar.python_values import column_values
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.wire.message_json import without_nan
from snapline.dataflow.wire.statuses import JobStatus, decode_job_status
from snapline.protos.client_pb2 import TappedRows
from snapline.runtime.logs import harmless_json

ROUND_SECONDS = 1.0
"""A job is asked for rows so often, so that the rows of one round are those of one second."""


def leading_keys(client: ClusterClient, job_id: str, vertex_id: str) -> list[str]:
    """The keys that most of the rows have which come to the vertex now, as `key=7 (key group 75): 61 %`, the most
    frequent first; none when the rows come by no key, or none flow."""
    details = client.get_job(job_id)
    wanted = tap_of_keys(details, vertex_id)
    if wanted is None:
        return []
    for _ in range(ROUNDS):
        parts = client.tap(job_id, wanted.uid, rows=wanted.max_rows, max_bytes=wanted.max_bytes, of_input=True)
        if parts:
            return count_keys(details, vertex_id, parts)
    return []


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
    """Rows of an operator, so many a second at most, until `limit` rows have come; none come while the job restarts.
    Raises RequestRefused when the job has ended, SnaplineError when rows flow of which not even one may be shown, and
    for values that Python has not."""
    shown = refused = 0
    while limit is None or shown < limit:
        began = clock()
        wanted = rows_per_second if limit is None else min(rows_per_second, limit - shown)
        parts: list[TappedRows] = []
        try:
            parts = client.tap(job_id, uid, rows=wanted, max_bytes=bytes_per_second)
            refused = 0
        except RequestRefused as refusal:
            runs = decode_job_status(client.get_job(job_id).overview.status) is JobStatus.RUNNING
            refused = refused + 1 if runs else 0  # the first time it may have restarted just now
            if not refusal.retryable or refused > 1:
                raise
        for row in _python_rows(table_of(parts, wanted), uid):
            shown += 1
            yield row
        if not shown and any(part.rows_seen and not part.rows_taken for part in parts):
            raise SnaplineError(
                f"a row of {uid!r} has more bytes than a subtask may show: {bytes_per_second:,} for all of them, and "
                f"{MOST_BYTES:,} at most (--bytes)"
            )
        if limit is None or shown < limit:
            sleep(max(0.0, ROUND_SECONDS - (clock() - began)))


def _python_rows(table: pa.Table, uid: str) -> list[dict[str, Any]]:
    try:
        columns = [list(chain.from_iterable(map(column_values, column.chunks))) for column in table.columns]
    except ValueError as refusal:
        raise SnaplineError(f"the rows of {uid!r} cannot be shown: {refusal}") from refusal
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def as_json(row: dict[str, Any]) -> str:
    """One row in one line, which steers no terminal."""
    return harmless_json(without_nan(row))
