"""Types that say the same in another form, and the form that columns have inside.

Polars, DuckDB and pandas hand over strings as views, categories as dictionaries, and repeated values as runs. Arrow's
kernels do not take rows of views and runs, so rows have neither from the source or the function on that they come from;
dictionaries go through a stream as they are, and state keeps their values. Decides on types and converts arrays; who
asks for it, and when, is not known here. Nothing in Flink is like it, whose rows have one form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.errors import JobDefinitionError

_PLAIN = frozenset(
    {
        *(kind.id for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *(kind.id for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        *(kind.id for kind in (pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null())),
        *(kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(1))),
        *(kind.id for kind in (pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us"))),
        *(kind.id for kind in (pa.duration("us"), pa.decimal128(1), pa.decimal256(1), pa.month_day_nano_interval())),
    }
)


_KNOWN: deque[pa.Schema] = deque(maxlen=16)
"""The latest schemas in which nothing is to be converted: to compare one takes 0.1 us, to look at its types 1 us a
column."""


def workable_type(data_type: pa.DataType) -> pa.DataType:
    """The type without views and runs, also inside of lists, structs, maps and dictionaries.

    >>> workable_type(pa.string_view()), workable_type(pa.dictionary(pa.int8(), pa.string()))
    (DataType(large_string), DictionaryType(dictionary<values=string, indices=int8, ordered=0>))
    """
    return _converted_type(data_type, decodes=False)


def kept_type(data_type: pa.DataType) -> pa.DataType:
    """The type in which state keeps values: dictionaries as their values, and no views and runs.

    >>> kept_type(pa.list_(pa.dictionary(pa.int8(), pa.string()))), kept_type(pa.int64())
    (ListType(list<item: string>), DataType(int64))
    """
    return _converted_type(data_type, decodes=True)


def kept_schema(schema: pa.Schema) -> pa.Schema:
    """Columns as state keeps them: nothing but their names and types.

    >>> kept_schema(pa.schema([("shop", pa.dictionary(pa.int8(), pa.string()))]))
    shop: string
    """
    return pa.schema([pa.field(field.name, kept_type(field.type)) for field in schema])


def workable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema itself, or one without views and runs if it has any.

    >>> workable_schema(pa.schema([("shop", pa.string_view())]))
    shop: large_string
    """
    if not isinstance(schema, pa.Schema):
        raise JobDefinitionError(
            f"{schema!r} is no schema: say which columns there are by pyarrow.schema([(name, type), ...])"
        )
    if any(schema.equals(known) for known in tuple(_KNOWN)):
        return schema
    kinds = schema.types
    found = [workable_type(kind) for kind in kinds]
    if all(kind is same for kind, same in zip(kinds, found, strict=True)):
        _KNOWN.appendleft(schema)
        return schema
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, found, strict=True)], schema.metadata)


def workable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without views and runs; the batch itself if it has none.

    >>> workable(pa.record_batch({"shop": pa.array(["x"], pa.string_view())})).schema
    shop: large_string
    """
    schema = batch.schema
    target = workable_schema(schema)
    if target is schema:
        return batch
    columns = [converted(column, kind) for column, kind in zip(batch.columns, target.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether columns of rows, which have no views and runs, have dictionaries, however deep.

    >>> has_dictionaries(pa.schema([("shop", pa.list_(pa.dictionary(pa.int8(), pa.string())))]))
    True
    """
    return any(kept_type(kind) is not kind for kind in schema.types)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """The rows of batches of one schema as one batch. None where that cannot be: their dictionaries together are too
    long for the type of the indices, or hold what Arrow makes no dictionary of.

    >>> joined([pa.record_batch({"n": [1]}), pa.record_batch({"n": [2]})]).num_rows
    2
    """
    if len(batches) == 1:
        return batches[0]
    try:
        return pa.concat_batches(batches)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def converted(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """The same values in a type; what is not one of another form is a cast that loses nothing. Raises ArrowInvalid and
    ArrowNotImplementedError.

    >>> converted(pa.array(["x", None], pa.string_view()), pa.large_string()).to_pylist()
    ['x', None]
    """
    kind, kinds = array.type, pa.types
    if kind == data_type:
        return array
    if kinds.is_run_end_encoded(kind):
        return converted(pc.run_end_decode(array), data_type)
    if kinds.is_dictionary(kind):
        return _of_dictionary(array, data_type)
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return converted(_list_of_views(array), data_type)
    if kinds.is_struct(kind) and kinds.is_struct(data_type) and _names(kind) == _names(data_type):
        children = [converted(array.field(number), field.type) for number, field in enumerate(data_type.fields)]
        return pa.StructArray.from_arrays(children, fields=data_type.fields, mask=array.is_null())
    if kinds.is_map(kind) and kinds.is_map(data_type):
        offsets, begin, length = _elements(array)
        keys = converted(array.keys.slice(begin, length), data_type.key_type)
        items = converted(array.items.slice(begin, length), data_type.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=array.is_null())
    if kind.id == data_type.id and (kinds.is_list(kind) or kinds.is_large_list(kind)):
        offsets, begin, length = _elements(array)
        values = converted(array.values.slice(begin, length), data_type.value_type)
        return type(array).from_arrays(offsets, values, type=data_type, mask=array.is_null())
    if kinds.is_fixed_size_list(kind) and kinds.is_fixed_size_list(data_type) and kind.list_size == data_type.list_size:
        size = data_type.list_size
        values = converted(array.values.slice(array.offset * size, len(array) * size), data_type.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=data_type, mask=array.is_null())
    return array.cast(data_type)


def _converted_type(data_type: pa.DataType, *, decodes: bool) -> pa.DataType:
    """The type itself if nothing is to be converted."""
    if data_type.id in _PLAIN:
        return data_type
    kinds = pa.types
    if kinds.is_string_view(data_type):
        return pa.large_string()
    if kinds.is_binary_view(data_type):
        return pa.large_binary()
    if kinds.is_run_end_encoded(data_type):
        return _converted_type(data_type.value_type, decodes=decodes)
    if kinds.is_dictionary(data_type):
        values = _converted_type(data_type.value_type, decodes=decodes)
        if decodes:
            return values
        return (
            data_type
            if values == data_type.value_type
            else pa.dictionary(data_type.index_type, values, data_type.ordered)
        )
    return _converted_nested(data_type, decodes=decodes)


def _converted_nested(data_type: pa.DataType, *, decodes: bool) -> pa.DataType:
    kinds = pa.types
    if kinds.is_struct(data_type):
        found: pa.DataType = pa.struct([_converted_field(field, decodes=decodes) for field in data_type.fields])
    elif kinds.is_map(data_type):
        key, item = (_converted_field(f, decodes=decodes) for f in (data_type.key_field, data_type.item_field))
        found = pa.map_(key, item, data_type.keys_sorted)
    elif kinds.is_list(data_type) or kinds.is_list_view(data_type):
        found = pa.list_(_converted_field(data_type.value_field, decodes=decodes))
    elif kinds.is_large_list(data_type) or kinds.is_large_list_view(data_type):
        found = pa.large_list(_converted_field(data_type.value_field, decodes=decodes))
    elif kinds.is_fixed_size_list(data_type):
        found = pa.list_(_converted_field(data_type.value_field, decodes=decodes), data_type.list_size)
    else:
        return data_type
    return data_type if found == data_type else found


def _converted_field(field: pa.Field, *, decodes: bool) -> pa.Field:
    return field.with_type(_converted_type(field.type, decodes=decodes))


def _of_dictionary(array: pa.DictionaryArray, data_type: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(data_type):
        values = converted(array.dictionary, data_type.value_type)
        indices = array.indices.cast(data_type.index_type)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=data_type.ordered)
    values = converted(array.dictionary, kept_type(array.type))
    return converted(pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode(), data_type)


def _list_of_views(array: pa.Array) -> pa.Array:
    """Arrow's own cast of list views loses elements (26.0), so that the lists are put together here."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    is_large = pa.types.is_large_list_view(array.type)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64() if is_large else pa.int32())
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(offsets, array.flatten(), mask=array.is_null())


def _elements(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Where the lists of an array begin among their elements, and which elements these are: a slice has but some."""
    offsets = np.asarray(array.offsets)
    begin = int(offsets[0])
    return pa.array(offsets - begin), begin, int(offsets[-1]) - begin


def _names(data_type: pa.StructType) -> list[str]:
    return [field.name for field in data_type.fields]
