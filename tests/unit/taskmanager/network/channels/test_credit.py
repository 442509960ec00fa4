"""Credits bound what is on its way, and never run dry."""

from __future__ import annotations

import random

import pytest

from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.credit import ReceiverCredit, SenderCredit


def test_receiver_grants_its_own_credits_first_and_more_by_backlog() -> None:
    """Up to the maximum, minus what waits to be consumed."""
    receiver = ReceiverCredit(exclusive=2, maximum=5)

    assert receiver.open() == 2
    assert receiver.on_batch(backlog=10) == ""
    assert receiver.on_batch(backlog=9) == ""
    assert receiver.on_consumed() == 4
    assert (receiver.outstanding, receiver.queued) == (4, 1)


def test_batch_without_credit_fails_the_channel() -> None:
    """The sender broke the rule."""
    receiver = ReceiverCredit(exclusive=1, maximum=1)
    receiver.open()
    receiver.on_batch(backlog=0)

    assert receiver.on_batch(backlog=0) == "the sender sent a batch without credit"


def test_sender_sends_events_without_credit_and_batches_with_it() -> None:
    """A batch takes one credit; without credit it may not be sent."""
    sender = SenderCredit()

    assert sender.can_send(is_data=False)
    assert not sender.can_send(is_data=True)
    sender.add_credit(1)
    sender.on_sent(is_data=True)
    with pytest.raises(InvariantViolation, match="without credit"):
        sender.on_sent(is_data=True)


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_and_the_receiver_never_holds_more_than_its_maximum(seed: int) -> None:
    """Sender and receiver over two delayed directions."""
    draw = random.Random(seed)
    maximum = draw.randint(1, 6)
    receiver = ReceiverCredit(exclusive=draw.randint(1, maximum), maximum=maximum)
    sender = SenderCredit()
    to_send = 100
    wire: list[int] = []
    granted_credits = [receiver.open()]
    received = consumed = 0
    for _ in range(20_000):
        match draw.randrange(4):
            case 0 if to_send and sender.can_send(is_data=True):
                sender.on_sent(is_data=True)
                to_send -= 1
                wire.append(to_send)
            case 1 if wire:
                assert receiver.on_batch(wire.pop(0)) == ""
                received += 1
            case 2 if received > consumed:
                consumed += 1
                granted_credits.append(receiver.on_consumed())
            case 3 if granted_credits:
                granted = granted_credits.pop(0)
                if granted:
                    sender.add_credit(granted)
        assert receiver.outstanding + receiver.queued <= maximum
        if consumed == 100:
            return
    raise AssertionError(f"stuck after {consumed}")
