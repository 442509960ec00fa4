"""Drives a reader as a task does, without one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from snapline.connectors.kafka import KafkaSource
from snapline.dataflow.api.bad_rows import BadRow
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.user_metrics import MetricGroup

PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Place:
    """What a reader or writer knows of its subtask."""

    subtask_index: int = 0
    parallelism: int = 1
    attempt_number: int = 0
    job_id: str = "job"
    operator_uid: str = "kafka"
    execution_attempt: str = "attempt-0"
    metrics: MetricGroup = field(default_factory=lambda: MetricGroup("kafka"), compare=False)


def source_of(kafka, topic, **options) -> KafkaSource:
    """With the broker's address."""
    return KafkaSource(topic, bootstrap_servers=kafka.bootstrap, **options)


def open_reader(source: KafkaSource, splits: Any = None, **place: Any) -> Any:
    """Over all splits."""
    reader = source.create_reader(Place(**place))
    reader.add_splits(source.enumerate_splits() if splits is None else splits)
    return reader


def polls(reader, *, until, now_ms=None):
    """Poll until the condition on all polls so far holds, or the end."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until(found):
        assert time.monotonic() < deadline, found
        polled = reader.poll_next(int(time.time() * 1000) if now_ms is None else now_ms)
        if polled.status is InputStatus.END_OF_INPUT:
            break
        if polled.status is InputStatus.NOTHING_AVAILABLE:
            time.sleep(0.005)
        else:
            found.append(polled)
    return found


def rows_of(found) -> list[dict[str, Any]]:
    """Of polls."""
    return [row for polled in found if polled.batch is not None for row in polled.batch.to_pylist()]


def read_all(source, splits=None, bad: list[BadRow] | None = None) -> list[dict[str, Any]]:
    """Of a bounded source. `bad` takes the rows that it sets aside."""
    reader = open_reader(source, splits)
    found = polls(reader, until=lambda _: False)
    reader.close()
    if bad is not None:
        bad += [row for polled in found for row in polled.bad_rows]
    return rows_of(found)


def at_least(count):
    """So many rows."""
    return lambda found: len(rows_of(found)) >= count
