"""What gRPC alone costs a coordinator: three messages per checkpoint on each stream, and nothing behind them.

A bare `grpc.aio` server writes 150 bytes to every stream (a trigger), reads as much from each (an acknowledgement), and
writes again (a notification); no protobuf, no actor, no checkpoint. The clients are in one other process, with a
connection each. What `benchmarks.coordinator` shows for a TaskManager without a relay cannot fall below this.

    python -m benchmarks.grpc_floor --streams 500 --json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.cluster import report, spread, versions
from snapline.runtime.rpc.grpc_channels import CHANNEL_OPTIONS, SERVER_OPTIONS

import grpc.aio  # isort: skip - after snapline.runtime.rpc.grpc_channels, which sets gRPC up

METHOD = "/floor/Connect"
MESSAGE = b"m" * 150
CONNECT_AT_ONCE = 20
SETTLE_SECONDS = 0.5


class Floor:
    """The side of the server, which counts what comes."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._outgoing: list[asyncio.Queue[bytes | None]] = []
        self._connected = asyncio.Event()
        self._received = 0
        self._all_acknowledged = asyncio.Event()

    async def connect(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Serve one stream until it ends."""
        outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outgoing.append(outgoing)
        if len(self._outgoing) == self._streams:
            self._connected.set()
        reading = asyncio.create_task(self._read(requests))
        try:
            while (message := await outgoing.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        async for _ in requests:
            self._received += 1
            if self._received == self._streams:
                self._all_acknowledged.set()

    def write_to_all(self, message: bytes | None) -> None:
        """Send the message on all streams; None ends them."""
        for outgoing in self._outgoing:
            outgoing.put_nowait(message)

    async def measure(self, rounds: int, warm_up: int) -> list[float]:
        """Microseconds of this process's CPU per stream."""
        await self._connected.wait()
        figures: list[float] = []
        for number in range(warm_up + rounds):
            await asyncio.sleep(SETTLE_SECONDS)
            self._received = 0
            self._all_acknowledged.clear()
            before = time.process_time()
            self.write_to_all(MESSAGE)
            await self._all_acknowledged.wait()
            self.write_to_all(MESSAGE)
            await asyncio.sleep(SETTLE_SECONDS)
            if number >= warm_up:
                figures.append((time.process_time() - before) * 1e6 / self._streams)
        return figures


async def serve(options: argparse.Namespace) -> list[float]:
    """Server and measurement; the clients are a process of their own."""
    floor = Floor(options.streams)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    method: Any = grpc.stream_stream_rpc_method_handler(floor.connect)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor", {"Connect": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    command = ["-m", "benchmarks.grpc_floor", "--streams", str(options.streams), "--connect-to", str(port)]
    clients = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        return await floor.measure(options.rounds, options.warm_up)
    finally:
        floor.write_to_all(None)
        await clients.wait()
        await server.stop(None)


async def acknowledge(port: int) -> None:
    """One client: every other message is answered."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.stream_stream(METHOD)()
        triggered = False
        async for _ in call:
            triggered = not triggered
            if triggered:
                await call.write(MESSAGE)


async def connect_all(streams: int, port: int) -> None:
    """All clients, a few at a time."""
    clients = []
    for number in range(streams):
        clients.append(asyncio.create_task(acknowledge(port)))
        if number % CONNECT_AT_ONCE == 0:
            await asyncio.sleep(0.05)
    await asyncio.gather(*clients)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--streams", type=int, default=500)
    cli.add_argument("--rounds", type=int, default=12)
    cli.add_argument("--warm-up", type=int, default=3)
    cli.add_argument("--connect-to", type=int, default=0, help=argparse.SUPPRESS)
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    if options.connect_to:
        asyncio.run(connect_all(options.streams, options.connect_to))
        return 0
    figures = {name: round(value, 1) for name, value in spread(asyncio.run(serve(options))).items()}
    result: dict[str, Any] = {"streams": options.streams, "cpu_us_per_stream": figures, "versions": versions()}
    report("gRPC alone", result, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
