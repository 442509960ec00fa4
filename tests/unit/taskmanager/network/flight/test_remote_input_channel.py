"""What a remote channel tells its task and its producer."""

from __future__ import annotations

from snapline.dataflow.elements import (
    AlignmentType,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfPartition,
    StreamElement,
    Watermark,
)
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.network.channels.exchange_contract import ElementFrame
from snapline.taskmanager.network.flight.frames import (
    AddCredit,
    OpenChannel,
    ReleaseChannel,
    ResumeChannel,
    UpstreamFrame,
)
from snapline.taskmanager.network.flight.remote_input_channel import RemoteInputChannel
from tests.contract.exchange_channels import batch, number_of


class Said:
    """A channel with 4 credits, and everything that it said."""

    def __init__(self, gathered_rows: int = 0) -> None:
        self.upstream: list[UpstreamFrame] = []
        self.task: list[tuple[object, ...]] = []
        self.channel = RemoteInputChannel(7, 2, self, 4, self.upstream.append, gathered_rows=gathered_rows)
        self.channel.open("producer", 1, "consumer")
        self._number = 0

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        self.task.append((channel_index, priority))

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        self.task.append((channel_index, cause))

    def arrive(self, *elements: StreamElement, priority: bool = False) -> None:
        for element in elements:
            self.channel.on_element(ElementFrame(0, element, self._number, 0, priority))
            self._number += 1

    def polled(self) -> list[object]:
        found = []
        while (polled := self.channel.poll()) is not None:
            found.append(number_of(polled.element))
        return found


def test_it_opens_with_all_its_credit() -> None:
    """And its own number, which everything later refers to."""
    assert Said().upstream == [OpenChannel(7, 1, 4, "producer", "consumer")]


def test_the_task_is_woken_once_for_what_waits() -> None:
    """Again after it has polled everything; a priority element wakes it at any time."""
    said = Said()

    said.arrive(batch(0), batch(1))
    assert said.task == [(2, False)]
    assert said.polled() == [0, 1]
    said.arrive(Watermark(1))
    said.arrive(
        CheckpointBarrier(CheckpointID(1), 0, CheckpointOptions(alignment=AlignmentType.UNALIGNED)), priority=True
    )

    assert said.task == [(2, False), (2, False), (2, True)]


def test_credit_goes_back_in_halves_of_the_window() -> None:
    """For batches only, and only once the task has them: by the task at once when the producer has none left, else
    behind the next element that arrives."""
    said = Said()
    said.arrive(batch(0), Watermark(1), batch(1), batch(2), batch(3))
    assert said.upstream[1:] == []

    assert said.polled() == [0, Watermark(1), 1, 2, 3]
    assert said.upstream[1:] == [AddCredit(7, 2)]
    said.arrive(batch(4))

    assert said.upstream[1:] == [AddCredit(7, 2), AddCredit(7, 2)]


def test_batches_that_are_gathered_give_back_a_credit_each() -> None:
    """The producer has sent so many."""
    said = Said(gathered_rows=100)
    said.arrive(batch(0), batch(1), batch(2), batch(3))

    assert [0] == said.polled()
    assert [AddCredit(7, 4)] == said.upstream[1:]


def test_more_than_the_credit_is_a_failure() -> None:
    """A producer that does not count would fill this process."""
    said = Said()

    said.arrive(*(batch(number) for number in range(5)))

    assert said.task[-1] == (2, "the sender sent a batch without credit")


def test_a_gap_is_a_failure_told_once() -> None:
    """Something is missing: nothing after it may be processed as if it were not."""
    said = Said()
    said.arrive(batch(0))

    said.channel.on_element(ElementFrame(0, batch(2), 2, 0))
    said.channel.on_element(ElementFrame(0, batch(3), 3, 0))
    said.channel.on_failed("later")

    assert len(said.task) == 2
    assert "element 2 arrived where 1 was due" in str(said.task[1])


def test_an_end_that_has_arrived_is_no_failure() -> None:
    """Even if the connection is lost before the task polled it; no credit is sent after it either."""
    said = Said()
    said.arrive(batch(0), batch(1), EndOfPartition())

    said.channel.on_failed("connection lost")

    assert said.polled() == [0, 1, EndOfPartition()]
    assert said.task == [(2, False)]
    assert said.upstream[1:] == []


def test_resume_and_release_are_said_to_the_producer() -> None:
    """After its release a channel says nothing to its task."""
    said = Said()
    said.arrive(batch(0))

    said.channel.resume_consumption()
    said.channel.release()
    said.arrive(batch(1))
    said.channel.on_failed("too late")

    assert said.upstream[1:] == [ResumeChannel(7), ReleaseChannel(7)]
    assert said.task == [(2, False)]
    assert said.polled() == []
