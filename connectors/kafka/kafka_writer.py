"""Rows to messages, and the transactions that they lie in.

Decides how columns become keys, times and headers; that a transaction's producer exists before it is needed (to begin
one takes half a second in librdkafka, so the next one is made while the current one is filled); that a pre-commit waits
for every row to be acknowledged; and what an error of a row means. The producer of a pre-committed transaction is
dropped, not closed: closing aborts. What librdkafka has to say is taken in with every batch of rows, and by a thread
where none come.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.connector_metrics import BYTES_WRITTEN, CONNECTION_ERRORS
from snapline.connectors.files.filesystems import first_line
from snapline.connectors.formats.row_format import require_columns
from snapline.connectors.kafka.connection import ClusterHealth, library, out_of_reach
from snapline.connectors.row_kinds import BEFORE, GONE, row_kinds
from snapline.connectors.texts_of_values import texts_of_values
from snapline.dataflow.api.connector_api import Committable, SinkWriter
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.kafka.kafka_sink import KafkaSink
    from snapline.connectors.kafka.transactions import TransactionName

INIT_SECONDS = 30.0
FLUSH_SECONDS = 120.0
CLOSE_SECONDS = 5.0
CHUNK_ROWS = 20_000
QUEUED_ROWS_MAX = 200_000
STATISTICS_MS = 100
ANY_PARTITION = -1
GREATEST_PARTITION = (1 << 31) - 1
SERVE_SECONDS = 1.0
"""So often a producer without rows is asked what it has to say: statistics of 100 kB a second would pile up in it."""
IDENTITY = re.compile(r'"eos":\s*\{[^}]*"producer_id":\s*(\d+),\s*"producer_epoch":\s*(\d+)')


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Columns beside those of the value."""

    key: str | None
    timestamp: str | None
    headers: str | None
    partition: str | None

    def of(self, batch: pa.RecordBatch, topic: str) -> dict[str, list[Any]]:
        """Names of arguments of a message, and their values. Raises ConnectorError for values that are none."""
        self.require(batch.schema.names, topic)
        found: dict[str, list[Any]] = {}
        for name, read in (("key", _keys), ("timestamp", _times), ("headers", _headers), ("partition", _partitions)):
            column = getattr(self, name)
            if column is not None:
                found[name] = read(batch.column(column), f"KafkaSink {topic}: {name}={column!r}")
        return found

    def require(self, columns: Sequence[str], topic: str) -> None:
        """Raise ConnectorError for a column that the rows have not."""
        for name in ("key", "timestamp", "headers", "partition"):
            column = getattr(self, name)
            if column is not None and column not in columns:
                raise ConnectorError(
                    f"KafkaSink {topic}: there is no column {column!r} for {name}; there are {list(columns)}"
                )


def _keys(column: pa.Array, what: str) -> list[Any]:
    if pa.types.is_nested(column.type):
        raise ConnectorError(f"{what} is {column.type}, which is no key; make it a text or bytes before the sink")
    return texts_of_values(column.cast(pa.int64()) if pa.types.is_duration(column.type) else column, what)


def _times(column: pa.Array, what: str) -> list[Any]:
    """Milliseconds; 0 where the client is to say when it is."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit in {"us", "ns"}:
        column = pc.floor_temporal(column, unit="millisecond")
    try:
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("ms", kind.tz)).cast(pa.int64())
        elif pa.types.is_integer(kind) or pa.types.is_null(kind):
            column = column.cast(pa.int64())
        else:
            raise ConnectorError(f"{what} is {kind}; give times, or milliseconds since 1970 as integers")
    except pa.ArrowInvalid as error:
        raise ConnectorError(
            f"{what} has a time of more milliseconds than Kafka counts ({first_line(error)}); make it null, which is now, or an earlier "
            "time before the sink"
        ) from error
    least = pc.min(column).as_py()
    if least is not None and least <= 0:
        raise ConnectorError(
            f"{what} has {least} ms since 1970, which Kafka's clients take for no time, or for now; make it null, which is now, or a "
            "later time before the sink"
        )
    found: list[Any] = column.fill_null(0).to_pylist()
    return found


def _headers(column: pa.Array, what: str) -> list[Any]:
    kind = column.type
    pairs: Any = [None] * len(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        names = [field.name for field in kind.value_type] if pa.types.is_struct(kind.value_type) else []
        if not {"name", "value"} <= set(names):
            raise ConnectorError(f"{what} is {kind}; give a list of records of name and value, or a map")
        pairs = [None if one is None else [h and (h["name"], h["value"]) for h in one] for one in column.to_pylist()]
    elif pa.types.is_map(kind):
        pairs = column.to_pylist()
    elif not pa.types.is_null(kind):
        raise ConnectorError(f"{what} is {kind}; give a list of records of name and value, or a map")
    found = [one and [pair for pair in one if pair is not None] for one in pairs]
    for one in found:
        for name, value in one or ():
            if not isinstance(name, str) or not isinstance(value, (str, bytes, type(None))):
                raise ConnectorError(
                    f"{what} has a header {name!r} with {value!r}; a name is a text, a value bytes or a text"
                )
            if "\0" in name:
                raise ConnectorError(
                    f"{what} has a header {name!r}, whose name Kafka's client would cut at the character NUL; replace it before the sink"
                )
    # The client cuts a text at its first NUL, and takes bytes as they are.
    return [
        one and [(name, value.encode() if isinstance(value, str) else value) for name, value in one] for one in found
    ]


def _partitions(column: pa.Array, what: str) -> list[Any]:
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise ConnectorError(f"{what} is {column.type}; give integers")
    found: list[Any] = column.to_pylist()
    if (least := pc.min(column).as_py()) is not None and least < 0:
        raise ConnectorError(f"{what} has {least}, which is no partition; null leaves the choice to the client")
    if (greatest := pc.max(column).as_py()) is not None and greatest > GREATEST_PARTITION:
        raise ConnectorError(f"{what} has {greatest}, which is no partition; null leaves the choice to the client")
    return found


class _Deliveries:
    """What became of the rows of a producer. Messages on their way hold it, and it does not know the producer: so one
    that nobody has any more goes, with its threads and connections, whatever was under way."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.failed: str | None = None

    def on_delivery(self, error: Any, message: Any) -> None:
        """Keep the first error with which librdkafka could not deliver a row."""
        if error is not None and self.failed is None:
            self.failed = str(self.row_error(error, message.value()))

    def row_error(self, error: Any, value: bytes | None) -> ConnectorError:
        """What is said of a row that was not written."""
        codes = library().KafkaError
        if error.code() == codes.MSG_SIZE_TOO_LARGE:
            return ConnectorError(
                f"KafkaSink {self._topic}: a row of {len(value or b'')} bytes is too large; raise message.max.bytes in settings=, "
                "and max.message.bytes of the topic"
            )
        if error.code() == codes._UNKNOWN_TOPIC or error.code() == codes.UNKNOWN_TOPIC_OR_PART:  # noqa: SLF001
            return ConnectorError(f"KafkaSink: topic {self._topic!r} is gone; create it again")
        if error.code() == codes._UNKNOWN_PARTITION:  # noqa: SLF001
            return ConnectorError(
                f"KafkaSink {self._topic}: a row is for a partition that the topic has not; correct the column of partition=, or add "
                "partitions"
            )
        return ConnectorError(f"KafkaSink {self._topic}: a row was not written: {error.str()}")


class RowProducer:
    """A producer, and what became of its rows."""

    def __init__(self, sink: KafkaSink, more: dict[str, Any], metrics: MetricGroup) -> None:
        self._sink = sink
        self._library = library()
        self.health = ClusterHealth(sink.bootstrap_servers, metrics.counter(CONNECTION_ERRORS))
        self._bytes_written = metrics.counter(BYTES_WRITTEN)
        self._deliveries = _Deliveries(sink.topic)
        settings = {**sink.producer_settings(), "error_cb": self.health.on_error, **more}
        try:
            self.producer: Any = self._library.Producer(settings)
        except self._library.KafkaException as error:
            raise ConnectorError(f"KafkaSink: {error.args[0].str()}") from error

    def send(self, batch: pa.RecordBatch) -> int:
        """Queue the rows, and return how many these are; waits while too many are queued."""
        what = f"KafkaSink {self._sink.topic}"
        require_columns(self._sink.format.schema, batch.schema, what)
        values: Sequence[bytes | None]
        if self._sink.delete:
            batch, values = self._with_tombstones(batch, what)
        else:
            values = self._sink.format.encode(batch)
        self._bytes_written.inc(sum(len(value) for value in values if value is not None))
        columns = self._sink.columns.of(batch, self._sink.topic)
        for start in range(0, len(values), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            self._make_room()
            if "headers" in columns or "timestamp" in columns:
                self._send_one_by_one(values[part], {name: each[part] for name, each in columns.items()})
                continue
            messages: list[dict[str, Any]] = [{"value": value} for value in values[part]]
            if "key" in columns:
                for message, key in zip(messages, columns["key"][part], strict=True):
                    if key is not None:
                        message["key"] = key
            for partition, those in _by_partition(messages, columns.get("partition", ())[part]).items():
                self._send_together(those, partition)
        self.producer.poll(0)
        self.check()
        return len(values)

    def _with_tombstones(self, batch: pa.RecordBatch, what: str) -> tuple[pa.RecordBatch, Sequence[bytes | None]]:
        """The rows without those before updates, and their values, which are null where a row is deleted."""
        sink = self._sink
        kinds = pa.array(row_kinds(batch, sink.delete, what), pa.string())
        kept = pc.not_equal(kinds, BEFORE)
        batch, is_gone = batch.filter(kept), pc.equal(kinds, GONE).filter(kept)
        if batch.column(str(sink.columns.key)).null_count:
            raise ConnectorError(
                f"{what}: a row has no key: {sink.columns.key!r} is null, and rows with delete= need one"
            )
        values = iter(sink.format.encode(batch.filter(pc.invert(is_gone))))
        return batch, [None if gone else next(values) for gone in is_gone.to_pylist()]

    def _send_together(self, messages: list[dict[str, Any]], partition: int) -> None:
        """A call has one partition: what single messages say of it is not heard."""
        while messages:
            queued = self.producer.produce_batch(
                self._sink.topic, messages, partition=partition, on_delivery=self._deliveries.on_delivery
            )
            if queued == len(messages):
                break
            messages = self._refused(messages)

    def _send_one_by_one(self, values: Sequence[bytes | None], columns: dict[str, list[Any]]) -> None:
        """Batches cannot have headers or times."""
        for number, value in enumerate(values):
            more = {name: each[number] for name, each in columns.items() if each[number] is not None}
            while True:
                try:
                    self.producer.produce(self._sink.topic, value, on_delivery=self._deliveries.on_delivery, **more)
                    break
                except BufferError:
                    self.producer.poll(0.05)
                except self._library.KafkaException as error:
                    raise self._deliveries.row_error(error.args[0], value) from error

    def _refused(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that found no room, to be tried again."""
        again = []
        for message in messages:
            error = message.pop("_error", None)
            if error is None:
                continue
            if error.code() != self._library.KafkaError._QUEUE_FULL:  # noqa: SLF001 - its public name
                raise self._deliveries.row_error(error, message["value"])
            again.append(message)
        self.producer.poll(0.05)
        self.check()
        return again

    def _make_room(self) -> None:
        deadline = time.monotonic() + FLUSH_SECONDS
        while len(self.producer) > QUEUED_ROWS_MAX:
            self.producer.poll(0.05)
            self.check()
            if time.monotonic() > deadline:
                raise out_of_reach(
                    self._sink.bootstrap_servers, f"{len(self.producer)} rows wait for {FLUSH_SECONDS:.0f} s"
                )

    def flush(self) -> None:
        """Every row is acknowledged. Raises ConnectorError when one is not."""
        left = self.producer.flush(FLUSH_SECONDS)
        self.check()
        if left:
            raise out_of_reach(self._sink.bootstrap_servers, f"{left} rows wait for {FLUSH_SECONDS:.0f} s")

    def check(self) -> None:
        """Raises what happened to rows that were sent."""
        self.health.check()
        if self._deliveries.failed is not None:
            raise ConnectorError(self._deliveries.failed)


def _by_partition(messages: list[dict[str, Any]], partitions: Sequence[int | None]) -> dict[int, list[dict[str, Any]]]:
    """The messages of each partition, in order; without one the client chooses."""
    if not partitions:
        return {ANY_PARTITION: messages}
    found: dict[int, list[dict[str, Any]]] = {}
    for message, partition in zip(messages, partitions, strict=True):
        found.setdefault(ANY_PARTITION if partition is None else partition, []).append(message)
    return found


class _Identity:
    """The producer id and epoch that librdkafka's statistics say. The producer calls it, and it does not know the
    producer: so nothing but the transaction keeps the producer, with its threads, once it is dropped."""

    def __init__(self) -> None:
        self.known: tuple[int, int] | None = None

    def on_statistics(self, text: str) -> None:
        if self.known is None and (found := IDENTITY.search(text)):
            self.known = (int(found[1]), int(found[2]))


class OneTransaction:
    """A producer with a transactional id of its own, from its beginning to its pre-commit."""

    def __init__(self, sink: KafkaSink, transactional_id: str, metrics: MetricGroup) -> None:
        self.transactional_id = transactional_id
        self.rows = 0
        self._identity = _Identity()
        timeout_ms = sink.transaction_timeout_ms
        self._sink = sink
        self.out = RowProducer(
            sink,
            {
                "transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms, "stats_cb": self._identity.on_statistics,
                "statistics.interval.ms": STATISTICS_MS,
                "message.timeout.ms": min(timeout_ms, int(sink.settings.get("message.timeout.ms", 120_000))),
            },
            metrics,
        )  # fmt: skip

    def ready(self) -> OneTransaction:
        """Make itself known to the coordinator; begins. Blocks; raises ConnectorError or KafkaException."""
        producer = self.out.producer
        try:
            # librdkafka waits half a second where it is not connected to a broker by its own name when it asks for the
            # coordinator: the first answer says the names, and for the second one it connects.
            for _ in range(2):
                producer.list_topics(self._sink.topic, INIT_SECONDS)
            producer.init_transactions(INIT_SECONDS)
        except library().KafkaException as error:
            raise self._not_ready(error.args[0]) from error
        deadline = time.monotonic() + INIT_SECONDS
        while self._identity.known is None:
            producer.poll(0.02)
            if time.monotonic() > deadline:
                raise ConnectorError(
                    "KafkaSink: librdkafka does not say the producer id in its statistics; is it too old?"
                )
        producer.begin_transaction()
        return self

    def _not_ready(self, error: Any) -> ConnectorError:
        codes = library().KafkaError
        if error.code() == codes.INVALID_TRANSACTION_TIMEOUT:
            return ConnectorError(
                f"KafkaSink: transaction_timeout_ms={self._sink.transaction_timeout_ms} is longer than the brokers' "
                "transaction.max.timeout.ms; lower the one or raise the other"
            )
        if error.code() in {codes._TIMED_OUT, codes._TRANSPORT}:  # noqa: SLF001 - their public names
            self.out.producer.poll(0)  # hands over what was reported
            self.out.health.check()
            return out_of_reach(self._sink.bootstrap_servers, error.str())
        return ConnectorError(f"KafkaSink: {error.str()}")

    def pre_commit(self, checkpoint_id: int) -> Committable:
        """All rows are in Kafka and wait for the end of the transaction."""
        self.out.flush()
        if self._identity.known is None:
            raise ConnectorError("KafkaSink: a transaction that is not ready cannot be committed")
        producer_id, epoch = self._identity.known
        return Committable(
            {
                "transactional_id": self.transactional_id, "producer_id": producer_id, "producer_epoch": epoch, "rows": self.rows,
                "checkpoint_id": checkpoint_id,
            }
        )  # fmt: skip

    def abort(self) -> None:
        """Best effort; who cannot be reached aborts by the timeout, or when a successor asks. To close the producer
        would wait for brokers for as long as they are away."""
        with contextlib.suppress(library().KafkaException):
            self.out.producer.abort_transaction(CLOSE_SECONDS)


class KafkaWriter(SinkWriter):
    """The writer of one subtask."""

    def __init__(self, sink: KafkaSink, name: TransactionName, left: dict[str, Any], metrics: MetricGroup) -> None:
        """`left`: whose open transactions are to be ended when the first checkpoint is complete."""
        self._sink = sink
        self._metrics = metrics
        self._name = name
        self._left = left
        self._swept = False
        self._plain: RowProducer | None = None
        self._current: OneTransaction | None = None
        self._next: Future[OneTransaction] | None = None
        self._maker: ThreadPoolExecutor | None = None
        self._closed = threading.Event()
        self._server: threading.Thread | None = None
        if sink.two_phase:
            self._maker = ThreadPoolExecutor(1, thread_name_prefix="kafka-transaction")
            self._prepare_next()
            self._server = threading.Thread(
                target=_serve, args=(weakref.ref(self), self._closed), name="kafka-serve", daemon=True
            )
            self._server.start()
        else:
            self._plain = RowProducer(sink, {}, metrics)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._plain is not None:
            self._plain.send(batch)
            return
        if self._current is None:
            if self._next is None:
                raise ConnectorError("KafkaSink: the writer is closed")
            if self._next.done() and self._next.exception() is not None:
                self._prepare_next()  # brokers were away, perhaps, when it was prepared, which may be long ago
            self._current = self._next.result()
            self._prepare_next()
        self._current.rows += self._current.out.send(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        if self._plain is not None:
            self._plain.flush()
            return ()
        committables = []
        if not self._swept:
            self._swept = True
            committables.append(Committable({"sweep": self._name.attempt, **self._left}))
        if self._current is not None and self._current.rows:  # one without rows is none to Kafka, and goes on
            committables.append(self._current.pre_commit(checkpoint_id))
            self._current = None  # dropped, which leaves the transaction open
        return committables

    def snapshot_state(self, checkpoint_id: int) -> Sequence[dict[str, Any]]:
        return [self._left] if self._plain is None else ()

    def serve(self) -> None:
        """Take in what librdkafka has to say of transactions that may have no rows for long."""
        current, coming = self._current, self._next
        if current is not None:
            current.out.producer.poll(0)
        if coming is not None and coming.done() and not coming.cancelled() and coming.exception() is None:
            coming.result().out.producer.poll(0)

    def close(self) -> None:
        self._closed.set()
        if self._server is not None:
            self._server.join()
        current, self._current = self._current, None
        coming, self._next = self._next, None
        plain, self._plain = self._plain, None
        if coming is not None:
            coming.cancel()
            wait([coming], CLOSE_SECONDS)
        if self._maker is not None:
            self._maker.shutdown(wait=coming is None or coming.done())
        if current is not None:
            current.abort()
        if plain is not None:
            plain.producer.flush(CLOSE_SECONDS)  # what is not acknowledged by then is in no checkpoint

    def _prepare_next(self) -> None:
        """Begin to prepare the next transaction, in the background."""
        made = OneTransaction(self._sink, str(self._name), self._metrics)
        self._name = replace(self._name, number=self._name.number + 1)
        if self._maker is not None:
            self._next = self._maker.submit(made.ready)


def _serve(writer: weakref.ref[KafkaWriter], closed: threading.Event) -> None:
    """Until the writer is closed, or nobody has it any more."""
    while not closed.wait(SERVE_SECONDS):
        mine = writer()
        if mine is None:
            return
        mine.serve()
        del mine
