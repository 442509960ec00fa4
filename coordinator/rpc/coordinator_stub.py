"""The coordinator as the page's server sees it: a gRPC client on the server's own loop, of whoever leads now.

Every failure is a CoordinatorAnswer with the HTTP status that it means and the coordinator's one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from snapline.dataflow.errors import SnaplineError
from snapline.protos.client_pb2_grpc import ClientServiceStub
from snapline.runtime.rpc.grpc_channels import (
    LEADER_METADATA_KEY,
    OLDER_COORDINATOR,
    STANDS_BY,
    one_that_listens,
    open_aio_channel,
)
from snapline.runtime.rpc.security import Security

CALL_TIMEOUT_SECONDS = 20.0
CLIENT_HEADER = "snapline-client"
_HTTP_STATUS = {
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class CoordinatorAnswer(SnaplineError):
    """What a coordinator has refused, or that none answers, as an HTTP status and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class CoordinatorStub:
    """One connection, made when it is used and made again when the leader has moved."""

    def __init__(self, find_leader: Callable[[], str], security: Security) -> None:
        """`find_leader` says host:port of the coordinator that leads now, or of several, of which one listens; it may
        block, and raise SnaplineError."""
        self._find_leader = find_leader
        self._security = security
        self.address = ""
        """host:port of the coordinator that was asked last."""
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()

    async def call(self, method: str, request: Any, who: str = "page", timeout_s: float = CALL_TIMEOUT_SECONDS) -> Any:
        """The answer to one call of the client service, from the leader where who is asked stands by. `who`: for the
        audit. Raises CoordinatorAnswer."""
        channel = None

        async def ask(channel: grpc.aio.Channel) -> Any:
            stub: Any = ClientServiceStub(channel)
            metadata = (*self._security.metadata, (CLIENT_HEADER, who))
            return await getattr(stub, method)(request, timeout=timeout_s, metadata=metadata)

        try:
            channel = await self._open()
            try:
                return await ask(channel)
            except grpc.aio.AioRpcError as error:
                leaders = [str(value) for key, value in error.trailing_metadata() or () if key == LEADER_METADATA_KEY]
                if not leaders:
                    raise
                channel = await self._open(channel, leaders[0])
                return await ask(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                if self._channel is channel:
                    self._channel = None  # the next call asks who leads; what is under way here keeps its connection
                told = error.details() or ""
                stands_by = told.startswith(STANDS_BY)
                line = (
                    told if stands_by else f"no coordinator answers at {self.address}; the page goes on when one does"
                )
                raise CoordinatorAnswer(503, line) from None
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise CoordinatorAnswer(501, OLDER_COORDINATOR) from None
            status = _HTTP_STATUS.get(error.code(), 500)
            raise CoordinatorAnswer(status, error.details() or error.code().name) from None
        except SnaplineError as error:
            raise CoordinatorAnswer(503, str(error)) from None

    async def _open(self, left: grpc.aio.Channel | None = None, leader: str = "") -> grpc.aio.Channel:
        """The connection that there is, unless it is the one that is left for the coordinator which leads."""
        async with self._opening:
            if leader and self._channel is left:
                self._channel = None
            if self._channel is None:
                self.address = leader or await asyncio.to_thread(self._find)
                self._channel = open_aio_channel(self.address, self._security)
            return self._channel

    def _find(self) -> str:
        address = self._find_leader()
        return one_that_listens(address) if "," in address else address

    async def close(self) -> None:
        """Close the connection; the next call makes another one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
