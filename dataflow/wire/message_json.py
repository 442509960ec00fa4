"""Messages as JSON for people and programs: every field is there, zeros too, and 64-bit numbers are numbers.

Differs from protobuf's own JSON form, which leaves zeros out and writes 64-bit numbers as texts. A message that is not
set is `null`; enums are their names, bytes are hexadecimal, what is no number (a mean of nothing) is `null` as well,
because JSON has none; names of fields are those of the `.proto` files. Python and `jq` read the numbers exactly;
JavaScript does up to 2^53, beyond which only "no watermark" lies.
"""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.message import Message

from snapline.dataflow.wire.protobuf_fields import is_repeated


def message_as_dict(message: Message) -> dict[str, Any]:
    """The message with everything below it."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        of_value = nested.fields_by_name["value"]
        return {str(key): _value(item, of_value) for key, item in sorted(value.items())}
    if is_repeated(field):
        return [_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return message_as_dict(value)
    enum = field.enum_type
    if enum is not None:
        named = enum.values_by_number.get(value)
        return named.name if named is not None else int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.hex() if isinstance(value, bytes) else value


def without_nan(value: Any) -> Any:
    """Rows as JSON can have them: what is no number there is null, as JsonFormat writes it."""
    if isinstance(value, dict):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
