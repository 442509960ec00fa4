"""Topics of Kafka as a source: one split per partition, positions in checkpoints, offsets published when a checkpoint
is complete.

Decides where partitions start (resolved once, on the driver, so that a restart before the first checkpoint starts at
the same row) and end, that rows are decoded a poll at a time and handed out a partition at a time (so each has its
watermark), and that only what was handed out counts in a position. Nothing of librdkafka's own bookkeeping matters for
exactly-once: offsets that are published are for others to see. Partitions that are added while the job runs are found
by an enumerator, if asked for. Mirrors Flink's KafkaSource; its three offset modes are those of FlinkKafkaConsumer
(OffsetCommitMode).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.formats import RawFormat, RowFormat
from snapline.connectors.kafka.connection import Settings, checked
from snapline.connectors.kafka.kafka_reader import KafkaReader
from snapline.connectors.kafka.message_columns import BAD_COLUMNS, METADATA_COLUMNS, ON_ERROR_OF_KAFKA
from snapline.connectors.kafka.partition_discovery import PartitionEnumerator, partition_splits
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Source, SourceContextInfo, SourceReader, SourceSplit, SplitEnumerator
from snapline.dataflow.errors import ConnectorError

BATCH_ROWS = 8_192
GIVE_UP_MS = 60_000
Start = Literal["earliest", "latest", "group"]
OFFSET_MODES = ("on_checkpoints", "periodic", "disabled")
RESERVED = {
    "bootstrap.servers": "say bootstrap_servers=",
    "group.id": "say group_id=",
    "enable.auto.commit": "say commit_offsets='periodic'",
    "auto.offset.reset": "say start=",
    "enable.auto.offset.store": "positions are the source's",
    "enable.partition.eof": "say stop=",
}


class KafkaSource(Source):
    """Reads topics of a Kafka cluster.

    >>> import pyarrow as pa
    >>> from snapline.connectors.formats import JsonFormat
    >>> from snapline.connectors.kafka import KafkaSource
    >>> orders = JsonFormat(pa.schema([("order", pa.int64()), ("price", pa.float64())]))
    >>> source = KafkaSource("orders", bootstrap_servers="localhost:9092", format=orders, metadata=["timestamp"])
    >>> source.schema().names
    ['order', 'price', 'timestamp']
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        bootstrap_servers: str,
        format: RowFormat | None = None,  # noqa: A002 - the word that people look for
        metadata: Sequence[str] | Mapping[str, str] = (),
        start: Start | dt.datetime = "earliest",
        stop: Literal["latest"] | dt.datetime | None = None,
        group_id: str | None = None,
        commit_offsets: Literal["on_checkpoints", "periodic", "disabled"] = "on_checkpoints",
        on_error: Literal["fail", "drop", "side_output", "keep"] = "fail",
        settings: Settings | None = None,
        partition_discovery_ms: int | None = None,
        batch_rows: int = BATCH_ROWS,
        give_up_after_ms: int = GIVE_UP_MS,
    ) -> None:
        """`format`: of values; default is bytes in the column `value`. `metadata`: columns beside those of the value:
        `key`, `topic`, `partition`, `offset`, `timestamp` (milliseconds), `headers`; a mapping gives them names.
        `start`: the earliest row, after the latest, the offsets that `group_id` has published (the earliest row where
        it has none), or the first row at or after a time (UTC, unless it has a zone). `stop`: end before what is
        written after submission (`latest`), or at a time; None reads for ever. `commit_offsets`: publish progress under
        `group_id` when a checkpoint is complete, every few seconds (without checkpoints), or not. `on_error`: a value
        that the format cannot read fails the job, is dropped and counted, goes to `stream.bad_rows()` (`side_output`),
        or is kept: null columns with its bytes in `bad_value` and the reason in `bad_reason`. `settings`: of
        librdkafka, such as `security.protocol`. `partition_discovery_ms`: look so often for partitions that were added,
        and read them from their first row. `give_up_after_ms`: fail when no broker has answered for so long."""
        self.topics: tuple[str, ...] = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if not self.topics or not all(self.topics):
            raise ConnectorError("KafkaSource: no topic given")
        self.bootstrap_servers = bootstrap_servers
        self.format: RowFormat = format or RawFormat()
        self.metadata: dict[str, str] = (
            dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
        )
        for name in self.metadata:
            if name not in METADATA_COLUMNS:
                raise ConnectorError(f"KafkaSource: unknown metadata {name!r}; there are {', '.join(METADATA_COLUMNS)}")
        if start not in ("earliest", "latest", "group") and not isinstance(start, dt.datetime):
            raise ConnectorError(f"KafkaSource: start is earliest, latest, group or a datetime, not {start!r}")
        if stop not in (None, "latest") and not isinstance(stop, dt.datetime):
            raise ConnectorError(f"KafkaSource: stop is None, latest or a datetime, not {stop!r}")
        if start == "group" and group_id is None:
            raise ConnectorError("KafkaSource: start='group' needs group_id=")
        if commit_offsets not in OFFSET_MODES:
            raise ConnectorError(
                f"KafkaSource: commit_offsets is one of {', '.join(OFFSET_MODES)}, not {commit_offsets!r}"
            )
        if commit_offsets == "periodic" and group_id is None:
            raise ConnectorError(
                "KafkaSource: commit_offsets='periodic' needs group_id=, under which they are published"
            )
        if on_error not in ON_ERROR_OF_KAFKA:
            raise ConnectorError(f"KafkaSource: on_error is one of {', '.join(ON_ERROR_OF_KAFKA)}, not {on_error!r}")
        require_positive("KafkaSource", batch_rows=batch_rows, give_up_after_ms=give_up_after_ms)
        if partition_discovery_ms is not None:
            require_positive("KafkaSource", partition_discovery_ms=partition_discovery_ms)
        if partition_discovery_ms is not None and stop is not None:
            raise ConnectorError(
                "KafkaSource: partition_discovery_ms is for sources that read for ever; leave out stop="
            )
        self.partition_discovery_ms = partition_discovery_ms
        self.start, self.stop = start, stop
        self.group_id = group_id
        self.commit_offsets = commit_offsets if group_id is not None else "disabled"
        self.on_error = on_error
        self.settings: dict[str, Any] = checked(settings, RESERVED, "KafkaSource")
        self.batch_rows = batch_rows
        self.give_up_after_ms = give_up_after_ms
        names = self.schema().names
        if len(set(names)) != len(names):
            raise ConnectorError(f"KafkaSource: two columns have one name among {names}; rename with metadata={{...}}")

    @property
    def bounded(self) -> bool:
        return self.stop is not None

    @property
    def sets_bad_rows_aside(self) -> bool:
        return self.on_error == "side_output"

    def schema(self) -> pa.Schema:
        fields = [field.with_nullable(True) for field in self.format.schema]
        fields += [pa.field(label, METADATA_COLUMNS[name]) for name, label in self.metadata.items()]
        if self.on_error == "keep":
            fields += list(BAD_COLUMNS)
        return pa.schema(fields)

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return partition_splits(self, self.start)

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator | None:
        return None if self.partition_discovery_ms is None else PartitionEnumerator(self, splits)

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return KafkaReader(self, context)

    def consumer_settings(self, job_id: str) -> dict[str, Any]:
        """For the consumer of a subtask."""
        periodic = self.commit_offsets == "periodic"
        return {
            "isolation.level": "read_committed", **self.settings,
            "bootstrap.servers": self.bootstrap_servers, "group.id": self.group_id or f"snapline-{job_id}",
            "enable.auto.commit": periodic, "enable.auto.offset.store": False, "auto.offset.reset": "error",
            "enable.partition.eof": self.bounded,
        }  # fmt: skip
