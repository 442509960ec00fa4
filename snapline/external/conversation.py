"""What a program outside answers to the coordinator: the conversation of protos/external.proto, without the network.

Decides what is said, and when the task's methods are called, all on one thread; `snapline.external.participation` moves
the messages. A method that raises ends the attempt with TaskFailed, a snapshot that raises CheckpointDeclined only the
checkpoint; that an end has raised is logged, because the attempt is over by then.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from snapline.external.checkpoint_declined import CheckpointDeclined
from snapline.external.uploads import Uploaded
from snapline.protos import external_pb2 as pb

log = logging.getLogger("snapline.external")
PROTOCOL_VERSION = 1
LONGEST_PAUSE = 3600.0
"""Seconds after which a task is asked for a step again, also where it says that there is nothing to do for ever."""

_REDISTRIBUTIONS = {
    "split": pb.REDISTRIBUTION_SPLIT,
    "union": pb.REDISTRIBUTION_UNION,
    "broadcast": pb.REDISTRIBUTION_BROADCAST,
    "by_key": pb.REDISTRIBUTION_BY_KEY,
}
_SHAPES = {
    pb.TASK_SHAPE_ALONE: "alone",
    pb.TASK_SHAPE_SOURCE: "source",
    pb.TASK_SHAPE_OPERATOR: "operator",
    pb.TASK_SHAPE_SINK: "sink",
}


def _emits_nothing(arrow: bytes) -> None:
    raise ValueError(f"this task puts no rows out, and {len(arrow)} bytes were emitted")


@dataclass(frozen=True)
class Rows:
    """A batch of rows that came in.

    >>> rows = sl_external.Rows(b"...", key_groups=[3, 3, 17])
    >>> rows.key_groups[0]
    3
    """

    arrow: bytes
    """An Arrow IPC stream of one batch: `pyarrow.ipc.open_stream(rows.arrow).read_all()`, where there is pyarrow."""
    key_groups: Sequence[int] = ()
    """The key group of each row, where the input is keyed: what a state that is redistributed `by_key` is marked
    with."""


Element = bytes | tuple[int, bytes] | Uploaded
"""An element of a state: its bytes, perhaps with a key group, or where they lie."""


class FailedForGood(Exception):
    """Raised by a method of an `ExternalTask`: it would fail again, so the job fails instead of being restarted.

    >>> class OfOneProgram(sl_external.ExternalTask):
    ...     def begin(self, context):
    ...         if len(context.state.get("n", [])) > 1:
    ...             raise sl_external.FailedForGood("it has one state, and cannot be rescaled")
    """


@dataclass(frozen=True)
class TaskContext:
    """What an attempt begins with.

    >>> context = sl_external.TaskContext("a", 0, 1, "f00", "fleet", "orders", 7, {"count": [b"3"]}, {})
    >>> context.state["count"], context.restored_checkpoint_id
    ([b'3'], 7)
    """

    attempt_id: str
    subtask_index: int
    parallelism: int
    job_id: str
    job_name: str
    task: str
    restored_checkpoint_id: int
    """The checkpoint that the state is of; 0: there is none."""
    state: Mapping[str, Sequence[bytes]]
    """The elements of each state, by its name."""
    configuration: Mapping[str, str]
    """The settings of the job, by key."""
    shape: str = "alone"
    """`alone`: a task without rows; `source`, `operator` or `sink`: one with rows."""
    input_schema: bytes = b""
    """The columns of the rows that come, as an Arrow IPC stream without batches; empty: not known before, or none
    come."""
    output_schema: bytes = b""
    """The columns of the rows that are to be emitted, likewise."""
    emit: Callable[[bytes], None] = field(default_factory=lambda: _emits_nothing)
    """Put rows out: an Arrow IPC stream of one batch, with the columns of `output_schema`. Only within a method of the
    task."""
    key_groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The key group of each element of a state that is redistributed `by_key`, by the state's name."""
    uploaded: Mapping[str, Sequence[Uploaded]] = field(default_factory=dict)
    """The elements that were uploaded instead of sent, by the name of their state."""


class ExternalTask:
    r"""One task of a job in a program of your own. All methods are called on the thread that called `participate`.

    >>> class Counter(sl_external.ExternalTask):
    ...     def begin(self, context):
    ...         self.count = int.from_bytes(b"".join(context.state.get("count", [])))
    ...     def work(self):
    ...         self.count += 1
    ...         return 0.1
    ...     def process(self, rows):
    ...         self.count += len(rows.key_groups)
    ...     def watermark(self, timestamp_ms):
    ...         print("up to:", timestamp_ms)
    ...     def end_input(self):
    ...         print("all have come")
    ...     def snapshot(self, checkpoint_id):
    ...         return {"count": [self.count.to_bytes(8)]}
    ...     def complete(self, checkpoint_id):
    ...         print("durable:", self.count)
    ...     def aborted(self, checkpoint_id):
    ...         print("will never be:", checkpoint_id)
    ...     def end(self, reason):
    ...         print("ends:", reason)
    >>> counter = Counter()
    >>> counter.begin(sl_external.TaskContext("a", 0, 1, "f00", "fleet", "orders", 0, {}, {}))
    >>> counter.work(), counter.snapshot(1)
    (0.1, {'count': [b'\x00\x00\x00\x00\x00\x00\x00\x01']})
    >>> sl_external.ExternalTask.redistribution, counter.upload_location
    ({}, '')
    """

    redistribution: Mapping[str, str] = {}
    """What becomes of the elements of a state when the number of tasks changes: `split` (also where nothing is said),
    `union`, `broadcast` or, where rows have keys, `by_key`, by the state's name."""
    upload_location: str = ""
    """While `snapshot` runs: the directory or URL, of this checkpoint and this program alone, that elements may be
    uploaded to (`upload`). Empty: state can only be sent, as in a task with rows."""

    def begin(self, context: TaskContext) -> None:
        """Begin an attempt with the state in `context`, whatever was before."""

    def work(self) -> float | None:
        """Do a step, and return how many seconds there is nothing to do; None: the task has finished (a source has no
        more rows). A step has to be shorter than `heartbeat.timeout`, or the task is taken for dead. None is done after
        the snapshot that the job stops with."""
        return LONGEST_PAUSE

    def process(self, rows: Rows) -> None:
        """Take a batch of rows, and emit all that follows from them (`context.emit`), in a task with rows."""
        raise NotImplementedError(f"{type(self).__name__} has no method process, and rows have come")

    def watermark(self, timestamp_ms: int) -> None:
        """No row with an earlier event time will come; emit what waited for that."""

    def end_input(self) -> None:
        """No row will come; emit what is left. Checkpoints may follow."""

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Sequence[Element]]:
        """Return the state as it is now: elements by the name of a state, each with its key group where that is
        redistributed `by_key`; or an `Uploaded` that says where one lies. May raise CheckpointDeclined."""
        return {}

    def complete(self, checkpoint_id: int) -> None:
        """Make visible what the checkpoint covers: it is durable. May be called twice, or only for a later one."""

    def aborted(self, checkpoint_id: int) -> None:
        """Forget the checkpoint: it will never be durable."""

    def end(self, reason: str) -> None:
        """End the attempt, without a last step. Another one may begin on the same object."""


class Conversation:
    """One stream of one program. `handle` takes what the coordinator says and returns the answers."""

    def __init__(self, task: ExternalTask) -> None:
        self._task = task
        self._attempt = ""
        self._shape = "alone"
        self._has_ended = False
        """The source has no more rows; it still answers checkpoints."""
        self._stops_with = 0
        """The checkpoint that the job stops with, once it was answered; 0: it goes on."""
        self._emitted: list[pb.FromProgram] = []
        self.registered = pb.Registered()
        """What the coordinator answered to the registration; empty until it has."""
        self.ended: pb.Rejected | pb.Goodbye | None = None
        """What the coordinator said last, once the stream is ending."""
        self.complaints: list[str] = []
        """What the coordinator found wrong, the latest ones."""

    @property
    def is_running(self) -> bool:
        """Whether there is an attempt that has begun."""
        return bool(self._attempt)

    @property
    def takes_steps(self) -> bool:
        """Whether the attempt has a next step; none follows on the snapshot that the job stops with."""
        return self.is_running and not self._stops_with

    def handle(self, message: pb.ToProgram) -> list[pb.FromProgram]:
        """Take one message of the coordinator. A kind that a later version has added is no concern of ours."""
        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            return [pb.FromProgram(heartbeat=pb.Heartbeat())]
        if kind == "registered":
            self.registered = message.registered
        elif kind == "rejected":
            self.ended = message.rejected
        elif kind == "goodbye":
            self.ended = message.goodbye
        elif kind == "complaint":
            self.complaints = [*self.complaints[-99:], message.complaint.detail]
        elif kind == "run_task":
            return self._run(message.run_task)
        elif kind == "cancel_task" and message.cancel_task.attempt_id == self._attempt:
            return self._cancel(message.cancel_task.reason)
        elif kind == "trigger_checkpoint" and message.trigger_checkpoint.attempt_id == self._attempt:
            self._task.upload_location = message.trigger_checkpoint.upload_location
            return self._snapshot(message.trigger_checkpoint)
        elif kind == "notify_checkpoint_complete":
            return self._notify(self._task.complete, message.notify_checkpoint_complete)
        elif kind == "notify_checkpoint_aborted":
            if message.notify_checkpoint_aborted.checkpoint_id == self._stops_with:
                self._stops_with = 0
            return self._notify(self._task.aborted, message.notify_checkpoint_aborted)
        elif kind in ("rows", "watermark", "end_of_input") and getattr(message, kind).attempt_id == self._attempt:
            return self._input(getattr(message, kind))
        return []

    def _input(self, said: pb.Rows | pb.Watermark | pb.EndOfInput) -> list[pb.FromProgram]:
        """The task's output that follows, and then the answer."""
        task = self._task
        try:
            match said:
                case pb.Rows():
                    task.process(Rows(said.arrow, said.key_groups))
                    done = pb.RowsProcessed(attempt_id=self._attempt, number=said.number)
                    answer = pb.FromProgram(rows_processed=done)
                case pb.Watermark():
                    if not said.is_idle:
                        task.watermark(said.timestamp_ms)
                    answer = pb.FromProgram(watermark=said)
                case _:
                    task.end_input()
                    answer = pb.FromProgram(end_of_input=said)
        except Exception as error:
            return self._fail(error)
        return [*self._take_emitted(), answer]

    def _take_emitted(self) -> list[pb.FromProgram]:
        emitted, self._emitted = self._emitted, []
        return emitted

    def _emit(self, arrow: bytes) -> None:
        self._emitted.append(pb.FromProgram(rows=pb.Rows(attempt_id=self._attempt, arrow=arrow)))

    def work(self) -> tuple[float | None, list[pb.FromProgram]]:
        """Let the task do a step. Returns after how many seconds it wants the next one (None: no more), and what there
        is to say."""
        if self._has_ended or self._stops_with:
            return LONGEST_PAUSE, []
        try:
            pause = self._task.work()
            if pause is not None:
                pause = min(LONGEST_PAUSE, pause)
        except Exception as error:
            return None, self._fail(error)
        if pause is not None:
            return pause, self._take_emitted()
        if self._shape == "source":
            self._has_ended = True
            ended = pb.FromProgram(end_of_input=pb.EndOfInput(attempt_id=self._attempt))
            return LONGEST_PAUSE, [*self._take_emitted(), ended]
        attempt, self._attempt = self._attempt, ""
        return None, [pb.FromProgram(task_finished=pb.TaskFinished(attempt_id=attempt))]

    def lost(self, reason: str) -> None:
        """The stream is over, and so is the attempt."""
        if self._attempt:
            self._attempt = ""
            try:
                self._task.end(reason)
            except Exception as error:  # whoever waits for the end of the attempt hears of it all the same
                log.warning("end of %s has raised %s", type(self._task).__name__, _line_of(error), exc_info=error)

    def _run(self, run: pb.RunTask) -> list[pb.FromProgram]:
        self._attempt, self._shape = run.attempt_id, _SHAPES.get(run.shape, "alone")
        self._has_ended, self._stops_with, self._emitted = False, 0, []
        context = TaskContext(
            attempt_id=run.attempt_id,
            subtask_index=run.subtask_index,
            parallelism=run.parallelism,
            job_id=run.job_id,
            job_name=run.job_name,
            task=run.task,
            restored_checkpoint_id=run.restored_checkpoint_id,
            state={state.name: list(state.elements) for state in run.state},
            configuration=dict(run.configuration),
            shape=self._shape,
            input_schema=run.input_schema,
            output_schema=run.output_schema,
            emit=_emits_nothing if self._shape in ("alone", "sink") else self._emit,
            key_groups={state.name: list(state.key_groups) for state in run.state if state.key_groups},
            uploaded={
                state.name: [Uploaded(each.file, each.offset, each.size, each.digests) for each in state.uploaded]
                for state in run.state
                if state.uploaded
            },
        )
        try:
            self._task.begin(context)
        except Exception as error:
            return self._fail(error)
        return [pb.FromProgram(task_running=pb.TaskRunning(attempt_id=self._attempt)), *self._take_emitted()]

    def _cancel(self, reason: str) -> list[pb.FromProgram]:
        attempt = self._attempt
        self.lost(reason)
        return [pb.FromProgram(task_canceled=pb.TaskCanceled(attempt_id=attempt))]

    def _snapshot(self, trigger: pb.TriggerCheckpoint) -> list[pb.FromProgram]:
        attempt, checkpoint_id = self._attempt, trigger.checkpoint_id
        try:
            state = [self._named(name, elements) for name, elements in self._task.snapshot(checkpoint_id).items()]
        except CheckpointDeclined as reason:
            declined = pb.DeclineCheckpoint(
                attempt_id=attempt, checkpoint_id=checkpoint_id, reason=_without_halves(str(reason))
            )
            return [pb.FromProgram(decline_checkpoint=declined)]
        except Exception as error:
            return self._fail(error)
        if trigger.kind == pb.SNAPSHOT_KIND_STOP:
            self._stops_with = checkpoint_id
        acknowledged = pb.AcknowledgeCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id, state=state)
        return [*self._take_emitted(), pb.FromProgram(acknowledge_checkpoint=acknowledged)]

    def _named(self, name: str, elements: Sequence[Element]) -> pb.NamedState:
        redistribution, elements = self._task.redistribution.get(name, "split"), list(elements)
        if redistribution not in _REDISTRIBUTIONS:
            raise FailedForGood(
                f"state {name!r} has the redistribution {redistribution!r}: choose from {', '.join(_REDISTRIBUTIONS)}"
            )
        marked = [each for each in elements if isinstance(each, tuple)]
        if (redistribution == "by_key") != (len(marked) > 0) and elements:
            raise ValueError(
                f"state {name!r}: elements have a key group, (group, bytes), where it is redistributed by_key"
            )
        for each in elements:
            if not isinstance(each, (tuple if marked else bytes, Uploaded)):
                raise TypeError(f"state {name!r}: its elements are a list of bytes, and one is {each!r:.100}")
        return pb.NamedState(
            name=name,
            elements=[each[1] for each in marked] or [each for each in elements if isinstance(each, bytes)],
            redistribution=_REDISTRIBUTIONS[redistribution],
            key_groups=[each[0] for each in marked],
            uploaded=[
                pb.UploadedElement(file=each.file, offset=each.offset, size=each.size, digests=each.digests)
                for each in elements
                if isinstance(each, Uploaded)
            ],
        )

    def _notify(
        self, method: object, notification: pb.NotifyCheckpointComplete | pb.NotifyCheckpointAborted
    ) -> list[pb.FromProgram]:
        if notification.attempt_id != self._attempt or not callable(method):
            return []
        try:
            method(notification.checkpoint_id)
        except Exception as error:
            return self._fail(error)
        if self._shape == "alone" or isinstance(notification, pb.NotifyCheckpointAborted):
            return self._take_emitted()
        handled = pb.NotificationHandled(attempt_id=self._attempt, checkpoint_id=notification.checkpoint_id)
        return [*self._take_emitted(), pb.FromProgram(notification_handled=handled)]

    def _fail(self, error: Exception) -> list[pb.FromProgram]:
        attempt = self._attempt
        details = "".join(traceback.format_exception(error))
        self.lost(f"it failed: {error}")
        failed = pb.TaskFailed(
            attempt_id=attempt,
            reason=_line_of(error),
            details=_without_halves(details),
            is_final=isinstance(error, FailedForGood),
        )
        return [pb.FromProgram(task_failed=failed)]


def _line_of(error: Exception) -> str:
    return _without_halves(f"{type(error).__name__}: {error}")


def _without_halves(text: str) -> str:
    """The text with halves of characters spelled out, which no message can carry."""
    return text.encode(errors="backslashreplace").decode()
