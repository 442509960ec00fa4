"""What waits to be sent on a connection, and how much of it leaves at a time."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.codec import decode_envelope
from snapline.dataflow.wire.messages import Disconnect, Fenced, SubmitTasks
from snapline.runtime.rpc import dialing
from snapline.runtime.rpc.dialing import OutgoingQueue, take_envelope

SESSION = LeaderSessionID("session")


def test_what_would_be_too_large_for_one_envelope_leaves_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgements of a checkpoint may bring state with them, and gRPC ends a stream at an envelope that is too
    large."""
    monkeypatch.setattr(dialing, "LARGE_ENVELOPE_BYTES", 1_000)
    messages = [Disconnect(f"{number} {'x' * 400}") for number in range(7)] + [Disconnect("y" * 2_000)]
    queue = OutgoingQueue()
    for message in messages:
        assert queue.put(Fenced(SESSION, message))
    queue.close()

    envelopes = list(queue.envelopes(threading.Event()))

    sent = [decode_envelope(envelope) for envelope in envelopes]
    assert [message for session, part in sent for message in part if session == SESSION] == messages
    assert all(envelope.ByteSize() <= 1_000 for envelope in envelopes[:-1])


def test_tasks_to_be_run_end_an_envelope() -> None:
    """They may be as much as one can hold."""
    waiting = deque(Fenced(SESSION, message) for message in (Disconnect("why"), SubmitTasks(()), SubmitTasks(())))

    assert take_envelope(waiting) == (SESSION, [Disconnect("why"), SubmitTasks(())])
    assert take_envelope(waiting) == (SESSION, [SubmitTasks(())])
