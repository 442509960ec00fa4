"""Head of the one task that discovers a source's splits, and hands each to the reader that asks for most.

Decides when to look for splits, in which order they are handed out (that of their least event time where all that wait
have one, else that of their discovery), what readers may promise meanwhile, and when the source ends: when no more
splits will come and every reader asks for as many as it ever takes, so that all were read. Splits travel as batches of
one row, so a barrier divides them: what was handed out before it is in the readers' snapshots, the rest is here. A look
is a function of this operator's state and runs beside the task; what it finds counts from when it is taken over. It
does not know what a split is. Takes the place of Flink's SourceCoordinator and SplitEnumerator (decision 92).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from snapline.dataflow.api.connector_answers import answer, splits_of
from snapline.dataflow.api.connector_api import Discovery, InputStatus, Source, SourceSplit, SplitEnumerator
from snapline.dataflow.elements import MIN_WATERMARK_MS, Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import SplitEnumeratorSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.operators.sources.watermarked_source import WatermarkedSource

ENUMERATOR_STATE = "split-enumerator"
WAITING_STATE = "split-enumerator-waiting"
SPLIT_SCHEMA = pa.schema([("split", pa.string())])
ENOUGH_WAITING = 1_000
"""Nobody looks for more splits while so many wait: each checkpoint has all that wait."""
ALL_SPLITS = 1 << 30
"""What a reader asks for that takes as many splits as there are."""


class Call(Protocol):
    """A function that runs beside the task."""

    @property
    def is_done(self) -> bool:
        """Whether the function has returned, or raised."""
        ...

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        ...

    def close(self) -> None:
        """Wait a little for the end of the function."""
        ...


def splits_wanted(source: Source) -> int:
    """How many unfinished splits a reader of this source takes."""
    wanted = source.splits_at_once
    return ALL_SPLITS if wanted is None else max(1, wanted)


def encode_split(split: SourceSplit) -> dict[str, Any]:
    """The split as an element of a state, JSON-like; with its least times, which it keeps until it is read."""
    return {
        "split_id": split.split_id,
        "description": split.description,
        "position": split.position,
        "least_times_ms": split.least_times_ms,
    }


def decode_split(element: dict[str, Any]) -> SourceSplit:
    """The split of an element that `encode_split` made, or a reader's snapshot."""
    return SourceSplit(
        element["split_id"],
        element["description"],
        element["position"],
        element.get("finished", False),
        element.get("least_times_ms", {}),
    )


class SplitEnumeratorOperator(WatermarkedSource):
    """Discovers splits, and hands them out."""

    def __init__(
        self, spec: SplitEnumeratorSpec, create_call: Callable[[Callable[[], Any], Callable[[], None]], Call]
    ) -> None:
        self._spec = spec
        self._create_call = create_call
        self._wanted = splits_wanted(spec.source)
        self._enumerator: SplitEnumerator | None = None
        self._call: Call | None = None
        self._found: dict[str, Any] = {}
        """What the last look returned, and the next one is told."""
        self._submitted = tuple(spec.splits)
        """What the first submission found, which the first look goes on from."""
        self._finished = False
        self._after_all_read = False
        self._at_once: int | None = None
        self._waiting: deque[SourceSplit] = deque()
        self._is_ordered = False
        """All that wait have a least event time, and they wait in its order."""
        self._has_looked = False
        self._next_look_ms: int | None = None
        self._said: Watermark | WatermarkStatus | None = None
        self.set_strategy(None)

    # --- state ------------------------------------------------------------------------------------------------------

    def initialize_state(self, restored: RestoredState) -> None:
        self._state = OperatorStateBackend(restored.operator_lists)
        self.restore_drained(self._state, restored)
        known = self._state.list_state(ENUMERATOR_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        waiting = self._state.list_state(WAITING_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).get()
        if known:
            # A source that has no end may have had one when the snapshot was taken.
            self._found, self._finished = known[0]["found"], known[0]["finished"] and self._spec.source.bounded
            self._after_all_read, self._at_once = known[0]["after_all_read"], known[0].get("at_once")
            if (submitted := known[0].get("submitted")) is not None:
                self._submitted = tuple(decode_split(element) for element in submitted)
            self._add(decode_split(element) for element in waiting)
        else:
            self._add(self._spec.splits)

    def open(self) -> None:
        self._enumerator = check(self._spec.source.create_enumerator(self._submitted), "the source has an enumerator")
        self.context.metrics.gauge("waiting_splits", lambda: len(self._waiting))

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        known = {
            "found": self._found, "finished": self._finished, "after_all_read": self._after_all_read,
            "at_once": self._at_once,
        }  # fmt: skip
        if not self._found and not self._has_looked:
            known["submitted"] = [encode_split(split) for split in self._submitted]
        self._state.list_state(ENUMERATOR_STATE, OperatorStateMode.SPLIT_DISTRIBUTE).update([known])
        waiting = self._state.list_state(WAITING_STATE, OperatorStateMode.SPLIT_DISTRIBUTE)
        waiting.update([encode_split(split) for split in self._waiting])
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    # --- discovering and handing out --------------------------------------------------------------------------------

    def emit_next(self) -> InputStatus:
        if self._is_drained:
            return InputStatus.END_OF_INPUT
        demand = self.context.split_demand()
        asked = [count for count in demand if count is not None]
        is_heard = len(asked) == len(demand)
        all_read = is_heard and all(count == self._wanted for count in asked)
        next_look_ms = self._look(self.context.processing_time.now_ms(), all_read=all_read)
        # Who asks for less than it ever does has splits that are not finished.
        enough = 0 if self._at_once is None else max(0, self._wanted - self._at_once)
        if self._waiting and is_heard and max(asked) > enough:
            self._hand_out(self._waiting.popleft())
            return InputStatus.MORE_AVAILABLE
        self._say_what_waits()
        if self._finished and not self._waiting and all_read:
            self._become_active()
            return InputStatus.END_OF_INPUT
        self._wake_at_ms = next_look_ms
        return InputStatus.NOTHING_AVAILABLE

    def _look(self, now_ms: int, *, all_read: bool) -> int | None:
        """Begin to look for splits when that is due, and take over what was found. Returns when a look is due by time
        alone; None: not before something else has come, of which the task is told."""
        if self._call is not None and self._call.is_done:
            call, self._call = self._call, None
            self._take(call.result(), now_ms)
        may_look = not self._after_all_read or (all_read and not self._waiting)
        if self._call is not None or self._finished or not may_look or len(self._waiting) >= ENOUGH_WAITING:
            return None
        if self._next_look_ms is not None and now_ms < self._next_look_ms:
            return self._next_look_ms
        enumerator = check(self._enumerator, "there is no enumerator, although open was called")
        found = self._found
        self._call = self._create_call(lambda: enumerator.discover(found), self.context.wake_up)
        return None

    def _take(self, discovery: Discovery, now_ms: int) -> None:
        answer(discovery, Discovery, self._enumerator, "discover")
        self._found, self._finished = discovery.state, discovery.finished
        self._after_all_read, self._at_once = discovery.after_all_read, discovery.at_once
        self._next_look_ms = now_ms + discovery.again_after_ms
        self._has_looked = True
        self._add(splits_of(discovery.splits, self._enumerator, "discover", self._waiting))

    def _add(self, splits: Any) -> None:
        """Let splits wait, in the order of their least event time where it is known of all that wait."""
        self._waiting.extend(splits)
        self._is_ordered = all(self._least_ms(split) is not None for split in self._waiting)
        if self._is_ordered:
            self._waiting = deque(sorted(self._waiting, key=lambda split: self._least_ms(split) or 0))

    def _least_ms(self, split: SourceSplit) -> int | None:
        return split.least_times_ms.get(self._spec.event_time_column)

    def _hand_out(self, split: SourceSplit) -> None:
        self._become_active()
        text = json.dumps(encode_split(split))
        self.output.emit_batch(pa.RecordBatch.from_arrays([pa.array([text])], schema=SPLIT_SCHEMA))
        self._say_what_waits()

    def _become_active(self) -> None:
        """Nobody listens to watermarks, the last one included, of who is idle."""
        if self._said is WatermarkStatus.IDLE:
            self._said = WatermarkStatus.ACTIVE
            self.output.emit_watermark_status(WatermarkStatus.ACTIVE)

    def _say_what_waits(self) -> None:
        """Tell the readers what may still come: a least event time, or nothing that they should wait for."""
        said: Watermark | WatermarkStatus | None = None
        has_end = self._spec.source.bounded
        if has_end and not self._finished:
            pass  # splits with earlier rows may be found
        elif self._waiting and self._is_ordered:
            said = Watermark(max((self._least_ms(self._waiting[0]) or 0) - 1, MIN_WATERMARK_MS))
        elif (self._has_looked or self._finished) and not (self._waiting and has_end):
            said = WatermarkStatus.IDLE
        if said is None or said == self._said:
            return
        if isinstance(said, Watermark):
            self._become_active()
            self.output.emit_watermark(said)
        else:
            self.output.emit_watermark_status(said)
        self._said = said

    def stop_emitting(self, checkpoint_id: CheckpointID, *, drain: bool) -> None:
        self._become_active()
        if drain:
            self.mark_drained(self._state)

    def close(self) -> None:
        if self._call is not None:
            call, self._call = self._call, None
            call.close()
        if self._enumerator is not None:
            enumerator, self._enumerator = self._enumerator, None
            enumerator.close()
