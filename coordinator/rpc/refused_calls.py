"""What a coordinator that stands by says to whoever calls it: that it does not lead, and who does.

Answers every method of every service of a coordinator with UNAVAILABLE, without reading a request, so that callers that
try again do so; the leader's address comes as trailing metadata as well, for clients that go there by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from snapline.dataflow.errors import SnaplineError
from snapline.protos import client_pb2, cluster_pb2, external_pb2, relay_pb2
from snapline.runtime.rpc.grpc_channels import LEADER_METADATA_KEY, STANDS_BY

SERVICES: tuple[str, ...] = tuple(
    service.full_name
    for file in (cluster_pb2.DESCRIPTOR, relay_pb2.DESCRIPTOR, client_pb2.DESCRIPTOR, external_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
)
"""Full names of the services that a leading coordinator offers."""


def add_refusals(server: grpc.aio.Server, find_leader: Callable[[], str]) -> list[str]:
    """Refuse all calls that a coordinator answers; returns the full names of the services. `find_leader` returns
    host:port of the coordinator that leads now; it may block, and raise SnaplineError."""
    server.add_generic_rpc_handlers((_RefusedCalls(find_leader),))
    return list(SERVICES)


class _RefusedCalls(grpc.GenericRpcHandler):
    """The handler of all calls while another coordinator leads."""

    def __init__(self, find_leader: Callable[[], str]) -> None:
        self._find_leader = find_leader
        self._prefixes = tuple(f"/{name}/" for name in SERVICES)
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(self._refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler that refuses the call; None: the method is not one of a coordinator's."""
        return self._refusal if handler_call_details.method.startswith(self._prefixes) else None

    async def _refuse(self, _requests: Any, context: Any) -> Any:
        try:
            leader = await asyncio.get_running_loop().run_in_executor(None, self._find_leader)
        except SnaplineError:
            leader = ""
        found = ((LEADER_METADATA_KEY, leader),) if leader else ()
        line = (
            f"{STANDS_BY}: {leader} leads, ask that one" if leader else f"{STANDS_BY}, and nobody leads yet: ask again"
        )
        await context.abort(grpc.StatusCode.UNAVAILABLE, line, found)
        yield None  # never reached: makes this a stream
