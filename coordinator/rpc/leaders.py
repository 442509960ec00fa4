"""LeaderRetrieval: publishes where the leaders are to whoever watches.

Holds the newest table; a watcher gets it at once and again after each change, never an older one, and not one for each
change when changes come faster than it reads. Where the ResourceManager of another coordinator is used, what that one
publishes is part of the table: TaskManagers that come here go there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from snapline.dataflow.ids import JobID
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderTable, encode_leader_table


class LeaderPublisher(cluster_pb2_grpc.LeaderRetrievalServicer):
    """The table of leaders. The setters may be called from any thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_change: Callable[[LeaderTable], None] = lambda _: None
    ) -> None:
        """`on_change` is told every table, on the loop."""
        self._loop = loop
        self._on_change = on_change
        self._resource_manager = LeaderAddress()
        self._job_masters: dict[JobID, LeaderAddress] = {}
        self._elsewhere: Mapping[JobID, LeaderAddress] = {}
        """JobMasters of the coordinator whose ResourceManager is used."""
        self._changed = asyncio.Event()

    def set_resource_manager(self, leader: LeaderAddress) -> None:
        """The ResourceManager is here now."""
        self._loop.call_soon_threadsafe(self._set_resource_manager, leader)

    def set_elsewhere(self, table: LeaderTable) -> None:
        """What the coordinator publishes whose ResourceManager is used."""
        self._loop.call_soon_threadsafe(self._set_elsewhere, table)

    def set_job_master(self, job_id: JobID, leader: LeaderAddress | None) -> None:
        """The JobMaster of the job is here now; None: it has ended."""
        self._loop.call_soon_threadsafe(self._set_job_master, job_id, leader)

    def _set_resource_manager(self, leader: LeaderAddress) -> None:
        self._resource_manager = leader
        self._publish()

    def _set_elsewhere(self, table: LeaderTable) -> None:
        self._elsewhere = table.job_masters
        self._set_resource_manager(table.resource_manager)

    def _set_job_master(self, job_id: JobID, leader: LeaderAddress | None) -> None:
        if leader is None:
            self._job_masters.pop(job_id, None)
        else:
            self._job_masters[job_id] = leader
        self._publish()

    def _publish(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_change(self._table())

    def _table(self) -> LeaderTable:
        return LeaderTable(self._resource_manager, {**self._elsewhere, **self._job_masters})

    def job_master(self, job_id: JobID) -> LeaderAddress | None:
        """Where the JobMaster of the job is; None: nowhere, as far as is known. On the loop."""
        return self._table().job_masters.get(job_id)

    async def Watch(  # noqa: N802
        self, request: cluster_pb2.WatchLeadersRequest, context: Any
    ) -> AsyncIterator[cluster_pb2.LeaderTable]:
        while True:
            changed = self._changed
            yield encode_leader_table(self._table())
            await changed.wait()
