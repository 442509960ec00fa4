"""A program outside that is a task of a job, exactly once: it counts, and writes each number into a file once.

    snapline coordinator -D execution.checkpointing.dir=/tmp/checkpoints &
    snapline external submit fleet --task orders=1 -D execution.checkpointing.interval="1 s"
    python -m examples.external_counter --coordinator 127.0.0.1:6123 --job fleet --task orders --output out

Kill it with signal 9 and start it again: the files hold 1, 2, 3, ... without a hole and without a repetition. It is a
transaction in two phases: numbers since the last checkpoint are part of the state, and become a file when the
checkpoint is complete; a file's name is that of its numbers, so that it can be written again after a failure.
`clients/node/external_counter.js` does the same in Node.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from snapline.external import ExternalTask, FailedForGood, TaskContext, participate


class Counter(ExternalTask):
    """Counts to `until`, `pause` seconds apart."""

    def __init__(self, output: Path, until: int, pause: float) -> None:
        self._output = output
        self._until = until
        self._pause = pause
        self._next = 1
        self._written_up_to = 0
        """The last number that is in a file."""
        self._snapshots: dict[int, int] = {}
        """The last number that each checkpoint covers."""

    def begin(self, context: TaskContext) -> None:
        """Go on where the state is, and write what it covers: nobody knows whether that was done."""
        states = context.state.get("counter", [])
        if len(states) > 1:
            raise FailedForGood(
                "this program holds one counter, and after the rescale it would be several: start more programs"
            )
        state = json.loads(states[0] if states else b'{"next": 1, "written_up_to": 0}')
        self._next, self._written_up_to = state["next"], state["written_up_to"]
        self._snapshots = {}
        self._write(self._next - 1)

    def work(self) -> float | None:
        """Count one; at the end, or beyond it in an earlier life, wait for the checkpoint that covers everything."""
        if self._next <= self._until:
            self._next += 1
            return self._pause
        return None if self._written_up_to == self._next - 1 else self._pause

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return where it is, and what is not in a file yet."""
        self._snapshots[checkpoint_id] = self._next - 1
        state = {"next": self._next, "written_up_to": self._written_up_to}
        return {"counter": [json.dumps(state).encode()]}

    def complete(self, checkpoint_id: int) -> None:
        """Write the file of all numbers that the checkpoint covers."""
        if checkpoint_id in self._snapshots:
            self._write(self._snapshots[checkpoint_id])
            self._snapshots = {each: last for each, last in self._snapshots.items() if each > checkpoint_id}

    def aborted(self, checkpoint_id: int) -> None:
        """The next checkpoint will cover it."""
        self._snapshots.pop(checkpoint_id, None)

    def _write(self, up_to: int) -> None:
        if up_to <= self._written_up_to:
            return
        numbers = range(self._written_up_to + 1, up_to + 1)
        self._output.mkdir(parents=True, exist_ok=True)
        partial = self._output / ".partial"
        partial.write_text("".join(f"{number}\n" for number in numbers))
        partial.replace(self._output / f"{numbers[0]:08d}")
        self._written_up_to = up_to


def main() -> None:
    """Take part until the job is over."""
    parser = argparse.ArgumentParser(description="A task of a job that counts.")
    parser.add_argument("--coordinator", default="127.0.0.1:6123")
    parser.add_argument("--job", required=True)
    parser.add_argument("--task", default="task")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--until", type=int, default=1_000_000)
    parser.add_argument("--pause", type=float, default=0.01)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    counter = Counter(given.output, given.until, given.pause)
    said = participate(counter, job=given.job, task_name=given.task, coordinator=given.coordinator, retry_pause=0.1)
    print(said)


if __name__ == "__main__":
    main()
