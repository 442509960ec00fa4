"""A program outside that takes part in the job of a matrix's driver, whichever driver that is now, until it is killed.

python spark_outside.py TASK DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from examples.external_rows import from_arrow, to_arrow
from snapline.beside_drivers import running
from snapline.external import ExternalTask, ParticipationRefused, Rows, TaskContext, participate
from tests.e2e.spark_program import FILES, JOB, NUMBERS, PAUSE_S, PER_FILE

STEP = 20
"""Numbers of a step."""
RETRY_S = 0.1
GIVE_UP_S = 1.0
"""After so long it looks whether there is another coordinator."""


class _Counting(ExternalTask):
    """Counts through spans of numbers. A span is an element of the state, as its next number and its end."""

    def begin(self, context: TaskContext) -> None:
        """Go on with the spans of the state; at first, subtask i of p has spans i, i + p, ..."""
        own = range(context.subtask_index, FILES, context.parallelism)
        spans = [json.loads(element) for element in context.state.get("spans", [])]
        first = [[number * PER_FILE, (number + 1) * PER_FILE] for number in own]
        self._spans: list[list[int]] = spans if context.restored_checkpoint_id else first
        self._emit = context.emit

    def _count(self) -> range:
        """Some numbers more; none: that was all."""
        for span in self._spans:
            if span[0] < span[1]:
                found = range(span[0], min(span[0] + STEP, span[1]))
                span[0] = found.stop
                return found
        return range(0)

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return how far each span is."""
        return {"spans": [json.dumps(span).encode() for span in self._spans]}


class Source(_Counting):
    """Puts them out as rows."""

    def work(self) -> float | None:
        """Put out some numbers."""
        numbers = self._count()
        if not numbers:
            return None
        self._emit(to_arrow([{"n": number} for number in numbers], NUMBERS))
        return len(numbers) * PAUSE_S


class Alone(_Counting):
    """Writes them to files of its own: those that a checkpoint covers, when it is complete. What is not written yet is
    in the state."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def begin(self, context: TaskContext) -> None:
        """Write what the state covers, because nobody knows whether that was done."""
        super().begin(context)
        self._since: list[range] = []
        self._waiting: dict[int, list[range]] = {}
        for element in context.state.get("unwritten", []):
            self._write(range(*json.loads(element)))

    def work(self) -> float | None:
        """Count; at the end, wait for the checkpoint that covers everything."""
        numbers = self._count()
        if numbers:
            self._since.append(numbers)
        return STEP * PAUSE_S if numbers or self._since or self._waiting else None

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return how far each span is, and what is not in files yet."""
        self._waiting[checkpoint_id], self._since = self._since, []
        unwritten = [each for ranges in self._waiting.values() for each in ranges]
        elements = [json.dumps([each.start, each.stop]).encode() for each in unwritten]
        return {**super().snapshot(checkpoint_id), "unwritten": elements}

    def complete(self, checkpoint_id: int) -> None:
        """Write what the checkpoint covers."""
        for covered in [each for each in self._waiting if each <= checkpoint_id]:
            for numbers in self._waiting.pop(covered):
                self._write(numbers)

    def _write(self, numbers: range) -> None:
        self._out.mkdir(exist_ok=True)
        path = self._out / f"{numbers.start:06d}.parquet"
        pq.write_table(pa.table({"n": list(numbers)}, NUMBERS), path.with_suffix(".tmp"))
        path.with_suffix(".tmp").rename(path)


class Operator(ExternalTask):
    """Passes numbers on, always one batch late: the state holds what came last."""

    def begin(self, context: TaskContext) -> None:
        """Take what the state holds."""
        self._held = [int(element) for element in context.state.get("held", [])]
        self._emit = context.emit

    def process(self, rows: Rows) -> None:
        """Put out what came before, and hold these."""
        self.end_input()
        self._held = [row["n"] for row in from_arrow(rows.arrow)]

    def end_input(self) -> None:
        """Put out what is held."""
        if self._held:
            self._emit(to_arrow([{"n": number} for number in self._held], NUMBERS))
        self._held = []

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return what is held."""
        return {"held": [str(number).encode() for number in self._held]}


def main() -> None:
    """Take part, in one job after the other."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    tasks: dict[str, Any] = {"source": Source, "operator": Operator, "alone": lambda: Alone(directory / "out")}
    task = tasks[name]()
    while True:
        try:
            beside = running()[0]
            settings = {"security.auth.token": beside.token}
            print(
                participate(
                    task,
                    job=JOB,
                    task_name=name,
                    coordinator=beside.address,
                    settings=settings,
                    retry_pause=RETRY_S,
                    give_up_after=GIVE_UP_S,
                ),
                flush=True,
            )
        except (IndexError, ParticipationRefused) as error:
            print(error, flush=True)
        time.sleep(RETRY_S)


if __name__ == "__main__":
    main()
