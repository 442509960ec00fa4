"""Jobs whose source, operator and sink are programs outside, in the simulator: checkpoints, savepoints, other
parallelisms, and everything that programs_with_rows does to one operator.

    python -m tests.simulation.program_chains --seeds 3000
    python -m tests.simulation.program_chains --seed 42        tells its story

The three operators, the cores of their places, and the Python client's Conversation are the product's own; the tasks
around them are this file's, and hand rows on at once. Now and then the job is stopped with a savepoint, and another one
goes on from it; or something fails, and all begin again from the latest snapshot that is complete. Oracles: at the end,
each row of the source was answered once and is in one file of the sink; no file is written that no complete snapshot
covers, none is written again with other rows, and all are there when a job has ended; a program begins from the latest
snapshot; and all comes to its end once the faults stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from examples.external_rows import NUMBERS, TOTALS, Files, to_arrow
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.operator_specs import ExternalSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.external import CheckpointDeclined, ExternalTask, TaskContext
from snapline.protos import external_pb2 as pb
from snapline.taskmanager.operators.base.operator_contract import RestoredState
from snapline.taskmanager.operators.external.external_operators import (
    CheckpointDeclinedByProgram,
    ExternalOperator,
    ExternalSourceOperator,
    ExternalTaskFailed,
)
from snapline.taskmanager.programs.program_place import ProgramPlace
from snapline.testing.simulated.world import Violation
from tests.simulation.programs_with_rows import Counting, FaultyRun, SimulatedPlace
from tests.simulation.seed_command import run_seeds
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

KEYS = 6
ROWS = 40
"""So many of each key."""
MAX_PARALLELISM = 16
MAX_STATE_BYTES = 20_000
FAULTY_STEPS = 400
STEPS = 8_000


class Numbering(ExternalTask):
    """The source: 1, 2, 3, ... of each key. A key is an element of the state, with its next number."""

    def __init__(self, run: ChainRun) -> None:
        self._run = run

    def begin(self, context: TaskContext) -> None:
        """Go on with the keys of the state; at first, subtask i of p has key i, i + p, ..."""
        self._run.check_begin(context)
        own = range(context.subtask_index, KEYS, context.parallelism)
        states = [each.split(b" ") for each in context.state.get("keys", [])]
        begun = {int(key): int(number) for key, number in states}
        self._next = begun if context.restored_checkpoint_id else dict.fromkeys(own, 1)
        self._emit = context.emit

    def work(self) -> float | None:
        """Put out a few rows of each key."""
        rows = []
        for key, first in self._next.items():
            self._next[key] = min(first + self._run.rng.randint(0, 4), ROWS + 1)
            rows += [{"key": key, "number": number} for number in range(first, self._next[key])]
        if rows:
            self._emit(to_arrow(rows, NUMBERS))
        return None if all(number > ROWS for number in self._next.values()) else 0.0

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return where each key is."""
        self._run.decline_sometimes()
        return {"keys": [f"{key} {number}".encode() for key, number in self._next.items()]}

    def complete(self, checkpoint_id: int) -> None:
        """It has to be true."""
        self._run.check_complete(checkpoint_id)


class Filing(Files):
    """The sink of the example, whose files outlive its programs."""

    def __init__(self, run: ChainRun) -> None:
        super().__init__(Path("nowhere"))
        self._run = run

    def begin(self, context: TaskContext) -> None:
        """Write what the state holds."""
        self._run.check_begin(context)
        super().begin(context)

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes]]:
        """Return every file that is not written yet."""
        self._run.decline_sometimes()
        return super().snapshot(checkpoint_id)

    def complete(self, checkpoint_id: int) -> None:
        """Write the files that the checkpoint covers."""
        self._run.check_complete(checkpoint_id)
        super().complete(checkpoint_id)

    @property
    def waiting(self) -> list[str]:
        """The names of files that are not written yet."""
        return list(self._waiting)

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        if self._run.files.setdefault(name, rows) != rows:
            raise Violation(f"file {name} is written again with other rows")


class ChainSubtask:
    """One subtask of one of the three operators."""

    def __init__(self, run: ChainRun, stage: int, index: int, parallelism: int) -> None:
        spec, create_operator, create_task = run.stages[stage]
        self.operator: Any = create_operator(spec)
        self.harness = Harness(
            self.operator, subtask=index, parallelism=parallelism, attempt=run.attempts, max_parallelism=MAX_PARALLELISM
        )
        self.name = f"{spec.task} {index + 1}/{parallelism}"
        self.place: Any = None

        def offer(told: pb.RunTask, key_groups: range, wake_up: Any) -> SimulatedPlace:
            del wake_up
            self.place = SimulatedPlace(run, ProgramPlace(told, MAX_STATE_BYTES, key_groups), create_task)
            self.place.has_steps = spec.shape == "source"
            return self.place

        self.operator.setup(replace(self.harness.context, offer_place=offer), self.harness)
        written = run.written[stage]
        self.harness.start(_dealt_out(written, run.completed, index, parallelism) if written else None)
        self.groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, parallelism, index)
        self.has_ended = False
        """All that it puts out has gone on."""
        self.is_told = stage == 0
        """It knows that its input has ended."""

    def take_rows(self) -> list[dict[str, Any]]:
        """What it has put out, and nobody has taken."""
        return [row for batch in self.harness.take() for row in batch.to_pylist()]

    def give(self, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        """Its share of these rows, as soon as it takes any; so a barrier does not overtake them."""
        own = [
            row
            for row in rows
            if int(assign_to_key_groups([pa.array([row["key"]])], MAX_PARALLELISM)[0]) in self.groups
        ]
        if own:
            self.wait_until(lambda: not self.operator.is_blocked)
            self.operator.process_batch(pa.RecordBatch.from_pylist(own, schema))

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Let its program do its work, until it is so."""
        while not reached():
            if self.operator.has_pending_work:
                self.operator.continue_work()
            else:
                self.place.turn()


def _dealt_out(written: Sequence[Written], checkpoint_id: int, index: int, parallelism: int) -> RestoredState:
    """What one new subtask gets of the snapshots of all old ones: elements of lists that are split go one by one."""
    restored = restored_state(written, checkpoint_id)
    split = {each.name for one in written for each in one.lists if each.mode is OperatorStateMode.SPLIT_DISTRIBUTE}
    lists = restored.operator_lists or {}
    dealt = {name: lists[name][index::parallelism] if name in split else lists[name] for name in lists}
    return replace(restored, operator_lists=dealt)


class ChainRun(FaultyRun):
    """One seed."""

    def __init__(self, seed: int, *, keep_story: bool = False) -> None:
        super().__init__(f"chain {seed}", keep_story=keep_story)
        self.files: dict[str, list[dict[str, Any]]] = {}
        """What the sink has made visible."""
        self.stages: list[tuple[ExternalSpec, Callable[[ExternalSpec], Any], Callable[[], ExternalTask]]] = [
            (ExternalSpec("numbers", "source", None, NUMBERS), ExternalSourceOperator, lambda: Numbering(self)),
            (ExternalSpec("counts", "operator", NUMBERS, TOTALS, ("key",)), ExternalOperator, lambda: Counting(self)),
            (ExternalSpec("files", "sink", TOTALS), ExternalOperator, lambda: Filing(self)),
        ]
        self.written: list[list[Written]] = [[], [], []]
        """The latest complete snapshot, by stage."""
        self.savepoints = 0
        self._checkpoints = 0
        self._subtasks: list[list[ChainSubtask]] = []

    def decline_sometimes(self) -> None:
        """A program does not want this checkpoint. Raises CheckpointDeclined."""
        if self.draw() < 0.02:
            raise CheckpointDeclined("not now")

    def perform(self) -> None:
        """Run it to its end, with faults at first. Raises Violation."""
        self._begin()
        for step in range(STEPS):
            self.has_faults = step < FAULTY_STEPS
            try:
                if self._step():
                    break
            except ExternalTaskFailed as failure:
                if Violation.__name__ in str(failure):  # the program has said it as its own failure
                    raise Violation(str(failure)) from failure
                self.say(f"the job restarts from {self.completed}: {failure}")
                self._begin()
        else:
            raise Violation(f"after {STEPS} steps there is no end")
        found = sorted((row["key"], row["number"], row["total"]) for rows in self.files.values() for row in rows)
        if found != [(key, number, number) for key in range(KEYS) for number in range(1, ROWS + 1)]:
            raise Violation(f"the files hold {found}")

    def _begin(self) -> None:
        for subtask in self._all():
            subtask.operator.close()
        self.attempts += 1
        parallelisms = [self.rng.randint(1, 3) for _ in self.stages]
        self._subtasks = [
            [ChainSubtask(self, stage, index, parallelism) for index in range(parallelism)]
            for stage, parallelism in enumerate(parallelisms)
        ]

    def _all(self) -> list[ChainSubtask]:
        return [subtask for stage in self._subtasks for subtask in stage]

    def _step(self) -> bool:
        """Whether all is done."""
        stage = self.rng.randrange(len(self.stages))
        subtask = self.rng.choice(self._subtasks[stage])
        what = self.rng.random()
        if not all(each.operator.is_ready for each in self._all()) or what < 0.5:
            subtask.place.is_slow = subtask.place.is_slow or self.draw() < 0.01
            if not (subtask.place.is_slow and self.has_faults):
                subtask.place.turn()
        elif what < 0.93:
            self._go_on(stage, subtask)
        else:
            return self._snapshot(stops=what > 0.98 and self.has_faults)
        return False

    def _go_on(self, stage: int, subtask: ChainSubtask) -> None:
        """One thing that its program has said, or the end of what comes to it."""
        before = self._subtasks[stage - 1] if stage else []
        if stage == 0:
            subtask.has_ended = subtask.operator.emit_next() is InputStatus.END_OF_INPUT
        elif subtask.operator.has_pending_work:
            subtask.operator.continue_work()
        elif not subtask.is_told and all(each.has_ended for each in before):
            subtask.is_told = True
            subtask.operator.finish()
        elif subtask.is_told:
            subtask.has_ended = not subtask.operator.is_blocked
        self._hand_on(stage, subtask)

    def _hand_on(self, stage: int, subtask: ChainSubtask) -> None:
        rows = subtask.take_rows()
        if rows:
            for each in self._subtasks[stage + 1]:
                each.give(rows, NUMBERS if stage == 0 else TOTALS)

    def _snapshot(self, *, stops: bool) -> bool:
        """One of all, in the order of the rows; whether the job has ended with it."""
        self._checkpoints += 1
        checkpoint_id = CheckpointID(self._checkpoints)
        is_end = all(each.has_ended for each in self._all())
        taken = [
            [self._take(stage, each, checkpoint_id, stops=stops) for each in subtasks]
            for stage, subtasks in enumerate(self._subtasks)
        ]
        try:
            written = [[Written(each) for each in of_stage] for of_stage in taken]
        except CheckpointDeclinedByProgram as declined:
            self.say(f"snapshot {checkpoint_id} is declined: {declined}")
            written = []
        if not written or self.draw() < 0.05:
            for each in self._all():
                each.operator.notify_checkpoint_aborted(checkpoint_id)
            if stops:
                self._begin()  # its source has stopped
            return False
        self.completed, self.written = checkpoint_id, written
        for each in self._all():
            each.operator.notify_checkpoint_complete(checkpoint_id)
        if stops or is_end:
            self._check_visible()
        if stops and not is_end:
            self.savepoints += 1
            self.say(f"the job is stopped with savepoint {checkpoint_id}, and another one goes on")
            self._begin()
        return is_end

    def _check_visible(self) -> None:
        """A job that has ended has made visible what it ended with."""
        for subtask in self._subtasks[-1]:
            waiting = subtask.place.task.waiting
            if waiting:
                raise Violation(f"the job has ended, and {subtask.name} has not written {waiting}")

    def _take(self, stage: int, subtask: ChainSubtask, checkpoint_id: CheckpointID, *, stops: bool) -> Any:
        if stage == 0 and stops:
            subtask.operator.stop_emitting(checkpoint_id, drain=False)
        elif stage:  # it does nothing before the barrier that it could do after it
            subtask.wait_until(lambda: not subtask.operator.has_pending_work)
        subtask.operator.prepare_snapshot_pre_barrier(checkpoint_id)
        self._hand_on(stage, subtask)
        subtask.operator.announce_snapshot(SnapshotType.SAVEPOINT_SUSPEND if stops else SnapshotType.CHECKPOINT)
        return subtask.operator.snapshot_state(checkpoint_id, 0)


if __name__ == "__main__":
    run_seeds(
        "Jobs whose source, operator and sink are programs outside, in the simulator.",
        "every row went from the source into one file",
        ChainRun,
    )
