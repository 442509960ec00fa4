"""The table of leaders in ZooKeeper is the leader's, whoever writes there."""

from __future__ import annotations

import queue

import pytest

from snapline.coordinator.ha import leader_table_writer
from snapline.coordinator.ha.leader_table_writer import LeaderTableWriter
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderTable
from snapline.runtime.logs import silent_logger
from snapline.runtime.signing import LeaderSigner

SECONDS = 30.0


def test_a_table_that_was_removed_or_overwritten_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """TaskManagers and clients that started later found no leader, or one that is none, until a job began or ended."""
    monkeypatch.setattr(leader_table_writer, "LOOK_SECONDS", 0.001)
    there: list[bytes | None] = [None]
    written: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def write(table: bytes) -> None:
        there[0] = table
        written.put(table)

    writer = LeaderTableWriter(lambda: there[0], write, LeaderSigner, silent_logger())
    try:
        writer.publish(LeaderTable(LeaderAddress("127.0.0.1:6123")))
        table = written.get(timeout=SECONDS)
        for other in (None, b"somebody else's"):
            there[0] = other
            assert table == written.get(timeout=SECONDS)
    finally:
        writer.stop()
    assert there == [table] and written.empty(), "what is there stays as it is"
