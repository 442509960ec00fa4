"""Head of a source task whose source has a loop of its own: the legacy push style with the checkpoint lock.

Decides how rows of the function's thread become batches, how many may wait for the task, and how a snapshot is cut: the
lock is taken before the barrier leaves, what was emitted until then goes out before the barrier, and the function's
state is recorded under the same hold of the lock. So "emit and move the position under the lock" is atomic towards
snapshots. Room in the inbox is waited for before the lock is taken, never under it. It does not know threads: the
runner does. Mirrors Flink's StreamSource, SourceStreamTask and StreamSourceContexts.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.function_contexts import Row, SourceContext
from snapline.dataflow.columnar.column_types import workable
from snapline.dataflow.elements import MAX_WATERMARK_MS, Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import SourceFunctionSpec
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import said_watermark_ms
from snapline.taskmanager.operators.base.function_operator import FunctionOperator
from snapline.taskmanager.operators.base.operator_contract import (
    EMPTY_OPERATOR_SNAPSHOT,
    OperatorSnapshot,
    RestoredState,
)
from snapline.taskmanager.operators.base.rows import RowBatcher, copy_of
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.operators.sources.watermarked_source import WatermarkedSource

ROWS_PER_BATCH = 4096
MAX_WAITING_ROWS = 64 * 1024
"""The function waits while more rows than this wait for the task."""
MAX_WAITING_ELEMENTS = 256
FLUSH_INTERVAL_MS = 10
"""Rows that were collected one by one reach the task at the latest after this."""

Pushed: TypeAlias = pa.RecordBatch | Watermark | WatermarkStatus


class PushSourceRunner(Protocol):
    """Runs the function beside the task. In production a thread; in the simulator a turn at a time."""

    @property
    def checkpoint_lock(self) -> AbstractContextManager[Any]:
        """Reentrant. Held by the function while it emits and moves its position, and by the task for snapshots."""
        ...

    def start(self, run: Callable[[], None]) -> None:
        """Begin. What `run` raises is answered by `failure`."""
        ...

    def give_turn(self) -> None:
        """The task has nothing else to do: the simulator lets the function go on a little; a thread needs no turn."""
        ...

    def wait_for_room(self, has_room: Callable[[], bool]) -> bool:
        """Called by the function's side, without the lock: return once there is room; False when it is to end."""
        ...

    def notify_room(self) -> None:
        """Wake the function's thread, because the task has taken rows."""
        ...

    def pushed(self) -> None:
        """Called by the function's side: something was put into the inbox."""
        ...

    def tell(self, cancel: Callable[[], None]) -> None:
        """Call the function's `cancel`, which may raise, or wait for whatever it likes: who cancels the task does not
        wait for it. Called from any thread."""
        ...

    def stop(self) -> None:
        """The task ends: let nothing wait any longer. Called from any thread; the function's `cancel` is called
        before, or meanwhile."""
        ...

    def join(self) -> None:
        """Wait a little for the end of `run`."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether `run` has returned or raised."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Return what the function's `run` raised, None for nothing."""
        ...


class SourceStopped(Exception):
    """Raised inside `collect` when the task ends while the function emits."""


class PushSourceContext(SourceContext):
    """What the function emits into (SourceContext). Used by the function's side only, except for `drain`."""

    def __init__(self, runner: PushSourceRunner, schema: pa.Schema | None) -> None:
        """`schema`: of the rows, where it was declared."""
        self._runner = runner
        self._schema = schema
        self._inbox: deque[Pushed] = deque()
        self._rows: list[Row] = []
        self._batcher = RowBatcher(schema)
        self._waiting_rows = 0
        self._lock_depth = 0
        self._closed = False

    def _has_room(self) -> bool:
        return self._waiting_rows < MAX_WAITING_ROWS and len(self._inbox) < MAX_WAITING_ELEMENTS

    def _check_open(self) -> None:
        if self._closed:
            raise SourceStopped

    def _wait(self) -> None:
        self._check_open()
        if self._lock_depth == 0 and not self._has_room() and not self._runner.wait_for_room(self._has_room):
            raise SourceStopped

    def collect(self, row: Row) -> None:
        """Emit one row from the function's thread."""
        self._wait()
        with self._runner.checkpoint_lock:
            self._check_open()
            self._rows.append(copy_of(row))
            self._waiting_rows += 1
            if len(self._rows) >= ROWS_PER_BATCH:
                self._flush_rows()
        if len(self._rows) <= 1:
            self._runner.pushed()

    def collect_batch(self, batch: pa.RecordBatch) -> None:
        """Emit one batch from the function's thread. Raises TypeError for a table, which is no element of a stream."""
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(
                f"collect_batch takes a pyarrow.RecordBatch, not a {type(batch).__name__}; table.to_batches() makes some of a table"
            )
        if batch.num_rows:
            self._push(conform(batch, self._schema), batch.num_rows)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Emit a watermark at this event time. Raises ValueError for what is none."""
        self._push(Watermark(said_watermark_ms(timestamp_ms)), 0)

    def mark_as_temporarily_idle(self) -> None:
        """Leave the watermark to others."""
        self._push(WatermarkStatus.IDLE, 0)

    def get_checkpoint_lock(self) -> AbstractContextManager[Any]:
        """The lock, for `with`; room for what is emitted under it is waited for first."""
        return _RoomThenLock(self)

    def _push(self, element: Pushed, rows: int) -> None:
        self._wait()
        with self._runner.checkpoint_lock:
            self._check_open()
            self._flush_rows()
            self._inbox.append(element)
            self._waiting_rows += rows
        self._runner.pushed()

    def _flush_rows(self) -> None:
        if self._rows:
            batch = self._batcher.batch_of(self._rows)  # where that raises they stay, for the task to hear of it
            self._rows = []
            if batch is not None:
                self._inbox.append(batch)

    def enter_lock(self) -> None:
        """Take the checkpoint lock (see get_checkpoint_lock)."""
        self._wait()
        self._runner.checkpoint_lock.__enter__()
        self._lock_depth += 1

    def exit_lock(self) -> None:
        """Give the checkpoint lock back (see get_checkpoint_lock)."""
        self._lock_depth -= 1
        self._runner.checkpoint_lock.__exit__(None, None, None)

    # --- the task's side --------------------------------------------------------------------------------------------

    def take(self, *, flush: bool) -> Pushed | None:
        """The next element for the task. `flush`: rows that do not fill a batch yet, too."""
        with self._runner.checkpoint_lock:
            if flush and not self._inbox:
                self._flush_rows()
            if not self._inbox:
                return None
            element = self._inbox.popleft()
            if isinstance(element, pa.RecordBatch):
                self._waiting_rows -= element.num_rows
        self._runner.notify_room()
        return element

    def close(self) -> None:
        """Called with the lock held: nothing that is collected from now on will be emitted."""
        self._closed = True

    @property
    def has_elements(self) -> bool:
        """Whether the next `take` has something."""
        return bool(self._inbox)

    @property
    def has_rows(self) -> bool:
        """Whether rows wait that do not fill a batch."""
        return bool(self._rows)


class _RoomThenLock(AbstractContextManager[None]):
    def __init__(self, context: PushSourceContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._context.enter_lock()

    def __exit__(self, *exc: object) -> None:
        self._context.exit_lock()


class PushSourceOperator(FunctionOperator, WatermarkedSource):
    """Emits what the function pushes."""

    def __init__(self, spec: SourceFunctionSpec, runner: PushSourceRunner) -> None:
        super().__init__(spec.function)
        self._runner = runner
        self._source_context = PushSourceContext(runner, spec.output_schema)
        self._started = False
        self._cancelled = False
        self._said_idle = False
        self._stopped: OperatorSnapshot | None = None
        """State of the function when it was stopped for a savepoint."""
        self._flush_at_ms: int | None = None
        self._snapshot = EMPTY_OPERATOR_SNAPSHOT
        self.set_strategy(spec.watermark_strategy)

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        operator_state = check(self.operator_state, "there is no operator state, although it was just made")
        self.restore_drained(operator_state, restored)

    def open(self) -> None:
        super().open()
        self.start_watermarks()

    def emit_next(self) -> InputStatus:
        runner = self._runner
        if self._is_drained and not self._started:
            return InputStatus.END_OF_INPUT
        if not self._started:
            self._started = True
            runner.start(lambda: self.function.run(self._source_context))
        now_ms = self.context.processing_time.now_ms()
        self._wake_at_ms = None
        if self.has_to_wait(now_ms):
            return InputStatus.NOTHING_AVAILABLE
        is_done = runner.is_done  # before the inbox is looked at: afterwards nothing can follow
        due = is_done or (self._flush_at_ms is not None and now_ms >= self._flush_at_ms)
        element = self._source_context.take(flush=due)
        if element is not None:
            self._flush_at_ms = None
            self._emit(element)
            return InputStatus.MORE_AVAILABLE
        failure = runner.failure
        if self._cancelled:  # it has ended, or failed, because of that: the rows have no end here
            return InputStatus.NOTHING_AVAILABLE
        if failure is not None:
            raise failure
        if is_done:
            if self._aligner is not None:
                self._aligner.end()
            return InputStatus.END_OF_INPUT
        runner.give_turn()
        return InputStatus.MORE_AVAILABLE if self._source_context.has_elements else self._idle(now_ms)

    def _idle(self, now_ms: int) -> InputStatus:
        times = []
        if self._source_context.has_rows:
            if self._flush_at_ms is None:
                self._flush_at_ms = now_ms + FLUSH_INTERVAL_MS
            times.append(self._flush_at_ms)
        if self._cadence is not None:
            if self._source_context.has_rows:
                self._cadence.keep_active()
            self._cadence.on_time(self.output)
            if self._cadence.wake_at_ms is not None:
                times.append(self._cadence.wake_at_ms)
        if self._aligner is not None:
            times.append(self._aligner.wake_at_ms)
        self._wake_at_ms = min(times, default=None)
        return InputStatus.NOTHING_AVAILABLE

    @property
    def is_idle(self) -> bool:
        return self._said_idle

    def _emit(self, element: Pushed) -> None:
        if self._said_idle and not isinstance(element, WatermarkStatus):
            self._said_idle = False
            self.output.emit_watermark_status(WatermarkStatus.ACTIVE)
        if isinstance(element, pa.RecordBatch):
            if self._generator is None or self._cadence is None:
                self.output.emit_batch(workable(element))
                return
            self._cadence.before_batch(self.output)
            self.output.emit_batch(workable(element))
            self._generator.on_batch(element)
            self._cadence.after_batch(self.output, element.num_rows)
        elif isinstance(element, Watermark):
            if self._strategy is None or element.timestamp_ms >= MAX_WATERMARK_MS:  # else the strategy makes them
                self.output.emit_watermark(element)
        elif not self._said_idle:
            self._said_idle = True
            if self._cadence is not None:
                self._cadence.before_idle(self.output)
            self.output.emit_watermark_status(element)

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        if self._stopped is not None:
            self._snapshot = self._stopped
            return
        with self._runner.checkpoint_lock:
            self._snapshot = self._cut(checkpoint_id)

    def _cut(self, checkpoint_id: CheckpointID) -> OperatorSnapshot:
        """With the lock held: emit all that was collected, and record the state that goes with it. Raises what the
        function has raised: its state may be ahead of its rows, or behind them."""
        if (failure := self._runner.failure) is not None:
            raise failure
        now_ms = self.context.processing_time.now_ms()
        while (element := self._source_context.take(flush=True)) is not None:
            self._emit(element)
        return FunctionOperator.snapshot_state(self, checkpoint_id, now_ms)

    def stop_emitting(self, checkpoint_id: CheckpointID, *, drain: bool) -> None:
        operator_state = check(self.operator_state, "there is no operator state, although initialize_state was called")
        with self._runner.checkpoint_lock:
            if drain:
                self.mark_drained(operator_state)
            self._stopped = self._cut(checkpoint_id)
            self._source_context.close()
        self.cancel()

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        """What was recorded when the barrier was about to leave."""
        snapshot, self._snapshot = self._snapshot, EMPTY_OPERATOR_SNAPSHOT
        return snapshot

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        with self._runner.checkpoint_lock:
            super().notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        with self._runner.checkpoint_lock:
            super().notify_checkpoint_aborted(checkpoint_id)

    def cancel(self) -> None:
        self._cancelled = True
        if self._started and not self._runner.is_done:
            self._runner.tell(self._cancel_function)
        self._runner.stop()

    def _cancel_function(self) -> None:
        with contextlib.suppress(SourceStopped):  # it waited for room, which nobody makes any more
            self.function.cancel()

    def close(self) -> None:
        if self._started and not self._runner.is_done:
            self.cancel()
            self._runner.join()
        super().close()
