"""User functions and sinks that go wrong once a file is there: the job runs well before that."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from snapline import AsyncFunction, SinkFunction

KEPT: list[bytes] = []
"""What a leaking function never lets go."""


class SlowSink(SinkFunction):
    """Takes ten milliseconds for a batch, and half a second once the fault is there."""

    def __init__(self, fault: Path) -> None:
        self.fault = str(fault)

    def invoke(self, value: Any) -> None:
        write_slowly(self.fault)


def write_slowly(fault: str) -> None:
    """As a service that has become slow."""
    time.sleep(0.5 if Path(fault).exists() else 0.01)


def wait_for_answer(fault: Path) -> Any:
    """A function of rows that waits for a service that does not answer."""
    name, mark = str(fault), str(fault) + ".over"

    def ask_service(row: dict[str, Any]) -> dict[str, Any]:
        while Path(name).exists() and not Path(mark).exists():
            time.sleep(0.02)
        return row

    return ask_service


class HeldLock:
    """Takes a lock for each row, which a thread beside it does not let go once the fault is there."""

    def __init__(self, fault: Path) -> None:
        self.fault = str(fault)

    def open(self, context: Any) -> None:
        """Locks do not travel."""
        self.lock = threading.Lock()
        threading.Thread(target=self.keep, daemon=True).start()

    def keep(self) -> None:
        """Hold the lock for as long as the fault lasts."""
        while not Path(self.fault).exists():
            time.sleep(0.02)
        with self.lock:
            while Path(self.fault).exists() and not Path(self.fault + ".over").exists():
                time.sleep(0.02)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Count up, say."""
        with self.lock:
            return row


class UnansweredRequests(AsyncFunction):
    """Asks a service for each row, which does not answer once the fault is there."""

    def __init__(self, fault: Path) -> None:
        self.fault = str(fault)

    async def async_invoke(self, row: dict[str, Any]) -> Any:
        """Wait for the answer."""
        await asyncio.to_thread(self.answer)
        return [row]

    def answer(self) -> None:
        """Return when the fault is over."""
        while Path(self.fault).exists() and not Path(self.fault + ".over").exists():
            time.sleep(0.05)


def skew(fault: Path) -> Any:
    """A function of batches that gives nearly all rows one key."""
    name = str(fault)

    def give_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not Path(name).exists():
            return batch
        keys = pa.array([7 if n % 20 else n for n in range(batch.num_rows)], batch.schema.field("key").type)
        return batch.set_column(batch.schema.get_field_index("key"), "key", keys)

    return give_key


def work(row: dict[str, Any]) -> dict[str, Any]:
    """A function of rows that costs something: one subtask cannot do it for all rows, also on a fast machine."""
    sum(range(12_000))
    return row


def stumble(fault: Path) -> Any:
    """A function of rows that does not know what to do with a poison row."""
    name = str(fault)

    def parse_price(row: dict[str, Any]) -> dict[str, Any]:
        if Path(name).exists():
            raise ValueError(f"price 'n/a' of row {row['value']} is no number")
        return row

    return parse_price


def leak(fault: Path) -> Any:
    """A function of rows that keeps something of each."""
    name = str(fault)

    def remember(row: dict[str, Any]) -> dict[str, Any]:
        if Path(name).exists():
            KEPT.append(bytes(20_000))
        return row

    return remember


def main_with_leaping_clock() -> int:
    """A TaskManager for which the wall clock leaps by an hour once the file in its first argument is there."""
    fault, real_ns, real = Path(sys.argv.pop(1)), time.time_ns, time.time
    time.time_ns = lambda: real_ns() + (3_600_000_000_000 if fault.exists() else 0)
    time.time = lambda: real() + (3_600 if fault.exists() else 0)
    from snapline.taskmanager.__main__ import main

    return int(main(sys.argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main_with_leaping_clock())
