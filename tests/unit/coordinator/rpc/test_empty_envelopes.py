"""What the budget of a connection counts, whose bound is in `tests/unit/runtime/cores/test_message_budget.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from snapline.coordinator.rpc import gateways
from snapline.coordinator.rpc.gateways import ServedStream, ServedStreams
from snapline.protos import cluster_pb2
from snapline.runtime.cores.connections import ConnectionID, PeerKind
from snapline.runtime.cores.credentials import ADMINISTRATOR, Identity, Role
from snapline.runtime.cores.message_budget import BURST, MessageBudget
from snapline.runtime.logs import silent_logger


class Told:
    """Stands for the streams of a server, and counts what is told to an actor."""

    def __init__(self) -> None:
        self.envelopes = 0

    def received(self, _stream: ServedStream, _envelope: cluster_pb2.Envelope) -> None:
        """Count one more."""
        self.envelopes += 1

    def budget_of(self, _stream: ServedStream, now_s: float) -> MessageBudget:
        """A budget for this one."""
        return MessageBudget(now_s)


def test_envelopes_without_messages_have_a_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost nothing, and each was told to the actor of its stream as an event of its own, as fast as it came."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def envelopes() -> AsyncIterator[cluster_pb2.Envelope]:
        for _ in range(3 * BURST):
            yield cluster_pb2.Envelope()

    async def read() -> None:
        gateway = gateways._Gateway(PeerKind.RESOURCE_MANAGER, told, silent_logger())
        stream = ServedStream(
            PeerKind.RESOURCE_MANAGER, ConnectionID("serve-1"), ADMINISTRATOR, "ipv4:127.0.0.1:1", lambda: None
        )
        await gateway._read(stream, envelopes())

    told: Any = Told()
    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(read())
    assert (3 * BURST, True) == (told.envelopes, bool(pauses))


def test_streams_with_one_credential_have_one_budget() -> None:
    """A function opened four thousand streams with what it found in its TaskManager, and each had the budget of one:
    the coordinator's actors had more to hear than they could. Other TaskManagers of the host have theirs, and so has
    each stream of who shows no name."""
    streams = ServedStreams(*NOTHING)

    def spend(name: str, messages: int, host: str = "10.0.0.7") -> float:
        identity = Identity(Role.TASK_MANAGER, name=name)
        peer = f"ipv4:{host}:4711"
        stream = ServedStream(PeerKind.RESOURCE_MANAGER, ConnectionID("serve-1"), identity, peer, lambda: None)
        return streams.budget_of(stream, 5.0).spend(messages, 5.0)

    assert [0.0, 0.0, 0.0, 0.0] == [spend("tm-1", BURST), spend("tm-2", BURST), spend("", BURST), spend("", BURST)]
    assert spend("tm-1", 1) > 0 and 0.0 == spend("tm-1", 1, host="10.0.0.8")


NOTHING: Any = (None,) * 4
