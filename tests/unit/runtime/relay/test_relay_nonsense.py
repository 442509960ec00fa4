"""A relay that somebody has pointed at what is no coordinator."""

from __future__ import annotations

import gc
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from snapline.protos import cluster_pb2_grpc
from snapline.runtime.logs import make_logger
from snapline.runtime.relay.relay_server import RelayServer
from snapline.runtime.rpc.grpc_channels import COORDINATOR_METADATA_KEY, STREAM_IS_OPEN, open_channel
from snapline.runtime.rpc.security import Security
from tests.services.cluster import wait_until


class Nonsense(grpc.GenericRpcHandler):
    """Opens each trunk, and says what is no message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the same answer to whatever is called."""

        def answer(_requests: Any, context: Any) -> Iterator[bytes]:
            context.send_initial_metadata(STREAM_IS_OPEN)
            yield b"\xff\xff\xff"

        return grpc.stream_stream_rpc_method_handler(answer)


@pytest.fixture
def pretender() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2), [Nonsense()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_bytes_that_are_no_message_end_the_trunk_in_one_line(pretender: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may use a relay names the coordinator: its log had two tracebacks for each such message."""
    log = io.StringIO()
    logger = make_logger("relay", stream=log, as_json=True)
    relay = RelayServer(Security(), 0, logger)
    try:
        with open_channel(relay.start("127.0.0.1:0"), Security()) as channel:
            stub: Any = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
            has_ended = threading.Event()
            stays = (None for _ in iter(has_ended.wait, True))  # who says no more before that leaves in order
            call = stub.Connect(stays, metadata=((COORDINATOR_METADATA_KEY, pretender),))
            with pytest.raises(grpc.RpcError, match="what it sent is no message"):
                list(call)
            has_ended.set()
        wait_until(lambda: not relay._trunks, "the end of the trunk")
    finally:
        relay.stop()
    gc.collect()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert [line["msg"] for line in lines if "trunk" in line["msg"]] == ["trunk opened", "trunk ended"]
