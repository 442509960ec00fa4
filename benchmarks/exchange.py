"""How fast batches travel between tasks: inside one process, and between two on one host.

    python -m benchmarks.exchange [--rows-per-batch 8192] [--credits 32] [--channels 1] [--seconds 2] [--rounds 5]
        [--json]

Batches have two int64 columns (16 bytes a row). One thread produces as fast as back-pressure lets it, the consumer
polls its channels as a task does. `remote` has its producer in a second process, whose rows come by the sockets of the
host, and with `flight` by Flight, as between hosts. `bare` is Flight alone: a server of pyarrow's whose stream repeats
the batch, and a client that reads it, without credits, channels and checksums. `copy` says how fast one thread copies
batches in memory that no cache holds. The figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from snapline.dataflow.elements import EndOfData, EndOfPartition
from snapline.taskmanager.network.channels.exchange_contract import InputChannel
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange

PRODUCER = "benchmark_source_0_0"
EDGE = "source-sink"
BEYOND_CACHES = 256 << 20
"""Bytes that are copied before the same memory comes again."""


class Consumer:
    """Polls channels the way a task's thread does."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.failure = ""

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        self._woken.set()

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        self.failure = cause
        self._woken.set()

    def run(self, channels: list[InputChannel], seconds: float, rounds: int) -> list[dict[str, float]]:
        """Batches and rows per second of each round, after one round to warm up."""
        results: list[dict[str, float]] = []
        batches = rows = 0
        begin = time.perf_counter()
        while len(results) <= rounds:
            found = False
            for channel in channels:
                polled = channel.poll()
                if polled is not None and isinstance(polled.element, pa.RecordBatch):
                    found = True
                    batches += 1
                    rows += polled.element.num_rows
            if not found:
                self._woken.wait(1.0)
                self._woken.clear()
            if self.failure:
                raise SystemExit(f"the exchange failed: {self.failure}")
            now = time.perf_counter()
            if now - begin >= seconds:
                results.append({"batches_per_s": batches / (now - begin), "rows_per_s": rows / (now - begin)})
                batches = rows = 0
                begin = time.perf_counter()
        return results[1:]


def produce(exchange: FlightExchange, channels: int, rows_per_batch: int, stopped: threading.Event) -> None:
    """Fill all subpartitions as far as they take it."""
    rows = np.arange(rows_per_batch, dtype=np.int64)
    batch = pa.record_batch({"key": rows, "value": rows})
    subpartitions = exchange.create_result_partition(PRODUCER, EDGE, channels)
    room = threading.Event()
    for subpartition in subpartitions:
        subpartition.set_availability_listener(room.set)
    while not stopped.is_set():
        room.clear()
        added = False
        for subpartition in subpartitions:
            if subpartition.is_available:
                subpartition.add(batch)
                added = True
        if not added:
            room.wait(0.1)
    for subpartition in subpartitions:
        subpartition.add(EndOfData())
        subpartition.add(EndOfPartition())


def open_channels(exchange: FlightExchange, address: str, count: int, consumer: Consumer) -> list[InputChannel]:
    """All subpartitions of the producer."""
    return [
        exchange.create_input_channel(
            consumer="benchmark_sink_0_0",
            producer=PRODUCER,
            edge_id=EDGE,
            subpartition_index=index,
            exchange_address=address,
            channel_index=index,
            listener=consumer,
        )
        for index in range(count)
    ]


def settings(arguments: argparse.Namespace) -> ExchangeSettings:
    return ExchangeSettings(
        credits_per_channel=arguments.credits,
        max_queued_batches=arguments.queued,
        by_host_sockets=not arguments.flight,
    )


class Repeating(flight.FlightServerBase):  # type: ignore[misc]
    """Streams one batch for as long as somebody reads."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._batch = batch

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return a stream that repeats the batch."""
        return flight.GeneratorStream(self._batch.schema, itertools.repeat(self._batch))


def bare(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Read from a Flight server in another process; each channel is a stream of its own thread."""
    with _producer(arguments, "--bare") as address:
        clients = [flight.connect(f"grpc://{address}") for _ in range(arguments.channels)]
        counts = [0] * arguments.channels
        over = threading.Event()

        def read(index: int) -> None:
            for _ in clients[index].do_get(flight.Ticket(b"")):
                counts[index] += 1
                if over.is_set():
                    return

        threads = [threading.Thread(target=read, args=(index,), daemon=True) for index in range(arguments.channels)]
        for thread in threads:
            thread.start()
        results = []
        for _ in range(arguments.rounds + 1):
            before, begin = sum(counts), time.perf_counter()
            time.sleep(arguments.seconds)
            rate = (sum(counts) - before) / (time.perf_counter() - begin)
            results.append({"batches_per_s": rate, "rows_per_s": rate * arguments.rows_per_batch})
        over.set()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
    return results[1:]


def copied(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Copy batches from one place in memory to another, with one thread."""
    words = 2 * arguments.rows_per_batch
    count = max(1, BEYOND_CACHES // (8 * words))
    source, target = np.ones((count, words), np.int64), np.zeros((count, words), np.int64)
    results = []
    for _ in range(arguments.rounds):
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < arguments.seconds:
            for index in range(count):
                target[index] = source[index]
            done += count
        rate = done / (time.perf_counter() - begin)
        results.append({"batches_per_s": rate, "rows_per_s": rate * arguments.rows_per_batch})
    return results


def local(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Producer and consumer are threads of this process."""
    with FlightExchange(settings(arguments)) as exchange:
        consumer = Consumer()
        stopped = threading.Event()
        producer = threading.Thread(
            target=produce, args=(exchange, arguments.channels, arguments.rows_per_batch, stopped)
        )
        producer.start()
        channels = open_channels(exchange, exchange.address, arguments.channels, consumer)
        try:
            return consumer.run(channels, arguments.seconds, arguments.rounds)
        finally:
            stopped.set()
            producer.join()
            for channel in channels:
                channel.release()


@contextmanager
def _producer(arguments: argparse.Namespace, *more: str) -> Iterator[str]:
    """Another process that produces, and its address."""
    options = [
        f"--{name.replace('_', '-')}={getattr(arguments, name)}"
        for name in ("rows_per_batch", "credits", "channels", "queued")
    ]
    command = [sys.executable, "-m", "benchmarks.exchange", "--producer", *options, *more]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None  # noqa: S101 (asked for above)
    try:
        yield child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait()


def remote(arguments: argparse.Namespace, *, by_flight: bool = False) -> list[dict[str, float]]:
    """The producer is another process."""
    arguments = argparse.Namespace(**{**vars(arguments), "flight": by_flight})
    more = ["--flight"] if by_flight else []
    with _producer(arguments, *more) as address, FlightExchange(settings(arguments)) as exchange:
        consumer = Consumer()
        channels = open_channels(exchange, address, arguments.channels, consumer)
        return consumer.run(channels, arguments.seconds, arguments.rounds)


def serve(arguments: argparse.Namespace) -> None:
    """The producer's process: until its input ends."""
    if arguments.bare:
        rows = np.arange(arguments.rows_per_batch, dtype=np.int64)
        with Repeating(pa.record_batch({"key": rows, "value": rows})) as server:
            print(f"127.0.0.1:{server.port}", flush=True)
            sys.stdin.read()
            os._exit(0)  # a stream that nobody reads any more does not end by itself
    with FlightExchange(settings(arguments)) as exchange:
        print(exchange.address, flush=True)
        stopped = threading.Event()
        producer = threading.Thread(
            target=produce, args=(exchange, arguments.channels, arguments.rows_per_batch, stopped)
        )
        producer.start()
        sys.stdin.read()
        stopped.set()
        producer.join()


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median and the spread of the runs."""
    return {
        name: {
            "median": round(statistics.median(values)),
            "min": round(min(values)),
            "max": round(max(values)),
        }
        for name in ("batches_per_s", "rows_per_s")
        for values in [[each[name] for each in rounds]]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-per-batch", type=int, default=8192)
    parser.add_argument("--credits", type=int, default=32, help="batches that may be in flight per channel")
    parser.add_argument("--queued", type=int, default=8, help="batches that may wait in a subpartition")
    parser.add_argument("--channels", type=int, default=1, help="subpartitions multiplexed on the connection")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    for hidden in ("--producer", "--flight", "--bare"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.producer:
        serve(arguments)
        return
    result: dict[str, Any] = {
        "rows_per_batch": arguments.rows_per_batch,
        "credits": arguments.credits,
        "channels": arguments.channels,
        "rounds": arguments.rounds,
        "local": summary(local(arguments)),
        "remote": summary(remote(arguments)),
        "flight": summary(remote(arguments, by_flight=True)),
        "bare": summary(bare(arguments)),
        "copy": summary(copied(arguments)),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__},
    }
    for name in ("local", "remote", "flight", "bare", "copy"):
        rows, batches = result[name]["rows_per_s"], result[name]["batches_per_s"]
        print(
            f"{name:6} {rows['median'] / 1e6:8.1f} M rows/s ({rows['min'] / 1e6:.1f} to {rows['max'] / 1e6:.1f}), "
            f"{batches['median']:,} batches/s"
        )
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
