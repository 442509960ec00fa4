"""Who answers for its threads, and who does not, as clients are told."""

from __future__ import annotations

import asyncio

from snapline.coordinator.rpc.pending_thread_dumps import PendingThreadDumps
from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import ThreadDump


def test_a_task_manager_that_answers_twice_hides_no_other() -> None:
    """A function in one could say that the threads and log lines of another were not to be had: that one was silent."""

    async def ask() -> list[tuple[str, int]]:
        pending = PendingThreadDumps(asyncio.get_running_loop())
        request_id, answer = pending.draw(["liar", "honest"])
        for who, samples in (("liar", 1), ("liar", 2), ("stranger", 3), ("honest", 4)):
            pending.arrived(ThreadDump(request_id, ResourceID(who), samples=samples))
        return [(dump.resource_id, dump.samples) for dump in await answer(20)]

    assert [("liar", 1), ("honest", 4)] == asyncio.run(ask())
