"""Who writes on a stream on which no write waits, and what one stream may have."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.dataflow.elements import Watermark
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog
from snapline.taskmanager.network.flight import frames, outbound_stream
from snapline.taskmanager.network.flight.outbound_stream import MOST_STEPS_FOR_OTHERS, OutboundStream

PATIENCE_SECONDS = 20.0


class EndlessChannel:
    """A channel that always has one more watermark."""

    def poll(self, *, has_credit: bool = True) -> BufferAndBacklog:
        return BufferAndBacklog(Watermark(1), 0, 0, more_available=True)

    def resume_consumption(self) -> None: ...

    def request(self, count: int) -> None: ...

    def count_credits(self, credits_left: Any) -> None: ...

    def release(self) -> None: ...


class Peer:
    """Opens one channel, and hangs up when it has had enough; it takes everything at once."""

    def __init__(self) -> None:
        self.written_by: list[str] = []
        self.is_behind = False
        self._has_opened = False
        self._enough = threading.Event()

    def read_chunk(self) -> Any:
        if not self._has_opened:
            self._has_opened = True
            return SimpleNamespace(app_metadata=frames.encode_upstream(frames.OpenChannel(0, 0, 1, "p", "c")))
        assert self._enough.wait(PATIENCE_SECONDS)
        raise StopIteration

    def write_metadata(self, message: bytes) -> None:
        self.written_by.append(threading.current_thread().name)
        if len(self.written_by) == 320:
            self._enough.set()

    def flush(self) -> None: ...

    def cancel(self) -> None: ...


def test_nobody_writes_for_others_for_ever() -> None:
    """A task that finds nobody writing writes what the others add meanwhile, too, but has rows of its own to compute:
    the stream's thread goes on."""
    peer = Peer()
    stream = OutboundStream("edge", lambda edge_id, frame, listener: EndlessChannel())

    stream.serve(peer, peer, in_place=True)

    own = peer.written_by.count(threading.current_thread().name)
    assert 0 < own <= MOST_STEPS_FOR_OTHERS
    assert len(peer.written_by) >= 320


class Talker:
    """A peer that says all this, and reads nothing: the first write to it waits until it has said everything."""

    def __init__(self, said: Iterable[frames.UpstreamFrame]) -> None:
        self._said = iter(said)
        self.count = 0
        self._is_through = threading.Event()

    def read_chunk(self) -> Any:
        for frame in self._said:
            self.count += 1
            return SimpleNamespace(app_metadata=frames.encode_upstream(frame))
        self._is_through.set()
        raise StopIteration

    def write_metadata(self, _message: bytes) -> None:
        self._is_through.wait(PATIENCE_SECONDS / 10)


def opened(number: int) -> frames.OpenChannel:
    return frames.OpenChannel(number, number, 1, "p", "c")


def refuse(*_: Any) -> Any:
    """Find no such subpartition."""
    raise InvariantViolation("a subpartition has one consumer")


OPEN_MANY = [opened(number) for number in range(200)]
OPEN_AND_LEAVE = list(itertools.chain.from_iterable((opened(0), frames.ReleaseChannel(0)) for _ in range(200)))


@pytest.mark.parametrize("said", [OPEN_MANY, OPEN_AND_LEAVE], ids=["open", "open and leave"])
@pytest.mark.parametrize("finds", [EndlessChannel, None], ids=["found", "refused"])
def test_channels_of_a_stream_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, said: list[frames.UpstreamFrame], finds: type[EndlessChannel] | None
) -> None:
    """Whoever opens them without end (200,000 took 400 MB), whether or not there is such a subpartition, or has them
    refused or leaves them, and reads nothing of what is said about it: its stream ends in one line."""
    monkeypatch.setattr(outbound_stream, "MAX_CHANNELS", 50, raising=False)
    peer = Talker(said)
    stream = OutboundStream("edge", refuse if finds is None else lambda *_: finds())

    with pytest.raises(frames.ProtocolError, match="more than 50 channels on one stream"):
        stream.serve(peer, peer)
    assert peer.count <= 110
