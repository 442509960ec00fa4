"""The conformance suite for programs outside that are sources, operators or sinks: `check --shape operator`.

Beside the coordinator that `check` plays it starts the exchange of a TaskManager, to which the program is sent on, and
plays the task that offers the place: rows, watermarks, checkpoints, notifications, the end, and a second attempt. What
the program says is judged by the core that judges it in a TaskManager, and then by whether it keeps the order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from snapline.dataflow.snapshot.program_state import operator_lists, states_of_lists
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.credentials import sign_ticket
from snapline.taskmanager.network.flight.flight_exchange import FlightExchange
from snapline.taskmanager.programs.offered_places import OfferedPlace
from snapline.taskmanager.programs.program_place import (
    EndCame,
    ForTask,
    NotificationTaken,
    ProgramFailed,
    ProgramPlace,
    RowsCame,
    SnapshotCame,
    SnapshotDeclined,
    WatermarkCame,
)

MAX_STATE_BYTES = 1 << 20
KEY_GROUPS = range(128)
ALLOCATION = "conformance"
"""The slot that the task is in."""
ROWS_PER_BATCH = 4
NO_DOUBLE = 2**53 + 1
"""A number of milliseconds that the floating-point numbers of some languages do not have."""
SHAPES = {"source": pb.TASK_SHAPE_SOURCE, "operator": pb.TASK_SHAPE_OPERATOR, "sink": pb.TASK_SHAPE_SINK}


class RowsRuleBroken(Exception):
    """The program has not done what the rule says; one line."""


class JudgedPlace(ProgramPlace):
    """A place that notes what a TaskManager would complain about, and whether all rows are processed."""

    complaint = ""

    def said(self, message: pb.FromProgram) -> list:  # type: ignore[type-arg]
        """Take one message of the program."""
        effects = super().said(message)
        for effect in effects:
            said = getattr(effect, "message", None)
            if isinstance(said, pb.ToProgram) and said.HasField("complaint"):
                self.complaint = self.complaint or said.complaint.detail
        return effects


class RowsScript:
    """The rules for a program with rows, in the order in which it meets them."""

    def __init__(self, shape: str, job_id: str, task: str, schema: pa.Schema, timeout: float) -> None:
        """`schema`: of the rows that it is given: integers, numbered from 1."""
        self._shape, self._job_id, self._task, self._schema, self._timeout = shape, job_id, task, schema, timeout
        self._exchange = FlightExchange()
        self._changed = threading.Event()
        self._attempts = 0
        self._checkpoints = 0
        self._rows = 0
        self._states: Sequence[pb.NamedState] = ()
        self._core: JudgedPlace
        self._place: OfferedPlace
        self._offer()

    def close(self) -> None:
        """End the exchange that the program was sent to."""
        self._exchange.close()

    @property
    def rejected(self) -> pb.Rejected:
        """What the coordinator answers to Register."""
        return pb.Rejected(
            reason=pb.REJECTION_REASON_AT_TASK_MANAGER,
            detail="the task has rows",
            address=self._exchange.address,
            ticket=sign_ticket(ALLOCATION, self._job_id, self._task, f"conformance-{self._attempts}"),
        )

    def rules(self) -> Sequence[tuple[str, Callable[[], None]]]:
        """Each rule and its trial; one builds on those before."""
        takes = self._shape != "source"
        return (
            ("it registers at the TaskManager with its ticket, begins, and says that it runs", self._runs),
            *([("it processes rows in their order, and says so", self._processes)] if takes else []),
            *([("it says a watermark back, and that it is idle", self._says_back)] if takes else []),
            *([("it puts rows out", self._puts_out)] if self._shape == "source" else []),
            ("it answers a checkpoint when all rows before are processed", self._checkpoints_after_rows),
            ("it says that it has heard of a complete checkpoint", self._hears_of_completion),
            ("it takes no harm from a checkpoint that is aborted", self._aborted),
            ("it comes back when its attempt is over, and begins with the state of its checkpoint", self._begins_again),
            *([("it ends when its input ends, and still answers a checkpoint", self._ends)] if takes else []),
        )

    # --- rules --------------------------------------------------------------------------------------------------------

    def _runs(self) -> None:
        self._until("that it runs (TaskRunning)", lambda: self._core.is_running)

    def _processes(self) -> None:
        for _ in range(3):
            self._give_rows()
        self._until("RowsProcessed of all rows", lambda: self._core.is_idle)

    def _says_back(self) -> None:
        for timestamp_ms, is_idle in ((1_000, False), (0, True), (NO_DOUBLE, False)):
            self._give_rows()
            self._place.give_watermark(timestamp_ms, is_idle=is_idle)
            self._await(WatermarkCame(timestamp_ms, is_idle))
            if not self._core.is_idle:
                raise RowsRuleBroken("it says a watermark back before RowsProcessed of the rows before it")

    def _puts_out(self) -> None:
        self._await_kind(RowsCame)

    def _checkpoints_after_rows(self) -> None:
        for _ in range(2):
            if self._shape != "source":
                self._give_rows()
            self._states = self._snapshot()

    def _hears_of_completion(self) -> None:
        self._place.settle(self._checkpoints, is_complete=True)
        self._await(NotificationTaken(self._checkpoints))

    def _aborted(self) -> None:
        self._snapshot()
        self._place.settle(self._checkpoints, is_complete=False)
        self._states = self._snapshot()

    def _begins_again(self) -> None:
        self._place.close("the attempt is over")
        self._offer()
        self.send_on()
        self._runs()
        if self._shape != "source":
            self._processes()
        self._snapshot()

    def _ends(self) -> None:
        self._place.end_input()
        self._await(EndCame())
        self._snapshot()
        self._hears_of_completion()

    # --- steps --------------------------------------------------------------------------------------------------------

    send_on: Callable[[], None]
    """Waits until the program registers at the coordinator, and sends it on; set by whoever plays the coordinator."""

    def leave(self) -> None:
        """End the attempt, because the job is over."""
        self._place.close("the job is FINISHED")

    def _offer(self) -> None:
        self._attempts += 1
        lists = {name: elements for name, (_, elements) in operator_lists(self._states).items()}
        empty = self._arrow(0)
        run = pb.RunTask(
            attempt_id=f"conformance-{self._attempts}",
            parallelism=1,
            attempt_number=self._attempts - 1,
            job_id=self._job_id,
            task=self._task,
            restored_checkpoint_id=self._checkpoints if self._attempts > 1 else 0,
            state=states_of_lists(lists, KEY_GROUPS),
            shape=SHAPES[self._shape],
            input_schema=b"" if self._shape == "source" else empty,
        )
        self._core = JudgedPlace(run, MAX_STATE_BYTES, KEY_GROUPS)
        self._place = self._exchange.programs.offer(ALLOCATION, run, KEY_GROUPS, self._changed.set, self._core)

    def _arrow(self, rows: int) -> bytes:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._schema) as writer:
            if rows:
                numbers = pa.array(range(self._rows + 1, self._rows + rows + 1))
                columns = [numbers.cast(field.type) for field in self._schema]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return out.getvalue().to_pybytes()

    def _give_rows(self) -> None:
        self._until("RowsProcessed, so that it may be given more", lambda: self._core.has_room)
        groups = [(self._rows + index) % len(KEY_GROUPS) for index in range(1, ROWS_PER_BATCH + 1)]
        self._place.give_rows(self._arrow(ROWS_PER_BATCH), groups)
        self._rows += ROWS_PER_BATCH

    def _snapshot(self) -> Sequence[pb.NamedState]:
        self._checkpoints += 1
        self._place.ask_for_snapshot(self._checkpoints, int(time.time() * 1000), stops=False)
        answer = self._await_kind(SnapshotCame, SnapshotDeclined)
        if isinstance(answer, SnapshotDeclined):
            raise RowsRuleBroken(f"it declines checkpoint {self._checkpoints}: {answer.reason}")
        return answer.states if isinstance(answer, SnapshotCame) else ()

    def _await(self, wanted: ForTask) -> None:
        while self._await_kind(type(wanted)) != wanted:
            pass

    def _await_kind(self, *kinds: type) -> ForTask:
        came: list[ForTask] = []

        def look() -> bool:
            while not came and (said := self._place.take()) is not None:
                if isinstance(said, ProgramFailed):
                    raise RowsRuleBroken(f"its attempt has failed: {said.reason}")
                came.extend([said] if isinstance(said, kinds) else [])
            return bool(came)

        self._until(" or ".join(kind.__name__ for kind in kinds), look)
        return came[0]

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            self._changed.clear()
            so = is_so()
            if self._core.complaint:
                raise RowsRuleBroken(f"a TaskManager complains: {self._core.complaint}")
            if so:
                return
            if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise RowsRuleBroken(f"it has not said {what} within {self._timeout:g} s")
