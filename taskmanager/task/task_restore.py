"""What a deployed task gets back from a snapshot: state of each operator, and data in flight of each channel.

Decides how handles become what operators and gates take: keyed files are handed over as readers of byte ranges, list
elements and in-flight batches are read here. It does not redistribute; the coordinator has done that. Mirrors Flink's
StreamTaskStateInitializerImpl and SequentialChannelStateReaderImpl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from snapline.dataflow.columnar.validated import DAMAGE, read_batches
from snapline.dataflow.ids import OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    ChannelStateHandle,
    KeyedStateHandle,
    OperatorStateHandle,
    OperatorSubtaskState,
)
from snapline.dataflow.snapshot.state_format import StateFormatError
from snapline.dataflow.wire.messages import TaskDeploymentDescriptor
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.operators.base.operator_contract import RestoredState, kept_modes
from snapline.taskmanager.task.environment_contract import Environment, StateBlob
from snapline.taskmanager.task.task_failure import RestoreFailure


@dataclass(frozen=True, slots=True)
class RestoredKeyedFile:
    """One file of keyed state that is restored (KeyedStateInput)."""

    key_group_range: KeyGroupRange
    blob: StateBlob
    operator_uid: str

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self.blob.size

    def read_range(self, offset: int, size: int) -> bytes:
        """Bytes of the file. Raises RestoreFailure that names the operator."""
        return _reading(self.operator_uid, lambda: self.blob.read_range(offset, size))


def _reading(operator_uid: str, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except InvariantViolation:
        raise
    except Exception as error:
        raise RestoreFailure(
            f"state of operator {operator_uid!r} cannot be read: {type(error).__name__}: {error}; the snapshot that the job starts "
            "from must still be there, and readable from the TaskManagers"
        ) from error


@dataclass(frozen=True, slots=True)
class _BlobOfTask:
    """A blob that is read no further once its task is to end (StateBlob)."""

    blob: StateBlob
    is_to_end: Callable[[], bool]

    @property
    def size(self) -> int:
        return self.blob.size

    def read_range(self, offset: int, size: int) -> bytes:
        if self.is_to_end():
            raise RestoreFailure("the task was told to end while it was restored")
        return self.blob.read_range(offset, size)


class TaskRestore:
    """Reads the restored state of one attempt."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        environment: Environment,
        is_to_end: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_to_end`: whether the task was told to end: what is read then fails."""
        self._descriptor = descriptor
        self._environment = environment
        self._is_to_end = is_to_end
        self._uid_of = {operator.operator_id: operator.uid for operator in descriptor.operators}

    def state_of(self, operator_id: OperatorID) -> RestoredState:
        """The state of one operator."""
        checkpoint_id = self._descriptor.restore_checkpoint_id
        if checkpoint_id <= 0:
            return RestoredState()
        state = self._descriptor.restore_state.operators.get(operator_id)
        if state is None:
            return RestoredState(checkpoint_id)
        uid = self._uid_of[operator_id]
        lists: dict[str, tuple[bytes, ...]] = {}
        for handle in state.managed_operator:
            for name, elements in self._elements(uid, handle):
                lists[name] = (*lists.get(name, ()), *elements)
        keyed = tuple(self._keyed(uid, handle) for handle in state.managed_keyed)
        return RestoredState(
            checkpoint_id, keyed, lists, kept_modes(state.managed_operator, self._descriptor.subtask_index)
        )

    def _keyed(self, uid: str, handle: KeyedStateHandle) -> RestoredKeyedFile:
        return RestoredKeyedFile(handle.key_group_range, self._open(uid, handle.handle), uid)

    def _open(self, uid: str, handle: object) -> StateBlob:
        opened: list[StateBlob] = []

        def call() -> bytes:
            opened.append(self._environment.open_state(handle))  # type: ignore[arg-type]
            return b""

        _reading(uid, call)
        return _BlobOfTask(opened[0], self._is_to_end)

    def _elements(self, uid: str, handle: OperatorStateHandle) -> Iterator[tuple[str, tuple[bytes, ...]]]:
        blob = self._open(uid, handle.handle)
        for entry in handle.entries:
            yield (
                entry.name,
                tuple(_reading(uid, lambda o=offset, s=size: blob.read_range(o, s)) for offset, size in entry.offsets),  # type: ignore[misc]
            )

    # --- data in flight -----------------------------------------------------------------------------------------------

    def input_channels(self) -> dict[tuple[int, int], list[pa.RecordBatch]]:
        """(gate, channel) to the batches that were in flight there, in order."""
        return self._channels(lambda state: state.input_channel)

    def output_channels(self) -> dict[tuple[int, int], list[pa.RecordBatch]]:
        """(outgoing edge, subpartition) to the batches that were in flight there, in order."""
        return self._channels(lambda state: state.output_channel)

    def _channels(
        self, handles_of: Callable[[OperatorSubtaskState], tuple[ChannelStateHandle, ...]]
    ) -> dict[tuple[int, int], list[pa.RecordBatch]]:
        found: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        for operator_id, state in self._descriptor.restore_state.operators.items():
            uid = self._uid_of.get(operator_id, str(operator_id))
            for handle in handles_of(state):
                blob = self._open(uid, handle.handle)
                data = _reading(uid, lambda b=blob: b.read_range(0, b.size))  # type: ignore[misc]
                batches = found.setdefault((handle.gate_or_partition, handle.channel), [])
                batches.extend(decode_channel_state(data))
        return found


def decode_channel_state(data: bytes) -> list[pa.RecordBatch]:
    """The batches of one channel: Arrow IPC streams, one after another (a new one where the schema changes). Raises
    StateFormatError for damaged ones."""
    batches: list[pa.RecordBatch] = []
    source = pa.BufferReader(data)
    while source.tell() < source.size():
        try:
            batches.extend(read_batches(source))
        except DAMAGE as error:
            raise StateFormatError(f"the data in flight is damaged ({error}): restore an older checkpoint") from error
    return batches
