"""messages.py and the .proto files declare the same: whatever the wire can carry is known to the values, and the
reverse.

`test_codec` sends values with anything in every field there and back; here every field of the .proto files, filled,
goes the other way. A field that only one side has is lost on one of the two ways.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.wire import codec as wire
from snapline.dataflow.wire.protobuf_fields import is_repeated
from snapline.protos import cluster_pb2, job_pb2

COMPUTED = {"AcknowledgeCheckpoint.state_size_bytes": 28, "SegmentStateHandle.digests": bytes(range(32))}
"""What the sender works out from the other fields, for readers that do not look into them: seven bytes each for four
handles, and one digest for the state of a handle."""

_TEXT = {FieldDescriptor.CPPTYPE_STRING: "text", FieldDescriptor.CPPTYPE_BOOL: True}


def fill(message: Any, choice: int, inside: tuple[str, ...] = ()) -> Any:
    """Put something into every field; of a `oneof` into the one at `choice`, or its last."""
    descriptor = message.DESCRIPTOR
    chosen = {
        oneof.name: oneof.fields[min(choice, len(oneof.fields) - 1)].name
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1
    }
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None and oneof.name in chosen and chosen[oneof.name] != field.name:
            continue
        if field.message_type is None:
            put_scalar(message, field)
        elif field.message_type.GetOptions().map_entry:
            put_map(message, field, choice, inside)
        elif field.message_type.name not in inside:  # one that holds itself is filled once
            held = getattr(message, field.name)
            nested = held.add() if is_repeated(field) else held
            nested.SetInParent()
            fill(nested, choice, (*inside, field.message_type.name))
    return message


def put_scalar(message: Any, field: Any) -> None:
    """A value that is not the default."""
    value: Any = _TEXT.get(field.cpp_type, 7)
    if field.type == FieldDescriptor.TYPE_BYTES:
        value = b"7 bytes"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        value = field.enum_type.values[1].number
    value = COMPUTED.get(f"{field.containing_type.name}.{field.name}", value)
    if is_repeated(field):
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def put_map(message: Any, field: Any, choice: int, inside: tuple[str, ...]) -> None:
    """One entry."""
    value = field.message_type.fields_by_name["value"]
    if value.message_type is None:
        getattr(message, field.name)["key"] = b"text" if value.type == FieldDescriptor.TYPE_BYTES else "text"
    else:
        fill(getattr(message, field.name)["key"], choice, (*inside, value.message_type.name))


def test_every_kind_of_control_message_is_known() -> None:
    """What the .proto file lets somebody say is in the table of the codec."""
    declared = cluster_pb2.ControlMessage.DESCRIPTOR.oneofs_by_name["message"].fields
    assert sorted(wire.CONTROL_MESSAGES) == sorted(field.name for field in declared)


@pytest.mark.parametrize("choice", [0, 1])
@pytest.mark.parametrize("field", wire.CONTROL_MESSAGES)
def test_every_field_of_a_control_message_is_known(field: str, choice: int) -> None:
    """Filled, decoded and encoded again it is the same message: nothing on the wire is without a place in the
    values."""
    said = cluster_pb2.ControlMessage()
    nested = getattr(said, field)
    nested.SetInParent()
    fill(nested, choice)

    heard = cluster_pb2.ControlMessage()
    wire.encode_control_message(wire.decode_control_message(said), heard)

    assert heard == said


def test_every_field_of_a_job_graph_is_known() -> None:
    """As above, for what clients submit."""
    said = fill(job_pb2.JobGraph(), 0)

    assert wire.encode_job_graph(wire.decode(JobGraph, said)) == said
