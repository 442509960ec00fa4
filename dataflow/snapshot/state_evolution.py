"""How state of one type becomes state of another: what may change between a snapshot and the job that starts from it.

Decides, column by column, what is safe (a column is added, with a default or null; a type becomes wider), what needs
leave (a column is dropped), and what only the user's own `migrate` function can do; and carries it out on whole
columns. The kind of a state never changes. It does not know where the state lies: the coordinator asks before a job
starts, a backend when it restores. Takes the role of Flink's TypeSerializerSnapshot.resolveSchemaCompatibility, with
Arrow's types instead of serializers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.state import MIGRATED_METADATA, StateDescriptor, StateKind, descriptor_of
from snapline.dataflow.api.state_ttl import TOUCHED_FIELD, VALUE_FIELD
from snapline.dataflow.columnar.arrow_columns import narrow_type
from snapline.dataflow.columnar.python_values import array_of
from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.dataflow.errors import StateError

DEFAULT_METADATA = b"snapline.default"
"""The metadata key of a field that says what older state has in this column, as text."""
_UNITS = ("s", "ms", "us", "ns")
_EXACT_FLOAT_BITS = {16: 11, 32: 24, 64: 53}
_WAY_OUT = (
    "declare it as it was, give the descriptor a migrate function, or give the state another name to start it empty"
)


def with_default(field: pa.Field, value: object) -> pa.Field:
    """The field, for a column that a state did not have before: values that are restored have this in it. StateError
    for a type that has no spelling as text, or a value of another type.

    >>> tier = sl.with_default(pa.field("tier", pa.string()), "basic")
    >>> _ = sl.ValueStateDescriptor("customer", pa.schema([pa.field("name", pa.string()), tier]))
    """
    try:
        text = array_of([value], field.type).cast(pa.string())
        text.cast(field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as refusal:
        raise StateError(f"column {field.name!r}: {value!r} cannot be a default of {field.type}: {refusal}") from None
    if text[0].as_py() is None:
        return field
    return field.with_metadata({**(field.metadata or {}), DEFAULT_METADATA: text[0].as_py().encode()})


@dataclass(frozen=True, slots=True)
class Evolution:
    """What lies between two declarations of a state."""

    changes: tuple[str, ...] = ()
    """What would be done, in words, a column each; none: nothing has to be done."""
    problems: tuple[str, ...] = ()
    """Why it cannot be done."""

    def __add__(self, other: Evolution) -> Evolution:
        """Both together, as of two columns of one state."""
        return Evolution(self.changes + other.changes, self.problems + other.problems)


def evolution_of(written: StateDescriptor, declared: StateDescriptor, *, drop_columns: bool = False) -> Evolution:
    """Hold what a snapshot says of a state against what the job declares. `drop_columns`: columns may go."""
    name = declared.name
    if written.kind is not declared.kind:
        return Evolution(
            problems=(
                f"state {name!r} is a {written.kind.value} state, and is declared as a {declared.kind.value} state",
            )
        )
    if written.kind is StateKind.RUNNING_AGGREGATE and not _goes_on(written.storage_type, declared.storage_type):
        problem = (
            f"running aggregate {name!r} is {written.storage_type} in the snapshot and {declared.storage_type} in the job: what came "
            "before is not known to another aggregate; give the operator another uid to start it without state"
        )
        return Evolution(problems=(problem,))
    found = _of_map_keys(written, declared)
    same = written.serializer == declared.serializer and _plain(written) == _plain(declared)
    if (written.ttl is None) != (declared.ttl is None):
        found += _change(f"{name}: the time-to-live is {'added' if written.ttl is None else 'removed'}")
    if same:
        return found
    if declared.migrate is not None:
        by = "by the descriptor's migrate function"
        return found + _change(f"{name}: {_spelled(written)} -> {_spelled(declared)}, {by}")
    if written.serializer != declared.serializer:
        return found + _problem(
            f"state {name!r} is written as {_spelled(written)}, and is declared as {_spelled(declared)}: {_WAY_OUT}"
        )
    return found + _compare(name, _plain(written), _plain(declared), drop=drop_columns)


def _of_map_keys(written: StateDescriptor, declared: StateDescriptor) -> Evolution:
    """What lies between the keys within two maps, which no migrate function is asked about."""
    if written.kind is not StateKind.MAP:
        return Evolution()
    return _compare(f"{declared.name} (key)", written.storage_type.key_type, declared.storage_type.key_type, drop=False)


def _change(what: str) -> Evolution:
    return Evolution(changes=(what,))


def _problem(why: str) -> Evolution:
    return Evolution(problems=(why,))


def _goes_on(written: pa.StructType, declared: pa.StructType) -> bool:
    """Whether there is nothing in the accumulators that was not there before."""
    was = {field.name: field.type for field in written}
    return all(was.get(field.name) == field.type for field in declared)


def schema_problems(written: pa.Schema, declared: pa.Schema, *, drop_columns: bool) -> list[str]:
    """What keeps the states of an operator, as a file of keyed state describes them, from becoming those that the job
    declares. States that only one side has are no problem: they are new, or stay as they are."""
    found: list[str] = []
    for field in declared:
        position = written.get_field_index(field.name)
        if position >= 0:
            was, now = descriptor_of(written.field(position)), descriptor_of(field)
            if MIGRATED_METADATA in (field.metadata or {}) and was.kind is now.kind:
                found += _of_map_keys(was, now).problems
            else:
                found += evolution_of(was, now, drop_columns=drop_columns).problems
    return found


def key_problem(written: Sequence[pa.Field], declared: Sequence[pa.Field]) -> str:
    """Why state of one key cannot be used under another; empty: it can. Texts are keys by what they say."""
    was, now = ([(field.name, narrow_type(field.type)) for field in fields] for fields in (written, declared))
    return "" if was == now else _another_key(_key_spelled(was), _key_spelled(now))


def key_columns_problem(written: Sequence[pa.Field], declared: Sequence[str]) -> str:
    """Why state of one key cannot be used under columns of these names, whose types no batch has told yet; empty: it
    can."""
    was = [field.name for field in written]
    return "" if was == list(declared) else _another_key(", ".join(was), ", ".join(declared))


def _another_key(was: str, now: str) -> str:
    return (
        f"the state was written for the key {was}, the operator is now keyed by {now}: "
        "restore with the same key columns, or give the operator another uid to start it without state"
    )


def convert(values: pa.Array, written: StateDescriptor, declared: StateDescriptor, now_ms: int) -> pa.Array:
    """A column of a snapshot (none of its values null) as the declared state stores it. StateError naming the state for
    a value, or a migrate function, that does not do it. `now_ms`: when values that get a time-to-live were touched."""
    try:
        converted = _by_kind(values, written, declared, now_ms)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as refusal:
        raise StateError(
            f"state {declared.name!r} cannot be taken over from {_spelled(written)} as {_spelled(declared)}: {refusal}"
        ) from refusal
    return converted


# --- what may become what ---------------------------------------------------------------------------------------------


def _compare(column: str, old: pa.DataType, new: pa.DataType, *, drop: bool) -> Evolution:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _compare_structs(column, old, new, drop=drop)
    if _is_list(old) and _is_list(new):
        return _compare(f"{column}[]", old.value_type, new.value_type, drop=drop)
    if pa.types.is_map(old) and pa.types.is_map(new):
        keys = _compare(f"{column}.key", old.key_type, new.key_type, drop=False)
        return keys + _compare(f"{column}.value", old.item_type, new.item_type, drop=drop)
    if old == new:
        return Evolution()
    if widens(old, new):
        return _change(f"{column}: {old} -> {new}")
    return _problem(
        f"column {column!r} is {old} in the snapshot and {new} in the job, which does not hold all of it: {_WAY_OUT}"
    )


def _compare_structs(column: str, old: pa.StructType, new: pa.StructType, *, drop: bool) -> Evolution:
    was = {old.field(number).name: old.field(number) for number in range(old.num_fields)}
    now = {new.field(number).name: new.field(number) for number in range(new.num_fields)}
    if len(was) < old.num_fields or len(now) < new.num_fields:
        return _problem(f"column {column!r} has several columns of one name: {_WAY_OUT}")
    found = Evolution()
    for name, field in now.items():
        path = f"{column}.{name}"
        if name in was:
            found += _compare(path, was[name].type, field.type, drop=drop)
        elif field.nullable or DEFAULT_METADATA in (field.metadata or {}):
            found += _change(f"{path}: added")
        else:
            found += _problem(
                f"column {path!r} is new and not nullable: give it a default with with_default(field, value), or make it nullable"
            )
    for name, field in was.items():
        path = f"{column}.{name}"
        if name not in now and drop:
            found += _change(f"{path}: dropped")
        elif name not in now:
            found += _problem(
                f"column {path!r} ({field.type}) is in the snapshot and not in the job any more: declare it, or allow that it "
                f"is dropped ({DROP_STATE_COLUMNS.key} = true, --drop-state-columns)"
            )
    return found


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of the old type is one of the new type."""
    types = pa.types
    if types.is_null(old):
        return True
    if types.is_integer(old) and types.is_integer(new):
        if types.is_unsigned_integer(new):
            return bool(types.is_unsigned_integer(old) and new.bit_width >= old.bit_width)
        return bool(new.bit_width > old.bit_width or (types.is_signed_integer(old) and new.bit_width == old.bit_width))
    if types.is_integer(old) and types.is_floating(new):
        sign = int(types.is_signed_integer(old))
        return bool(old.bit_width - sign <= _EXACT_FLOAT_BITS[new.bit_width])
    if types.is_floating(old) and types.is_floating(new):
        return bool(new.bit_width >= old.bit_width)
    if types.is_decimal(new) and types.is_decimal(old):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if types.is_timestamp(old) and types.is_timestamp(new):
        return bool(old.tz == new.tz and _finer(old, new))
    if (types.is_duration(old) and types.is_duration(new)) or (types.is_time(old) and types.is_time(new)):
        return _finer(old, new)
    pairs = (
        (types.is_string, types.is_large_string),
        (types.is_large_string, types.is_string),  # what is larger is the column, not a value
        (types.is_binary, types.is_large_binary),
        (types.is_large_binary, types.is_binary),
        (types.is_fixed_size_binary, types.is_binary),
        (types.is_fixed_size_binary, types.is_large_binary),
        (types.is_date32, types.is_date64),
    )
    return any(was(old) and now(new) for was, now in pairs)


def _finer(old: Any, new: Any) -> bool:
    return _UNITS.index(new.unit) >= _UNITS.index(old.unit)


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


# --- doing it ---------------------------------------------------------------------------------------------------------


def _by_kind(values: pa.Array, written: StateDescriptor, declared: StateDescriptor, now_ms: int) -> pa.Array:
    target = declared.storage_type
    if declared.kind is StateKind.LIST:
        elements = _elements(values.flatten(), written, declared, now_ms)
        return pa.LargeListArray.from_arrays(_offsets(values, pa.int64()), elements, type=target)
    if declared.kind is StateKind.MAP:
        keys, items = _pairs(values)
        elements = _elements(items, written, declared, now_ms)
        return pa.MapArray.from_arrays(
            _offsets(values, pa.int32()), cast_values(keys, target.key_type), elements, type=target
        )
    return _elements(values, written, declared, now_ms)


def _elements(values: pa.Array, written: StateDescriptor, declared: StateDescriptor, now_ms: int) -> pa.Array:
    """Elements as they are stored: with the time when they were touched, or without."""
    plain, touched = values, pa.array(np.full(len(values), now_ms, np.int64))
    if written.ttl is not None:
        plain, touched = values.field(VALUE_FIELD), values.field(TOUCHED_FIELD)
    target = _plain(declared)
    if written.serializer != declared.serializer or plain.type != target:
        plain = cast_values(plain, target) if declared.migrate is None else _migrated(plain, declared, target)
    if declared.ttl is None:
        return plain
    return pa.StructArray.from_arrays(
        [plain, touched], fields=[pa.field(VALUE_FIELD, target), pa.field(TOUCHED_FIELD, pa.int64())]
    )


def _migrated(values: pa.Array, declared: StateDescriptor, target: pa.DataType) -> pa.Array:
    migrate = declared.migrate
    answer: Any = migrate(values) if migrate is not None else values
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if not isinstance(answer, pa.Array) or len(answer) != len(values) or answer.type != target:
        got = f"{len(answer)} of {answer.type}" if isinstance(answer, pa.Array) else type(answer).__name__
        raise StateError(
            f"state {declared.name!r}: its migrate function got an array of {len(values)} {values.type} and has to return one of "
            f"as many {target}, not {got}"
        )
    return answer


def cast_values(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Values of a type that `evolution_of` lets become the other; columns of structs by name."""
    if values.type == target:
        return values
    if pa.types.is_struct(target) and pa.types.is_struct(values.type):
        children = [_child(values, target.field(number)) for number in range(target.num_fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(
            children, fields=[target.field(n) for n in range(target.num_fields)], mask=mask
        )
    if _is_list(target) and _is_list(values.type):
        large = pa.types.is_large_list(target)
        make = pa.LargeListArray if large else pa.ListArray
        offsets = _offsets(values, pa.int64() if large else pa.int32())
        mask = values.is_null() if values.null_count else None
        return make.from_arrays(offsets, cast_values(values.flatten(), target.value_type), type=target, mask=mask)
    if pa.types.is_map(target) and pa.types.is_map(values.type):
        keys, items = _pairs(values)
        return pa.MapArray.from_arrays(
            _offsets(values, pa.int32()),
            cast_values(keys, target.key_type),
            cast_values(items, target.item_type),
            type=target,
            mask=values.is_null() if values.null_count else None,
        )
    return values.cast(target)


def _pairs(values: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """The keys and the items of all maps, one after another."""
    first, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
    return values.keys.slice(first, end - first), values.items.slice(first, end - first)


def _child(values: pa.StructArray, field: pa.Field) -> pa.Array:
    if values.type.get_field_index(field.name) >= 0:
        return cast_values(values.field(field.name), field.type)
    default = (field.metadata or {}).get(DEFAULT_METADATA)
    if default is None:
        return pa.nulls(len(values), field.type)
    value = pa.array([default.decode()]).cast(field.type)
    return value.take(pa.array(np.zeros(len(values), np.int32)))


def _offsets(values: pa.Array, offset_type: pa.DataType) -> pa.Array:
    """The offsets of lists without their nulls, from zero."""
    if pa.types.is_map(values.type):
        lengths = np.diff(np.asarray(values.offsets))
    else:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(values), 0))
    return pa.array(np.concatenate(([0], np.cumsum(lengths))), offset_type)


# --- words ------------------------------------------------------------------------------------------------------------


def _plain(descriptor: StateDescriptor) -> pa.DataType:
    """The type of one element, without what belongs to a time-to-live."""
    stored = descriptor.storage_type
    if descriptor.kind is StateKind.LIST:
        stored = stored.value_type
    elif descriptor.kind is StateKind.MAP:
        stored = stored.item_type
    return stored if descriptor.ttl is None else stored.field(VALUE_FIELD).type


def _spelled(descriptor: StateDescriptor) -> str:
    if descriptor.serializer:
        return f"bytes of the serializer {descriptor.serializer!r}"
    return str(_plain(descriptor))


def _key_spelled(columns: Sequence[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {data_type}" for name, data_type in columns)
