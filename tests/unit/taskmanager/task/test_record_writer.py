"""Outgoing edges: where rows go, how batches are filled, cut and flushed, what waits for what."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.elements import MAX_WATERMARK_MS, CheckpointBarrier, EndOfData, Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import SinkSpec, SourceSpec
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ResultPartitionDescriptor
from snapline.taskmanager.network.channels.local_exchange import LocalExchange
from snapline.taskmanager.task import task_wiring
from snapline.taskmanager.task.record_writer import MAX_BATCH_BYTES, RecordWriter
from tests.unit.taskmanager.task.local_job import ListSource, LocalJob, Operator, StagingSink, edge

BARRIER = CheckpointBarrier(CheckpointID(1), 0)


class Edge:
    """A writer and what arrives at each of its subpartitions."""

    def __init__(
        self,
        how: Partitioning = Partitioning.FORWARD,
        subpartitions: int = 1,
        *,
        timeout_ms: int = 100,
        target_rows: int = 10,
        subtask: int = 0,
        max_queued: int = 1000,
        debloat_target_ms: int | None = None,
        row_wise: bool = False,
        columns: tuple[str, ...] = (),
    ) -> None:
        exchange = LocalExchange(max_queued_batches=max_queued)
        self.parts = exchange.create_result_partition("p", "e", subpartitions)
        self.views = [part.create_view() for part in self.parts]
        descriptor = ResultPartitionDescriptor(
            "e", OperatorID("o"), "", how, subpartitions, subpartitions, ("k",), 128, row_wise=row_wise, columns=columns
        )
        self.writer = RecordWriter(
            descriptor,
            self.parts,
            subtask_index=subtask,
            buffer_timeout_ms=timeout_ms,
            target_rows=target_rows,
            debloat_target_ms=debloat_target_ms,
        )

    def arrived(self, subpartition: int = 0) -> list[Any]:
        found = []
        while (polled := self.views[subpartition].poll()) is not None:
            element = polled.element
            found.append(element["k"].to_pylist() if isinstance(element, pa.RecordBatch) else element)
        return found


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(values, pa.int64())})


def test_large_batches_leave_at_once_small_ones_together() -> None:
    """Half of the target is large; what waits goes first."""
    edge = Edge()
    edge.writer.emit(rows(1, 2))
    edge.writer.emit(rows(3))
    assert edge.arrived() == []

    edge.writer.emit(rows(*range(4, 10)))
    assert edge.arrived() == [[1, 2, 3], [4, 5, 6, 7, 8, 9]]

    for value in range(12):
        edge.writer.emit(rows(value))
    assert edge.arrived() == [list(range(10))]
    assert (edge.writer.records_out, edge.writer.bytes_out) == (21, 21 * 8)


def test_rows_leave_when_their_time_is_over() -> None:
    """The timeout runs from the first `flush_due` after the first row; idle tasks do not wait for it."""
    edge = Edge()
    edge.writer.emit(rows(1))
    assert edge.writer.flush_due(1000, idle=False) == 1100
    edge.writer.emit(rows(2))
    assert edge.writer.flush_due(1099, idle=False) == 1100
    assert edge.arrived() == []
    assert edge.writer.flush_due(1100, idle=False) is None
    assert edge.arrived() == [[1, 2]]

    edge.writer.emit(rows(3))
    assert edge.writer.flush_due(1101, idle=True) == 1105
    assert edge.writer.flush_due(1105, idle=True) is None
    assert edge.arrived() == [[3]]


def test_a_timeout_of_zero_never_waits() -> None:
    """Rows and watermarks leave as they come."""
    edge = Edge(timeout_ms=0)
    edge.writer.emit(rows(1))
    edge.writer.emit_watermark(Watermark(5))
    edge.writer.emit(rows(2))

    assert edge.arrived() == [[1], Watermark(5), [2]]


def test_a_watermark_waits_with_the_rows_before_it_and_the_latest_counts() -> None:
    """It may come late, never early; tiny batches are not flushed for it."""
    edge = Edge()
    edge.writer.emit(rows(1))
    edge.writer.emit_watermark(Watermark(1))
    edge.writer.emit(rows(2))
    edge.writer.emit_watermark(Watermark(2))
    assert edge.arrived() == []

    edge.writer.flush()
    assert edge.arrived() == [[1, 2], Watermark(2)]


def test_a_lower_watermark_does_not_replace_one_that_waits() -> None:
    """Else the last one of a stream would be lost, and with it the last windows."""
    edge = Edge()
    edge.writer.emit_watermark(Watermark(MAX_WATERMARK_MS))
    edge.writer.emit_watermark(Watermark(7))
    edge.writer.flush()

    assert edge.arrived() == [Watermark(MAX_WATERMARK_MS)]


@pytest.mark.parametrize("element", [BARRIER, EndOfData(), WatermarkStatus.IDLE])
def test_control_elements_push_out_what_waits(element: Any) -> None:
    """Order is order of emission."""
    edge = Edge(Partitioning.BROADCAST, 2)
    edge.writer.emit(rows(1))
    edge.writer.emit_watermark(Watermark(1))
    if isinstance(element, WatermarkStatus):
        edge.writer.emit_watermark_status(element)
    else:
        edge.writer.broadcast(element)
    edge.writer.emit(rows(2))

    assert edge.arrived(0) == edge.arrived(1) == [[1], Watermark(1), element]


def test_a_priority_barrier_overtakes_what_waits_too() -> None:
    """Rows that were only gathered are in the queue before it overtakes them."""
    edge = Edge(Partitioning.REBALANCE, 2)
    edge.writer.emit(rows(1))
    unaligned = BARRIER.as_unaligned()
    overtaken = dict(edge.writer.broadcast(unaligned, priority=True))

    assert [[b["k"].to_pylist() for b in overtaken[i]] for i in (0, 1)] == [[[1]], []]
    assert edge.arrived(0) == [unaligned, [1]]


def test_hash_sends_each_key_to_its_subtask() -> None:
    """The same subtask that owns its key group, in order."""
    edge = Edge(Partitioning.HASH, 3, target_rows=1000)
    batch = rows(*range(50))
    edge.writer.emit(batch)
    edge.writer.flush()

    assert [edge.arrived(i) for i in range(3)] == [[p["k"].to_pylist()] for p in split_batch(batch, ["k"], 128, 3)]


def test_a_missing_key_column_is_named() -> None:
    """With the columns that are there."""
    edge = Edge(Partitioning.HASH, 2)
    with pytest.raises(KeyError, match="no key column 'k'"):
        edge.writer.emit(pa.record_batch({"x": [1]}))


def test_what_cannot_be_a_key_is_refused_when_it_is_emitted() -> None:
    """Rows that wait for more are split by the task, which named no operator, and blamed Snapline."""
    edge = Edge(Partitioning.HASH, 2)
    with pytest.raises(TypeError, match="cannot be \\(part of\\) a key"):
        edge.writer.emit(pa.record_batch({"k": [[1, 2]]}))


@pytest.mark.parametrize("subpartitions", [1, 2])
def test_columns_that_nobody_reads_are_not_sent(subpartitions: int) -> None:
    """The others keep their order. A batch without one of them is sent whole: its reader says what is missing."""
    edge = Edge(Partitioning.HASH, subpartitions, columns=("k", "v"))
    whole = pa.record_batch({"v": [1, 2], "note": ["a", "b"], "k": [3, 4], "t": [5, 6]})

    edge.writer.emit(whole)
    edge.writer.emit(whole.drop_columns(["v"]))
    edge.writer.flush()

    arrived = [polled.element for view in edge.views for polled in iter(view.poll, None)]
    assert {tuple(batch.schema.names) for batch in arrived} == {("k", "v"), ("note", "k", "t")}
    pairs = [(row["k"], row["v"]) for batch in arrived for row in batch.to_pylist() if "v" in row]
    assert sorted(pairs) == [(3, 1), (4, 2)]


def test_small_batches_are_split_together() -> None:
    """By rows or by bytes they become many enough; a large batch or a flush does not leave them behind."""
    edge = Edge(Partitioning.HASH, 2, target_rows=100)
    for value in range(49):
        edge.writer.emit(rows(value))
    assert edge.arrived(0) == edge.arrived(1) == []

    edge.writer.emit(rows(*range(49, 200)))
    edge.writer.emit(rows(200))
    edge.writer.flush()
    arrived = [[value for batch in edge.arrived(i) for value in batch] for i in (0, 1)]
    expected = split_batch(rows(*range(201)), ["k"], 128, 2)
    assert arrived == [part["k"].to_pylist() for part in expected]
    assert edge.writer.records_out == 201


@pytest.mark.parametrize("how", [Partitioning.REBALANCE, Partitioning.RESCALE])
def test_batches_go_round(how: Partitioning) -> None:
    """Whole batches; small ones are gathered before the turn; subtasks begin at different places."""
    edge = Edge(how, 3, subtask=1)
    for value in range(0, 50, 10):
        edge.writer.emit(rows(*range(value, value + 5)))
    edge.writer.emit(rows(1))
    edge.writer.emit(rows(2))
    edge.writer.flush()

    assert [[b[0] for b in edge.arrived(i)] for i in range(3)] == [[20, 1], [0, 30], [10, 40]]


def test_batches_that_are_too_large_are_cut() -> None:
    """By rows and by bytes; nothing is copied, nothing lost."""
    edge = Edge(target_rows=10)
    edge.writer.emit(rows(*range(95)))
    cut = edge.arrived()
    assert [len(b) for b in cut] == [32, 32, 31]
    assert [value for b in cut for value in b] == list(range(95))

    wide = pa.record_batch({"k": pa.array([0, 1, 2]), "blob": pa.array([b"x" * MAX_BATCH_BYTES] * 3)})
    edge.writer.emit(wide)
    assert edge.arrived() == [[0], [1], [2]]


def test_rows_of_another_schema_do_not_share_a_batch() -> None:
    """Each keeps its own."""
    edge = Edge()
    edge.writer.emit(rows(1))
    edge.writer.emit(pa.record_batch({"k": ["x"]}))
    edge.writer.flush()

    assert edge.arrived() == [[1], ["x"]]


@pytest.mark.parametrize(("how", "subpartitions"), [(Partitioning.FORWARD, 1), (Partitioning.HASH, 2)])
def test_rows_whose_categories_do_not_go_together_leave_apart(how: Partitioning, subpartitions: int) -> None:
    """Eight bits number the categories of each batch, as pandas has them, but not those of both."""
    edge = Edge(how, subpartitions, target_rows=1_000)
    for first in (0, 100):
        names = pa.array([str(first + number) for number in range(100)]).dictionary_encode()
        categories = names.cast(pa.dictionary(pa.int8(), pa.string()))
        edge.writer.emit(pa.record_batch({"k": pa.array(range(first, first + 100)), "name": categories}))
    assert edge.writer.flush_due(0, idle=True) is None
    keys = [key for part in range(subpartitions) for batch in edge.arrived(part) for key in batch]
    assert sorted(keys) == list(range(200))


def test_nothing_is_flushed_into_a_full_queue() -> None:
    """Nobody would take it; barriers go all the same."""
    edge = Edge(max_queued=1)
    edge.writer.emit(rows(*range(5)))
    assert not edge.writer.is_available
    edge.writer.emit(rows(1))
    assert edge.writer.flush_due(0, idle=True) is None
    assert edge.writer.flush_due(10_000, idle=True) is None

    assert edge.arrived() == [[0, 1, 2, 3, 4]]
    assert edge.writer.flush_due(10_001, idle=True) is None
    assert edge.arrived() == [[1]]


def test_before_a_slow_consumer_little_waits_in_small_pieces() -> None:
    """The bound follows what it takes in the target time; a batch is cut so that eight pieces fill it."""
    edge = Edge(target_rows=1 << 20, debloat_target_ms=500)
    writer, part = edge.writer, edge.parts[0]
    large = rows(*range(1 << 16))  # 512 kB
    writer.debloat(0)
    for now_ms in range(200, 6001, 200):
        if writer.is_available:
            writer.emit(large)
        assert edge.views[0].poll() is not None
        writer.debloat(now_ms)

    assert part.queued_bytes < 600 * 1024, "one batch, and little before it"
    while edge.views[0].poll() is not None:
        pass
    writer.emit(large)
    assert not writer.is_available
    piece = edge.views[0].poll()
    assert piece is not None and isinstance(piece.element, pa.RecordBatch)
    assert piece.element.nbytes <= 20 * 1024


def test_rows_for_consumers_that_work_row_by_row_leave_in_the_pieces_of_the_slowest() -> None:
    """The queue of a consumer whose producer waits for another one is never full, and takes no larger pieces."""
    edge = Edge(Partitioning.HASH, 2, target_rows=1 << 14, debloat_target_ms=500, row_wise=True)
    batch = rows(*range(1 << 15))
    slow, fast = edge.views
    edge.writer.debloat(0)
    for now_ms in range(200, 4001, 200):
        while edge.writer.is_available:
            edge.writer.emit(batch)
            while fast.poll() is not None:
                pass
        assert slow.poll() is not None
        edge.writer.debloat(now_ms)

    while slow.poll() is not None:
        pass
    edge.writer.emit(batch)
    edge.writer.flush()
    pieces = [polled.element for polled in iter(fast.poll, None)]
    assert max(piece.nbytes for piece in pieces if isinstance(piece, pa.RecordBatch)) <= 40 * 1024


def test_an_edge_without_debloating_is_bounded_in_batches_alone() -> None:
    """As it was asked for."""
    edge = Edge(target_rows=1 << 20)
    edge.writer.emit(rows(*range(1 << 16)))
    edge.writer.debloat(0)
    edge.writer.debloat(1000)
    assert edge.writer.is_available


def test_all_results_of_a_task_are_there_before_anything_is_made_that_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Consumers wait for them for seconds, and the first of the writers may have a compiler to load."""
    source = ListSource([], {})
    sinks = [Operator(name, SinkSpec(StagingSink(name)), [edge(0, Partitioning.REBALANCE)]) for name in ("a", "b")]
    job = LocalJob([Operator("src", SourceSpec(source, source.spec_splits())), *sinks])
    running = job.find("src")
    there: list[bool] = []

    def make_writer(*given: Any, **named: Any) -> RecordWriter:
        attempt = str(running.descriptor.attempt_id)
        edges = [partition.edge_id for partition in running.descriptor.result_partitions]
        there.extend(job.exchange.subpartition(attempt, edge_id, 0) is not None for edge_id in edges)
        return RecordWriter(*given, **named)

    monkeypatch.setattr(task_wiring, "RecordWriter", make_writer)
    job.step(running)

    assert there == [True] * 4
