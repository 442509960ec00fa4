"""How a coordinator answers others while it is flooded, and how much memory that takes.

A real coordinator process with a token, and one process that floods it from as many threads as there are attacks, all
on loopback and all at once: messages of 64 MB without the token, envelopes of a thousand tiny messages with it, jobs as
fast as they are taken, connections that say nothing or half a request, and half requests for metrics. Meanwhile one
client lists the jobs again and again. Time is from its call to the answer; memory is the coordinator's most.

    python -m benchmarks.flood --seconds 30 --json
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cluster import report, versions
from benchmarks.coordinator import no_op_job
from snapline.client import ClusterClient
from snapline.dataflow.errors import SnaplineError
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.rpc.security import Security

TOKEN = "flooded"  # noqa: S105 - of a coordinator that ends with this program
LARGE = 64 << 20


@dataclass(frozen=True)
class Target:
    """Where the flooded coordinator listens, and where its jobs put their checkpoints."""

    address: str
    metrics_port: int
    directory: str
    """For the checkpoints of jobs."""


def large_messages_without_the_token(target: Target) -> None:
    """Twelve calls of 64 MB at a time, which are refused by their headers."""
    from snapline.runtime.rpc.grpc_channels import open_channel

    message = b"x" * LARGE
    channel: Any
    with open_channel(target.address, Security()) as channel:
        calls = [
            channel.unary_unary("/snapline.v1.ClientService/SubmitJob").future(message, timeout=5) for _ in range(12)
        ]
        for call in calls:
            call.exception()


def tiny_messages(target: Target) -> None:
    """Heartbeats on streams that never registered, a thousand in each envelope."""
    from snapline.runtime.rpc.grpc_channels import open_channel

    security = Security(TOKEN)
    tiny = cluster_pb2.ControlMessage(heartbeat_request=cluster_pb2.HeartbeatRequest())
    envelope = cluster_pb2.Envelope(leader_session_id="s", messages=[tiny] * 1_000)

    def envelopes() -> Iterator[cluster_pb2.Envelope]:
        for _ in range(800):
            yield envelope

    with open_channel(target.address, security) as channel:
        stub = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
        for _ in stub.Connect(envelopes(), metadata=security.metadata, timeout=10):
            pass


def jobs(target: Target) -> None:
    """As many as are taken, and the refusals of the rest."""
    with ClusterClient(target.address, Security(TOKEN)) as client:
        for _ in range(50):
            with contextlib.suppress(SnaplineError):
                client.submit(replace(no_op_job(1, target.directory), name=f"flood-{uuid.uuid4().hex}"))


def silent_connections(target: Target) -> None:
    """Five hundred to each port, half of which have begun to say something."""
    host, port = target.address.rsplit(":", 1)
    opened = []
    try:
        for number in range(500):
            for to in (int(port), target.metrics_port):
                connection = socket.create_connection((host, to), timeout=5)
                opened.append(connection)
                if number % 2:
                    connection.sendall(
                        b"GET /metrics HTTP/1.1\r\nHost: x\r\n" if to == target.metrics_port else b"PRI * HT"
                    )
        time.sleep(2)
    finally:
        for connection in opened:
            connection.close()


ATTACKS: tuple[Callable[[Target], None], ...] = (
    large_messages_without_the_token,
    tiny_messages,
    jobs,
    silent_connections,
)


def flood(target: Target) -> None:
    """All attacks, over and over, until this process is ended."""

    def over_and_over(attack: Callable[[Target], None]) -> None:
        while True:
            with contextlib.suppress(Exception):
                attack(target)

    for attack in ATTACKS:
        threading.Thread(target=over_and_over, args=(attack,), daemon=True).start()
    sys.stdin.read()


def most_memory_bytes(pid: int) -> int:
    """The most that the process ever had resident, as the kernel counts."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not say how much memory the coordinator had")


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def running_coordinator(directory: str, metrics_port: int) -> Iterator[tuple[str, int]]:
    """A coordinator process with a token and metrics: its address and process id."""
    address = f"127.0.0.1:{free_port()}"
    settings = Path(directory) / "snapline.toml"
    settings.write_text(f'"security.auth.token" = "{TOKEN}"\n"log.level" = "ERROR"\n')
    command = [sys.executable, "-m", "snapline.coordinator", "--bind", address, "--metrics-port", str(metrics_port)]
    process = subprocess.Popen(command, env={**os.environ, "SNAPLINE_CONFIG": str(settings)})
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                answers(address, 0.1)
                break
            except SnaplineError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def measure(seconds: float) -> dict[str, Any]:
    """Flood a coordinator, and say how others were answered."""
    metrics_port = free_port()
    with tempfile.TemporaryDirectory() as directory, running_coordinator(directory, metrics_port) as (address, pid):
        quiet = answers(address, seconds / 4)
        command = [sys.executable, "-m", "benchmarks.flood", "--flood", address, str(metrics_port), directory]
        flooding = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            time.sleep(2)
            flooded = answers(address, seconds)
        finally:
            flooding.kill()
            flooding.wait()
        memory = most_memory_bytes(pid)
        with ClusterClient(address, Security(TOKEN)) as client:
            taken = len(client.list_jobs())
    return {
        "answers in quiet": len(quiet),
        "answers under flood": len(flooded),
        "p50 ms": round(sorted(flooded)[len(flooded) // 2] * 1000, 1),
        "p99 ms": round(sorted(flooded)[len(flooded) * 99 // 100] * 1000, 1),
        "longest ms": round(max(flooded) * 1000, 1),
        "longest in quiet ms": round(max(quiet) * 1000, 1),
        "jobs taken": taken,
        "memory MiB": memory >> 20,
    }


def answers(address: str, seconds: float) -> list[float]:
    """How long each call of a client took, in seconds."""
    took = []
    with ClusterClient(address, Security(TOKEN)) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            client.list_page(page_size=10)
            took.append(time.monotonic() - begun)
            time.sleep(0.02)
    return took


def main() -> int:
    """Flood a coordinator and print how long others wait."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--flood", nargs=3, metavar=("ADDRESS", "METRICS_PORT", "DIRECTORY"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.flood:
        flood(Target(chosen.flood[0], int(chosen.flood[1]), chosen.flood[2]))
        return 0
    report("A coordinator under flood", {**versions(), **measure(chosen.seconds)}, as_json=chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
