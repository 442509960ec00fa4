"""Topics of Kafka as a target: at least once by an idempotent producer, or exactly once by a transaction for each
subtask and checkpoint.

Decides that a checkpoint's rows are one transaction under a transactional id that is never used again: what a
checkpoint holds is its transactional id, producer id and epoch, with which any process commits it, once or again (see
`transactions`). What lost attempts left open is aborted when the first checkpoint of their successor is complete, since
until then every restored transaction has been committed by its own subtask. Mirrors Flink's KafkaSink with its
incrementing names; unlike Flink no client is bent by reflection.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Literal

from snapline.connectors.formats import RawFormat, RowFormat
from snapline.connectors.formats.row_format import require_columns
from snapline.connectors.kafka.connection import Metadata, Settings, checked, how_to_reach
from snapline.connectors.kafka.kafka_writer import KafkaWriter, MessageColumns, OneTransaction
from snapline.connectors.kafka.transactions import (
    TransactionLost,
    TransactionName,
    Transactions,
    converted,
    require_protocol,
)
from snapline.connectors.own_output import require_kind, require_own
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Committable, Committer, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import ConnectorError

TRANSACTION_TIMEOUT_MS = 900_000
"""The longest that brokers grant unless they are told otherwise (transaction.max.timeout.ms)."""
PREFIX = "snapline"
RESERVED = {
    "bootstrap.servers": "say bootstrap_servers=",
    "transactional.id": "say transactional_id_prefix=",
    "transaction.timeout.ms": "say transaction_timeout_ms=",
    "enable.idempotence": "the sink needs it",
    "acks": "the sink needs all",
}
log = logging.getLogger(__name__)


class KafkaSink(Sink):
    """Writes rows to a topic.

    >>> import pyarrow as pa
    >>> from snapline.connectors.formats import JsonFormat
    >>> from snapline.connectors.kafka import KafkaSink
    >>> totals = JsonFormat(pa.schema([("shop", pa.string()), ("total", pa.float64())]))
    >>> sink = KafkaSink("totals", bootstrap_servers="localhost:9092", format=totals, key="shop")
    >>> sink.two_phase
    True
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str,
        format: RowFormat | None = None,  # noqa: A002 - the word that people look for
        key: str | None = None,
        timestamp: str | None = None,
        headers: str | None = None,
        partition: str | None = None,
        delete: str = "",
        guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once",
        transactional_id_prefix: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        on_lost_transaction: Literal["fail", "report"] = "fail",
        settings: Settings | None = None,
    ) -> None:
        """`format`: of values; default is the column `value` as it is. `key`, `timestamp`, `headers`, `partition`:
        columns that these are taken from; keys that are no bytes are written as text. `delete`: with `key`, a column of
        truth values or row kinds: true, or `-D`, writes a tombstone (the key with a null value), and `-U` is passed
        over, so that a compacted topic keeps the last row of each key. `transactional_id_prefix`: begins
        the transactional ids, for access control; with a prefix of its own a sink also ends what earlier runs of its
        job left open, so give it to one job only. `transaction_timeout_ms`: Kafka aborts a transaction that is open for
        longer, which must cover the checkpoint interval, a checkpoint's duration and the time that a recovery takes.
        `on_lost_transaction`: when Kafka has aborted what a checkpoint holds, fail with what is lost, or log that as an
        error and go on. `settings`: of librdkafka."""
        if not topic:
            raise ConnectorError("KafkaSink: no topic given")
        if guarantee not in ("exactly_once", "at_least_once"):
            raise ConnectorError(f"KafkaSink: guarantee is exactly_once or at_least_once, not {guarantee!r}")
        if on_lost_transaction not in ("fail", "report"):
            raise ConnectorError(f"KafkaSink: on_lost_transaction is fail or report, not {on_lost_transaction!r}")
        require_positive("KafkaSink", transaction_timeout_ms=transaction_timeout_ms)
        self.topic = topic
        self.bootstrap_servers = bootstrap_servers
        self.format: RowFormat = format or RawFormat()
        self.columns: MessageColumns = MessageColumns(key, timestamp, headers, partition)
        self.delete = delete
        if delete and key is None:
            raise ConnectorError("KafkaSink: delete= needs key=, which a tombstone is of")
        self.guarantee = guarantee
        self.transactional_id_prefix = transactional_id_prefix
        self.transaction_timeout_ms = transaction_timeout_ms
        self.on_lost_transaction = on_lost_transaction
        self.settings: dict[str, Any] = checked(settings, RESERVED, "KafkaSink")
        if guarantee == "exactly_once":
            converted(self.settings)

    @property
    def two_phase(self) -> bool:
        return self.guarantee == "exactly_once"

    def before_writing(self, stream: Any) -> Any:
        columns = getattr(stream, "schema", None)
        if columns is not None:
            self.columns.require(columns.names, self.topic)
            require_columns(self.format.schema, columns, f"KafkaSink {self.topic}")
        return stream.key_by(self.columns.key) if self.delete else stream

    def validate(self) -> None:
        with Metadata(self.bootstrap_servers, how_to_reach(self.settings)) as cluster:
            cluster.partitions(self.topic, "KafkaSink")
        if self.two_phase:
            require_protocol()
            OneTransaction(
                self, f"{self.transactional_id_prefix or PREFIX}:submission", MetricGroup(self.topic)
            ).ready()

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        jobs = {str(job) for state in restored for job in state["jobs"]} | {context.job_id}
        places = {(int(subtask), int(of)) for state in restored for subtask, of in state.get("places", ())}
        places.add((context.subtask_index, context.parallelism))
        left = {"jobs": sorted(jobs), "places": [list(place) for place in sorted(places)]}
        return KafkaWriter(self, name_of(self, context), left, context.metrics)

    def create_committer(self, context: SourceContextInfo) -> Committer:
        """At least once, too: the snapshot may be of a job that wrote exactly once, and hold what nobody has
        committed."""
        committer = KafkaCommitter(self, context)
        if self.two_phase:
            committer.notice_earlier_attempts()
        return committer

    def producer_settings(self) -> dict[str, Any]:
        """For every producer of the sink. A key's partition is that of Kafka's own producers: librdkafka has another,
        and none for an empty key."""
        return {
            "linger.ms": 5, "queue.buffering.max.messages": 1_000_000, "partitioner": "murmur2_random", **self.settings,
            "bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True, "delivery.report.only.error": True,
            "log_level": 0,
        }  # fmt: skip


def name_of(sink: KafkaSink, context: SourceContextInfo) -> TransactionName:
    """The name of the first transaction of an attempt, which says which attempts of its execution graph it follows."""
    graph = context.execution_attempt.rsplit("_", 2)[0]
    attempt = f"{hashlib.blake2b(graph.encode(), digest_size=6).hexdigest()}_{context.attempt_number}"
    prefix = sink.transactional_id_prefix or PREFIX
    return TransactionName(prefix, context.job_id, context.operator_uid, context.subtask_index, attempt, 0)


class KafkaCommitter(Committer):
    """Ends transactions, its own and those of attempts that are lost."""

    def __init__(self, sink: KafkaSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._own = name_of(sink, context)
        self._parallelism = context.parallelism
        self._transactions = Transactions(sink.bootstrap_servers, sink.settings)
        self._earlier: frozenset[str] = frozenset()
        """Attempts that had something open when this one began."""
        if sink.two_phase:
            require_protocol()

    def notice_earlier_attempts(self) -> None:
        """Ask which attempts have something open, before this one begins anything. Raises ConnectorError."""
        self._earlier = frozenset(name.attempt for name in self._open_ones())

    def commit(self, committables: Sequence[Committable]) -> None:
        self._require_own(committables)
        for each in committables:
            data = each.data
            if "transactional_id" not in data:
                continue
            try:
                self._transactions.commit(
                    data["transactional_id"],
                    data["producer_id"],
                    data["producer_epoch"],
                    data["rows"],
                    data["checkpoint_id"],
                )
            except TransactionLost as lost:
                if self._sink.on_lost_transaction == "fail":
                    raise
                log.error("%s", lost)
        for each in committables:
            if each.data.get("sweep") == self._own.attempt:
                self._abort_orphans(frozenset(each.data["jobs"]), each.data["places"])

    def abort(self, committables: Sequence[Committable]) -> None:
        for name in self._require_own(committables):
            self._transactions.abort(name)

    def close(self) -> None:
        self._transactions.close()

    def _require_own(self, committables: Sequence[Committable]) -> Sequence[str]:
        """Return the transactional ids of these. Raises ConnectorError for one that this sink would not have given."""
        require_kind(f"KafkaSink {self._sink.topic}", committables, "transactional_id")
        names = [each.data["transactional_id"] for each in committables if "transactional_id" in each.data]
        whose = f"{self._own.uid!r} with the prefix {self._own.prefix!r}"
        require_own(f"KafkaSink {self._sink.topic}", "transaction", names, self._is_own, whose=whose)
        return names

    def _is_own(self, name: object) -> bool:
        return isinstance(name, str) and TransactionName.parse(name, self._own.prefix, self._own.uid) is not None

    def _open_ones(self) -> list[TransactionName]:
        """Transactions of sinks of this name that are open."""
        own, found = self._own, self._transactions.open_ones()
        return [name for text in found if (name := TransactionName.parse(text, own.prefix, own.uid)) is not None]

    def _abort_orphans(self, jobs: frozenset[str], places: Sequence[Sequence[int]]) -> None:
        """What earlier attempts of this subtask left open, and earlier jobs of this sink. `places`: which subtasks, of
        how many, have left their state to this one: where there are more than before, not all know of an earlier
        job. What another execution graph has begun since then is of a leader that has taken the job over."""
        own = self._own
        foreign: set[str] = set()
        for name in self._open_ones():
            is_earlier = name.attempt in self._earlier and not name.follows(own)
            if name.attempt == own.attempt or not (is_earlier or own.follows(name)):
                continue
            is_of_earlier_job = name.job in jobs and name.job != own.job
            mine = places if is_of_earlier_job else [(own.subtask, self._parallelism)]
            if not any(name.subtask % of == subtask for subtask, of in mine):
                continue
            if name.job not in jobs:
                if self._sink.transactional_id_prefix is None:
                    continue
                foreign.add(name.job)
            self._transactions.abort(str(name))
        if foreign:
            log.warning(
                "KafkaSink aborted transactions that job %s left open under the prefix %r. If it still runs it will fail now: a "
                "transactional_id_prefix belongs to one job",
                ", ".join(sorted(foreign)), own.prefix,
            )  # fmt: skip
