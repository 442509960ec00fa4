"""Programs outside that are operators, in the simulator: they stall, die, answer twice, answer late, decline and lie.

    python -m tests.simulation.programs_with_rows --seeds 3000
    python -m tests.simulation.programs_with_rows --seed 42        tells its story

The operator, the core of its place, and the Python client's Conversation are the product's own; the task, its
checkpoints and the stream between the two ends are this file's. Two subtasks, or three after a rescale, get rows by
key, watermarks and barriers; now and then something fails, and all begin again from the latest checkpoint that
completed. Oracles: of each key the answers are 1, 2, 3, ... without a hole and without a repetition in what the
checkpoints cover; no watermark passes a row that came before it; a program begins from the latest complete checkpoint;
what is said to be complete to a program is; and the rows come to their end once the faults stop.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from examples.external_rows import NUMBERS, TOTALS, from_arrow, to_arrow
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.dataflow.elements import SnapshotType, Watermark
from snapline.dataflow.graph.operator_specs import ExternalSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.external import CheckpointDeclined, ExternalTask, Rows, TaskContext
from snapline.external.conversation import Conversation
from snapline.protos import external_pb2 as pb
from snapline.taskmanager.operators.external.external_operators import (
    CheckpointDeclinedByProgram,
    ExternalOperator,
    ExternalTaskFailed,
)
from snapline.taskmanager.programs.program_place import ForTask, ProgramPlace, SayToProgram
from snapline.testing.simulated.world import Violation
from tests.simulation.seed_command import run_seeds
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

KEYS = 6
ROWS = 60
"""So many of each key."""
MAX_PARALLELISM = 16
MAX_STATE_BYTES = 2_000
FAULTY_STEPS = 250
STEPS = 3_000


class FaultyRun:
    """What the programs of one seed share: chance, faults, and the checkpoint that they begin from."""

    def __init__(self, seed: str, *, keep_story: bool = False) -> None:
        self.rng = random.Random(seed)
        self.has_faults = True
        self.story: list[str] = []
        self._keep_story = keep_story
        self.completed = 0
        """The latest checkpoint that is complete."""
        self.attempts = 0

    def draw(self) -> float:
        """A number below 1; 1 when nothing goes wrong any more."""
        return self.rng.random() if self.has_faults else 1.0

    def say(self, line: str) -> None:
        """Tell the story."""
        if self._keep_story:
            self.story.append(line)

    def check_begin(self, context: TaskContext) -> None:
        """From the latest checkpoint, and from none before or after it."""
        if context.restored_checkpoint_id != self.completed:
            raise Violation(f"it begins from {context.restored_checkpoint_id}, and {self.completed} is complete")

    def check_complete(self, checkpoint_id: int) -> None:
        """Nobody hears of a checkpoint that is not complete."""
        if checkpoint_id > self.completed:
            raise Violation(f"checkpoint {checkpoint_id} is said to be complete, and {self.completed} is")


class Counting(ExternalTask):
    """Answers each row with how many of its key there have been."""

    redistribution: Mapping[str, str] = {"counts": "by_key"}

    def __init__(self, run: FaultyRun) -> None:
        self._run = run

    def begin(self, context: TaskContext) -> None:
        """Go on with the counts of the state."""
        self._run.check_begin(context)
        groups = context.key_groups.get("counts", [])
        states = [json.loads(element) for element in context.state.get("counts", [])]
        self._counts = {key: (group, count) for group, (key, count) in zip(groups, states, strict=True)}
        self._emit = context.emit

    def process(self, rows: Rows) -> None:
        """One answer a row, in one batch or in two."""
        answers = []
        for row, group in zip(from_arrow(rows.arrow), rows.key_groups, strict=True):
            count = self._counts.get(row["key"], (group, 0))[1] + 1
            self._counts[row["key"]] = (group, count)
            answers.append({**row, "total": count})
        cut = self._run.rng.randint(0, len(answers))
        for part in (answers[:cut], answers[cut:]):
            if part:
                self._emit(to_arrow(part, TOTALS))

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[bytes | tuple[int, bytes]]]:
        """The counts; sometimes none, or too much."""
        fault = self._run.draw()
        if fault < 0.05:
            raise CheckpointDeclined("not now")
        counts = [(group, json.dumps([key, count]).encode()) for key, (group, count) in self._counts.items()]
        return {"counts": counts, **({"fat": [b"x" * MAX_STATE_BYTES]} if fault < 0.1 else {})}

    def complete(self, checkpoint_id: int) -> None:
        """Nothing is made visible; but it has to be true."""
        self._run.check_complete(checkpoint_id)


class SimulatedPlace:
    """A place whose program answers when the task waits, or when it is its turn (PlaceForProgram)."""

    def __init__(self, run: FaultyRun, core: ProgramPlace, create_task: Callable[[], ExternalTask]) -> None:
        self._run, self._core, self._create_task = run, core, create_task
        self.task = create_task()
        """The program that is there, or was there last."""
        self._to_task: deque[ForTask] = deque()
        self._to_program: deque[bytes] = deque()
        self._from_program: deque[bytes] = deque()
        self._conversation = Conversation(self.task)
        self._is_gone = self._is_closed = False
        self.is_slow = False
        """It answers nothing until the faults stop, or somebody waits for too long."""
        self.has_steps = False
        """It is a source, which does more than answer."""
        self.take = lambda: self._to_task.popleft() if self._to_task else None
        self.give_rows = lambda arrow, groups: self._perform(core.give_rows(arrow, groups))
        self.end_input = lambda: self._perform(core.end_input())
        self._perform(core.joined())

    @property
    def is_running(self) -> bool:
        return self._core.is_running

    @property
    def has_room(self) -> bool:
        return self._core.has_room

    @property
    def has_output(self) -> bool:
        return bool(self._to_task)

    def give_watermark(self, timestamp_ms: int, *, is_idle: bool) -> None:
        self._perform(self._core.give_watermark(timestamp_ms, is_idle=is_idle))

    def ask_for_snapshot(self, checkpoint_id: int, timestamp_ms: int, *, stops: bool) -> None:
        kind = pb.SNAPSHOT_KIND_STOP if stops else pb.SNAPSHOT_KIND_CHECKPOINT
        self._perform(self._core.ask_for_snapshot(checkpoint_id, timestamp_ms, kind))

    def settle(self, checkpoint_id: int, *, is_complete: bool) -> None:
        self._perform(self._core.settle(checkpoint_id, is_complete=is_complete))

    def wait(self, timeout_ms: int) -> ForTask | None:
        """The program gets its turns; one that is slow may be so for too long."""
        if self.is_slow and self._run.draw() < 0.3:
            return None
        self.is_slow = False
        while not self._to_task:
            self.turn()
        return self._to_task.popleft()

    def cancel(self) -> None:
        """Nobody waits in a simulation."""

    def close(self, why: str) -> None:
        """The program hears of it, and is forgotten."""
        self._conversation.lost(why)
        self._is_gone = self._is_closed = True

    def turn(self) -> None:
        """One message arrives, at one end or the other, or something goes wrong."""
        if self._is_gone:
            self._come_again()
        elif self._run.draw() < 0.01:
            self._run.say("a program dies")
            self._is_gone = True
            self._perform(self._core.left("its stream ended"))
        elif self._run.draw() < 0.02:
            self._perform(self._core.said(self._lie()))
        elif self._from_program and (not self._to_program or self._run.rng.random() < 0.5):
            self._perform(self._core.said(pb.FromProgram.FromString(self._from_program.popleft())))
        elif self._to_program:
            self._answer(self._conversation.handle(pb.ToProgram.FromString(self._to_program.popleft())))
        elif self.has_steps and self._conversation.is_running:
            self._answer(self._conversation.work()[1])

    def _answer(self, answers: Sequence[pb.FromProgram]) -> None:
        for answer in answers:
            twice = not answer.HasField("rows") and self._run.draw() < 0.05
            self._from_program += [answer.SerializeToString()] * (2 if twice else 1)

    def _come_again(self) -> None:
        """One that died before it had begun is followed by another in the same attempt."""
        if not self._core.is_running and not self._is_closed:
            self.task = self._create_task()
            self._conversation, self._is_gone = Conversation(self.task), False
            self._to_program.clear()
            self._from_program.clear()
            self._perform(self._core.joined())

    def _lie(self) -> pb.FromProgram:
        """Something that is wrong, and that must have no effect."""
        attempt = self._conversation._attempt
        watermark = pb.Watermark(attempt_id=attempt, timestamp_ms=-1)
        return self._run.rng.choice(
            [
                pb.FromProgram(rows=pb.Rows(attempt_id="another", arrow=to_arrow([], TOTALS))),
                pb.FromProgram(
                    acknowledge_checkpoint=pb.AcknowledgeCheckpoint(attempt_id=attempt, checkpoint_id=9_999)
                ),
                pb.FromProgram(notification_handled=pb.NotificationHandled(attempt_id=attempt, checkpoint_id=9_999)),
                pb.FromProgram(rows_processed=pb.RowsProcessed(attempt_id=attempt, number=0)),
                pb.FromProgram(task_finished=pb.TaskFinished(attempt_id=attempt)),
                *([] if self.has_steps else [pb.FromProgram(watermark=watermark)]),
            ]
        )

    def _perform(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            if not isinstance(effect, SayToProgram):
                self._to_task.append(effect)
            elif not self._is_gone:
                self._to_program.append(effect.message.SerializeToString())


class Subtask:
    """One subtask, and what it has put out since the latest checkpoint."""

    def __init__(self, run: Run, index: int, parallelism: int, written: Sequence[Written]) -> None:
        spec = ExternalSpec("counts", "operator", NUMBERS, TOTALS, ("key",))
        self.operator = ExternalOperator(spec)
        harness = Harness(
            self.operator, subtask=index, parallelism=parallelism, attempt=run.attempts, max_parallelism=MAX_PARALLELISM
        )
        self.harness = harness
        self.places: list[SimulatedPlace] = []

        def offer(told: pb.RunTask, key_groups: range, wake_up: Any) -> SimulatedPlace:
            del wake_up
            self.places.append(
                SimulatedPlace(run, ProgramPlace(told, MAX_STATE_BYTES, key_groups), lambda: Counting(run))
            )
            return self.places[-1]

        self.operator.setup(replace(harness.context, offer_place=offer), harness)
        harness.start(restored_state(written, run.completed) if written else None)
        self.groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, parallelism, index)
        self.next = dict(run.positions)
        """The next number of each key that was given to it."""
        self.watermark_ms = -1

    def owns(self, key: int) -> bool:
        """Whether the rows of the key come here."""
        return int(assign_to_key_groups([pa.array([key])], MAX_PARALLELISM)[0]) in self.groups


class Run(FaultyRun):
    """One seed."""

    def __init__(self, seed: int, *, keep_story: bool = False) -> None:
        super().__init__(f"rows {seed}", keep_story=keep_story)
        self._checkpoints = 0
        self.positions = dict.fromkeys(range(KEYS), 1)
        """The next number of each key, at the latest complete checkpoint."""
        self._covered: list[tuple[int, int, int]] = []
        """What was put out before it."""
        self._written: list[Written] = []
        self._subtasks: list[Subtask] = []

    def perform(self) -> None:
        """Run it to its end, with faults at first. Raises Violation."""
        self._begin()
        for step in range(STEPS):
            self.has_faults = step < FAULTY_STEPS
            try:
                self._step()
            except ExternalTaskFailed as failure:
                if Violation.__name__ in str(failure):  # the program has said it as its own failure
                    raise Violation(str(failure)) from failure
                self.say(f"the job restarts: {failure}")
                self._begin()
            if not self.has_faults and all(number > ROWS for number in self.positions.values()):
                break
        else:
            raise Violation(f"after {STEPS} steps the rows are at {self.positions}")
        expected = [(key, number, number) for key in range(KEYS) for number in range(1, ROWS + 1)]
        if sorted(self._covered) != expected:
            raise Violation(f"the answers are {sorted(self._covered)}")

    def _begin(self) -> None:
        for subtask in self._subtasks:
            subtask.operator.close()
        self.attempts += 1
        parallelism = self.rng.choice([2, 3])
        self._subtasks = [Subtask(self, index, parallelism, self._written) for index in range(parallelism)]

    def _step(self) -> None:
        ready = all(each.operator.is_ready for each in self._subtasks)
        what = self.rng.random()
        subtask = self.rng.choice(self._subtasks)
        if what < 0.5 or not ready:
            subtask.places[-1].is_slow = subtask.places[-1].is_slow or self.draw() < 0.01
            if not (subtask.places[-1].is_slow and self.has_faults):
                subtask.places[-1].turn()
        elif subtask.operator.has_pending_work:
            subtask.operator.continue_work()
        elif what < 0.8:
            self._give(subtask)
        elif what < 0.85:
            at_ms = min((number for key, number in subtask.next.items() if subtask.owns(key)), default=ROWS)
            subtask.operator.process_watermark(Watermark(at_ms - 1))
        else:
            self._checkpoint()

    def _give(self, subtask: Subtask) -> None:
        """Rows of its keys, if it takes any."""
        if subtask.operator.is_blocked:
            return
        rows = []
        for key in range(KEYS):
            if subtask.owns(key):
                count = min(self.rng.randint(0, 4), ROWS + 1 - subtask.next[key])
                rows += [{"key": key, "number": subtask.next[key] + index} for index in range(count)]
                subtask.next[key] += count
        if rows:
            subtask.operator.process_batch(pa.RecordBatch.from_pylist(rows, NUMBERS))

    def _checkpoint(self) -> None:
        self._checkpoints += 1
        checkpoint_id = CheckpointID(self._checkpoints)
        taken = []
        for subtask in self._subtasks:  # each is at its barrier, and has nothing to do before it
            while subtask.operator.has_pending_work:
                subtask.operator.continue_work()
            subtask.operator.prepare_snapshot_pre_barrier(checkpoint_id)
            subtask.operator.announce_snapshot(SnapshotType.CHECKPOINT)
            taken.append(subtask.operator.snapshot_state(checkpoint_id, 0))
        try:
            written = [Written(each) for each in taken]
        except CheckpointDeclinedByProgram as declined:
            self.say(f"checkpoint {checkpoint_id} is declined: {declined}")
            written = []
        if not written or self.draw() < 0.1:
            for subtask in self._subtasks:
                subtask.operator.notify_checkpoint_aborted(checkpoint_id)
            return
        self.completed, self._written = checkpoint_id, written
        for subtask in self._subtasks:
            self._cover(subtask)
            for key in range(KEYS):
                if subtask.owns(key):
                    self.positions[key] = subtask.next[key]
        for subtask in self._subtasks:
            subtask.operator.notify_checkpoint_complete(checkpoint_id)

    def _cover(self, subtask: Subtask) -> None:
        for item in subtask.harness.take():
            if isinstance(item, Watermark):
                subtask.watermark_ms = item.timestamp_ms
                continue
            for row in item.to_pylist():
                if row["number"] <= subtask.watermark_ms:
                    raise Violation(f"{row} comes after watermark {subtask.watermark_ms}")
                self._covered.append((row["key"], row["number"], row["total"]))


if __name__ == "__main__":
    run_seeds("Programs outside that are operators, in the simulator.", "every row was answered once", Run)
