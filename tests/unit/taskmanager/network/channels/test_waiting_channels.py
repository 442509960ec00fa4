"""Channels that are there before their producer, and results whose consumers never come."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
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


def test_what_nobody_read_of_an_earlier_attempt_goes_when_the_next_one_begins() -> None:
    """A producer that has finished leaves its results to its consumers. When these were lost before they connected, the
    results stayed until the TaskManager ended, once for each such restart."""
    exchange = LocalExchange()

    def reader(attempt: int, index: int) -> Any:
        return exchange.create_input_channel(
            consumer=f"graph_sink_{index}_{attempt}",
            producer=f"graph_source_0_{attempt}",
            edge_id="e",
            subpartition_index=index,
            exchange_address="",
            channel_index=index,
            listener=Nobody(),
        )

    other = exchange.create_result_partition("graph_source_1_0", "e", 2)
    elsewhere = exchange.create_result_partition("graph_source_0_0", "other edge", 2)
    first = exchange.create_result_partition("graph_source_0_0", "e", 2)
    for each in (*first, *other, *elsewhere):
        each.add(pa.RecordBatch.from_pydict({"n": [1]}))
    still_reads = reader(0, 1)
    second = exchange.create_result_partition("graph_source_0_1", "e", 2)

    assert [each.queued.batches for each in first] == [0, 1]
    assert still_reads.poll() is not None
    still_reads.release()
    assert exchange.subpartition("graph_source_0_0", "e", 0) is None
    assert [each.queued.batches for each in (*other, *elsewhere)] == [1, 1, 1, 1]

    for each in second:
        each.add(pa.RecordBatch.from_pydict({"n": [2]}))
    exchange.create_result_partition("graph_source_0_2", "e", 2)
    assert exchange.subpartition("graph_source_0_1", "e", 0) is None
