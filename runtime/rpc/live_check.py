"""Whether a coordinator or relay is alive, asked with this process's certificate: what a probe runs where the control
port has TLS, which Kubernetes' own probes do not speak.

    python -m snapline.runtime.rpc.live_check HOST:PORT

Settings are those of every process (`SNAPLINE_CONFIG`). One that stands by is alive. The exit code says it, and one
line says why not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.rpc.grpc_channels import open_channel, reason_of
from snapline.runtime.rpc.rpc_server import LIVE
from snapline.runtime.rpc.security import Security
from snapline.runtime.settings import default_layers, resolve

TIMEOUT_SECONDS = 8.0


def why_not_alive(address: str, security: Security) -> str:
    """Ask; returns one line, empty when it is alive."""
    with open_channel(address, security) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=LIVE)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return f"{address} does not answer: {reason_of(error)}"
    alive = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if alive else f"{address} is not alive"


def main(arguments: Sequence[str]) -> int:
    """Ask the address, and return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("say one address: python -m snapline.runtime.rpc.live_check HOST:PORT\n")
        return 2
    try:
        line = why_not_alive(arguments[0], Security.from_configuration(resolve(default_layers(os.environ))))
    except SnaplineError as error:
        line = str(error)
    if line:
        sys.stderr.write(f"snapline: {line}\n")
    return 1 if line else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
