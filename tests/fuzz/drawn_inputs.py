"""Inputs with the structure of real ones: messages with every field drawn by its type, and bytes that were changed.

Everything comes from one random number generator, so that a seed gives the same inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (0, 1, 2, 7, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
TEXTS = ("", "a", "chk-1", "../../etc", "/abs", "s3://b/k", "\x1b[31m", "\u202e", "x" * 300, "a:b", "0" * 32, "\0")
MAX_DEPTH = 5
MAX_REPEATED = 3

_SIGNED = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: 31,
    FieldDescriptor.CPPTYPE_INT64: 63,
    FieldDescriptor.CPPTYPE_UINT32: 32,
    FieldDescriptor.CPPTYPE_UINT64: 64,
}


def fill(rng: random.Random, message: Message, depth: int = 0) -> Message:
    """Draw about half of the message's fields, and of those inside of them."""
    for field in message.DESCRIPTOR.fields:
        if depth >= MAX_DEPTH or rng.random() < 0.4:
            continue
        _draw_field(rng, message, field, depth)
    return message


def _draw_field(rng: random.Random, message: Message, field: Any, depth: int) -> None:
    target: Any = message
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _draw_map(rng, getattr(target, field.name), field, depth)
    elif field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED:
        held = getattr(target, field.name)
        for _ in range(rng.randrange(MAX_REPEATED + 1)):
            if field.message_type is not None:
                fill(rng, held.add(), depth + 1)
            else:
                held.append(_draw_scalar(rng, field))
    elif field.message_type is not None:
        inner = getattr(target, field.name)
        inner.SetInParent()
        fill(rng, inner, depth + 1)
    else:
        setattr(target, field.name, _draw_scalar(rng, field))


def _draw_map(rng: random.Random, held: Any, field: Any, depth: int) -> None:
    key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    for _ in range(rng.randrange(MAX_REPEATED + 1)):
        drawn = _draw_scalar(rng, key)
        if value.message_type is not None:
            fill(rng, held[drawn], depth + 1)
        else:
            held[drawn] = _draw_scalar(rng, value)


def _draw_scalar(rng: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return rng.randbytes(rng.randrange(20)) if field.type == FieldDescriptor.TYPE_BYTES else rng.choice(TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([each.number for each in field.enum_type.values])
    if kind in _BITS:
        number = rng.choice(NUMBERS) % (1 << _BITS[kind])
        return -number if kind in _SIGNED and rng.random() < 0.2 else number
    return rng.choice((0.0, -1.5, 1e300, float("inf"), float("nan")))


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Change a few places: bytes are flipped, cut out, doubled, put in, or the rest is left away."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size]
            case 3:
                changed[at:at] = rng.randbytes(size)
            case 4:
                del changed[at:]
            case _:
                changed[at : at + size] = rng.choice((b"\0", b"\xff", b"\x7f")) * len(changed[at : at + size])
    return bytes(changed)


def of_message(kind: Callable[[], Message]) -> Callable[[random.Random], bytes]:
    """Return what draws serialized messages of a kind, half of them changed after that."""

    def draw(rng: random.Random) -> bytes:
        data = fill(rng, kind()).SerializeToString()
        return mutate(rng, data) if rng.random() < 0.5 else data

    return draw


def of_examples(examples: Sequence[bytes], mend: Callable[[bytes], bytes] = bytes) -> Callable[[random.Random], bytes]:
    """Return what changes one of the examples; `mend` makes checksums right again, mostly."""

    def draw(rng: random.Random) -> bytes:
        data = mutate(rng, rng.choice(examples))
        return mend(data) if rng.random() < 0.8 else data

    return draw
