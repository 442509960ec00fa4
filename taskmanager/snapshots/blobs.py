"""What a subtask's snapshot consists of on disk, and how its handles are put together again.

Pure. One blob per part of keyed state, one per operator for all its list states (each element at an offset of its own,
so that a rescale reads only its elements), one per channel with data in flight. Snapshots come as the task takes them,
tail of the chain first; data in flight of inputs belongs to the head, that of outputs to the tail, as in Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapline.dataflow.ids import OperatorID
from snapline.dataflow.snapshot.handles import (
    ChannelStateHandle,
    KeyedStateHandle,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.runtime.cores.machine import check
from snapline.runtime.storage.storage_port import Buffer
from snapline.taskmanager.checkpointing.checkpointing_contract import ChannelState
from snapline.taskmanager.operators.base.operator_contract import (
    KeyedSnapshotPart,
    OperatorListSnapshot,
    OperatorSnapshot,
    SharedKeyedSnapshotPart,
)

StateHandle = KeyedStateHandle | OperatorStateHandle | ChannelStateHandle


@dataclass(frozen=True, slots=True)
class BlobPlan:
    """One blob of a snapshot that is to be encoded, and which handle it becomes."""

    operator_id: OperatorID
    field: str
    """The field of OperatorSubtaskState to which the handle of the blob goes."""
    encode: Callable[[], Buffer]
    to_handle: Callable[[StreamStateHandle], StateHandle]
    release: Callable[[], None]
    """Called once, after `encode` or instead of it."""
    references: tuple[KeyedStateHandle, ...] = ()
    """Handles of parts that are durable already and go before this one's."""
    is_shared: bool = False
    """Later checkpoints will refer to it: its file does not lie in the directory of this one."""
    is_carried_on: bool = False
    """Later checkpoints will hold it, too: it travels inside the acknowledgement, unless it is very large."""

    @property
    def needs_checksum(self) -> bool:
        """Files of keyed state have their own, for each range that may be read."""
        return self.field != "managed_keyed"


def plan_blobs(
    snapshots: Sequence[tuple[OperatorID, OperatorSnapshot]], channel_state: ChannelState | None
) -> list[BlobPlan]:
    """All blobs of a snapshot; keyed state, which takes longest, first."""
    keyed = [_keyed(operator_id, part) for operator_id, snapshot in snapshots for part in snapshot.keyed]
    lists = [
        _operator_lists(operator_id, snapshot.operator_lists, is_final=snapshot.is_final)
        for operator_id, snapshot in snapshots
        if snapshot.operator_lists
    ]
    channels: list[BlobPlan] = []
    if channel_state is not None and (channel_state.inputs or channel_state.outputs):
        check(bool(snapshots), "data in flight without an operator")
        tail, head = snapshots[0][0], snapshots[-1][0]
        for operator_id, field, of_channels in (
            (head, "input_channel", channel_state.inputs),
            (tail, "output_channel", channel_state.outputs),
        ):
            channels += _channels(operator_id, field, of_channels)
    return [*keyed, *lists, *channels]


def assemble(plans: Sequence[BlobPlan], handles: Sequence[StreamStateHandle]) -> TaskStateSnapshot:
    """The subtask's state, from the handles of its blobs in the same order."""
    found: dict[OperatorID, dict[str, list[StateHandle]]] = {}
    for plan, handle in zip(plans, handles, strict=True):
        parts = found.setdefault(plan.operator_id, {}).setdefault(plan.field, [])
        parts.extend(plan.references)
        parts.append(plan.to_handle(handle))
    return TaskStateSnapshot(
        {
            operator_id: OperatorSubtaskState(**{field: tuple(parts) for field, parts in fields.items()})  # type: ignore[arg-type]  # each field has its kind
            for operator_id, fields in found.items()
        }
    )


def merged(first: TaskStateSnapshot, second: TaskStateSnapshot) -> TaskStateSnapshot:
    """Both: blobs of one subtask that were written to different places."""
    operators = dict(first.operators)
    for operator_id, state in second.operators.items():
        known = operators.get(operator_id, OperatorSubtaskState())
        operators[operator_id] = OperatorSubtaskState(
            known.managed_keyed + state.managed_keyed,
            known.managed_operator + state.managed_operator,
            known.input_channel + state.input_channel,
            known.output_channel + state.output_channel,
        )
    return TaskStateSnapshot(operators)


def encode_operator_lists(lists: Sequence[OperatorListSnapshot]) -> tuple[bytes, tuple[OperatorStateEntry, ...]]:
    """All elements one after another, and where each one lies."""
    entries = []
    offset = 0
    for state in lists:
        offsets = []
        for element in state.elements:
            offsets.append((offset, len(element)))
            offset += len(element)
        entries.append(OperatorStateEntry(state.name, state.mode, tuple(offsets)))
    return b"".join(element for state in lists for element in state.elements), tuple(entries)


def encode_channel(batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """Arrow IPC streams one after another, a new one where the schema changes."""
    sink = pa.BufferOutputStream()
    begin = 0
    while begin < len(batches):
        schema = batches[begin].schema
        end = begin + 1
        while end < len(batches) and batches[end].schema.equals(schema, check_metadata=True):
            end += 1
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches[begin:end]:
                writer.write_batch(batch)
        begin = end
    return sink.getvalue()


def _keyed(operator_id: OperatorID, part: KeyedSnapshotPart) -> BlobPlan:
    if isinstance(part, SharedKeyedSnapshotPart):
        references = part.references
        return BlobPlan(
            operator_id, "managed_keyed", part.encode, part.stored, part.release, references, is_shared=True
        )
    key_group_range = part.key_group_range
    return BlobPlan(
        operator_id,
        "managed_keyed",
        part.encode,
        lambda handle: KeyedStateHandle(key_group_range, handle),
        part.release,
    )


def _operator_lists(operator_id: OperatorID, lists: Sequence[OperatorListSnapshot], *, is_final: bool) -> BlobPlan:
    """Union state of a subtask that ends before others is carried on by every later checkpoint."""
    data, entries = encode_operator_lists(lists)
    return BlobPlan(
        operator_id,
        "managed_operator",
        lambda: data,
        lambda handle: OperatorStateHandle(handle, entries),
        lambda: None,
        is_carried_on=is_final and any(state.mode is OperatorStateMode.UNION for state in lists),
    )


def _channels(
    operator_id: OperatorID, field: str, of_channels: Mapping[Any, tuple[pa.RecordBatch, ...]]
) -> list[BlobPlan]:
    return [
        _channel(operator_id, field, part, channel, batches)
        for (part, channel), batches in of_channels.items()
        if batches
    ]


def _channel(
    operator_id: OperatorID, field: str, part: int, channel: int, batches: tuple[pa.RecordBatch, ...]
) -> BlobPlan:
    return BlobPlan(
        operator_id,
        field,
        lambda: encode_channel(batches),
        lambda handle: ChannelStateHandle(part, channel, handle, len(batches)),
        lambda: None,
    )
