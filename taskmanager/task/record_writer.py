"""One outgoing edge of a task: which subpartition a row goes to, and how large the batches are that leave.

Decides partitioning (forward, hash, rebalance, rescale, broadcast) and adaptive batching: a batch that is large enough
leaves at once; small ones are gathered up to `execution.batch.target-rows` and leave together, at the latest after
`execution.buffer-timeout`, and earlier when the task has nothing else to do; too large ones are cut. A watermark waits
with the rows before it, and a later one replaces it: a watermark may come late, never early. Barriers and end events
push out what waits. Rows that the other end would drop are not sent (`combiner`), nor are columns that it does not
read. It does not know time beyond what `flush_due` is told, nor who reads. Mirrors Flink's RecordWriter,
ChannelSelectorRecordWriter and OutputFlusher; for a batch at a time, and without a flusher thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.columnar.batch_bytes import BatchBytes
from snapline.dataflow.columnar.column_types import joined
from snapline.dataflow.elements import CheckpointBarrier, LatencyMarker, StreamElement, Watermark, WatermarkStatus
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ResultPartitionDescriptor
from snapline.runtime.cores.machine import check
from snapline.taskmanager.network.channels.buffer_debloater import PERIOD_MS, BufferDebloater
from snapline.taskmanager.network.channels.exchange_contract import ResultSubpartition

MAX_BATCH_BYTES = 4 << 20
"""A batch with more is cut, so that one credit, one queue slot and one barrier's wait stay bounded."""
MAX_BATCH_TARGETS = 4
"""A batch with more than this many times the target rows is cut."""
LARGE_BATCH_BYTES = 512 << 10
"""A batch with at least this many bytes is worth sending alone, however few rows it has."""
IDLE_FLUSH_INTERVAL_MS = 5
"""Even when idle, small batches leave at most this often, so that a thin stream does not become a flood of tiny
batches."""


class _Lane:
    """Rows that wait to leave together."""

    __slots__ = ("batches", "byte_count", "rows", "target")

    def __init__(self, target: int) -> None:
        self.target = target
        """Subpartition index, -1 when it is chosen on flush."""
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.byte_count = 0

    def take(self) -> list[pa.RecordBatch]:
        """One batch, or those that came, where their dictionaries do not go together."""
        batches = self.batches
        self.batches = []
        self.rows = self.byte_count = 0
        whole = joined(batches)
        return batches if whole is None else [whole]


class Combiner(Protocol):
    """What knows which rows the other end of an edge would drop."""

    def on_watermark(self, watermark_ms: int) -> None:
        """A watermark leaves, or will leave."""

    def without_beaten(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have to be sent."""


class RecordWriter:
    """Spreads batches over the subpartitions of one edge."""

    def __init__(
        self,
        descriptor: ResultPartitionDescriptor,
        subpartitions: Sequence[ResultSubpartition],
        *,
        subtask_index: int,
        buffer_timeout_ms: int,
        target_rows: int,
        debloat_target_ms: int | None = None,
        combiner: Combiner | None = None,
    ) -> None:
        """`debloat_target_ms`: what waits in a subpartition should take its consumer so long, about; None: never
        mind. `combiner`: keeps rows back that need not be sent."""
        if descriptor.partitioning is Partitioning.HASH:
            # It brings a compiler, which others do without.
            from snapline.dataflow.columnar.key_partition import split_batch

            self._split_batch = split_batch
        check(
            len(subpartitions) == descriptor.subpartitions, "an edge has as many subpartitions as its descriptor says"
        )
        self._combiner = combiner
        self._columns = list(descriptor.columns)
        self.descriptor = descriptor
        self.subpartitions = tuple(subpartitions)
        self.records_out = 0
        self.bytes_out = 0
        self._bytes = BatchBytes()
        self._buffer_timeout_ms = buffer_timeout_ms
        self._target_rows = max(1, target_rows)
        self._large_rows = max(1, target_rows // 2) if buffer_timeout_ms > 0 else 1
        self._max_rows = self._target_rows * MAX_BATCH_TARGETS
        self._marked = subtask_index % len(self.subpartitions)
        self._round_robin = subtask_index % len(self.subpartitions)
        partitioning = descriptor.partitioning
        self._asks = partitioning is Partitioning.DEMAND
        per_subpartition = partitioning is Partitioning.HASH or len(self.subpartitions) == 1
        self._lanes = [_Lane(i) for i in range(len(self.subpartitions))] if per_subpartition else [_Lane(-1)]
        self._emit: Callable[[pa.RecordBatch], None] = self._emit_to_lane
        if self._asks:
            self._emit = self._emit_on_demand
        elif partitioning is Partitioning.HASH and len(self.subpartitions) > 1:
            self._emit = self._emit_hashed
        self._unsplit = _Lane(-1)
        self._watermark: Watermark | None = None
        self._something_waits = False
        self._deadline_ms: int | None = None
        self._last_flush_ms: int | None = None
        self._debloaters = tuple(
            BufferDebloater(debloat_target_ms, row_wise=descriptor.row_wise)
            for _ in self.subpartitions
            if debloat_target_ms is not None
        )
        self._next_sample_ms = 0
        for subpartition, debloater in zip(self.subpartitions, self._debloaters, strict=False):
            subpartition.limit_bytes(debloater.limit_bytes)
        first = self._debloaters[0].piece_bytes if self._debloaters else MAX_BATCH_BYTES
        self._piece_bytes = [first] * (len(self.subpartitions) + 1)
        """The bytes at which a batch is cut, by subpartition. The last one: where the subpartition is chosen later."""

    # --- data -------------------------------------------------------------------------------------------------------

    def emit(self, batch: pa.RecordBatch) -> None:
        """Send the batch, or let it wait for more."""
        if self._columns and batch.num_columns > len(self._columns):
            batch = self._only_read(batch)
        if self._combiner is not None:
            batch = self._combiner.without_beaten(batch)
        rows = batch.num_rows
        if rows:
            self.records_out += rows
            self._emit(batch)

    def _only_read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that the consumer reads. A batch that lacks one leaves as it is, so that the consumer says what
        it has."""
        try:
            return batch.select(self._columns)
        except KeyError:
            return batch

    def _emit_to_lane(self, batch: pa.RecordBatch) -> None:
        self._offer(self._lanes[0], batch)

    def _emit_on_demand(self, batch: pa.RecordBatch) -> None:
        """At once, to the consumer that has asked for most: it has least to do."""
        demands = [subpartition.demand for subpartition in self.subpartitions]
        greatest = max(demand for demand in demands if demand is not None)
        check(greatest > 0, "splits are handed out only to who has asked for some")
        self.bytes_out += self._bytes.of(batch)
        self.subpartitions[demands.index(greatest)].add(batch)

    def demand(self) -> tuple[int | None, ...]:
        """How many batches each consumer asks for; None for one that has not spoken yet."""
        return tuple(subpartition.demand for subpartition in self.subpartitions)

    def _emit_hashed(self, batch: pa.RecordBatch) -> None:
        """Small batches are gathered before they are split, too: splitting costs the same for ten rows and a
        thousand."""
        unsplit = self._unsplit
        if batch.num_rows >= self._large_rows:
            if unsplit.batches:
                self._split_all(unsplit.take())
            self._split(batch)
            return
        if unsplit.batches and not unsplit.batches[0].schema.equals(batch.schema):
            self._split_all(unsplit.take())
        if not unsplit.batches:
            self._check_key_columns(batch.schema)  # now, while it is clear whose batch it is
        unsplit.batches.append(batch)
        unsplit.rows += batch.num_rows
        unsplit.byte_count += self._bytes.of(batch)
        if unsplit.rows >= self._large_rows or unsplit.byte_count >= LARGE_BATCH_BYTES:
            self._split_all(unsplit.take())
        else:
            self._something_waits = True

    def _check_key_columns(self, schema: pa.Schema) -> None:
        for name in self.descriptor.key_columns:
            position = schema.get_field_index(name)
            if position < 0:
                raise KeyError(
                    f"no key column {name!r} in the batch: its columns are {', '.join(map(repr, schema.names))}"
                )
            plain_type(schema.field(position).type)

    def _split_all(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._split(batch)

    def _split(self, batch: pa.RecordBatch) -> None:
        descriptor = self.descriptor
        parts = self._split_batch(
            batch, descriptor.key_columns, descriptor.target_max_parallelism, descriptor.target_parallelism
        )
        for lane, part in zip(self._lanes, parts, strict=True):
            if part.num_rows:
                self._offer(lane, part)

    def _offer(self, lane: _Lane, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        byte_count = self._bytes.of(batch)
        self.bytes_out += byte_count
        if rows >= self._large_rows or byte_count >= LARGE_BATCH_BYTES:
            if lane.batches:
                self._send_lane(lane)
            self._send(lane.target, batch, byte_count)
            return
        if lane.batches and not lane.batches[0].schema.equals(batch.schema):
            self._send_lane(lane)
        lane.batches.append(batch)
        lane.rows += rows
        lane.byte_count += byte_count
        if lane.rows >= self._target_rows or lane.byte_count >= LARGE_BATCH_BYTES:
            self._send_lane(lane)
        else:
            self._something_waits = True

    def _send_lane(self, lane: _Lane) -> None:
        byte_count = lane.byte_count
        batches = lane.take()
        for batch in batches:
            self._send(lane.target, batch, byte_count if len(batches) == 1 else self._bytes.of(batch))

    def _send(self, target: int, batch: pa.RecordBatch, byte_count: int) -> None:
        rows = batch.num_rows
        pieces = min(rows, max(-(-rows // self._max_rows), -(-byte_count // self._piece_bytes[target])))
        if pieces <= 1:
            self._send_piece(target, batch)
            return
        step = -(-rows // pieces)
        for start in range(0, rows, step):
            self._send_piece(target, batch.slice(start, step))

    def _send_piece(self, target: int, batch: pa.RecordBatch) -> None:
        if target >= 0:
            self.subpartitions[target].add(batch)
        elif self.descriptor.partitioning is Partitioning.BROADCAST:
            for subpartition in self.subpartitions:
                subpartition.add(batch)
        else:
            self.subpartitions[self._round_robin].add(batch)
            self._round_robin = (self._round_robin + 1) % len(self.subpartitions)

    # --- control ----------------------------------------------------------------------------------------------------

    def emit_watermark(self, watermark: Watermark) -> None:
        """Send it once the rows before it have left. One that is lower than one that waits says nothing, and does not
        replace it."""
        if self._combiner is not None:
            self._combiner.on_watermark(watermark.timestamp_ms)
        if self._buffer_timeout_ms == 0:
            self._add_to_all(watermark)
        elif self._watermark is None or watermark.timestamp_ms > self._watermark.timestamp_ms:
            self._watermark = watermark
            self._something_waits = True

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Send it, and everything before it."""
        self.flush()
        self._add_to_all(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Send it behind all rows before it, to one subpartition after the other."""
        self.flush()
        self.subpartitions[self._marked].add(marker)
        self._marked = (self._marked + 1) % len(self.subpartitions)

    def broadcast(
        self, element: StreamElement, *, priority: bool = False
    ) -> list[tuple[int, Sequence[pa.RecordBatch]]]:
        """Send a control element to every subpartition, after everything before it. Returns (subpartition, batches)
        that a priority barrier overtook."""
        self.flush()
        return self._add_to_all(element, priority=priority)

    def replay(self, subpartition: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Put restored output channel state back, before anything else is sent."""
        for batch in batches:
            self.subpartitions[subpartition].add(batch)

    def time_out(self, barrier: CheckpointBarrier) -> list[tuple[int, Sequence[pa.RecordBatch] | None]]:
        """The aligned timeout passed: (subpartition, what the barrier overtook; None if it had left)."""
        return [(index, subpartition.time_out(barrier)) for index, subpartition in enumerate(self.subpartitions)]

    def _add_to_all(
        self, element: StreamElement, *, priority: bool = False
    ) -> list[tuple[int, Sequence[pa.RecordBatch]]]:
        if not priority:
            for subpartition in self.subpartitions:
                subpartition.add(element)
            return []
        return [
            (index, subpartition.add(element, priority=True)) for index, subpartition in enumerate(self.subpartitions)
        ]

    # --- flushing ---------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether every subpartition has room. Where consumers ask, whoever emits asks for their demand instead."""
        if not self._asks:
            for subpartition in self.subpartitions:
                if not subpartition.is_available:
                    return False
        return True

    def debloat(self, now_ms: int) -> None:
        """Let the bounds of the subpartitions follow their consumers; as often as convenient."""
        if now_ms < self._next_sample_ms:
            return
        self._next_sample_ms = now_ms + PERIOD_MS
        changed = False
        for subpartition, debloater in zip(self.subpartitions, self._debloaters, strict=False):
            if debloater.sample(subpartition.consumption, now_ms):
                subpartition.limit_bytes(debloater.limit_bytes)
                changed = True
        if changed:
            self._cut_at([min(MAX_BATCH_BYTES, debloater.piece_bytes) for debloater in self._debloaters])

    def _cut_at(self, pieces: Sequence[int]) -> None:
        """The bytes at which batches are cut from now on, by subpartition. For consumers that work row by row the least
        of them counts: one whose producer waits for another has full credits and an empty queue, which says nothing of
        how much waits there."""
        least = min(pieces)
        if self.descriptor.row_wise:
            pieces = [least] * len(pieces)
        self._piece_bytes = [*pieces, least]

    def flush(self) -> None:
        """Send everything that waits for the batch to be full."""
        if not self._something_waits:
            return
        if self._unsplit.batches:
            self._split_all(self._unsplit.take())
        for lane in self._lanes:
            if lane.batches:
                self._send_lane(lane)
        if self._watermark is not None:
            watermark, self._watermark = self._watermark, None
            self._add_to_all(watermark)
        self._something_waits = False
        self._deadline_ms = None

    def flush_due(self, now_ms: int, *, idle: bool) -> int | None:
        """Flush if what waits has waited long enough, which is sooner when the task is idle. Returns when to ask again,
        at the latest. While a subpartition is full nothing is gained by sending."""
        if not self._something_waits:
            return None
        if self._deadline_ms is None:
            self._deadline_ms = now_ms + self._buffer_timeout_ms
        due_ms = self._deadline_ms
        if idle:
            last_ms = self._last_flush_ms
            due_ms = min(due_ms, now_ms if last_ms is None else last_ms + IDLE_FLUSH_INTERVAL_MS)
        if now_ms < due_ms:
            return due_ms
        if not self.is_available:
            return None
        self.flush()
        self._last_flush_ms = now_ms
        return None
