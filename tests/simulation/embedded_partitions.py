"""Partitions of resumable functions in the simulator: attempts stall, die and run beside each other, storage fails.

    python -m tests.simulation.embedded_partitions --seeds 3000
    python -m tests.simulation.embedded_partitions --seed 42        tells its story

Everything but Spark, the storage and time is the product's own. As Spark does, the simulator begins an attempt for each
partition, a second one beside a slow one, and another when one has died; a driver that dies takes all with it. Storage
refuses a write, or takes it and does not answer (which the writer takes for a refusal), or takes it twice; an attempt
may die before and after any access. Oracles: every attempt that comes to its end has given the output of a run without
faults, whoever else ran; an attempt begins where the furthest checkpoint was that was there when it began; all
partitions end once the faults stop.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any
from unittest.mock import patch

import snapline as sl
from snapline.embed import resumable_functions
from snapline.runtime.storage.storage_port import StorageError, StorageNotFound
from snapline.testing.simulated.world import Violation
from tests.simulation.seed_command import run_seeds

ROWS = 40
FAULTY_STEPS = 400
"""Faults stop after so many steps."""
STEPS = 3_000


class Died(BaseException):
    """What stands for signal 9: no code of the attempt runs after it."""


class FaultyStorage:
    """Files in memory, and what goes wrong on the way there."""

    def __init__(self, run: Run) -> None:
        self.files: dict[str, bytes] = {}
        self._run = run

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or not, or twice, or without an answer."""
        fault = self._run.draw("storage")
        if fault < 0.04:
            raise StorageError(f"{path}: refused")
        if fault < 0.08:
            raise Died
        self.files[path] = data
        if fault < 0.12:
            raise StorageError(f"{path}: no answer")
        if fault < 0.16:
            raise Died
        if fault < 0.20:
            self.files[path] = bytes(data)

    def get(self, path: str) -> bytes:
        """Read a file that is there."""
        if path not in self.files:
            raise StorageNotFound(path)
        return self.files[path]

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """The files of a directory."""
        return [(path, len(data)) for path, data in sorted(self.files.items()) if path.startswith(prefix)]

    def furthest_of(self, partition: int) -> int:
        """How many rows the furthest checkpoint of a partition covers, by the names of the files."""
        names = [path for path in self.files if path.startswith(f"p-{partition:06d}/") and path.endswith(".json")]
        return max((int(name.split("-")[2]) for name in names), default=0)

    def delete(self, path: str) -> None:
        """Delete a file, unless the storage does not answer."""
        if self._run.draw("storage") < 0.05:
            raise StorageError(f"{path}: not deleted")
        self.files.pop(path, None)


class Sums(sl.ResumableFunction):
    """Adds up what it has seen: state, input and output have to fit together."""

    def __init__(self) -> None:
        self.total = 0
        self.processed: list[int] = []

    def process(self, item: Any) -> Iterator[tuple[int, int]]:
        """No, one or two outputs for a row."""
        self.processed.append(item)
        self.total += item
        yield from ((item, self.total),) * (item % 3)

    def snapshot(self) -> Any:
        """The sum."""
        return {"total": self.total}

    def restore(self, state: Any) -> None:
        """Go on with it."""
        self.total = state["total"]


def expected_of(partition: int) -> list[tuple[int, int]]:
    """What a partition gives without faults."""
    function = Sums()
    return [output for row in rows_of(partition) for output in function.process(row)]


def rows_of(partition: int) -> range:
    """The input of a partition, which comes out the same each time."""
    return range(partition * 100, partition * 100 + ROWS)


class Attempt:
    """One attempt at one partition."""

    def __init__(self, run: Run, partition: int, number: int) -> None:
        self.name = f"{partition}.{number}"
        self.partition = partition
        self.function = Sums()
        self.got: list[tuple[int, int]] = []
        self.stalled_until = 0
        self.began_at: int | None = None
        resumable = sl.resumable(self.function, uid="sums", directory="/simulated", interval_ms=run.interval_ms)
        self._storage = run.storage
        self._place = (partition, number)
        self._resumable = resumable
        self._outputs = resumable(iter(rows_of(partition)))

    def step(self) -> bool:
        """Up to the next output; whether it has come to its end."""
        with (
            patch.object(resumable_functions.Resumable, "_storage", lambda _: self._storage),
            patch.object(resumable_functions, "_place", lambda: self._place),
        ):
            if self.began_at is None:
                self.began_at = self._storage.furthest_of(self.partition)
            try:
                self.got.append(next(self._outputs))
            except StopIteration:
                return True
            return False


class Run:
    """One seed."""

    def __init__(self, seed: int, *, keep_story: bool = False) -> None:
        self._rngs = {name: random.Random(f"{seed} {name}") for name in ("storage", "faults", "names")}
        self.story: list[str] = []
        self._keep_story = keep_story
        self.has_faults = True
        self.interval_ms = self._rngs["faults"].choice([0, 0, 0, 10**9])
        self.storage = FaultyStorage(self)
        self._begun = 0
        self._finished: set[int] = set()
        self._running: list[Attempt] = []

    def draw(self, name: str) -> float:
        """A number below 1; 1 when nothing goes wrong any more."""
        return self._rngs[name].random() if self.has_faults else 1.0

    def perform(self) -> None:
        """Run it to its end, with faults at first. Raises Violation."""
        rng = self._rngs["faults"]
        partitions = range(rng.randint(1, 3))
        with patch("uuid.uuid4", self._draw_name), redirect_stderr(io.StringIO()):
            for step in range(STEPS):
                self.has_faults = step < FAULTY_STEPS
                for partition in partitions:
                    beside = sum(each.partition == partition for each in self._running)
                    is_slow = beside == 1 and self.draw("faults") < 0.01
                    if partition not in self._finished and (beside == 0 or is_slow):
                        self._begin(partition)
                ready = [each for each in self._running if each.stalled_until <= step or not self.has_faults]
                if ready:
                    self._step(rng.choice(ready), step)
                if self.has_faults and self.draw("faults") < 0.004:
                    self._say("the driver dies")
                    self._running.clear()
                if len(self._finished) == len(partitions) and not self._running:
                    return
        raise Violation(f"after {STEPS} steps, partitions {sorted(set(partitions) - self._finished)} have not ended")

    def _draw_name(self) -> Any:
        value = self._rngs["names"].getrandbits(128)
        return type("Name", (), {"hex": f"{value:032x}"})()

    def _begin(self, partition: int) -> None:
        self._begun += 1
        self._running.append(Attempt(self, partition, self._begun))
        self._say(f"{self._running[-1].name} begins")

    def _step(self, attempt: Attempt, step: int) -> None:
        fault = self.draw("faults")
        if fault < 0.02:
            self._end(attempt, "is killed")
        elif fault < 0.04:
            attempt.stalled_until = step + self._rngs["faults"].randint(10, 200)
            self._say(f"{attempt.name} stalls")
        else:
            try:
                has_ended = attempt.step()
            except Died:
                self._end(attempt, "dies while it writes")
            except StorageError as error:  # its output could not be written: Spark begins another attempt
                self._end(attempt, f"fails: {error}")
            else:
                if has_ended:
                    self._judge(attempt)
                    self._finished.add(attempt.partition)
                    self._end(attempt, "has ended")

    def _judge(self, attempt: Attempt) -> None:
        if attempt.got != expected_of(attempt.partition):
            raise Violation(f"{attempt.name} has given {attempt.got}")
        first, done = attempt.began_at or 0, attempt.function.processed
        if done and done != list(rows_of(attempt.partition))[first:]:
            raise Violation(f"{attempt.name} began at row {first}, and has processed {done}")

    def _end(self, attempt: Attempt, how: str) -> None:
        self._running.remove(attempt)
        self._say(f"{attempt.name} {how}, after {len(attempt.got)} outputs")

    def _say(self, line: str) -> None:
        if self._keep_story:
            self.story.append(line)


if __name__ == "__main__":
    run_seeds(
        "Partitions of resumable functions in the simulator.", "every attempt that ended gave the whole output", Run
    )
