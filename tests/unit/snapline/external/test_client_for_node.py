"""The client for Node at a coordinator that refuses it, or says nothing any more."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from snapline.protos import external_pb2 as pb
from snapline.protos import external_pb2_grpc
from tests.services.certificates import LiveFiles, why_not
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

    def __init__(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> None:
        self.answers: queue.SimpleQueue[list[pb.ToProgram] | grpc.StatusCode] = queue.SimpleQueue()
        self.has_answered = threading.Event()
        self.server = grpc.server(ThreadPoolExecutor(8))
        external_pb2_grpc.add_ExternalTasksServicer_to_server(self, self.server)
        at = f"127.0.0.1:{port}"
        listen = self.server.add_insecure_port
        port = listen(at) if credentials is None else self.server.add_secure_port(at, credentials)
        self.address = f"127.0.0.1:{port}"
        self.server.start()

    def Participate(self, request_iterator: Any, context: Any) -> Iterator[pb.ToProgram]:
        answer = self.answers.get(timeout=20)
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "not you")
            return
        yield from answer
        self.has_answered.set()
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


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_program_registers_again_with_the_certificates_of_now(tmp_path):
    """Those that it had read when it began were shown for ever, so that it was let in nowhere once they had been
    renewed, and its job waited for it."""
    files = LiveFiles(tmp_path)

    def serve(port: int) -> Coordinator:
        key, certificate, authority = ((files.live / name).read_bytes() for name in ("node.key", "node.pem", "ca.pem"))
        return Coordinator(grpc.ssl_server_credentials([(key, certificate)], authority, True), port)

    before = serve(0)
    script = tmp_path / "program.js"
    tls = {
        name: str(files.live / file)
        for name, file in (("ca", "ca.pem"), ("key", "node.key"), ("certificate", "node.pem"))
    }
    script.write_text(PROGRAM.replace("log: () => {}", f"log: () => {{}}, tls: {json.dumps(tls)}"))
    client = ROOT / "clients" / "node" / "snapline_external.js"
    command = ["env", f"NODE_PATH={NODE_MODULES}", "node", str(script), str(client), before.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        before.answers.put(
            [pb.ToProgram(registered=pb.Registered()), pb.ToProgram(run_task=pb.RunTask(attempt_id="a"))]
        )
        before.has_answered.wait(20)
        files.show(files.authorities[1], files.authorities[1:])
        before.server.stop(0).wait()
        after = serve(int(before.address.rpartition(":")[2]))
        after.answers.put(grpc.StatusCode.PERMISSION_DENIED)
        assert process.stdout is not None
        try:
            assert "PERMISSION_DENIED" in [*map(str.strip, process.stdout)][-1]
        finally:
            process.kill()
            after.server.stop(0).wait()
