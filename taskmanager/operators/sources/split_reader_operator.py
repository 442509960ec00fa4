"""Head of a reader's task that is fed by an enumerator: splits come in, and rows go out.

Decides how many splits are asked for (as many as the source reads at once, less those that are not finished), what a
snapshot holds (the unfinished splits only, so it does not grow with the life of the job), and what the watermark may
promise: no more than what was read and what, as the enumerator says, still waits. It ends when the enumerator says so.
It does not know other readers. Mirrors the part of Flink's SourceOperator that handles AddSplitEvent and requests.
"""

from __future__ import annotations

import json

import pyarrow as pa

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.connector_answers import answer, answers
from snapline.dataflow.api.connector_api import InputStatus, SourceReader, SourceSplit
from snapline.dataflow.elements import MAX_WATERMARK_MS, SnapshotType, Watermark, WatermarkStatus
from snapline.dataflow.errors import ConnectorError, JobDefinitionError
from snapline.dataflow.graph.operator_specs import SourceSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import WatermarkTracker
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.sources.source_operator import (
    GREATEST_STATE,
    KNOWN_STATE,
    SPLITS_STATE,
    SourceOperator,
)
from snapline.taskmanager.operators.sources.split_enumerator_operator import decode_split, splits_wanted

WAITING_SPLITS = "\0waiting"
"""Stands for all splits that wait at the enumerator, among those that hold the watermark back."""


class SplitReaderOperator(SourceOperator):
    """Reads the splits that it was handed."""

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._wanted = splits_wanted(spec.source)
        self._unfinished: set[str] = set()
        self._asked_for = 0
        """Splits that the enumerator owes, or that are not finished."""
        self._something_waits = True
        """At the enumerator, as far as it has said."""
        self._said_idle = False
        self._is_savepoint = False
        """Whether the snapshot that is being taken is a savepoint."""
        self._savepoints: set[CheckpointID] = set()
        """Savepoints that have not completed yet."""

    # --- state ------------------------------------------------------------------------------------------------------

    def initialize_state(self, restored: RestoredState) -> None:
        self._state = OperatorStateBackend(restored.operator_lists)
        self.restore_drained(self._state, restored)
        if restored.operator_lists and KNOWN_STATE in restored.operator_lists:
            raise JobDefinitionError(
                f"source {self.context.operator_uid!r} discovers splits now, and did not when the snapshot was made, so that splits "
                "would be read twice; give it the options that it had, or another uid to read from the start"
            )
        elements = self._state.list_state(SPLITS_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        greatest = self._state.list_state(GREATEST_STATE, OperatorStateMode.UNION).get()
        known = [ms for ms in greatest if ms is not None]
        self._restored_greatest_ms = min(known) if known and len(known) == len(greatest) else None
        for element in elements:
            self._greatest[element["split_id"]] = element.get("greatest_event_time_ms")
        self._splits = [decode_split(element) for element in elements]
        self._unfinished = {split.split_id for split in self._splits}

    def open(self) -> None:
        source = self._spec.source
        reader = answer(source.create_reader(self.context), SourceReader, source, "create_reader")
        self._reader = refuse_async_methods(reader)
        if self._generator is not None:
            self._generator.add_splits({}, self._restored_greatest_ms)
            self._hold_back(self._generator, {})
            for split in self._splits:
                self._watch(split)
        self.start_watermarks()
        if self._splits:
            self._reader.add_splits(tuple(self._splits))
        self._asked_for = len(self._unfinished)
        self._ask()

    def _ask(self) -> None:
        """Ask for what is missing. The first time it also says that this reader is there."""
        missing = max(0, self._wanted - self._asked_for)
        self._asked_for += missing
        self.context.request_splits(missing)

    def announce_snapshot(self, snapshot_type: SnapshotType) -> None:
        self._is_savepoint = snapshot_type.is_savepoint and not snapshot_type.is_synchronous
        if snapshot_type is SnapshotType.SAVEPOINT_TERMINATE:
            self.mark_drained(self._state)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        reader = check(self._reader, "there is no reader, although open was called")
        splits = answers(reader.snapshot_splits(checkpoint_id), SourceSplit, reader, "snapshot_splits")
        if self._is_savepoint:
            self._savepoints.add(checkpoint_id)
        elements = [
            {**self._element(split), "least_times_ms": split.least_times_ms}
            for split in splits
            if split.split_id in self._unfinished and not split.finished
        ]
        self._state.list_state(SPLITS_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update(elements)
        greatest = self._generator.greatest_ms if self._generator is not None else None
        self._state.list_state(GREATEST_STATE, OperatorStateMode.UNION).update([greatest])
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """Tell the reader, unless it was a savepoint: after a failure the job starts from the checkpoint before that,
        and reads again what was read since then."""
        is_savepoint = checkpoint_id in self._savepoints
        self._savepoints = {each for each in self._savepoints if each > checkpoint_id}
        if not is_savepoint:
            super().notify_checkpoint_complete(checkpoint_id)

    # --- splits and what the enumerator says ------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        """Take splits over. No row goes out here, so that splits are taken in also without room for rows."""
        splits = [decode_split(json.loads(text)) for text in batch.column(0).to_pylist()]
        reader = check(self._reader, "there is no reader, although open was called")
        for split in splits:
            if split.split_id in self._unfinished:
                raise ConnectorError(
                    f"{type(self._spec.source).__name__}: split {split.split_id!r} was discovered once more while it is read; "
                    "discover returns what is new, and keeps in its state what it has found"
                )
            self._unfinished.add(split.split_id)
            self._watch(split)
        self._take_part()
        reader.add_splits(splits)

    def _watch(self, split: SourceSplit) -> None:
        """Let the split hold the watermark back."""
        if self._generator is not None:
            least = split.least_times_ms.get(self._generator.column)
            known = {} if least is None else {split.split_id: least}
            self._generator.add_splits({split.split_id: self._greatest.get(split.split_id)}, None, known)

    @staticmethod
    def _hold_back(generator: WatermarkTracker, least_ms: dict[str, int]) -> None:
        """Let what waits at the enumerator count, for as long as it waits: it is not idle, nobody has read it yet."""
        generator.add_splits({WAITING_SPLITS: None}, None, least_ms)
        generator.hold_back(WAITING_SPLITS)

    def process_watermark(self, watermark: Watermark) -> None:
        """No split that waits has rows at or before this; the last one ends the source."""
        if watermark.timestamp_ms == MAX_WATERMARK_MS:
            self._is_drained = True  # rows would be late that are read before the end of data has come, too
            self._take_part()  # nobody listens to a watermark of who is idle
            self._emit_last_watermark()
            if self._aligner is not None:
                self._aligner.end()
            self.output.emit_watermark(watermark)
        elif self._generator is not None and self._cadence is not None:
            self._hold_back(self._generator, {WAITING_SPLITS: watermark.timestamp_ms + 1})
            self._cadence.split_finished()

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Nothing waits that could hold a watermark back, or something does again."""
        self._something_waits = status is WatermarkStatus.ACTIVE
        if self._generator is not None and self._cadence is not None:
            if self._something_waits:  # its time does not come here, where that is no later than what waited before
                self._hold_back(self._generator, {})
            else:
                self._generator.finish_split(WAITING_SPLITS)
            self._cadence.split_finished()
        if self._something_waits:
            self._take_part()

    def _take_part(self) -> None:
        if self._said_idle:
            self._said_idle = False
            self.output.emit_watermark_status(WatermarkStatus.ACTIVE)

    # --- reading ----------------------------------------------------------------------------------------------------

    def emit_next(self) -> InputStatus:
        reader = check(self._reader, "there is no reader, although open was called")
        self._wake_at_ms = None
        if self._is_drained:
            return InputStatus.NOTHING_AVAILABLE
        if not self._unfinished:
            self._become_idle()
            return InputStatus.NOTHING_AVAILABLE
        now_ms = self.context.processing_time.now_ms()
        if self.has_to_wait(now_ms):
            return InputStatus.NOTHING_AVAILABLE
        polled = self._poll_reader(reader, now_ms)
        finished = set(polled.finished_splits)
        if polled.status is InputStatus.END_OF_INPUT:
            finished = set(self._unfinished)
            self._finish_splits(sorted(finished - set(polled.finished_splits)))
        if finished:
            for split_id in finished:
                self._greatest.pop(split_id, None)
            self._asked_for -= len(finished & self._unfinished)
            self._unfinished -= finished
            self._ask()
            return InputStatus.MORE_AVAILABLE
        return polled.status

    def _ahead(self, generator: WatermarkTracker, max_watermark_ms: int) -> tuple[str, ...]:
        """None when all splits here are ahead, but not the source: splits that wait to be handed out hold it back, and
        may come only when one of these has ended."""
        ahead = super()._ahead(generator, max_watermark_ms)
        return () if self._unfinished.issubset(ahead) else ahead

    def _become_idle(self) -> None:
        """There is nothing to read: leave the watermark to other readers once nothing waits."""
        generator, cadence = self._generator, self._cadence
        if self._aligner is not None and generator is not None and cadence is not None:
            self._aligner.on_time(
                self.context.processing_time.now_ms(), generator.reached_ms(), is_idle=not self._something_waits
            )
            self._wake_at_ms = self._aligner.wake_at_ms
        if cadence is not None:
            cadence.on_time(self.output)
            times = [at_ms for at_ms in (self._wake_at_ms, cadence.wake_at_ms) if at_ms is not None]
            self._wake_at_ms = min(times, default=None)
        if not self._something_waits and not self._said_idle:
            self._said_idle = True
            if cadence is not None:
                cadence.before_idle(self.output)
            self.output.emit_watermark_status(WatermarkStatus.IDLE)
