"""What is asked of fields of protobuf messages: whether one is a list, and the numbers of an enum.

These questions stand apart from the codec that asks most of them, so that a command line does not load it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from snapline.dataflow.wire.wire_errors import WireError


def is_repeated(field: Any) -> bool:
    """Whether the field is a list or a map. protobuf 5 has no `is_repeated`, and protobuf 7 no `label` any more."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED)


def enum_tables(enum_type: type[Enum], field: Any) -> tuple[dict[Enum, int], dict[int, Enum]]:
    """Member -> number and back, by name. Raises TypeError when one side has a name that the other has not."""
    descriptor = field.enum_type
    prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in descriptor.name).lstrip("_") + "_"
    numbers = {value.name.removeprefix(prefix): value.number for value in descriptor.values if value.number}
    if numbers.keys() != {member.name for member in enum_type}:
        raise TypeError(f"{enum_type.__name__} and {descriptor.full_name} do not have the same members")
    return {m: numbers[m.name] for m in enum_type}, {numbers[m.name]: m for m in enum_type}


def refuse_enum(label: str, number: int) -> WireError:
    """The error for an enum number that stands for no member."""
    return WireError(
        f"{label} is missing" if number == 0 else f"{label} has the unknown value {number}: sent by another version?"
    )
