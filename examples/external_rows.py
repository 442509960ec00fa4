"""Programs outside that are the source, the operator and the sink of a job, exactly once.

The job (another process, such as a notebook):

    numbers = env.from_external("numbers", NUMBERS, uid="numbers")
    numbers.key_by("key").via_external("totals", TOTALS, uid="totals").to_external("files", uid="files")

and as many of these as its operators have subtasks:

    python -m examples.external_rows numbers --job JOB --until 1000
    python -m examples.external_rows totals --job JOB
    python -m examples.external_rows files --job JOB --output out

Kill any of them with signal 9 and start it again: the files hold each row once. `clients/node/external_totals.js` is
the operator in Node.
"""

from __future__ import annotations

import argparse
import json
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from snapline.external import ExternalTask, Rows, TaskContext, participate

NUMBERS = pa.schema([("key", pa.int64()), ("number", pa.int64())])
TOTALS = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("total", pa.int64())])
KEYS = 4
BATCH = 20


def to_arrow(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """An Arrow IPC stream with these rows."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(list(rows), schema))
    return out.getvalue().to_pybytes()


def from_arrow(arrow: bytes) -> list[dict[str, Any]]:
    """The rows of an Arrow IPC stream."""
    rows: list[dict[str, Any]] = pa.ipc.open_stream(arrow).read_all().to_pylist()
    return rows


class Numbers(ExternalTask):
    """The source: 1, 2, 3, ... `until` of each key. A key is an element of the state, with its next number."""

    def __init__(self, until: int, pause: float) -> None:
        self._until = until
        self._pause = pause

    def begin(self, context: TaskContext) -> None:
        """Go on with the keys of the state; at first, subtask i of p has key i, i + p, ..."""
        own = range(context.subtask_index, KEYS, context.parallelism)
        states: list[tuple[int, int]] = [tuple(json.loads(element)) for element in context.state.get("keys", [])]
        self._next = dict(states if context.restored_checkpoint_id else [(key, 1) for key in own])
        self._emit = context.emit

    def work(self) -> float | None:
        """Put out some more of each key."""
        rows = []
        for key, first in self._next.items():
            self._next[key] = min(first + BATCH, self._until + 1)
            rows += [{"key": key, "number": number} for number in range(first, self._next[key])]
        if not rows:
            return None
        self._emit(to_arrow(rows, NUMBERS))
        return self._pause

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return where each key is."""
        return {"keys": [json.dumps([key, number]).encode() for key, number in self._next.items()]}


class Totals(ExternalTask):
    """The operator: adds up the numbers of each key. The total of a key goes where its rows go."""

    redistribution: Mapping[str, str] = {"totals": "by_key"}

    def begin(self, context: TaskContext) -> None:
        """Take the totals of the state."""
        groups = context.key_groups.get("totals", [])
        states = [json.loads(element) for element in context.state.get("totals", [])]
        self._totals = {key: (group, total) for group, (key, total) in zip(groups, states, strict=True)}
        self._emit = context.emit

    def process(self, rows: Rows) -> None:
        """Answer each row with its key's total so far."""
        answers = []
        for row, group in zip(from_arrow(rows.arrow), rows.key_groups, strict=True):
            total = self._totals.get(row["key"], (group, 0))[1] + row["number"]
            self._totals[row["key"]] = (group, total)
            answers.append({**row, "total": total})
        self._emit(to_arrow(answers, TOTALS))

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes | tuple[int, bytes]]]:
        """Return the totals, each with its key group."""
        return {"totals": [(group, json.dumps([key, total]).encode()) for key, (group, total) in self._totals.items()]}


class Files(ExternalTask):
    """The sink: what came before a checkpoint becomes a file when that is complete. Its name is part of the state, so
    that it can be written again after a failure."""

    def __init__(self, output: Path) -> None:
        self._output = output

    def begin(self, context: TaskContext) -> None:
        """Write what the state holds: its checkpoint is complete, and nobody knows whether this was done."""
        self._rows: list[dict[str, Any]] = []
        self._waiting: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        for element in context.state.get("files", []):
            name, rows = json.loads(element)
            self._write(name, rows)

    def process(self, rows: Rows) -> None:
        """Keep the rows until the checkpoint."""
        self._rows += from_arrow(rows.arrow)

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return every file that is not written yet."""
        if self._rows:
            self._waiting[uuid.uuid4().hex] = (checkpoint_id, self._rows)
            self._rows = []
        return {"files": [json.dumps([name, rows]).encode() for name, (_, rows) in self._waiting.items()]}

    def complete(self, checkpoint_id: int) -> None:
        """Write the files that the checkpoint covers."""
        for name, (covered_by, rows) in list(self._waiting.items()):
            if covered_by <= checkpoint_id:
                self._write(name, rows)
                del self._waiting[name]

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        partial = self._output / f".{name}"
        partial.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        partial.replace(self._output / name)


def main() -> None:
    """Take part until the job is over."""
    parser = argparse.ArgumentParser(description="The source, the operator or the sink of a job.")
    parser.add_argument("task", choices=["numbers", "totals", "files"])
    parser.add_argument("--coordinator", default="127.0.0.1:6123")
    parser.add_argument("--job", required=True)
    parser.add_argument("--output", type=Path, default=Path("out"))
    parser.add_argument("--until", type=int, default=1_000)
    parser.add_argument("--pause", type=float, default=0.01)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    tasks = {"numbers": Numbers(given.until, given.pause), "totals": Totals(), "files": Files(given.output)}
    task: ExternalTask = tasks[given.task]
    print(participate(task, job=given.job, task_name=given.task, coordinator=given.coordinator, retry_pause=0.1))


if __name__ == "__main__":
    main()
