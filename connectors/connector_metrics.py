"""Names of what connectors measure, the same whatever the system is.

They are counters and gauges of the metric group of a reader, writer or committer, so they are on the page, in
`/metrics` and in `job.metrics()` under the uid of the source or sink. Mirrors Flink's MetricNames of connectors
(FLIP-33).
"""

BYTES_READ = "bytes_read"
"""Counter: what was read, in bytes as they lie outside, compressed or encoded (Flink: numBytesIn)."""
BYTES_WRITTEN = "bytes_written"
"""Counter: what was written, in bytes as they lie outside (Flink: numBytesOut)."""
PENDING_ROWS = "pending_rows"
"""Gauge: rows that are there and were not read yet (Flink: pendingRecords)."""
LAG_MS = "lag_ms"
"""Gauge: how old the input was when it was taken up, in milliseconds."""
FILES_WRITTEN = "files_written"
"""Counter: files that were written."""
COMMIT_RETRIES = "commit_retries"
"""Counter: commits that were made again, because others have changed the table meanwhile."""
CONNECTION_ERRORS = "connection_errors"
"""Counter: what went wrong on the way to a server, and was tried again."""
WAITING_SPLITS = "waiting_splits"
"""Gauge: splits of a subtask, or of the enumerator, that nobody reads yet (Flink: unassignedSplits). Their least event
time holds the watermark back."""
