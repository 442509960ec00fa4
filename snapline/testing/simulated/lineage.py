"""What each operator has put out for good: rows that a restart took back do not count.

Each attempt of a subtask notes its batches, cut where the barriers of its checkpoints were. An attempt that is
restored from checkpoint n takes back what earlier ones put out after the barrier of n. What is left at the end is,
in a job whose functions keep their state in state, what a run without faults puts out; the first operator of which
that is not true is the one to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import snapline.taskmanager.task.task_wiring
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.wire.messages import OperatorDescriptor
from snapline.taskmanager.operators.base.operator_contract import OperatorContext, OperatorSnapshot, RestoredState
from snapline.taskmanager.task.operator_chain import ChainedOperator, OperatorChain
from snapline.testing.row_comparison import row_texts

Rows = Counter[str]
"""How often each row came, by its text."""


@dataclass
class Emitted:
    """What one attempt of a subtask of an operator has put out."""

    subtask: int
    parallelism: int
    closed: list[tuple[int, list[pa.RecordBatch]]] = field(default_factory=list)
    """Batches before the barrier of each checkpoint, and after the one before."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    """Those after the latest barrier."""

    def close(self, checkpoint_id: int) -> None:
        """Note that the barrier of a checkpoint was here."""
        self.closed.append((checkpoint_id, self.batches))
        self.batches = []

    def take_back(self, restored_from: int) -> None:
        """Forget what was put out after the barrier of this checkpoint."""
        self.closed = [(number, batches) for number, batches in self.closed if number <= restored_from]
        self.batches = []


class Lineage:
    """What all operators of one run have put out."""

    def __init__(self) -> None:
        self._of: dict[str, list[Emitted]] = {}

    def begin(self, uid: str, subtask: int, parallelism: int, restored_from: int) -> Emitted:
        """Note that an attempt begins, which takes back what the earlier ones of its subtask put out too much; with
        another parallelism, those of all subtasks."""
        earlier = self._of.setdefault(uid, [])
        for one in earlier:
            if one.parallelism != parallelism or one.subtask == subtask:
                one.take_back(restored_from)
        begun = Emitted(subtask, parallelism)
        earlier.append(begun)
        return begun

    @property
    def has_begun(self) -> bool:
        """Return whether any task of the job has begun."""
        return bool(self._of)

    @property
    def restarts(self) -> int:
        """Return how often the subtask that was restarted most has been restarted."""
        attempts = Counter((uid, one.subtask) for uid, of_uid in self._of.items() for one in of_uid)
        return max(attempts.values(), default=1) - 1

    def rows(self, uid: str) -> Rows:
        """Return what an operator has put out for good."""
        counted: Rows = Counter()
        for one in self._of.get(uid, ()):
            for batches in (*(batches for _, batches in one.closed), one.batches):
                for batch in batches:
                    counted.update(row_texts(batch))
        return counted


class RecordedChain(OperatorChain):
    """An OperatorChain whose outputs are noted."""

    lineage: Lineage
    on_open: Callable[[str], None]

    def __init__(self, operators: Sequence[Any], writers: Sequence[Any], context_of: Any, processing_time: Any) -> None:
        super().__init__(operators, writers, context_of, processing_time)
        self._emitted: dict[OperatorID, Emitted] = {}

    def initialize_and_open(self, restored_of: Callable[[OperatorDescriptor], RestoredState]) -> None:
        """Restore and open every operator, whose output is noted from now on."""
        for item, output in zip(self.operators, self._outputs, strict=True):
            context: OperatorContext = item.operator.context
            restored_from = restored_of(item.descriptor).checkpoint_id
            emitted = self.lineage.begin(item.descriptor.uid, context.subtask_index, context.parallelism, restored_from)
            _note_output(output, emitted)
            _note_barriers(item, emitted)
        super().initialize_and_open(restored_of)
        for item in self.operators:
            self.on_open(item.descriptor.uid)


def _note_output(output: Any, emitted: Emitted) -> None:
    emit_batch, emit_side = output.emit_batch, output.emit_side

    def noted(batch: pa.RecordBatch) -> None:
        emitted.batches.append(batch)
        emit_batch(batch)

    def noted_side(tag: str, batch: pa.RecordBatch) -> None:
        emitted.batches.append(batch)
        emit_side(tag, batch)

    output.emit_batch, output.emit_side = noted, noted_side


def _note_barriers(item: ChainedOperator, emitted: Emitted) -> None:
    operator: Any = item.operator
    snapshot_state = operator.snapshot_state

    def noted(checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        emitted.close(checkpoint_id)
        snapshot: OperatorSnapshot = snapshot_state(checkpoint_id, timestamp_ms)
        return snapshot

    operator.snapshot_state = noted


@contextmanager
def lineage_in(lineage: Lineage, on_open: Callable[[str], None]) -> Iterator[None]:
    """Tasks of a simulated run note what their operators put out. `on_open`: called for an operator that was opened."""
    chain = type("RecordedChain", (RecordedChain,), {"lineage": lineage, "on_open": staticmethod(on_open)})
    with patch.object(snapline.taskmanager.task.task_wiring, "OperatorChain", chain):
        yield
