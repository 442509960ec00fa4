"""How long a relay gathers what is for a coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from snapline.runtime.cores.relaying import Frame, StreamNumber
from snapline.runtime.logs import silent_logger
from snapline.runtime.relay import relay_server as relay
from snapline.runtime.rpc.security import Security


def lingers(
    monkeypatch: pytest.MonkeyPatch, comes: list[int], linger_ms: int = 5, close_after: int = -1
) -> list[float]:
    """The waits, when so many frames of a byte each come during each of them."""
    trunk = relay._TrunkCall()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        for _ in range(comes[len(waits)] if len(waits) < len(comes) else 0):
            trunk.waiting.append(Frame(StreamNumber(1), b"x"))
            trunk.waiting_bytes += 1
        waits.append(seconds)
        trunk.is_closing = len(waits) == close_after

    server: Any = relay.RelayServer(Security(), linger_ms, silent_logger())
    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(server._linger(trunk))
    return waits


def test_it_waits_while_more_comes_but_not_for_long(monkeypatch):
    """One silent wait is enough; four are the most."""
    assert lingers(monkeypatch, []) == [0.005]
    assert lingers(monkeypatch, [3, 1]) == [0.005] * 3
    assert lingers(monkeypatch, [1] * 100) == [0.005] * 4


def test_it_does_not_wait_for_nothing(monkeypatch):
    """Told not to wait; a trunk that is closed; a full message."""
    assert lingers(monkeypatch, [1] * 100, linger_ms=0) == []
    assert lingers(monkeypatch, [1] * 100, close_after=2) == [0.005] * 2
    monkeypatch.setattr(relay, "MAX_BYTES_PER_WRITE", 3)
    assert lingers(monkeypatch, [2, 2, 2]) == [0.005] * 2
