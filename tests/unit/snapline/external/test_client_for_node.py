"""The client for Node at a coordinator that refuses it, or says nothing any more."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from snapline.protos import external_pb2 as pb
from snapline.protos import external_pb2_grpc
from tests.services.node import NODE_IS_MISSING, NODE_MODULES, ROOT

pytestmark = pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
PROGRAM = """
const { participate } = require(process.argv[2]);
const task = { begin() {}, snapshot() { return {}; }, complete() {}, aborted() {}, end(reason) { console.log(reason); } };
const given = { job: 'fleet', taskName: 'orders', coordinator: process.argv[3], retryPauseMs: 20, log: () => {} };
participate(task, given).catch((error) => console.log(error.message));
"""


class Coordinator(external_pb2_grpc.ExternalTasksServicer):
    """Answers each stream with what it was given for it."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[list[pb.ToProgram] | grpc.StatusCode] = queue.SimpleQueue()
        self.server = grpc.server(ThreadPoolExecutor(8))
        external_pb2_grpc.add_ExternalTasksServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def Participate(self, request_iterator: Any, context: Any) -> Iterator[pb.ToProgram]:
        answer = self.answers.get(timeout=20)
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "not you")
            return
        yield from answer
        for _ in request_iterator:
            pass  # and says no more


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator()
    yield made
    made.server.stop(0).wait()


@pytest.fixture
def program(coordinator, tmp_path):
    script = tmp_path / "program.js"
    script.write_text(PROGRAM)
    client = ROOT / "clients" / "node" / "snapline_external.js"
    command = ["env", f"NODE_PATH={NODE_MODULES}", "node", str(script), str(client), coordinator.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_credential_for_something_else_is_refused_for_good(coordinator, program):
    """It asked again for ever without a word, where the client for Python says why and stops."""
    coordinator.answers.put(grpc.StatusCode.PERMISSION_DENIED)
    assert program.stdout.readline() == f"{coordinator.address} refuses the stream: 7 PERMISSION_DENIED: not you\n"


def test_a_coordinator_that_says_nothing_any_more_is_left(coordinator, program):
    """After the heartbeat timeout that it has named: the program waited for one whose host was gone for ever."""
    registered = pb.ToProgram(registered=pb.Registered(heartbeat_timeout_ms=50))
    coordinator.answers.put([registered, pb.ToProgram(run_task=pb.RunTask(attempt_id="a"))])
    coordinator.answers.put(grpc.StatusCode.UNAUTHENTICATED)
    assert program.stdout.readline() == "nothing was heard for 50 ms\n"
    assert "UNAUTHENTICATED" in program.stdout.readline()
