"""The contract of the exchange, kept by each way that data can go: inside one process without locks, inside one with
them, and between two TaskManagers (here in one process, because the network does not know) over Flight, and by a socket
of the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from snapline.dataflow.elements import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    EventAnnouncement,
    LatencyMarker,
    SnapshotType,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import QueueFigures
from snapline.taskmanager.network.channels.credit import ROW_WISE_CREDITS
from snapline.taskmanager.network.channels.exchange_contract import Exchange
from snapline.taskmanager.network.channels.local_exchange import LocalExchange
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange
from tests.contract.exchange_channels import EDGE, PRODUCER, Room, TaskSide, batch, number_of

QUEUED, CREDITS = 4, 4


@dataclass(frozen=True)
class Pair:
    """Where producers and consumers live."""

    name: str
    producers: Exchange
    consumers: Exchange
    address: str
    in_flight: int
    """Batches that may be on the way, or received and not polled."""

    def task(self) -> TaskSide:
        return TaskSide(self.consumers)


@pytest.fixture(params=["pure", "one process", "flight", "host"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    settings = ExchangeSettings(
        credits_per_channel=CREDITS,
        max_queued_batches=QUEUED,
        request_backoff_max_ms=5000,
        by_host_sockets=request.param == "host",
    )
    if request.param == "pure":
        pure = LocalExchange(max_queued_batches=QUEUED)
        yield Pair(request.param, pure, pure, "", 0)
        return
    with FlightExchange(settings) as first, FlightExchange(settings) as second:
        if request.param == "one process":
            yield Pair(request.param, first, first, first.address, 0)
        else:
            yield Pair(request.param, first, second, first.address, CREDITS)


def barrier(number: int, alignment: AlignmentType, timeout_ms: int = -1) -> CheckpointBarrier:
    return CheckpointBarrier(
        CheckpointID(number), 1_700_000_000_000, CheckpointOptions(SnapshotType.CHECKPOINT, alignment, timeout_ms)
    )


def test_every_element_arrives_as_it_was_sent_in_its_order(pair: Pair) -> None:
    """Batches, watermarks, status, barriers with all their options, markers and both ends."""
    sent: list[StreamElement] = [
        WatermarkStatus.IDLE,
        batch(1),
        Watermark(-(2**63)),
        WatermarkStatus.ACTIVE,
        batch(2),
        batch(3),
        Watermark(1_700_000_000_000),
        LatencyMarker(1_700_000_000_001, "orders"),
        CheckpointBarrier(
            CheckpointID(7),
            1_700_000_000_123,
            CheckpointOptions(SnapshotType.FULL_CHECKPOINT, AlignmentType.AT_LEAST_ONCE, -1, "job/chk-7"),
        ),
        EventAnnouncement(barrier(8, AlignmentType.ALIGNED, 500), 2**40),
        CancelCheckpointMarker(CheckpointID(9)),
        Watermark(2**63 - 1),
        EndOfData(drain=False),
        EndOfData(drain=True),
        EndOfPartition(),
    ]
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)

    for element in sent:
        subpartition.add(element)
    received = [task.poll(channel) for _ in sent]

    assert [number_of(each.element) for each in received] == [number_of(each) for each in sent]
    assert [each.sequence_number for each in received] == list(range(len(sent)))
    assert received[1].element == sent[1] and received[1].element.schema == batch(1).schema
    assert channel.poll() is None
    assert task.failures == []
    task.release()


def test_a_consumer_may_come_before_its_producer(pair: Pair) -> None:
    """The JobMaster deploys both at once; who is first does not matter."""
    task = pair.task()
    channel = task.open(pair.address)
    assert channel.poll() is None

    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    subpartition.add(batch(1))

    assert task.read(channel, 1) == [1]
    task.release()


def test_each_channel_gets_its_own_subpartition(pair: Pair) -> None:
    """Two producers, three consumers: nothing of one channel shows in another."""
    producers = ["graph_source_0_0", "graph_source_1_0"]
    partitions = [pair.producers.create_result_partition(producer, EDGE, 3) for producer in producers]
    task = pair.task()
    channels = [
        [task.open(pair.address, producer=producer, index=index) for index in range(3)] for producer in producers
    ]

    for number in range(4):
        for p, partition in enumerate(partitions):
            for s, subpartition in enumerate(partition):
                subpartition.add(batch(100 * p + 10 * s + number))

    for p in range(2):
        for s in range(3):
            assert task.read(channels[p][s], 4) == [100 * p + 10 * s + number for number in range(4)]
    task.release()


def test_a_consumer_that_does_not_poll_stops_its_producer(pair: Pair) -> None:
    """What waits is bounded by the queue and the credits; polling makes room, and the producer hears of it."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    room = Room(subpartition)

    taken = room.fill_until_stuck(QUEUED + pair.in_flight)
    stuck = not subpartition.is_available
    read = task.read(channel, taken)

    assert taken == QUEUED + pair.in_flight
    assert stuck
    assert read == list(range(taken))
    room.wait()
    assert subpartition.queued_bytes == 0
    task.release()


def test_less_is_on_its_way_to_a_consumer_that_works_row_by_row(pair: Pair) -> None:
    """One batch that it works on and one that follows; a barrier waits for no more than these and the queue."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address, row_wise=True)

    on_their_way = min(ROW_WISE_CREDITS, pair.in_flight)
    taken = Room(subpartition).fill_until_stuck(QUEUED + on_their_way)

    assert taken == QUEUED + on_their_way
    assert task.read(channel, taken) == list(range(taken))
    task.release()


def test_what_waits_and_what_may_come_is_counted_at_both_ends(pair: Pair) -> None:
    """A full queue shows as 1.0 where it is full; credits are what a producer in another process may still send."""
    subpartition, other = pair.producers.create_result_partition(PRODUCER, EDGE, 2)
    task = pair.task()
    channel, seldom_used = task.open(pair.address), task.open(pair.address, index=1)
    nothing = QueueFigures(credits=pair.in_flight)
    assert (channel.queued, subpartition.queued.batches) == (nothing, 0)

    taken = Room(subpartition).fill_until_stuck(QUEUED + pair.in_flight)
    full = QueueFigures(QUEUED, QUEUED * batch(0).nbytes, 1.0, 0)
    assert (taken, subpartition.queued, channel.queued) == (QUEUED + pair.in_flight, full, full)
    task.read(channel, taken)
    assert (channel.queued, subpartition.queued.batches) == (nothing, 0)

    other.add(batch(0))
    assert task.read(seldom_used, 1) == [0]
    assert other.queued == QueueFigures(credits=max(0, pair.in_flight - 1))
    task.release()


def test_a_slow_consumer_gets_everything_once(pair: Pair) -> None:
    """Many times the window goes through a stop-and-go channel."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    room = Room(subpartition)
    read: list[object] = []
    sent = 0

    for _ in range(20):
        while subpartition.is_available:
            subpartition.add(batch(sent))
            sent += 1
        read += task.read(channel, 3)
        room.wait()
    read += task.read(channel, sent - len(read))

    assert read == list(range(sent))
    task.release()


def test_an_unaligned_barrier_overtakes_and_both_ends_know_what(pair: Pair) -> None:
    """The batches that it overtook in the producer's queue and in the consumer's are all there are, in order."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    taken = Room(subpartition).fill_until_stuck(QUEUED + pair.in_flight)
    urgent = barrier(1, AlignmentType.UNALIGNED)

    overtaken = subpartition.add(urgent, priority=True)
    task.wait_for_priority() if pair.in_flight else None
    first = task.poll(channel)
    in_flight = channel.inflight_batches()

    assert first.element == urgent
    assert first.is_priority
    assert [number_of(each) for each in (*in_flight, *overtaken)] == list(range(taken))
    assert task.read(channel, taken) == list(range(taken))
    task.release()


def test_nothing_passes_an_aligned_barrier_before_consumption_is_resumed(pair: Pair) -> None:
    """The channel waits for the other channels' barriers."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    aligned = barrier(1, AlignmentType.ALIGNED)

    for element in (batch(1), aligned, batch(2), Watermark(5)):
        subpartition.add(element)
    before = task.read(channel, 2)
    behind = channel.poll()
    channel.resume_consumption()

    assert before == [1, aligned]
    assert behind is None
    assert task.read(channel, 2) == [2, Watermark(5)]
    task.release()


def test_a_barrier_that_times_out_goes_first_wherever_it_waits(pair: Pair) -> None:
    """In the producer's queue the producer makes it unaligned; in the consumer's, which had it announced, it only
    changes its place, and the producer stays stopped behind it until it is resumed."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    for number in range(3):
        subpartition.add(batch(number))
    patient = barrier(1, AlignmentType.ALIGNED, timeout_ms=100)
    subpartition.add(patient)
    overtaken: list[pa.RecordBatch] = []
    expected = patient

    if pair.in_flight:
        task.wait_for_priority()
        assert task.poll(channel).element == EventAnnouncement(patient, 3)
        assert subpartition.time_out(patient) is None
        channel.convert_to_priority(3)
    else:
        assert subpartition.is_barrier_waiting(patient.checkpoint_id)
        overtaken = list(subpartition.time_out(patient) or ())
        expected = patient.as_unaligned()
    turned = task.poll(channel)

    assert turned.element == expected
    assert turned.is_priority
    assert [number_of(each) for each in (*channel.inflight_batches(), *overtaken)] == [0, 1, 2]
    subpartition.add(batch(3))
    assert task.read(channel, 3) == [0, 1, 2]
    if pair.in_flight:
        assert channel.poll() is None
        channel.resume_consumption()
    assert task.read(channel, 1) == [3]
    task.release()


def test_a_producer_that_is_gone_fails_its_consumers(pair: Pair) -> None:
    """Released before its end: the consumer hears which producer."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    subpartition.add(batch(1))
    assert task.read(channel, 1) == [1]

    pair.producers.release_result_partition(PRODUCER, EDGE)

    index, cause = task.failure()
    assert index == 0
    assert PRODUCER in cause and EDGE in cause
    task.release()


def test_a_partition_read_to_its_end_may_go(pair: Pair) -> None:
    """A finished producer is no failure."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    subpartition.add(EndOfPartition())
    assert task.read(channel, 1) == [EndOfPartition()]

    pair.producers.release_result_partition(PRODUCER, EDGE)
    task.release()

    assert task.failures == []


def test_without_its_consumer_a_subpartition_takes_and_drops_everything(pair: Pair) -> None:
    """The producer, which will be told by the JobMaster, does not hang."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    room = Room(subpartition)
    room.fill_until_stuck(QUEUED + pair.in_flight)

    channel.release()
    room.wait()
    for number in range(3 * QUEUED):
        subpartition.add(batch(number))

    assert subpartition.is_available
    assert subpartition.queued_bytes == 0
    assert channel.poll() is None
    assert task.failures == []


def test_a_new_attempt_shares_nothing_with_the_old_one(pair: Pair) -> None:
    """Same edge, same subtasks, new attempt ids on both ends, while the old attempt's ends still exist."""
    (old,) = pair.producers.create_result_partition("graph_source_0_0", EDGE, 1)
    old_task = pair.task()
    old_channel = old_task.open(pair.address, producer="graph_source_0_0", consumer="graph_sink_0_0")
    old.add(batch(1))
    old.add(batch(2))
    assert old_task.read(old_channel, 1) == [1]

    (new,) = pair.producers.create_result_partition("graph_source_0_1", EDGE, 1)
    new_task = pair.task()
    new_channel = new_task.open(pair.address, producer="graph_source_0_1", consumer="graph_sink_0_1")
    new.add(batch(10))
    old_task.release()
    pair.producers.release_result_partition("graph_source_0_0", EDGE)
    new.add(batch(11))

    first = [new_task.poll(new_channel) for _ in range(2)]
    assert [(each.sequence_number, number_of(each.element)) for each in first] == [(0, 10), (1, 11)]
    assert new_task.failures == old_task.failures == []
    new_task.release()


@pytest.mark.parametrize(
    "columns",
    [
        {"n": pa.array([], pa.int64())},
        {"n": pa.array([1, None, 3], pa.int64()), "s": pa.array(["a", None, ""])},
        {"d": pa.array(["x", "y", "x", None]).dictionary_encode()},
        {"l": pa.array([[1, 2], None, []]), "st": pa.array([{"a": 1}, None, {"a": None}])},
        {"t": pa.array([0, 1], pa.timestamp("us", "UTC")), "b": pa.array([b"\0", None]), "f": pa.array([True, False])},
    ],
    ids=["no rows", "nulls", "dictionary", "nested", "others"],
)
def test_any_columns_arrive(pair: Pair, columns: dict[str, pa.Array]) -> None:
    """Whole batches and slices, of every kind of column, metadata too."""
    whole = pa.record_batch(columns).replace_schema_metadata({"origin": "test"})
    sent = [whole, whole.slice(1, 1), whole.slice(0, 1)]
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)

    for each in sent:
        subpartition.add(each)
    received = [task.poll(channel).element for _ in sent]

    for got, expected in zip(received, sent, strict=True):
        assert isinstance(got, pa.RecordBatch)
        assert got.equals(expected, check_metadata=True)
        got.validate(full=True)
    task.release()


def test_columns_may_change_on_the_way(pair: Pair) -> None:
    """A user function that changes its columns behaves the same wherever its consumer runs; dictionaries differ per
    batch."""
    first = batch(0)
    sent = [
        first,
        pa.record_batch({"other": pa.array([1.5])}),
        batch(1),
        pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode()}),
        pa.record_batch({"d": pa.array(["c", "d", "e"]).dictionary_encode()}),
        batch(2),
    ]
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)
    room = Room(subpartition)
    received = []

    for each in sent:
        room.wait()
        subpartition.add(each)
        received.append(task.poll(channel).element)

    assert [each.to_pydict() for each in received if isinstance(each, pa.RecordBatch)] == [
        each.to_pydict() for each in sent
    ]
    task.release()


def test_an_index_that_does_not_exist_fails_the_channel_not_the_producer(pair: Pair) -> None:
    """The consumer was deployed for another parallelism."""
    task = pair.task()
    task.open(pair.address, index=5)

    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    subpartition.add(batch(1))

    assert "none with index 5" in task.failure()[1]
    task.release()


def test_a_whole_checkpoint_with_every_option_survives(pair: Pair) -> None:
    """Each combination of snapshot type and alignment is the same barrier on the other side."""
    (subpartition,) = pair.producers.create_result_partition(PRODUCER, EDGE, 1)
    task = pair.task()
    channel = task.open(pair.address)

    for number, (kind, alignment) in enumerate(
        ((kind, alignment) for kind in SnapshotType for alignment in AlignmentType), start=1
    ):
        options = CheckpointOptions(kind, alignment, 1000 * number, f"chk-{number}")
        sent = CheckpointBarrier(CheckpointID(number), number, options)
        subpartition.add(sent, priority=options.is_unaligned)
        got = task.poll(channel).element
        if isinstance(got, EventAnnouncement):
            assert got.barrier == sent
            got = task.poll(channel).element
        assert got == sent and dataclasses.asdict(got) == dataclasses.asdict(sent)
        if options.needs_alignment:
            channel.resume_consumption()
    task.release()
