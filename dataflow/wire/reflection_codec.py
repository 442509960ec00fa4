"""Compiles codecs between frozen dataclasses and protobuf messages from their declarations.

Decides how each kind of field travels; the two declarations must agree on names. Knows no message by name: the hot ones
and those whose shape differs on the two sides are written by hand in `wire_state` and `wire_checkpoint` and handed in
as `custom`. A codec is a pair of plain functions, put together once per type:

* `encode(value, message)` fills an empty message in place (a nested message is filled inside its parent, without a
  copy),
* `decode(message)` returns the value, or raises WireError that names message and field.

Rules: a message field has to be present unless the .proto marks it `optional`; then absence stands for None, or for the
default of the dataclass. An identity without a default must not be empty. An enum travels by name, as `<TYPE>_<NAME>`;
0 and numbers that this version does not know are refused. A number has to lie within the bounds of its field
(`number_bounds`), and a text be no longer than it may be (`text_bounds`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from snapline.dataflow.wire.number_bounds import bounds_of, out_of_bounds
from snapline.dataflow.wire.protobuf_fields import enum_tables, is_repeated, refuse_enum
from snapline.dataflow.wire.text_bounds import text_bound
from snapline.dataflow.wire.wire_errors import WireError

Encode = Callable[[Any, Any], None]
Decode = Callable[[Any], Any]
Setter = Callable[[Any, Any], None]
Getter = Callable[[Any], Any]


class Codec(NamedTuple):
    """How values of one type are encoded and decoded."""

    encode: Encode
    decode: Decode


@dataclass(frozen=True, slots=True)
class Compiler:
    """Makes codecs; `custom` are the hand-written ones, by Python type."""

    custom: Mapping[Any, Codec]

    def compile(self, python_type: type, message_type: type[Message]) -> Codec:
        """The codec for values of `python_type`. Raises TypeError when the two declarations do not agree."""
        return self._codec(python_type, message_type.DESCRIPTOR)

    def _codec(self, python_type: type, descriptor: Any) -> Codec:
        if python_type in self.custom:
            return self.custom[python_type]
        hints = typing.get_type_hints(python_type)
        fields = _declared_fields(python_type)
        unknown = sorted(fields.keys() ^ descriptor.fields_by_name.keys())
        if unknown:
            raise TypeError(f"{python_type.__name__} and {descriptor.full_name} do not agree on {', '.join(unknown)}")
        setters: list[Setter] = []
        getters: list[Getter] = []
        for name, default in fields.items():
            setter, getter = self._field(hints[name], descriptor.fields_by_name[name], default)
            setters.append(setter)
            getters.append(getter)

        def encode(value: Any, message: Any) -> None:
            for setter in setters:
                setter(value, message)

        def decode(message: Any) -> Any:
            return python_type(*[getter(message) for getter in getters])

        return Codec(encode, decode)

    def _field(self, hint: Any, field: FieldDescriptor, default: Any) -> tuple[Setter, Getter]:
        origin = typing.get_origin(hint)
        if is_repeated(field):
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                return _scalar_map(field)
            item = typing.get_args(hint)[0]
            if field.message_type is None:
                return _scalars(field)
            return _messages(field, self._codec(item, field.message_type))
        if origin in {UnionType, typing.Union} and NoneType in typing.get_args(hint):
            (inner,) = [argument for argument in typing.get_args(hint) if argument is not NoneType]
            return _optional(field, self._codec(inner, field.message_type), None)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _enum(field, hint)
        if field.message_type is not None:
            codec = self._codec(hint, field.message_type)
            if field.containing_oneof is not None:
                return _optional(field, codec, default)
            return _required(field, codec)
        is_id = hasattr(hint, "__supertype__") and hint.__supertype__ is str
        if field.type == FieldDescriptor.TYPE_STRING:
            return _text(field, is_id=is_id, required=is_id and default is dataclasses.MISSING)
        return _scalar(field)


def _declared_fields(python_type: type) -> dict[str, Any]:
    """Name -> default (dataclasses.MISSING: none)."""
    if dataclasses.is_dataclass(python_type):
        return {
            f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            for f in dataclasses.fields(python_type)
        }
    named_fields: tuple[str, ...] = python_type._fields  # type: ignore[attr-defined]
    return dict.fromkeys(named_fields, dataclasses.MISSING)


def field_name(field: FieldDescriptor) -> str:
    """Return the field as `Message.field`, for errors."""
    message: Any = field.containing_type
    return f"{message.name}.{field.name}"


def _scalar(field: FieldDescriptor) -> tuple[Setter, Getter]:
    name, label = field.name, field_name(field)

    def put(value: Any, message: Any) -> None:
        setattr(message, name, getattr(value, name))

    def get(message: Any) -> Any:
        return getattr(message, name)

    bits = {FieldDescriptor.TYPE_INT32: 32, FieldDescriptor.TYPE_INT64: 64}.get(field.type, 0)
    bounds = bounds_of(label, bits) if bits else None

    def get_bounded(message: Any) -> Any:
        value = getattr(message, name)
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise out_of_bounds(label, value, bounds)
        return value

    return put, get if bounds is None else get_bounded


def _text(field: FieldDescriptor, *, is_id: bool, required: bool) -> tuple[Setter, Getter]:
    name, label = field.name, field_name(field)
    bounded = text_bound(label, is_id=is_id)

    def put(value: Any, message: Any) -> None:
        setattr(message, name, getattr(value, name))

    def get(message: Any) -> Any:
        value = bounded(getattr(message, name))
        if required and not value:
            raise WireError(f"{label} is missing")
        return value

    return put, get


def _enum(field: FieldDescriptor, enum_type: type[Enum]) -> tuple[Setter, Getter]:
    name, label = field.name, field_name(field)
    to_number, from_number = enum_tables(enum_type, field)

    def put(value: Any, message: Any) -> None:
        setattr(message, name, to_number[getattr(value, name)])

    def get(message: Any) -> Any:
        number = getattr(message, name)
        try:
            return from_number[number]
        except KeyError:
            raise refuse_enum(label, number) from None

    return put, get


def _required(field: FieldDescriptor, codec: Codec) -> tuple[Setter, Getter]:
    name, label = field.name, field_name(field)
    encode, decode = codec

    def put(value: Any, message: Any) -> None:
        nested = getattr(message, name)
        nested.SetInParent()
        encode(getattr(value, name), nested)

    def get(message: Any) -> Any:
        if not message.HasField(name):
            raise WireError(f"{label} is missing")
        return decode(getattr(message, name))

    return put, get


def _optional(field: FieldDescriptor, codec: Codec, default: Any) -> tuple[Setter, Getter]:
    name = field.name
    encode, decode = codec

    def put(value: Any, message: Any) -> None:
        nested_value = getattr(value, name)
        if nested_value is None or nested_value == default:
            return
        nested = getattr(message, name)
        nested.SetInParent()
        encode(nested_value, nested)

    def get(message: Any) -> Any:
        return decode(getattr(message, name)) if message.HasField(name) else default

    return put, get


def _scalars(field: FieldDescriptor) -> tuple[Setter, Getter]:
    name = field.name

    def put(value: Any, message: Any) -> None:
        getattr(message, name).extend(getattr(value, name))

    def get(message: Any) -> Any:
        return tuple(getattr(message, name))

    return put, get


def _messages(field: FieldDescriptor, codec: Codec) -> tuple[Setter, Getter]:
    name = field.name
    encode, decode = codec

    def put(value: Any, message: Any) -> None:
        add = getattr(message, name).add
        for item in getattr(value, name):
            encode(item, add())

    def get(message: Any) -> Any:
        return tuple([decode(item) for item in getattr(message, name)])

    return put, get


def _scalar_map(field: FieldDescriptor) -> tuple[Setter, Getter]:
    name = field.name

    def put(value: Any, message: Any) -> None:
        getattr(message, name).update(getattr(value, name))

    def get(message: Any) -> Any:
        return dict(getattr(message, name))

    return put, get
