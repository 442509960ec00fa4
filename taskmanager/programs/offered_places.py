"""The places for programs that the tasks of this TaskManager offer, and who takes which. Thread-safe.

A task offers a place when it opens and takes it back when it closes. A program that shows a ticket of the coordinator
gets a free place of its task, or is told to try again. What a task does with its place goes through the core
ProgramPlace, on the task's thread; what the program says does, on the thread of its stream, which is read no further
while the task does not take what has come.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from snapline.dataflow.config import EXTERNAL_STATE_MAX_BYTES, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Configuration
from snapline.dataflow.wire.program_limits import PROTOCOL_VERSION
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.credentials import named_in_ticket, sign_ticket
from snapline.taskmanager.programs.program_place import (
    ForTask,
    PlaceEffect,
    ProgramPlace,
    RowsCame,
    SayToProgram,
)

TICKET_OPENS_NOTHING = "the ticket opens no task that is here just now: register at the coordinator, which gives one"
MAX_UNTAKEN = 16
"""So much of what a program says may wait for its task; then its stream is read no further."""
MAX_UNTAKEN_BYTES = 64 << 20
"""Bytes of rows that may wait so before one more message."""


class StreamOfProgram(Protocol):
    """The stream of the program that has a place. Both methods return at once."""

    def say(self, message: pb.ToProgram) -> None:
        """Send it, after what was said before."""
        ...

    def end(self, reason: str) -> None:
        """Say goodbye after what was said before, and end the stream."""
        ...


class WaitEnded(Exception):
    """The task was cancelled while it waited for its program."""


@dataclass(frozen=True)
class PlaceSettings:
    """What programs are told of this TaskManager, and held to."""

    heartbeat_interval_ms: int = 10_000
    heartbeat_timeout_ms: int = 50_000
    max_state_bytes: int = 8 << 20

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> PlaceSettings:
        """Read what the user has set."""
        return cls(
            configuration.get_option(HEARTBEAT_INTERVAL),
            configuration.get_option(HEARTBEAT_TIMEOUT),
            configuration.get_option(EXTERNAL_STATE_MAX_BYTES),
        )


class OfferedPlace:
    """The place that one attempt offers, between the threads of its task and of its program's stream."""

    def __init__(
        self,
        ticket: str,
        core: ProgramPlace,
        wake_up: Callable[[], None],
        withdraw: Callable[[OfferedPlace], None],
    ) -> None:
        self.ticket = ticket
        """What a program has to show for this place."""
        self._core = core
        self._wake_up = wake_up
        self._withdraw = withdraw
        self._changed = threading.Condition()
        self._to_task: deque[ForTask] = deque()
        self._program: StreamOfProgram | None = None
        self._is_cancelled = False
        self._is_closed = False

    # --- the task -----------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether a program is there, runs, and may be given rows."""
        return self._core.has_room

    @property
    def is_running(self) -> bool:
        """Whether a program is there and has begun."""
        return self._core.is_running

    @property
    def has_output(self) -> bool:
        """Whether `take` has something to return."""
        return bool(self._to_task)

    def take(self) -> ForTask | None:
        """The next thing that the program has said; None: there is none."""
        with self._changed:
            taken = self._to_task.popleft() if self._to_task else None
            self._changed.notify_all()
        return taken

    def wait(self, timeout_ms: int) -> ForTask | None:
        """The next thing that the program says; None: it has said nothing for so long. Raises WaitEnded when the task
        is cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._to_task) or self._is_cancelled, timeout_ms / 1000)
            if self._is_cancelled:  # also where the program always has something else to say
                raise WaitEnded("the task was cancelled while it waited for its program")
            if not self._to_task:
                return None
            taken = self._to_task.popleft()
            self._changed.notify_all()
        return taken

    def give_rows(self, arrow: bytes, key_groups: Sequence[int]) -> None:
        """Give the program rows of the input."""
        self._perform(lambda: self._core.give_rows(arrow, key_groups))

    def give_watermark(self, timestamp_ms: int, *, is_idle: bool) -> None:
        """The watermark of the input, or that it is idle."""
        self._perform(lambda: self._core.give_watermark(timestamp_ms, is_idle=is_idle))

    def end_input(self) -> None:
        """Tell the program that the input has ended."""
        self._perform(self._core.end_input)

    def ask_for_snapshot(self, checkpoint_id: int, timestamp_ms: int, *, stops: bool) -> None:
        """The barrier is here; `stops`: nothing of what follows it counts."""
        kind = pb.SNAPSHOT_KIND_STOP if stops else pb.SNAPSHOT_KIND_CHECKPOINT
        self._perform(lambda: self._core.ask_for_snapshot(checkpoint_id, timestamp_ms, kind))

    def settle(self, checkpoint_id: int, *, is_complete: bool) -> None:
        """The checkpoint is durable, or will never be."""
        self._perform(lambda: self._core.settle(checkpoint_id, is_complete=is_complete))

    def cancel(self) -> None:
        """End a wait. From any thread."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Take the place back: the program hears goodbye."""
        self._withdraw(self)
        with self._changed:
            self._is_closed = True
            program, self._program = self._program, None
            self._changed.notify_all()
        if program is not None:
            program.end(why)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def join(self, program: StreamOfProgram) -> bool:
        """A program wants the place; False: somebody has it, or its attempt is over."""
        with self._changed:
            if self._program is not None or self._is_closed or self._core.is_over:
                return False
            self._program = program
            self._perform_effects(self._core.joined())
        return True

    def said(self, program: StreamOfProgram, message: pb.FromProgram) -> None:
        """Take what the program says, as soon as the task has taken enough of what it said before."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room_for_task or self._program is not program)
            if self._program is program:
                self._perform_effects(self._core.said(message))

    def left(self, program: StreamOfProgram, why: str) -> None:
        """Note that the stream of the program is over."""
        with self._changed:
            if self._program is program:
                self._program = None
                self._perform_effects(self._core.left(why))

    # --- both ---------------------------------------------------------------------------------------------------------

    @property
    def _has_room_for_task(self) -> bool:
        size = sum(len(each.arrow) for each in self._to_task if isinstance(each, RowsCame))
        return len(self._to_task) < MAX_UNTAKEN and size < MAX_UNTAKEN_BYTES

    def _perform(self, call: Callable[[], list[PlaceEffect]]) -> None:
        with self._changed:
            self._perform_effects(call())

    def _perform_effects(self, effects: list[PlaceEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, SayToProgram):
                self._to_task.append(effect)
            elif self._program is not None:
                self._program.say(effect.message)
        self._changed.notify_all()
        self._wake_up()


@dataclass
class OfferedPlaces:
    """All of them, by job and task."""

    settings: PlaceSettings = field(default_factory=PlaceSettings)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], list[OfferedPlace]] = {}

    def offer(
        self,
        allocation_id: str,
        run: pb.RunTask,
        key_groups: range,
        wake_up: Callable[[], None],
        core: ProgramPlace | None = None,
    ) -> OfferedPlace:
        """A new place, for the attempt and the task that `run` names, in the slot of this allocation; `core` decides
        there, if it is not to be the usual one."""
        key = (run.job_id, run.task)

        def withdraw(place: OfferedPlace) -> None:
            with self._lock:
                kept = [each for each in self._places.get(key, []) if each is not place]
                if kept:
                    self._places[key] = kept
                else:
                    self._places.pop(key, None)

        core = core or ProgramPlace(run, self.settings.max_state_bytes, key_groups)
        ticket = sign_ticket(allocation_id, *key, run.attempt_id)
        place = OfferedPlace(ticket, core, wake_up, withdraw)
        with self._lock:
            self._places.setdefault(key, []).append(place)
        return place

    def opened_by(self, ticket: str) -> list[OfferedPlace]:
        """The places that a program with this ticket may try; empty: it is forged, or its task is not here just now."""
        with self._lock:
            places = list(self._places.get(named_in_ticket(ticket), []))
        shown = ticket.encode(errors="replace")
        return [each for each in places if hmac.compare_digest(each.ticket.encode(), shown)]

    def find(self, register: pb.Register) -> list[OfferedPlace] | pb.Rejected:
        """The places that the program may try, or why there is none."""
        if register.protocol_version != PROTOCOL_VERSION:
            detail = (
                f"the program speaks version {register.protocol_version} of external.proto, and this TaskManager "
                f"{PROTOCOL_VERSION}"
            )
            return pb.Rejected(reason=pb.REJECTION_REASON_OTHER_VERSION, detail=detail)
        places = self.opened_by(register.ticket)
        return places or pb.Rejected(reason=pb.REJECTION_REASON_NO_PLACE, detail=TICKET_OPENS_NOTHING, try_again=True)


def no_place(task: str) -> pb.Rejected:
    """Every place of the task is taken."""
    detail = f"external task {task!r} has all programs that it needs here: try again"
    return pb.Rejected(reason=pb.REJECTION_REASON_NO_PLACE, detail=detail, try_again=True)
