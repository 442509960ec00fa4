"""What all sources have in common: the watermark of what they read, when it is due, and their step with other sources.

Decides when a source that is ahead of its group waits, and until when. It does not know what is read, nor how. Mirrors
the part of Flink's SourceOperator that deals with watermarks and their alignment.
"""

from __future__ import annotations

from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.taskmanager.operators.base.event_time import WatermarkTracker, create_tracker
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.operator_contract import RestoredState, SourceOperatorContract
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.sources.watermark_aligner import WatermarkAligner
from snapline.taskmanager.operators.sources.watermark_operator import WatermarkCadence, watermark_interval_ms

DRAINED_STATE = "source-drained"
"""The job that was drained. Its windows and timers have fired: rows that came after that would be late, or counted
twice."""


class WatermarkedSource(SourceOperatorContract):
    """Base of the sources. Without a strategy there is no generator, no cadence and no aligner."""

    _is_drained = False
    """The job was stopped for good with the snapshot that this source was restored from, or is being."""

    def restore_drained(self, state: OperatorStateBackend, restored: RestoredState) -> None:
        """Part of `initialize_state`. Another job that starts from the savepoint goes on where this one stopped
        reading."""
        if restored.operator_lists and DRAINED_STATE in restored.operator_lists:
            # Read apart: a list that is asked for in `state` is in all snapshots from then on, also where nothing was
            # drained.
            marks = OperatorStateBackend(restored.operator_lists).list_state(DRAINED_STATE, OperatorStateMode.BROADCAST)
            if self.context.job_id in marks.get():
                self.mark_drained(state)

    def mark_drained(self, state: OperatorStateBackend) -> None:
        """In all snapshots from now on: when the job fails before its tasks have ended, they are to end, and not to
        read on."""
        self._is_drained = True
        state.list_state(DRAINED_STATE, OperatorStateMode.BROADCAST).update([self.context.job_id])

    def set_strategy(self, strategy: WatermarkStrategy | None) -> None:
        """Set how watermarks are made; called before anything else."""
        self._strategy = strategy
        self._generator = create_tracker(strategy) if strategy else None
        self._cadence: WatermarkCadence | None = None
        self._aligner: WatermarkAligner | None = None
        self._wake_at_ms: int | None = None

    def start_watermarks(self) -> None:
        """Part of `open`, when the generator knows its splits."""
        if self._generator is not None and self._strategy is not None:
            self._generator.open(FunctionRuntimeContext(self.context))
            interval_ms = watermark_interval_ms(self.context)
            time = self.context.processing_time
            self._cadence = WatermarkCadence(self._generator, time, interval_ms, self._strategy.idle_timeout_ms)
            if self._strategy.alignment is not None:
                self._aligner = WatermarkAligner(self._strategy.alignment, self.context.report_watermark)

    def has_to_wait(self, now_ms: int) -> bool:
        """Report; whether the source is ahead of its group. What is ahead of it stays where it is; `wake_at_ms` says
        until when."""
        aligner, generator, cadence = self._aligner, self._generator, self._cadence
        if aligner is None or generator is None or cadence is None:
            return False
        activity_ms = self.context.processing_time.activity_ms()
        reached_ms = generator.reached_ms(activity_ms)
        aligner.on_time(now_ms, reached_ms, is_idle=cadence.is_idle or self.is_idle)
        self.pause_splits(activity_ms, generator, aligner.max_watermark_ms)
        if not aligner.is_ahead(reached_ms):
            return False
        cadence.keep_active()
        cadence.on_time(self.output)
        times = (aligner.wake_at_ms, cadence.wake_at_ms)
        self._wake_at_ms = min(at_ms for at_ms in times if at_ms is not None)
        return True

    @property
    def is_idle(self) -> bool:
        """Whether the source has said itself that it has nothing for now."""
        return False

    def pause_splits(self, activity_ms: int, generator: WatermarkTracker, max_watermark_ms: int) -> None:
        """Have splits wait that are further than this, where they are told apart."""

    def align_watermarks(self, max_watermark_ms: int) -> None:
        if self._aligner is not None:
            self._aligner.max_watermark_ms = max_watermark_ms

    @property
    def wake_at_ms(self) -> int | None:
        return self._wake_at_ms
