"""What the brokers know, as facts: topics, logs, producers, transactions, offsets of groups.

Every change is a fact, which is written to the journal before it is applied; a broker that starts again applies the
journal's facts. So what was answered is kept, and what was in memory only (members of groups, connections) is lost, as
with a crash of every node at once.
"""

from __future__ import annotations

import pickle
import uuid
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.services.kafka_broker.records import NO_SEQUENCE, SEQUENCES, Batch, control_batch, stamped

REMEMBERED_BATCHES = 5
"""Of a producer in a partition: repetitions of these are recognised, as in Kafka."""
EPOCH_MAX = 32_766
EMPTY, ONGOING = "Empty", "Ongoing"
PREPARE = {True: "PrepareCommit", False: "PrepareAbort"}
COMPLETE = {True: "CompleteCommit", False: "CompleteAbort"}
TransactionKey = tuple[str, int]


class KafkaError(Exception):
    """An error that is answered by its code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER = 6
MESSAGE_TOO_LARGE = 10
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
TOPIC_ALREADY_EXISTS = 36
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
SASL_AUTHENTICATION_FAILED = 58
MEMBER_ID_REQUIRED = 79
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105


@dataclass(slots=True)
class ProducerEntry:
    """A producer in a partition."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    """First and last sequence number, and the offset."""


@dataclass(slots=True)
class PartitionLog:
    """One partition."""

    batches: list[Batch] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """First offset of each open transaction, by producer id."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first and last offset."""

    @property
    def last_stable(self) -> int:
        """Beyond it, some transaction is open."""
        return min(self.open.values(), default=self.end)

    def append(self, data: bytes) -> None:
        """A fact: the batch has its offset."""
        batch = Batch.parse(data)
        self.batches.append(batch)
        self.bases.append(batch.base_offset)
        self.end = batch.last_offset + 1
        if batch.producer_id < 0:
            return
        entry = self.producers.get(batch.producer_id)
        if entry is None or entry.epoch != batch.producer_epoch:
            entry = self.producers[batch.producer_id] = ProducerEntry(batch.producer_epoch)
        if batch.is_control:
            first = self.open.pop(batch.producer_id, None)
            if first is not None and not batch.commits:
                self.aborted.append((batch.producer_id, first, batch.last_offset))
            return
        entry.batches.append((batch.first_sequence, batch.last_sequence, batch.base_offset))
        if batch.is_transactional:
            self.open.setdefault(batch.producer_id, batch.base_offset)

    def repeated(self, batch: Batch) -> int | None:
        """The offset that this batch has already; raises when the producer may not append it."""
        entry = self.producers.get(batch.producer_id)
        if batch.producer_id < 0 or batch.first_sequence == NO_SEQUENCE:
            return None
        if entry is None:
            return None
        if batch.producer_epoch < entry.epoch:
            raise KafkaError(INVALID_PRODUCER_EPOCH)
        if batch.producer_epoch > entry.epoch or not entry.batches:
            if batch.first_sequence != 0 and batch.producer_epoch > entry.epoch:
                raise KafkaError(OUT_OF_ORDER_SEQUENCE_NUMBER)
            return None
        for first, last, offset in entry.batches:
            if (first, last) == (batch.first_sequence, batch.last_sequence):
                return offset
        if batch.first_sequence != (entry.batches[-1][1] + 1) % SEQUENCES:
            raise KafkaError(OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def read(self, offset: int, limit: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds the offset, below the limit; at least one."""
        at = max(bisect_right(self.bases, offset) - 1, 0)
        found: list[bytes] = []
        size = 0
        for batch in self.batches[at:]:
            if batch.base_offset >= limit or (found and size + len(batch.data) > max_bytes):
                break
            if batch.last_offset >= offset:
                found.append(batch.data)
                size += len(batch.data)
        return b"".join(found)


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a coordinator knows of one transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = EMPTY
    start_ms: int = -1
    partitions: frozenset[TransactionKey] = frozenset()
    groups: frozenset[str] = frozenset()


@dataclass(slots=True)
class Topic:
    """Its partitions."""

    topic_id: uuid.UUID
    partitions: list[PartitionLog]
    config: dict[str, str]

    @property
    def max_message_bytes(self) -> int:
        """Of one batch."""
        return int(self.config.get("max.message.bytes", 1_048_588))


class Cluster:
    """The state of all nodes together."""

    def __init__(self, journal: Path, now_ms: Any) -> None:
        self.now_ms = now_ms
        self.topics: dict[str, Topic] = {}
        self.transactions: dict[str, Transaction] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str]] = {}
        self.pending_offsets: dict[int, dict[tuple[str, str, int], tuple[int, str]]] = {}
        """Of open transactions, by producer id."""
        self.next_producer_id = 1000
        self._crash_after: tuple[str, int] | None = None
        self.on_crash: Any = None
        if journal.exists():
            self._replay(journal)
        self._journal = journal.open("ab")
        for transactional_id, transaction in list(self.transactions.items()):
            if transaction.state in PREPARE.values():  # a crash came between
                self.write_markers(transactional_id, commit=transaction.state == PREPARE[True])

    def _replay(self, journal: Path) -> None:
        with journal.open("rb") as file:
            good = 0
            while True:
                try:
                    fact = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    break
                self.apply(*fact)
                good = file.tell()
        with journal.open("r+b") as file:
            file.truncate(good)

    def close(self) -> None:
        """The journal stays."""
        self._journal.close()

    def record(self, kind: str, *what: Any) -> None:
        """A fact, in the journal and in memory; perhaps the last one before a crash."""
        pickle.dump((kind, *what), self._journal)
        self._journal.flush()
        self.apply(kind, *what)
        if self._crash_after is not None and self._crash_after[0] == kind:
            left = self._crash_after[1] - 1
            self._crash_after = (kind, left) if left else None
            if not left:
                raise self.on_crash

    def crash_after(self, kind: str, count: int) -> None:
        """The whole cluster ends after so many more facts of this kind."""
        self._crash_after = (kind, count)

    def apply(self, kind: str, *what: Any) -> None:
        """A fact is true."""
        getattr(self, f"_{kind}")(*what)

    # --- facts ------------------------------------------------------------------------------------------------------

    def _topic(self, name: str, topic_id: uuid.UUID, partitions: int, config: dict[str, str]) -> None:
        self.topics[name] = Topic(topic_id, [PartitionLog() for _ in range(partitions)], config)

    def _more_partitions(self, name: str, count: int) -> None:
        logs = self.topics[name].partitions
        logs.extend(PartitionLog() for _ in range(count - len(logs)))

    def _no_topic(self, name: str) -> None:
        del self.topics[name]

    def _append(self, topic: str, partition: int, data: bytes) -> None:
        self.topics[topic].partitions[partition].append(data)

    def _start(self, topic: str, partition: int, offset: int) -> None:
        self.topics[topic].partitions[partition].start = offset

    def _transaction(self, transactional_id: str, transaction: Transaction) -> None:
        self.transactions[transactional_id] = transaction

    def _forget(self, transactional_id: str) -> None:
        del self.transactions[transactional_id]

    def _producer_ids(self, following: int) -> None:
        self.next_producer_id = following

    def _offset(self, group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
        self.offsets[group, topic, partition] = (offset, metadata)

    def _pending_offset(
        self, producer_id: int, group: str, topic: str, partition: int, offset: int, metadata: str
    ) -> None:
        self.pending_offsets.setdefault(producer_id, {})[group, topic, partition] = (offset, metadata)

    def _end_offsets(self, producer_id: int, commit: bool) -> None:
        pending = self.pending_offsets.pop(producer_id, {})
        if commit:
            self.offsets.update(pending)

    # --- topics -----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, config: dict[str, str] | None = None) -> Topic:
        """Raises when it is there."""
        if name in self.topics:
            raise KafkaError(TOPIC_ALREADY_EXISTS)
        self.record("topic", name, uuid.uuid4(), partitions, config or {})
        return self.topics[name]

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Raises when there is none."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION)
        return found.partitions[partition]

    def produce(self, topic: str, partition: int, data: bytes, transactional_id: str | None) -> int:
        """Append what a producer sends; the offset of its first record."""
        log = self.log(topic, partition)
        if len(data) > self.topics[topic].max_message_bytes:
            raise KafkaError(MESSAGE_TOO_LARGE)
        batch = Batch.parse(data)
        if batch.is_transactional:
            # The coordinator is asked whether the partition is in the transaction (KIP-890): a late batch cannot open
            # one again.
            transaction = self._of_producer(transactional_id, batch.producer_id, batch.producer_epoch)
            if transaction.state != ONGOING or (topic, partition) not in transaction.partitions:
                raise KafkaError(INVALID_TXN_STATE)
        offset = log.repeated(batch)
        if offset is None:
            offset = log.end
            self.record("append", topic, partition, stamped(data, offset))
        return offset

    # --- transactions -----------------------------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        """Never given before."""
        given = self.next_producer_id
        self.record("producer_ids", given + 1)
        return given

    def init_producer(self, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int) -> Transaction:
        """The next incarnation of a transactional id; what the earlier one left open is aborted."""
        known = self.transactions.get(transactional_id)
        if known is None:
            transaction = Transaction(self.new_producer_id(), 0, timeout_ms)
            self.record("transaction", transactional_id, transaction)
            return transaction
        if producer_id >= 0 and (producer_id, epoch) != (known.producer_id, known.epoch):
            raise KafkaError(PRODUCER_FENCED)
        if known.state == ONGOING:
            self._abort_with_fence(transactional_id)
            known = self.transactions[transactional_id]
        if known.epoch >= EPOCH_MAX:
            transaction = Transaction(self.new_producer_id(), 0, timeout_ms)
        else:
            transaction = Transaction(known.producer_id, known.epoch + 1, timeout_ms)
        self.record("transaction", transactional_id, transaction)
        return transaction

    def _of_producer(self, transactional_id: str | None, producer_id: int, epoch: int) -> Transaction:
        known = self.transactions.get(transactional_id or "")
        if known is None or known.producer_id != producer_id:
            raise KafkaError(INVALID_PRODUCER_ID_MAPPING)
        if known.epoch != epoch:
            raise KafkaError(INVALID_PRODUCER_EPOCH)
        return known

    def current(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        """Raises when this producer is not the current one."""
        known = self._of_producer(transactional_id, producer_id, epoch)
        if known.state in PREPARE.values():
            raise KafkaError(CONCURRENT_TRANSACTIONS)
        return known

    def add_to_transaction(
        self, transactional_id: str, known: Transaction, partitions: set[TransactionKey], groups: set[str]
    ) -> None:
        """It is open from now on, if it was not."""
        begun = known.state == ONGOING
        self.record(
            "transaction",
            transactional_id,
            replace(
                known,
                state=ONGOING,
                start_ms=known.start_ms if begun else self.now_ms(),
                partitions=(known.partitions if begun else frozenset()) | partitions,
                groups=(known.groups if begun else frozenset()) | groups,
            ),
        )

    def end_transaction(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """In two steps: the decision, then a marker in each partition. Ending it again the same way is no error."""
        known = self.current(transactional_id, producer_id, epoch)
        if known.state == COMPLETE[commit]:
            return
        if known.state != ONGOING:
            raise KafkaError(INVALID_TXN_STATE)
        self.record("transaction", transactional_id, replace(known, state=PREPARE[commit]))
        self.write_markers(transactional_id, commit=commit)

    def write_markers(self, transactional_id: str, *, commit: bool) -> None:
        """What was decided becomes true, partition by partition; those that have their marker are left out."""
        known = self.transactions[transactional_id]
        for topic, partition in sorted(known.partitions):
            if topic not in self.topics:
                continue
            log = self.topics[topic].partitions[partition]
            entry = log.producers.get(known.producer_id)
            if known.producer_id in log.open or (entry is not None and entry.epoch < known.epoch):
                data = control_batch(log.end, known.producer_id, known.epoch, self.now_ms(), commit=commit)
                self.record("append", topic, partition, data)
        self.record("end_offsets", known.producer_id, commit)
        done = replace(known, state=COMPLETE[commit], partitions=frozenset(), groups=frozenset())
        self.record("transaction", transactional_id, done)

    def _abort_with_fence(self, transactional_id: str) -> None:
        known = self.transactions[transactional_id]
        fenced = replace(known, epoch=known.epoch + 1, state=PREPARE[False])
        self.record("transaction", transactional_id, fenced)
        self.write_markers(transactional_id, commit=False)

    def abort_timed_out(self) -> bool:
        """Whether there were any."""
        late = [
            transactional_id
            for transactional_id, known in self.transactions.items()
            if known.state == ONGOING and self.now_ms() - known.start_ms > known.timeout_ms
        ]
        for transactional_id in late:
            self._abort_with_fence(transactional_id)
        return bool(late)
