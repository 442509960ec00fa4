"""KeyIndex: the key columns of a batch to dense int32 slots, in one vectorised look-up.

Chooses the table by the types of the key: columns of a fixed width are words (WordKeyIndex); one string or binary
column is bytes (BytesKeyIndex), and so are the encoded rows of several columns of which one is such. Candidates and
figures: docs/decisions/0010-key-lookup.md. There is nothing like it in Flink, where a hash map is asked once per
record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import (
    BoolArray,
    BytesArray,
    Int64Array,
    binary_array,
    binary_buffers,
    column_words,
    fixed_array,
    is_binary_like,
    is_fixed,
    plain_array,
    plain_type,
    validity,
    words_to_values,
)
from snapline.dataflow.columnar.row_encoding import RowEncoding
from snapline.taskmanager.state.index.bytes_key_index import BytesKeyIndex, FrozenBytes
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.index.word_key_index import FrozenWords, WordKeyIndex

Column: TypeAlias = pa.Array | pa.ChunkedArray


class FrozenKeys(Protocol):
    """Keys by slot at one moment."""

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of these slots."""
        ...

    def live_slots(self) -> Slots:
        """All slots that were in use, ascending."""
        ...


class _Table:
    """An index, and what its keys are made of."""

    __slots__ = ("_columns_of", "_keys_of", "_one_of", "index")

    def __init__(
        self,
        index: BytesKeyIndex | WordKeyIndex,
        keys_of: Callable[[Sequence[pa.Array]], tuple[Any, ...]],
        columns_of: Callable[..., list[pa.Array]],
        one_of: Callable[[Sequence[Any]], bytes | None] = lambda _: None,
    ) -> None:
        """`keys_of`: what the index takes for plain columns. `columns_of`: the columns of what it gives. `one_of`: a
        key of these values; None: they have no short way there."""
        self.index = index
        self._keys_of, self._columns_of, self._one_of = keys_of, columns_of, one_of

    def lookup_or_insert(self, columns: Sequence[pa.Array]) -> Slots:
        return self.index.lookup_or_insert(*self._keys_of(columns))

    def lookup(self, columns: Sequence[pa.Array]) -> Slots:
        return self.index.lookup(*self._keys_of(columns))

    def lookup_one(self, values: Sequence[Any]) -> int | None:
        """None: not every value has a short way there."""
        key = self._one_of(values)
        return None if key is None else self.index.lookup_one(key)

    def keys(self, slots: Slots) -> list[pa.Array]:
        return self._columns_of(*self.index.view().gather(slots))

    def freeze(self) -> FrozenKeys:
        return _FrozenTable(self.index.freeze(), self._columns_of)


class _FrozenTable:
    __slots__ = ("_columns_of", "_frozen")

    def __init__(self, frozen: FrozenBytes | FrozenWords, columns_of: Callable[..., list[pa.Array]]) -> None:
        self._frozen, self._columns_of = frozen, columns_of

    def keys(self, slots: Slots) -> list[pa.Array]:
        return self._columns_of(*self._frozen.gather(slots))

    def live_slots(self) -> Slots:
        return self._frozen.live_slots()


class KeyIndex:
    """Keys of these columns (pa.Field: name and type) to slots. Equal is what is equal by logical value within the
    type: -0.0 is 0.0, NaN is NaN, null is null. TypeError for a type that cannot be part of a key."""

    __slots__ = ("_fields", "_table", "_types")

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = list(fields)
        self._types = [_key_type(field) for field in self._fields]
        self._table = _table_for(self._types)

    @property
    def fields(self) -> list[pa.Field]:
        """The key columns, plain types (no dictionaries, no views)."""
        return [pa.field(field.name, kind) for field, kind in zip(self._fields, self._types, strict=True)]

    @property
    def high_water(self) -> int:
        """All slots in use are below this."""
        return self._table.index.allocator.high_water

    @property
    def capacity(self) -> int:
        """All slots handed out until the index grows are below this."""
        return self._table.index.allocator.capacity

    def __len__(self) -> int:
        """Return the number of keys in the table."""
        return len(self._table.index)

    def reserve(self, keys: int) -> None:
        """Make room for so many keys at once, while there is none."""
        self._table.index.reserve(keys)

    def lookup_or_insert(self, columns: Sequence[Column]) -> Slots:
        """The slot of each row's key; keys not seen before get one, in row order."""
        return self._table.lookup_or_insert(self._conform(columns))

    def lookup(self, columns: Sequence[Column]) -> Slots:
        """The slot of each row's key, -1 where it is not known."""
        return self._table.lookup(self._conform(columns))

    def lookup_one(self, key: tuple[Any, ...]) -> int:
        """The slot of one key, given as Python values of the columns' types; -1 if it is not known."""
        found = self._table.lookup_one(key)
        if found is not None:
            return found
        columns = [pa.array([value], data_type) for value, data_type in zip(key, self._types, strict=True)]
        return int(self._table.lookup(columns)[0])

    def remove(self, slots: Slots) -> None:
        """Forget these keys; their slots are handed out again. Slots that are free already are skipped."""
        self._table.index.remove(slots)

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of these slots, which must be in use."""
        return self._table.keys(slots)

    def are_live(self, slots: Slots) -> BoolArray:
        """Which of these slots are in use."""
        return self._table.index.allocator.live[slots]

    def live_slots(self) -> Slots:
        """All slots in use, ascending."""
        return self._table.index.allocator.live_slots()

    def freeze(self) -> FrozenKeys:
        """The keys as they are now, unmoved by what comes later."""
        return self._table.freeze()

    def _conform(self, columns: Sequence[Column]) -> list[pa.Array]:
        if len(columns) != len(self._types):
            raise ValueError(f"the key has {len(self._types)} columns, {len(columns)} were given")
        return [
            _conform(plain_array(column), key_type, field.name)
            for column, key_type, field in zip(columns, self._types, self._fields, strict=True)
        ]


def _key_type(field: pa.Field) -> pa.DataType:
    try:
        return plain_type(field.type)
    except TypeError as refusal:
        raise TypeError(f"key column {field.name!r}: {refusal}") from None


def _table_for(types: Sequence[pa.DataType]) -> _Table:
    if len(types) == 1 and is_fixed(types[0]):
        return _Table(WordKeyIndex(), _words_of, partial(_fixed_column, types[0]))
    if len(types) == 1 and is_binary_like(types[0]):
        return _Table(BytesKeyIndex(), _bytes_of, partial(_binary_column, types[0]))
    encoding = RowEncoding(types)
    if encoding.is_fixed:
        return _Table(
            WordKeyIndex(encoding.width),
            lambda columns: (encoding.encode_words(columns), None),
            lambda words, _: encoding.decode_words(words),
            encoding.encode_one,
        )
    return _Table(
        BytesKeyIndex(),
        lambda columns: (*encoding.encode(columns), None),
        lambda offsets, data, _: encoding.decode(offsets, data),
        encoding.encode_one,
    )


def _words_of(columns: Sequence[pa.Array]) -> tuple[Any, ...]:
    return column_words(columns[0]), validity(columns[0])


def _fixed_column(data_type: pa.DataType, words: Int64Array, valid: BoolArray | None) -> list[pa.Array]:
    return [fixed_array(words_to_values(words, data_type), valid, data_type)]


def _bytes_of(columns: Sequence[pa.Array]) -> tuple[Any, ...]:
    return *binary_buffers(columns[0]), validity(columns[0])


def _binary_column(
    data_type: pa.DataType, offsets: Int64Array, data: BytesArray, valid: BoolArray | None
) -> list[pa.Array]:
    return [binary_array(offsets, data, valid, data_type)]


def _conform(array: pa.Array, key_type: pa.DataType, name: str) -> pa.Array:
    if array.type == key_type:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), key_type)
    if (_is_text(array.type) and _is_text(key_type)) or (_is_bytes(array.type) and _is_bytes(key_type)):
        return array  # the same bytes behind other offsets
    raise TypeError(
        f"key column {name!r} changed its type: the state was created for {key_type}, this batch has {array.type}; "
        f"cast the column to {key_type} before key_by"
    )


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))
