"""The coordinator as the page's server finds it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from snapline.coordinator.rpc.coordinator_stub import CoordinatorStub
from snapline.coordinator.rpc.refused_calls import add_refusals
from snapline.protos import client_pb2 as pb
from snapline.protos.client_pb2_grpc import ClientServiceServicer, add_ClientServiceServicer_to_server
from snapline.runtime.rpc.security import Security


class Leads(ClientServiceServicer):
    """A coordinator that says who it is."""

    async def GetClusterOverview(self, request: Any, context: Any) -> pb.ClusterOverview:
        """Answer, as one does that leads."""
        return pb.ClusterOverview(version="of the leader")


def test_the_page_goes_where_a_coordinator_that_stands_by_says() -> None:
    """`snapline ui` that was given one which stands by, or several of which one listens, showed for ever that nobody
    answers, where all other commands go to the leader."""

    async def ask() -> tuple[str, bool]:
        leader, standby = grpc.aio.server(), grpc.aio.server()
        add_ClientServiceServicer_to_server(Leads(), leader)  # type: ignore[abstract]
        leads_at = f"127.0.0.1:{leader.add_insecure_port('127.0.0.1:0')}"
        add_refusals(standby, lambda: leads_at)
        stands_by_at = f"127.0.0.1:{standby.add_insecure_port('127.0.0.1:0')}"
        await leader.start()
        await standby.start()
        stub = CoordinatorStub(lambda: f"127.0.0.1:1, {stands_by_at}", Security())
        try:
            found = await stub.call("GetClusterOverview", pb.GetClusterOverviewRequest())
            return found.version, stub.address == leads_at
        finally:
            await stub.close()
            await leader.stop(None)
            await standby.stop(None)

    assert asyncio.run(ask()) == ("of the leader", True)
