"""Who writes on a stream on which no write waits."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from snapline.dataflow.elements import Watermark
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog
from snapline.taskmanager.network.flight import frames
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
