"""Channels that are there before their producer."""

from __future__ import annotations

from typing import Any

import pytest

from snapline.taskmanager.network.channels.local_exchange import LocalExchange


class Nobody:
    """A listener that is told nothing here."""

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None: ...

    def notify_channel_failed(self, channel_index: int, cause: str) -> None: ...


@pytest.mark.timeout(30)
def test_leaving_many_channels_of_one_producer_looks_at_each_once() -> None:
    """A peer that opens 131,072 of them, and hangs up, had each look at all others under the lock that all tasks of the
    TaskManager share: nothing flowed there for an hour."""
    exchange = LocalExchange()

    def channel(index: int) -> Any:
        return exchange.create_input_channel(
            consumer="c",
            producer="p",
            edge_id="e",
            subpartition_index=index,
            exchange_address="",
            channel_index=index,
            listener=Nobody(),
        )

    channels = [channel(index) for index in range(131_072)]
    again = channel(0)
    for each in channels:
        each.release()

    (read,) = exchange.create_result_partition("p", "e", 1)
    assert again.is_connected
    again.release()
    assert not read.is_available or exchange.subpartition("p", "e", 0) is None
