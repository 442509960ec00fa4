"""Head of a source task: a reader over splits, its position in the snapshot, and the watermark of what it read.

Decides which splits this subtask reads. Fresh: split i of the job belongs to subtask i modulo parallelism. Restored:
the splits that the snapshot's redistribution gave it, at their positions, and those new splits that the snapshot did
not know, by index again. A split that the snapshot knew and that nobody holds was read to its end by a subtask that had
finished; to tell it from a new one, every subtask's snapshot holds digests of all split ids ever assigned. It does not
know what a position is. Mirrors Flink's SourceOperator, where there is no enumerator: splits are assigned by index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from snapline.dataflow.api.async_methods import refuse_async_methods
from snapline.dataflow.api.bad_rows import BAD_ROWS_TAG, bad_rows_batch
from snapline.dataflow.api.connector_answers import answer, answers
from snapline.dataflow.api.connector_api import InputStatus, Polled, SourceReader, SourceSplit
from snapline.dataflow.columnar.column_types import workable
from snapline.dataflow.elements import MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import SourceSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import WatermarkTracker
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.sources.watermarked_source import WatermarkedSource

SPLITS_STATE = "source-splits"
KNOWN_STATE = "source-known-splits"
GREATEST_STATE = "source-greatest-event-time"
"""A list that readers have which are fed by an enumerator, and others not."""
READERS_STATE = "source-readers"
"""Which subtasks had not finished."""
DIGEST_BYTES = 8


def split_digest(split_id: str) -> str:
    """What a snapshot remembers of a split that this subtask does not hold."""
    return hashlib.blake2b(split_id.encode(), digest_size=DIGEST_BYTES).hexdigest()


class SourceOperator(WatermarkedSource):
    """Reads batches and emits them."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._reader: SourceReader | None = None
        self._splits: list[SourceSplit] = []
        self._known: set[str] = set()
        self._has_ended = False
        self.set_strategy(spec.watermark_strategy)
        if self._generator is not None:
            self._generator.waits_for_unread = spec.source.bounded
        self._paused: tuple[str, ...] = ()
        self._greatest: dict[str, int | None] = {}
        """Greatest event time per split in the restored snapshot."""
        self._least: dict[str, dict[str, int]] = {}
        """The least times of splits, where they are known without reading; also those that only the snapshot knows."""

    # --- state ------------------------------------------------------------------------------------------------------

    def initialize_state(self, restored: RestoredState) -> None:
        self._state = OperatorStateBackend(restored.operator_lists)
        self.restore_drained(self._state, restored)
        if restored.operator_lists and GREATEST_STATE in restored.operator_lists:
            raise JobDefinitionError(
                f"source {self.context.operator_uid!r} discovered splits when the snapshot was made, and does not now, so that no new split would "
                "ever be read; give it the options that it had, or another uid to read from the start"
            )
        elements = self._state.list_state(SPLITS_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        digests = self._state.list_state(KNOWN_STATE, OperatorStateMode.BROADCAST).get()
        own = [self._from_element(element) for element in elements]
        all_ids = [split.split_id for split in self._spec.splits]
        if restored.operator_lists is None:
            new = list(self._spec.splits)
        else:
            held = {split.split_id for split in own}
            known = {digest for element in digests for digest in element.split()}
            # Without digests the snapshot holds nothing of this source but that it was there: its reader had finished.
            new = [
                split
                for split in self._spec.splits
                if digests and split.split_id not in held and split_digest(split.split_id) not in known
            ]
            self._known = known
        self._known.update(split_digest(split_id) for split_id in all_ids)
        self._least |= {split.split_id: split.least_times_ms for split in self._spec.splits}
        takers = self._takers()
        mine = [
            split
            for index, split in enumerate(self._spec.splits)
            if takers[index % len(takers)] == self.context.subtask_index
        ]
        new_ids = {split.split_id for split in new}
        order = {split_id: place for place, split_id in enumerate(all_ids)}
        splits = own + [split for split in mine if split.split_id in new_ids]
        # In the order of the source also after a rescale has shuffled them; it may be that of their event time.
        self._splits = sorted(splits, key=lambda split: (order.get(split.split_id, len(order)), self._sort_ms(split)))

    def _takers(self) -> Sequence[int]:
        """The subtasks among which splits are shared out: those that the snapshot does not restore as finished, which a
        split that is new would never be read by. With another parallelism none is."""
        written = self._state.list_state(READERS_STATE, OperatorStateMode.UNION).get()
        same = (reader["subtask"] for reader in written if reader["parallelism"] == self.context.parallelism)
        return sorted(same) or range(self.context.parallelism)

    def _from_element(self, element: dict[str, Any]) -> SourceSplit:
        split_id = element["split_id"]
        self._greatest[split_id] = element.get("greatest_event_time_ms")
        self._least[split_id] = element.get("least_times_ms", {})
        return SourceSplit(split_id, element["description"], element["position"], element["finished"])

    def _least_ms(self, split_id: str) -> int | None:
        """The time of its rows before which none of them lies, as far as it is known."""
        return self._least.get(split_id, {}).get(self._strategy.column if self._strategy is not None else "")

    def _sort_ms(self, split: SourceSplit) -> int:
        least_ms = self._least_ms(split.split_id)
        return MIN_WATERMARK_MS if least_ms is None else least_ms

    def open(self) -> None:
        source = self._spec.source
        reader = answer(source.create_reader(self.context), SourceReader, source, "create_reader")
        self._reader = refuse_async_methods(reader)
        self._reader.add_splits(tuple(self._splits))
        if self._generator is not None:
            strategy = self._spec.watermark_strategy
            strategy = check(strategy, "there is no strategy, although there is a generator")
            unfinished = {s.split_id: self._greatest.get(s.split_id) for s in self._splits if not s.finished}
            seen = [ms for ms in self._greatest.values() if ms is not None]
            whole = max(seen, default=None) if strategy.per_split else min(seen, default=None)
            least = {split_id: self._least_ms(split_id) for split_id in unfinished}
            known = {split_id: ms for split_id, ms in least.items() if ms is not None}
            self._generator.add_splits(unfinished, whole, known)
        self.start_watermarks()

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        reader = check(self._reader, "there is no reader, although open was called")
        splits = answers(reader.snapshot_splits(checkpoint_id), SourceSplit, reader, "snapshot_splits")
        self._state.list_state(SPLITS_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update(
            [self._element(split) for split in splits]
        )
        self._state.list_state(KNOWN_STATE, OperatorStateMode.BROADCAST).update([" ".join(sorted(self._known))])
        reader_here = {"subtask": self.context.subtask_index, "parallelism": self.context.parallelism}
        readers = self._state.list_state(READERS_STATE, OperatorStateMode.UNION)
        readers.update([] if self._has_ended else [reader_here])
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    def _element(self, split: SourceSplit) -> dict[str, Any]:
        element: dict[str, Any] = {
            "split_id": split.split_id,
            "description": split.description,
            "position": split.position,
            "finished": split.finished,
        }
        if self._generator is not None:
            known = self._greatest.get(split.split_id) if split.finished else None
            element["greatest_event_time_ms"] = self._generator.greatest_of(split.split_id) if known is None else known
            if (least_ms := self._least_ms(split.split_id)) is not None and not split.finished:
                element["least_times_ms"] = {self._generator.column: int(least_ms)}
        return element

    # --- reading ----------------------------------------------------------------------------------------------------

    def emit_next(self) -> InputStatus:
        reader = check(self._reader, "there is no reader, although open was called")
        if self._is_drained:
            return InputStatus.END_OF_INPUT
        now_ms = self.context.processing_time.now_ms()
        if self.has_to_wait(now_ms):
            return InputStatus.NOTHING_AVAILABLE
        polled = self._poll_reader(reader, now_ms)
        if polled.status is InputStatus.END_OF_INPUT:
            self._has_ended = True
            self._emit_last_watermark()
            if self._aligner is not None:
                self._aligner.end()
        return polled.status

    def _poll_reader(self, reader: SourceReader, now_ms: int) -> Polled:
        """Emit what the reader has, and set when to ask it again."""
        polled = answer(reader.poll_next(now_ms), Polled, reader, "poll_next")
        if polled.bad_rows:
            self.output.emit_side(BAD_ROWS_TAG, bad_rows_batch(self.context.operator_uid, polled.bad_rows))
        generator, cadence = self._generator, self._cadence
        if polled.batch is not None and polled.batch.num_rows:
            if generator is None or cadence is None:
                self.output.emit_batch(workable(polled.batch))
            else:
                cadence.before_batch(self.output)
                self.output.emit_batch(workable(polled.batch))
                generator.on_batch(polled.batch, polled.split_id, self.context.processing_time.activity_ms())
                if polled.finished_splits:
                    self._finish_splits(polled.finished_splits)
                cadence.after_batch(self.output, polled.batch.num_rows)
        elif generator is not None and cadence is not None:
            if polled.finished_splits:
                self._finish_splits(polled.finished_splits)
            cadence.on_time(self.output)
        self._wake_at_ms = None
        if polled.status is InputStatus.NOTHING_AVAILABLE:
            times = [
                at_ms for at_ms in (polled.wake_at_ms, cadence.wake_at_ms if cadence else None) if at_ms is not None
            ]
            if polled.wake_at_ms is None:
                times.append(now_ms + SOON_MS)
            if self._aligner is not None:
                times.append(self._aligner.wake_at_ms)
            self._wake_at_ms = min(times)
        return polled

    def stop_emitting(self, checkpoint_id: CheckpointID, *, drain: bool) -> None:
        if drain:
            self.mark_drained(self._state)

    def pause_splits(self, activity_ms: int, generator: WatermarkTracker, max_watermark_ms: int) -> None:
        """Splits that are ahead wait while others are not."""
        ahead = self._ahead(generator, max_watermark_ms)
        if ahead != self._paused and self._reader is not None:
            self._paused = ahead
            self._reader.pause_splits(ahead)
        generator.keep_active(activity_ms, ahead)

    def _ahead(self, generator: WatermarkTracker, max_watermark_ms: int) -> tuple[str, ...]:
        """The splits that have to wait."""
        return generator.splits_beyond(max_watermark_ms)

    def _finish_splits(self, split_ids: Sequence[str]) -> None:
        if self._generator is not None and self._cadence is not None:
            for split_id in split_ids:
                self._greatest[split_id] = self._generator.greatest_of(split_id)
                self._generator.finish_split(split_id)
            self._cadence.split_finished()

    def _emit_last_watermark(self) -> None:
        """What the interval held back; the task adds the watermark of the end itself, if the job drains."""
        watermark_ms = self._generator.next_watermark_ms() if self._generator is not None else None
        if watermark_ms is not None:
            self.output.emit_watermark(Watermark(watermark_ms))

    # --- notifications ----------------------------------------------------------------------------------------------

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        if self._reader is not None:
            self._reader.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        if self._reader is not None:
            self._reader.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.close()


SOON_MS = 10
"""A reader that has nothing and does not say when is asked again after this."""
