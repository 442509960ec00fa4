"""Options that both ends of a channel have to agree on."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import grpc._common
import pytest
from grpc.aio import AioRpcError, Metadata

from snapline.dataflow.config import Configuration
from snapline.runtime.cores.senders import MAX_CALLS_OF_A_CONNECTION
from snapline.runtime.rpc.grpc_channels import (
    CHANNEL_OPTIONS,
    LONGEST_SLEEP_SECONDS,
    SERVER_OPTIONS,
    USERS_OF_A_CHANNEL,
    open_channel,
    reason_of,
    shared_channel,
)
from snapline.runtime.rpc.security import Security
from tests.services.certificates import Authority, why_not


def test_a_server_allows_the_pings_that_clients_send() -> None:
    """A stream on which nothing is said for minutes stays open; gRPC's own default closes it after three pings."""
    allowed_ms = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]

    assert 0 < allowed_ms < dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]


def test_threads_that_wait_for_a_message_sleep() -> None:
    """They would look ten times a second; gRPC has no option for it, so a new version may name it otherwise."""
    looks: list[float] = []

    def look(timeout: float) -> bool:
        looks.append(timeout)
        return True

    grpc._common.wait(look, lambda: bool(looks))

    assert looks == [LONGEST_SLEEP_SECONDS]


def test_long_streams_to_one_address_share_a_channel() -> None:
    """For as long as anybody uses it; another address or another token is another channel."""
    address, security = "127.0.0.1:1", Security()
    with shared_channel(address, security) as first, shared_channel("127.0.0.1:2", security) as other:
        with shared_channel(address, security) as second, shared_channel(address, Security("token")) as third:
            assert first is second
            assert len({id(each) for each in (first, other, third)}) == 3
        with shared_channel(address, security) as again:
            assert again is first, "who leaves first closes nothing"
    with shared_channel(address, security) as later:
        assert later is not first


@pytest.mark.parametrize(
    "tls", [False, pytest.param(True, marks=pytest.mark.skipif(bool(why_not()), reason=why_not()))]
)
def test_several_coordinators_may_be_named_by_their_hosts(tmp_path: Path, *, tls: bool) -> None:
    """As they are in the settings: gRPC takes numbers alone where it is to try several, and takes no certificate then.
    One that nobody knows, or that does not listen, is passed over."""
    security, server = Security(), grpc.server(ThreadPoolExecutor(1))
    if tls:
        settings = Authority(tmp_path, "DNS:localhost").settings
        security = Security.from_configuration(Configuration(settings))
        keys = [(security.key, security.certificate)]
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(keys, security.ca, True))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with open_channel(f"nohost.invalid:{port}, localhost:1, localhost:{port}", security) as channel:
            grpc.channel_ready_future(channel).result(30)
    finally:
        server.stop(None).wait()


def test_a_channel_has_no_more_users_than_a_connection_has_calls() -> None:
    """A server lets calls wait that are more than that, and long streams would wait for ever."""
    with ExitStack() as stack:
        used = [
            stack.enter_context(shared_channel("127.0.0.1:3", Security())) for _ in range(2 * USERS_OF_A_CHANNEL + 1)
        ]
        assert [used.count(channel) for channel in dict.fromkeys(used)] == [USERS_OF_A_CHANNEL, USERS_OF_A_CHANNEL, 1]
    assert 2 * USERS_OF_A_CHANNEL <= MAX_CALLS_OF_A_CONNECTION


def test_why_a_call_failed_is_one_line() -> None:
    """The same from either of gRPC's interfaces: status and details, nothing of Python."""
    refused = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details="nobody there")

    assert reason_of(refused) == "UNAVAILABLE: nobody there"
    assert reason_of(ValueError("no call at all")) == "ValueError: no call at all"


SETTINGS_WHEN_GRPC_IS_IMPORTED = """
import importlib, os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"), os.environ.get("GRPC_VERBOSITY"))

sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize("module", ["runtime.rpc.rpc_server", "runtime.rpc.dialing", "protos.client_pb2_grpc"])
def test_a_child_that_is_forked_starts_nothing_of_grpc(module: str) -> None:
    """Its fork handlers would, and end one child in twenty before it became another program; nor does it write of each
    connection. gRPC reads the settings when it is imported, whichever module imports it first."""
    program = [sys.executable, "-c", SETTINGS_WHEN_GRPC_IS_IMPORTED, f"snapline.{module}"]
    without = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}

    done = subprocess.run(program, env=without, capture_output=True, text=True, timeout=300, check=True)

    assert done.stdout == "0 ERROR\n"
