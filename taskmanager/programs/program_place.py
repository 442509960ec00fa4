"""ProgramPlace: the place of one program outside in one attempt of a task with rows.

Decides what the program is told, which of what it says makes sense, and what the task gets of it, in order: rows,
watermarks, the end, and the answer to a checkpoint, which stands where the barrier stands. What is wrong has no effect
and is answered with Complaint; state that is too much, or an answer that does not cover the rows before the barrier,
declines the checkpoint. A program that leaves before it has begun may be followed by another; one that leaves later
takes the attempt with it, because nobody knows what it had done.

All rows are numbered; the program says up to which it has processed them, and gets no more than a few before. It does
not know streams, heartbeats or threads. `snapline.coordinator.external.external_program` is the counterpart for tasks
without rows. It has no counterpart in Flink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.snapshot.program_state import StateRefused, check_states
from snapline.dataflow.wire.program_limits import MAX_DETAILS, MAX_LINE
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.machine import CollectedEffects, check

MAX_UNPROCESSED = 8
"""Batches that a program may have at once without having said that they are processed."""


@dataclass(frozen=True, slots=True)
class SayToProgram:
    """An effect: send it to the program."""

    message: pb.ToProgram


@dataclass(frozen=True, slots=True)
class RowsCame:
    """For the task: rows that the program puts out, as an Arrow IPC stream."""

    arrow: bytes


@dataclass(frozen=True, slots=True)
class WatermarkCame:
    """For the task: everything before this watermark has come."""

    timestamp_ms: int
    is_idle: bool


@dataclass(frozen=True, slots=True)
class EndCame:
    """For the task: no more rows will come."""


@dataclass(frozen=True, slots=True)
class SnapshotCame:
    """For the task: the state of the program at the checkpoint."""

    checkpoint_id: int
    states: Sequence[pb.NamedState]


@dataclass(frozen=True, slots=True)
class SnapshotDeclined:
    """For the task: the program cannot take part in the checkpoint."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class NotificationTaken:
    """For the task: the program has done what this checkpoint lets happen."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ProgramFailed:
    """For the task: the attempt cannot go on."""

    reason: str
    details: str = ""
    is_final: bool = False


ForTask = RowsCame | WatermarkCame | EndCame | SnapshotCame | SnapshotDeclined | NotificationTaken | ProgramFailed
PlaceEffect = SayToProgram | ForTask


class PlaceForProgram(Protocol):
    """A place as the operator sees it, which offers it; all but `cancel` on the task's thread."""

    @property
    def is_running(self) -> bool:
        """Whether a program is there and has begun."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether a program may be given rows."""
        ...

    @property
    def has_output(self) -> bool:
        """Whether `take` has something to return."""
        ...

    def take(self) -> ForTask | None:
        """The next thing that the program has said; None: there is none."""
        ...

    def wait(self, timeout_ms: int) -> ForTask | None:
        """The next thing that the program says; None: it has said nothing for so long."""
        ...

    def give_rows(self, arrow: bytes, key_groups: Sequence[int]) -> None:
        """Give the program rows of the input."""
        ...

    def give_watermark(self, timestamp_ms: int, *, is_idle: bool) -> None:
        """The watermark of the input, or that it is idle."""
        ...

    def end_input(self) -> None:
        """Tell the program that the input has ended."""
        ...

    def ask_for_snapshot(self, checkpoint_id: int, timestamp_ms: int, *, stops: bool) -> None:
        """The barrier is here; `stops`: nothing of what follows it counts."""
        ...

    def settle(self, checkpoint_id: int, *, is_complete: bool) -> None:
        """The checkpoint is durable, or will never be."""
        ...

    def cancel(self) -> None:
        """End a wait. From any thread."""
        ...

    def close(self, why: str) -> None:
        """Take the place back: the program hears goodbye."""
        ...


OfferPlaceIn = Callable[[str, pb.RunTask, range, Callable[[], None]], PlaceForProgram]
"""The id of the allocation that the task runs in, and what OfferPlace takes."""
OfferPlace = Callable[[pb.RunTask, range, Callable[[], None]], PlaceForProgram]
"""What a program is told, the key groups of its rows, and how its task is woken up."""


def offer_no_place(run: pb.RunTask, key_groups: range, wake_up: Callable[[], None]) -> PlaceForProgram:
    """Where no program can come. Raises JobDefinitionError."""
    del key_groups, wake_up
    raise JobDefinitionError(
        f"external task {run.task!r} cannot run here: its programs register at a coordinator, and a job that runs in one "
        "process, or in a simulation, has none; start one with `snapline coordinator`"
    )


class ProgramPlace:
    """One place, from the beginning of the attempt to its end."""

    def __init__(self, run: pb.RunTask, max_state_bytes: int, key_groups: range = range(0)) -> None:
        """`run` is what the program is told; `key_groups` are those of the task, if its input has keys."""
        self._run = run
        self._max_state_bytes = max_state_bytes
        self._key_groups = key_groups
        self.is_running = False
        """The program has said that it runs."""
        self.is_over = False
        """The attempt has failed: nothing that a program says counts any more."""
        self._given = 0
        self._processed = 0
        self._watermarks: deque[tuple[int, bool]] = deque()
        """Watermarks that wait for their answer."""
        self._input_ended = False
        self._output_ended = False
        self._asked = 0
        """The checkpoint that waits for its answer; 0: none does."""
        self._last_asked = 0
        self._told: list[int] = []
        """Complete checkpoints that the program was told of, and has not handled."""
        self._out: CollectedEffects[PlaceEffect] = CollectedEffects()

    @property
    def has_room(self) -> bool:
        """Whether the program may be given another batch."""
        return self.is_running and self._given - self._processed < MAX_UNPROCESSED

    @property
    def is_idle(self) -> bool:
        """Whether the program has processed all rows that it was given."""
        return self._processed == self._given

    # --- the stream ---------------------------------------------------------------------------------------------------

    def joined(self) -> list[PlaceEffect]:
        """A program was let in."""
        self._out.append(SayToProgram(pb.ToProgram(run_task=self._run)))
        return self._out.take()

    def left(self, why: str) -> list[PlaceEffect]:
        """The stream of the program is over."""
        if self.is_running and not self.is_over:
            self._fail(why)
        return self._out.take()

    def said(self, message: pb.FromProgram) -> list[PlaceEffect]:
        """Take one message of the program, which is none about its registration or its heart."""
        kind = message.WhichOneof("message")
        if kind is not None and not self.is_over:
            said = getattr(message, kind)
            if said.attempt_id != self._run.attempt_id:
                self._complain(
                    f"{kind} names attempt {said.attempt_id[:MAX_LINE]!r}, and the present one is "
                    f"{self._run.attempt_id}: nothing was done"
                )
            elif not self.is_running and kind not in ("task_running", "task_failed"):
                self._complain(f"{kind} was said before task_running")
            else:
                self._take(kind, said)
        return self._out.take()

    def _take(self, kind: str, said: Any) -> None:
        match said:
            case pb.TaskRunning():
                if self.is_running:
                    self._complain("task_running was said already")
                self.is_running = True
            case pb.TaskFailed():
                reason = said.reason[:MAX_LINE] or "it did not say why"
                self._fail(f"it failed: {reason}", said.details[:MAX_DETAILS], is_final=said.is_final)
            case pb.Rows():
                self._rows_came(said)
            case pb.RowsProcessed():
                self._rows_processed(said.number)
            case pb.Watermark():
                self._watermark_came(said)
            case pb.EndOfInput():
                self._end_came()
            case pb.AcknowledgeCheckpoint():
                self._acknowledged(said)
            case pb.NotificationHandled():
                self._notification_handled(said.checkpoint_id)
            case pb.DeclineCheckpoint():
                if self._takes_answer(kind, said.checkpoint_id):
                    self._out.append(SnapshotDeclined(said.checkpoint_id, said.reason[:MAX_LINE]))
            case _:
                self._complain(f"{kind} is for tasks without rows: this one ends with end_of_input, or task_failed")

    def _rows_came(self, said: pb.Rows) -> None:
        if self._run.shape == pb.TASK_SHAPE_SINK:
            self._complain("rows were said by a sink, which puts none out")
        elif self._output_ended:
            self._complain("rows were said after end_of_input")
        else:
            self._out.append(RowsCame(said.arrow))

    def _rows_processed(self, number: int) -> None:
        if not self._processed < number <= self._given:
            self._complain(
                f"rows_processed names {number}, and rows {self._processed + 1} to {self._given} are not processed"
            )
        else:
            self._processed = number

    def _watermark_came(self, said: pb.Watermark) -> None:
        watermark = (said.timestamp_ms, said.is_idle)
        if self._run.shape != pb.TASK_SHAPE_SOURCE:
            if not self._watermarks or self._watermarks[0] != watermark:
                self._complain(f"watermark {said.timestamp_ms} answers none: say them back in their order, unchanged")
                return
            self._watermarks.popleft()
        self._out.append(WatermarkCame(*watermark))

    def _end_came(self) -> None:
        if self._output_ended:
            self._complain("end_of_input was said already")
        elif self._run.shape != pb.TASK_SHAPE_SOURCE and not self._input_ended:
            self._complain("end_of_input was said, and more rows may come: it answers that of the TaskManager")
        elif not self.is_idle:
            self._complain(f"end_of_input was said before rows_processed of {self._given}")
        else:
            self._output_ended = True
            self._out.append(EndCame())

    def _acknowledged(self, said: pb.AcknowledgeCheckpoint) -> None:
        if not self._takes_answer("acknowledge_checkpoint", said.checkpoint_id):
            return
        try:
            if not self.is_idle:
                raise StateRefused(f"it was acknowledged before rows_processed of {self._given}")
            check_states(said.state, self._max_state_bytes, self._key_groups)
        except StateRefused as refusal:
            self._complain(f"checkpoint {said.checkpoint_id} is declined: {refusal}")
            self._out.append(SnapshotDeclined(said.checkpoint_id, str(refusal)))
        else:
            self._out.append(SnapshotCame(said.checkpoint_id, tuple(said.state)))

    def _notification_handled(self, checkpoint_id: int) -> None:
        if checkpoint_id not in self._told:
            self._complain(f"notification_handled names checkpoint {checkpoint_id}, of which the program was not told")
        else:
            self._told.remove(checkpoint_id)
            self._out.append(NotificationTaken(checkpoint_id))

    def _takes_answer(self, kind: str, checkpoint_id: int) -> bool:
        """Whether the checkpoint waits for an answer; else the program is told what is wrong."""
        if self._asked == checkpoint_id:
            self._asked = 0
            return True
        if 0 < checkpoint_id <= self._last_asked:
            self._complain(f"{kind} is the second answer to checkpoint {checkpoint_id}: the first one counts")
        else:
            self._complain(
                f"{kind} names checkpoint {checkpoint_id}, which the program was not asked for: nothing was done"
            )
        return False

    # --- the task -----------------------------------------------------------------------------------------------------

    def give_rows(self, arrow: bytes, key_groups: Sequence[int] = ()) -> list[PlaceEffect]:
        """Rows of the input, while there is room."""
        self._given += 1
        rows = pb.Rows(attempt_id=self._run.attempt_id, number=self._given, arrow=arrow, key_groups=key_groups)
        return [SayToProgram(pb.ToProgram(rows=rows))]

    def give_watermark(self, timestamp_ms: int, *, is_idle: bool) -> list[PlaceEffect]:
        """The input's watermark has risen, or it is idle."""
        self._watermarks.append((timestamp_ms, is_idle))
        watermark = pb.Watermark(attempt_id=self._run.attempt_id, timestamp_ms=timestamp_ms, is_idle=is_idle)
        return [SayToProgram(pb.ToProgram(watermark=watermark))]

    def end_input(self) -> list[PlaceEffect]:
        """Tell the program that the input has ended."""
        self._input_ended = True
        return [SayToProgram(pb.ToProgram(end_of_input=pb.EndOfInput(attempt_id=self._run.attempt_id)))]

    def ask_for_snapshot(self, checkpoint_id: int, timestamp_ms: int, kind: pb.SnapshotKind) -> list[PlaceEffect]:
        """The barrier is here, which comes only when the program has begun."""
        check(self.is_running, "a checkpoint is triggered before the program runs")
        self._asked = self._last_asked = checkpoint_id
        trigger = pb.TriggerCheckpoint(
            attempt_id=self._run.attempt_id, checkpoint_id=checkpoint_id, timestamp_ms=timestamp_ms, kind=kind
        )
        return [SayToProgram(pb.ToProgram(trigger_checkpoint=trigger))]

    def settle(self, checkpoint_id: int, *, is_complete: bool) -> list[PlaceEffect]:
        """The checkpoint is durable, or will never be."""
        if checkpoint_id > self._last_asked:
            return []
        attempt_id = self._run.attempt_id
        if is_complete:
            self._told.append(checkpoint_id)
            complete = pb.NotifyCheckpointComplete(attempt_id=attempt_id, checkpoint_id=checkpoint_id)
            return [SayToProgram(pb.ToProgram(notify_checkpoint_complete=complete))]
        aborted = pb.NotifyCheckpointAborted(attempt_id=attempt_id, checkpoint_id=checkpoint_id)
        return [SayToProgram(pb.ToProgram(notify_checkpoint_aborted=aborted))]

    # --- words --------------------------------------------------------------------------------------------------------

    def _complain(self, detail: str) -> None:
        self._out.append(SayToProgram(pb.ToProgram(complaint=pb.Complaint(detail=detail))))

    def _fail(self, reason: str, details: str = "", *, is_final: bool = False) -> None:
        self.is_over = True
        self._out.append(ProgramFailed(reason, details, is_final))
