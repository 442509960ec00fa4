"""What every operator with a user's function does for it: life cycle, operator state, notifications of checkpoints.

Decides when a function's optional methods are called: `initialize_state` (CheckpointedFunction) before `open`,
`snapshot_state` in the synchronous part of a snapshot, `notify_checkpoint_...` (CheckpointListener), `close` once at
the end, also after a failure, unless it was never opened. A plain callable has none of these, and is a function all the
same. Mirrors Flink's AbstractUdfStreamOperator and StreamingFunctionUtils.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snapline.dataflow.api.accumulators import AccumulatorT, JobAccumulator
from snapline.dataflow.api.function_contexts import (
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
)
from snapline.dataflow.api.functions import CheckpointedFunction
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import (
    OperatorContext,
    OperatorSnapshot,
    RestoredState,
    StreamOperator,
)
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend

NOT_KEYED = "its input is not keyed: use key_by(...).process(...)"


@dataclass(frozen=True, slots=True)
class SnapshotContext(FunctionSnapshotContext):
    """The context of a snapshot (see FunctionSnapshotContext)."""

    checkpoint_id: int
    checkpoint_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class InitializationContext(FunctionInitializationContext):
    """The context of a start or restore (see FunctionInitializationContext)."""

    is_restored: bool
    restored_checkpoint_id: int
    operator_state_store: OperatorStateStore


class FunctionRuntimeContext:
    """A function's view of its subtask (RuntimeContext); keyed state is refused outside of keyed operators."""

    def __init__(self, context: OperatorContext, why_no_state: str = NOT_KEYED) -> None:
        """`why_no_state`: why the function cannot have keyed state, and the way out."""
        self._context = context
        self._why_no_state = why_no_state

    @property
    def task_name(self) -> str:
        """Name of the task, for logs."""
        return self._context.task_name

    @property
    def subtask_index(self) -> int:
        """0 .. parallelism - 1."""
        return self._context.subtask_index

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks of the operator."""
        return self._context.parallelism

    @property
    def attempt_number(self) -> int:
        """0 for the first attempt; rises with every restart."""
        return self._context.attempt_number

    @property
    def execution_attempt(self) -> str:
        """Unique over all attempts of all restarts."""
        return self._context.execution_attempt

    def add_accumulator(self, name: str, accumulator: AccumulatorT) -> AccumulatorT:
        """Add an accumulator, which starts empty with each attempt."""
        return self._context.accumulators.add(name, accumulator)

    def get_accumulator(self, name: str) -> JobAccumulator:
        """One that this operator's function has added."""
        return self._context.accumulators.get(name)

    @property
    def metrics(self) -> MetricGroup:
        """Counters, gauges and histograms of this operator's function."""
        return self._context.metrics

    def _refuse(self, descriptor: Any) -> Any:
        raise JobDefinitionError(
            f"operator {self._context.operator_uid!r} asks for keyed state {descriptor.name!r}, but {self._why_no_state}"
        )

    get_state = get_list_state = get_map_state = get_reducing_state = get_aggregating_state = _refuse


def tell_listener(function: Any, method: str, checkpoint_id: CheckpointID) -> None:
    """Tell a function of a checkpoint, if it has a method for that; it need not have both (in Flink the second one has
    a default)."""
    told = getattr(function, method, None)
    if callable(told):
        told(checkpoint_id)


class FunctionOperator(StreamOperator):
    """Holds one user function, and the operator state that it may have."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.operator_state: OperatorStateBackend | None = None
        self._is_checkpointed = isinstance(function, CheckpointedFunction)
        self._opened = False
        self._initialized = False

    def runtime_context(self) -> Any:
        """What the function's `open` gets."""
        return FunctionRuntimeContext(self.context)

    def initialize_state(self, restored: RestoredState) -> None:
        super().initialize_state(restored)
        self.operator_state = OperatorStateBackend(restored.operator_lists, restored.kept_modes)
        if self._is_checkpointed:
            self._initialized = True
            self.function.initialize_state(
                InitializationContext(restored.is_restored, restored.checkpoint_id, self.operator_state)
            )

    def open(self) -> None:
        opener = getattr(self.function, "open", None)
        self._opened = True
        if callable(opener):
            opener(self.runtime_context())

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        if self._is_checkpointed:
            self.function.snapshot_state(SnapshotContext(checkpoint_id, timestamp_ms))
        operator_state = check(self.operator_state, "there is no operator state, although initialize_state was called")
        return OperatorSnapshot(operator_lists=operator_state.snapshot())

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        tell_listener(self.function, "notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        tell_listener(self.function, "notify_checkpoint_aborted", checkpoint_id)

    def finish(self) -> None:
        finisher = getattr(self.function, "finish", None)
        if callable(finisher):
            finisher()

    def close(self) -> None:
        closer = getattr(self.function, "close", None)
        if (self._opened or self._initialized) and callable(closer):
            self._opened = self._initialized = False
            closer()
