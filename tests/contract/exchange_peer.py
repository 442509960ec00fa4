"""Another process with an exchange, which tests talk to, stop and kill: commands are JSON lines in, results JSON lines
out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from snapline.dataflow.elements import EndOfData, EndOfPartition
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange
from tests.contract.exchange_channels import Room, TaskSide

ROOT = Path(__file__).resolve().parents[2]


class PeerProcess:
    """The test's end."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.exchange_peer"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address: str = self._read()

    def call(self, command: str, **arguments: Any) -> Any:
        """Have the peer do something and wait for the result."""
        self.tell(command, **arguments)
        return self._read()

    def tell(self, command: str, **arguments: Any) -> None:
        """Have the peer do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]) + "\n")
        self.process.stdin.flush()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer ended"
        return json.loads(line)

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Peer:
    """The process's end."""

    def __init__(self, exchange: FlightExchange) -> None:
        self._exchange = exchange
        self._subpartitions: list[Any] = []
        self._task = TaskSide(exchange)

    def partition(self, producer: str, edge_id: str, subpartitions: int) -> str:
        self._subpartitions = list(self._exchange.create_result_partition(producer, edge_id, subpartitions))
        return "ok"

    def fill(self, index: int, batches: int) -> int:
        Room(self._subpartitions[index]).fill(0, batches)
        return batches

    def finish(self, index: int) -> str:
        self._subpartitions[index].add(EndOfData())
        self._subpartitions[index].add(EndOfPartition())
        return "ok"

    def open(self, address: str, producer: str, edge_id: str, index: int) -> str:
        self._task.open(address, producer=producer, edge_id=edge_id, index=index)
        return "ok"

    def read(self, channel: int, count: int) -> list[Any]:
        return self._task.read(self._task.channels[channel], count)

    def streams(self) -> tuple[int, int]:
        return self._exchange.number_of_streams

    def close(self) -> bool:
        return self._exchange.close()


def main() -> None:
    with FlightExchange(ExchangeSettings(credits_per_channel=4, max_queued_batches=4)) as exchange:
        print(json.dumps(exchange.address), flush=True)
        peer = Peer(exchange)
        for line in sys.stdin:
            command, arguments = json.loads(line)
            print(json.dumps(getattr(peer, command)(**arguments)), flush=True)


if __name__ == "__main__":
    main()
