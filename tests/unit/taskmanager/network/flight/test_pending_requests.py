"""Deadlines are kept in order, and none after the end."""

from __future__ import annotations

import threading

from snapline.taskmanager.network.flight.pending_requests import PendingRequests


def test_what_waits_too_long_is_called() -> None:
    """In the order of asking."""
    requests = PendingRequests(10)
    called: list[int] = []
    done = threading.Event()

    requests.expire_later(lambda: called.append(1))
    requests.expire_later(lambda: called.append(2))
    requests.expire_later(done.set)

    assert done.wait(20)
    assert called == [1, 2]
    requests.close()


def test_nothing_is_called_after_the_end() -> None:
    """The thread is gone, too."""
    requests = PendingRequests(60_000)
    called: list[int] = []
    requests.expire_later(lambda: called.append(1))

    requests.close()
    requests.expire_later(lambda: called.append(2))

    assert called == []
    assert not [thread for thread in threading.enumerate() if thread.name == "exchange-requests"]
