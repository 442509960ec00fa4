"""Whose turn it is on a stream, and what credit has to do with it."""

from __future__ import annotations

import pytest

from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.flight.partition_request_queue import ChannelTurn, PartitionRequestQueue


def queue_of(*credit: int) -> PartitionRequestQueue:
    queue = PartitionRequestQueue()
    for channel_id, initial in enumerate(credit):
        queue.add_reader(channel_id, initial)
    return queue


def turns(queue: PartitionRequestQueue) -> list[ChannelTurn]:
    found = []
    while (turn := queue.next_turn()) is not None:
        found.append(turn)
    return found


def test_each_channel_stands_in_line_once() -> None:
    """However often it is announced."""
    queue = queue_of(1, 1)

    for channel_id in (0, 1, 0, 0, 1):
        queue.notify_available(channel_id, priority=False)

    assert turns(queue) == [ChannelTurn(0, has_credit=True), ChannelTurn(1, has_credit=True)]


def test_a_channel_that_has_sent_goes_to_the_end() -> None:
    """Round and round."""
    queue = queue_of(9, 9)
    queue.notify_available(0, priority=False)
    queue.notify_available(1, priority=False)
    order = []

    for _ in range(6):
        turn = queue.next_turn()
        assert turn is not None
        order.append(turn.channel_id)
        queue.batch_sent(turn.channel_id)
        queue.notify_available(turn.channel_id, priority=False)

    assert order == [0, 1, 0, 1, 0, 1]


def test_priority_goes_to_the_front_wherever_the_channel_stands() -> None:
    """Priority channels among themselves in the order of their announcement."""
    queue = queue_of(1, 1, 1, 1)
    for channel_id in (0, 1, 2):
        queue.notify_available(channel_id, priority=False)

    queue.notify_available(2, priority=True)
    queue.notify_available(3, priority=True)

    assert [turn.channel_id for turn in turns(queue)] == [2, 3, 0, 1]


def test_credit_is_used_up_and_comes_back() -> None:
    """Without credit a turn is for events; new credit gives a turn when there was none."""
    queue = queue_of(1)
    queue.notify_available(0, priority=False)
    assert turns(queue) == [ChannelTurn(0, has_credit=True)]
    queue.batch_sent(0)
    queue.notify_available(0, priority=False)
    assert turns(queue) == [ChannelTurn(0, has_credit=False)]

    queue.add_credit(0, 2)
    assert turns(queue) == [ChannelTurn(0, has_credit=True)]
    queue.add_credit(0, 1)
    assert turns(queue) == []


def test_sending_without_credit_is_a_defect() -> None:
    """It would overrun the consumer."""
    queue = queue_of(1)
    queue.batch_sent(0)

    with pytest.raises(InvariantViolation, match="without credit"):
        queue.batch_sent(0)


def test_a_removed_channel_gets_no_turn() -> None:
    """Even if it stands in line; what is still said about it is ignored, and its number may be used again."""
    queue = queue_of(1, 1)
    queue.notify_available(0, priority=False)
    queue.notify_available(1, priority=False)

    queue.remove_reader(0)
    queue.remove_reader(0)
    queue.add_credit(0, 1)
    queue.batch_sent(0)
    queue.notify_available(0, priority=True)

    assert queue.channel_ids == (1,)
    assert turns(queue) == [ChannelTurn(1, has_credit=True)]
    queue.add_reader(0, 1)
    with pytest.raises(InvariantViolation, match="channel 0 is open already"):
        queue.add_reader(0, 1)
