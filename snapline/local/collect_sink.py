"""The sink of `execute_and_collect` in a local run: batches go to whoever asked for them, in this process.

With checkpoints rows are handed over when the checkpoint that holds them is complete, so that a restart hands none over
twice; without, at once, and then a restart of the job is an error as soon as rows have been handed over.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.connector_api import Committable, Committer, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.errors import ConnectorError

MOST_WAITING = 64
"""Batches that tasks with threads of their own put out while nobody asks for any."""


class Collected:
    """What tasks of this process have put out for one call of `execute_and_collect`."""

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.has_given = False
        self.staged: dict[int, list[pa.RecordBatch]] = {}
        self.is_asked = threading.Event()
        """Somebody waits for rows, or for none any more."""
        self.is_asked.set()

    def wait_for_room(self, written: int) -> None:
        """Wait as long as nobody asks for rows and many are there; `written`: batches that are not staged yet."""
        if written + len(self.batches) + sum(map(len, list(self.staged.values()))) >= MOST_WAITING:
            self.is_asked.wait()


_numbers = itertools.count(1)
_collected: dict[int, Collected] = {}
"""What is collected, by the number that travels with the job."""


def open_collected() -> tuple[int, Collected]:
    """A new one, and its number."""
    number = next(_numbers)
    _collected[number] = Collected()
    return number, _collected[number]


def close_collected(number: int) -> None:
    """Nobody asks for it any more."""
    _collected.pop(number, None)


class ProcessCollectSink(Sink):
    """Hands batches over in this process."""

    def __init__(self, number: int, *, has_checkpoints: bool) -> None:
        self._number = number
        self._has_checkpoints = has_checkpoints

    @property
    def two_phase(self) -> bool:
        return self._has_checkpoints

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        collected = _collected.setdefault(self._number, Collected())
        if self._has_checkpoints:
            return _StagingWriter(collected)
        if collected.has_given and context.attempt_number > 0:
            raise ConnectorError(
                "rows were collected before the job restarted, and would come again: set execution.checkpointing.interval"
            )
        return _DirectWriter(collected)

    def create_committer(self, context: SourceContextInfo) -> Committer | None:
        return _Committer(_collected.setdefault(self._number, Collected())) if self._has_checkpoints else None


class _DirectWriter(SinkWriter):
    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def write(self, batch: pa.RecordBatch) -> None:
        self._collected.wait_for_room(0)
        self._collected.has_given = True
        self._collected.batches.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        return ()


class _StagingWriter(SinkWriter):
    def __init__(self, collected: Collected) -> None:
        self._collected = collected
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._collected.wait_for_room(len(self._batches))
        self._batches.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        if not self._batches:
            return ()
        place = next(_numbers)
        self._collected.staged[place], self._batches = self._batches, []
        return (Committable({"place": place}),)


class _Committer(Committer):
    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def commit(self, committables: Sequence[Committable]) -> None:
        for committable in committables:  # what is not there any more was handed over before a restart
            self._collected.batches.extend(self._collected.staged.pop(committable.data["place"], ()))
