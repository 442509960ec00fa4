"""How many fields a message from a peer has, counted before it is parsed.

Two bytes of a message can be a message within it, which takes up to 170 bytes in memory, so that a peer could make
gigabytes of one that it may send. Decides how many fields a message may have, those of the messages within it included;
one of few large fields, such as a state or a function, may be as large as any.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

SMALL_BYTES = 1 << 20
"""Fewer are parsed without a look."""
MAX_FIELDS = 1 << 20
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_Inner = dict[int, Any]
_WIDTHS = {FIXED64: 8, FIXED32: 4}


def refuse_many_fields(data: bytes, kind: type[Message]) -> None:
    """Raise DecodeError with one line where the bytes of a message of this kind hold too many fields to be parsed.

    >>> from snapline.protos.cluster_pb2 import Envelope
    >>> refuse_many_fields(Envelope(messages=[{}]).SerializeToString(), Envelope)
    """
    if len(data) > SMALL_BYTES and has_more_fields(data, kind, MAX_FIELDS):
        raise DecodeError(f"{kind.DESCRIPTOR.name} has more than {MAX_FIELDS} fields, and that is the most")


def has_more_fields(data: bytes, kind: type[Message], most: int) -> bool:
    """Whether the bytes hold more fields than that. Eight bytes of numbers in one field count as one more. False for
    what is no message, of which the parser has to tell."""
    try:
        return _count(data, kind.DESCRIPTOR, most) > most
    except IndexError:  # a number is cut short, or has no end
        return False


def _count(data: bytes, kind: Any, most: int) -> int:
    """The number of fields, or some number above `most`. Raises IndexError as `_varint` does."""
    fields = 0
    position = 0
    inner = _inner_kinds(kind)
    open_kinds: list[tuple[int, _Inner]] = []
    end = len(data)
    while fields <= most:
        while position >= end:
            if not open_kinds:
                return fields
            end, inner = open_kinds.pop()
        fields += 1
        tag = data[position]
        position += 1
        if tag > 127:
            tag, position = _varint(data, position - 1)
        wire = tag & 7
        if wire == LENGTH:
            length = data[position]
            position += 1
            if length > 127:
                length, position = _varint(data, position - 1)
            number = tag >> 3
            if number not in inner or position + length > end:
                position += length
                continue
            within = inner[number]
            if within is None:
                fields += length >> 3
                position += length
            else:
                open_kinds.append((end, inner))
                end, inner = position + length, _inner_kinds(within)
        elif wire == VARINT:
            _, position = _varint(data, position)
        else:
            position += _WIDTHS.get(wire, 0)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that begins there, and where the next one begins. Raises IndexError where the data ends before it, or
    it has more than ten bytes: no number has, and one of megabytes would be worked at for hours."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise IndexError


@cache
def _inner_kinds(kind: Any) -> _Inner:
    """What the fields that have a length hold: messages of a kind, or numbers, None; texts are not there."""
    texts = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return {field.number: field.message_type for field in kind.fields if field.type not in texts}
