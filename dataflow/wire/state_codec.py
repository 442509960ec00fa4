"""How handles to state travel: `snapline.dataflow.snapshot.handles` <-> `protos/checkpoint.proto`, written by hand
because acknowledgements are the hottest messages of a large job.

Every function either fills an empty message in place (`encode_*`) or makes a value of a message (`decode_*`). The
`encode_*` functions return the number of bytes of state that the handles refer to. WireError names message and field.
"""

from __future__ import annotations

from typing import Any

from snapline.dataflow.ids import OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.digest_sizes import digests_size
from snapline.dataflow.snapshot.handles import (
    EMPTY_TASK_STATE,
    ByteStreamStateHandle,
    ChannelStateHandle,
    KeyedStateHandle,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.number_bounds import check_number
from snapline.dataflow.wire.protobuf_fields import enum_tables, refuse_enum
from snapline.dataflow.wire.text_bounds import MAX_SAID, too_long
from snapline.dataflow.wire.wire_errors import WireError
from snapline.protos import checkpoint_pb2 as pb

_MODE_TO_NUMBER, _MODE_FROM_NUMBER = enum_tables(
    OperatorStateMode, pb.OperatorStateEntry.DESCRIPTOR.fields_by_name["mode"]
)


def encode_stream_handle(handle: StreamStateHandle, message: Any) -> int:
    """Encode the handle of one blob; returns its size."""
    if type(handle) is ByteStreamStateHandle:
        message.inline.data = handle.data
        if not handle.data:
            message.inline.SetInParent()
        return len(handle.data)
    if type(handle) is SegmentStateHandle:
        segment = message.segment
        segment.path = handle.path
        segment.offset = handle.offset
        segment.size = handle.size
        if handle.checksum:
            segment.checksum = handle.checksum
        if handle.digests:
            segment.digests = handle.digests
        return handle.size
    raise WireError(f"StreamStateHandle.location: no such kind of handle: {type(handle).__name__}")


def decode_stream_handle(message: Any) -> StreamStateHandle:
    """Decode the handle of one blob."""
    location = message.WhichOneof("location")
    if location == "segment":
        segment = message.segment
        path, offset, size = segment.path, segment.offset, segment.size
        if not path:
            raise WireError("SegmentStateHandle.path is missing")
        if len(path) > MAX_SAID:
            raise too_long("SegmentStateHandle.path", path, MAX_SAID)
        if offset < 0 or size < 0:
            raise WireError(f"SegmentStateHandle.{'offset' if offset < 0 else 'size'} of {path} is negative")
        digests = segment.digests
        if digests and len(digests) != digests_size(size):
            raise WireError(
                f"SegmentStateHandle.digests of {path} has {len(digests)} bytes, where {size} bytes of state have "
                f"{digests_size(size)}"
            )
        return SegmentStateHandle(path, offset, size, segment.checksum, digests)
    if location == "inline":
        return ByteStreamStateHandle(message.inline.data)
    raise WireError("StreamStateHandle.location is missing")


def _encode_keyed(value: KeyedStateHandle, message: Any) -> int:
    key_groups = message.key_group_range
    key_groups.start = value.key_group_range.start
    key_groups.end = value.key_group_range.end
    key_groups.SetInParent()
    if value.shared_key:
        message.shared_key = value.shared_key
    return encode_stream_handle(value.handle, message.handle)


def _decode_keyed(message: Any) -> KeyedStateHandle:
    if not message.HasField("key_group_range"):
        raise WireError("KeyedStateHandle.key_group_range is missing")
    key_groups = message.key_group_range
    start = check_number("KeyGroupRange.start", key_groups.start)
    end = check_number("KeyGroupRange.end", key_groups.end)
    return KeyedStateHandle(KeyGroupRange(start, end), decode_stream_handle(message.handle), message.shared_key)


def _encode_operator_handle(value: OperatorStateHandle, message: Any) -> int:
    add_entry = message.entries.add
    for entry in value.entries:
        added = add_entry(name=entry.name, mode=_MODE_TO_NUMBER[entry.mode])
        add_range = added.offsets.add
        for offset, size in entry.offsets:
            add_range(offset=offset, size=size)
    return encode_stream_handle(value.handle, message.handle)


def _decode_operator_handle(message: Any) -> OperatorStateHandle:
    entries = []
    for entry in message.entries:
        mode = _MODE_FROM_NUMBER.get(entry.mode)
        if mode is None:
            raise refuse_enum("OperatorStateEntry.mode", entry.mode)
        offsets = tuple([(element.offset, element.size) for element in entry.offsets])
        entries.append(OperatorStateEntry(entry.name, mode, offsets))  # type: ignore[arg-type]
    return OperatorStateHandle(decode_stream_handle(message.handle), tuple(entries))


def _encode_channel(value: ChannelStateHandle, message: Any) -> int:
    message.gate_or_partition = value.gate_or_partition
    message.channel = value.channel
    message.batch_count = value.batch_count
    return encode_stream_handle(value.handle, message.handle)


def _decode_channel(message: Any) -> ChannelStateHandle:
    handle = decode_stream_handle(message.handle)
    return ChannelStateHandle(message.gate_or_partition, message.channel, handle, message.batch_count)


def encode_operator_subtask_state(value: OperatorSubtaskState, message: Any) -> int:
    """All state of one operator in one subtask."""
    size = 0
    for keyed in value.managed_keyed:
        size += _encode_keyed(keyed, message.managed_keyed.add())
    for operator in value.managed_operator:
        size += _encode_operator_handle(operator, message.managed_operator.add())
    for channel in value.input_channel:
        size += _encode_channel(channel, message.input_channel.add())
    for channel in value.output_channel:
        size += _encode_channel(channel, message.output_channel.add())
    return size


def decode_operator_subtask_state(message: Any) -> OperatorSubtaskState:
    """All state of one operator in one subtask."""
    # A slice is a list: iterating over the container itself ends in an exception and costs three times as much.
    keyed = message.managed_keyed[:]
    operator = message.managed_operator[:]
    input_channel = message.input_channel[:]
    output_channel = message.output_channel[:]
    return OperatorSubtaskState(
        tuple(map(_decode_keyed, keyed)) if keyed else (),
        tuple(map(_decode_operator_handle, operator)) if operator else (),
        tuple(map(_decode_channel, input_channel)) if input_channel else (),
        tuple(map(_decode_channel, output_channel)) if output_channel else (),
    )


def encode_task_state(value: TaskStateSnapshot, message: Any) -> int:
    """Encode the state that one subtask acknowledges; returns its size."""
    size = 0
    add = message.operators.add
    for operator_id, state in value.operators.items():
        entry = add(operator_id=operator_id)
        entry.state.SetInParent()
        size += encode_operator_subtask_state(state, entry.state)
    if value.is_task_finished:
        message.is_task_finished = True
    return size


def decode_task_state(message: Any) -> TaskStateSnapshot:
    """Decode the state that one subtask acknowledges."""
    operators: dict[OperatorID, OperatorSubtaskState] = {}
    for entry in message.operators[:]:
        operator_id = entry.operator_id
        if not operator_id:
            raise WireError("TaskStateSnapshot.Entry.operator_id is missing")
        if operator_id in operators:
            raise WireError(f"TaskStateSnapshot.operators names the operator {operator_id} twice")
        operators[operator_id] = decode_operator_subtask_state(entry.state)
    if not operators and not message.is_task_finished:
        return EMPTY_TASK_STATE
    return TaskStateSnapshot(operators, message.is_task_finished)
