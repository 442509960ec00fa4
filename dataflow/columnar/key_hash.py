"""The stable hash of key columns: one uint32 per row, from which the key group follows.

Written down with test vectors in `docs/key-group-hash.md`; it must never change, because it decides which key group,
and so which part of which snapshot, a key belongs to. It depends on the logical value of the key only: not on where
batches are cut, on slices, on dictionary encoding, on the width of an integer or a float, on the unit of a timestamp,
on the scale of a decimal.

Takes the role of Object.hashCode and MathUtils.murmurHash in Flink's KeyGroupRangeAssignment; the numbers differ from
Flink's, because Java's hashCode of an object is nothing that a column has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import (
    binary_buffers,
    column_words,
    is_binary_like,
    is_decimal,
    is_temporal_with_unit,
    plain_array,
    units_per_second,
    validity,
)
from snapline.dataflow.columnar.kernel import (
    I64,
    VOID,
    RO_I64s,
    RO_U8s,
    RO_U32s,
    U32s,
    inlined,
    kernel,
    load_u32,
    load_u64,
)

Column: TypeAlias = pa.Array | pa.ChunkedArray
UInt32Array = np.ndarray[Any, np.dtype[np.uint32]]

NULL_HASH = np.uint32(0x6E756C6C)
"""What a null key hashes to, whatever its type (the letters "null")."""

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_U32 = np.uint64(32)


@inlined
def fmix64(word: Any) -> Any:
    """The finaliser of MurmurHash3 (x64): a bijection on 64 bits."""
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@inlined
def _rotl(word: Any, bits: Any) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(accumulator: Any, lane: Any) -> Any:
    return _rotl(accumulator + lane * _P2, 31) * _P1


@inlined
def xxh64(data: Any, start: Any, length: Any) -> Any:
    """XXH64 with seed 0 of `length` bytes of `data` from `start`."""
    position = start
    end = start + length
    if length >= 32:
        v1, v2, v3, v4 = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while position + 32 <= end:
            v1 = _round(v1, load_u64(data, position))
            v2 = _round(v2, load_u64(data, position + 8))
            v3 = _round(v3, load_u64(data, position + 16))
            v4 = _round(v4, load_u64(data, position + 24))
            position += 32
        state = _rotl(v1, 1) + _rotl(v2, 7) + _rotl(v3, 12) + _rotl(v4, 18)
        state = (state ^ _round(np.uint64(0), v1)) * _P1 + _P4
        state = (state ^ _round(np.uint64(0), v2)) * _P1 + _P4
        state = (state ^ _round(np.uint64(0), v3)) * _P1 + _P4
        state = (state ^ _round(np.uint64(0), v4)) * _P1 + _P4
    else:
        state = _P5
    state += np.uint64(length)
    while position + 8 <= end:
        state = _rotl(state ^ _round(np.uint64(0), load_u64(data, position)), 27) * _P1 + _P4
        position += 8
    if position + 4 <= end:
        state = _rotl(state ^ (load_u32(data, position) * _P1), 23) * _P2 + _P3
        position += 4
    while position < end:
        state = _rotl(state ^ (np.uint64(data[position]) * _P5), 11) * _P1
        position += 1
    state ^= state >> np.uint64(33)
    state *= _P2
    state ^= state >> np.uint64(29)
    state *= _P3
    return state ^ (state >> _U32)


@kernel(VOID(RO_I64s, U32s))
def _hash_words(words: Any, hashes: Any) -> None:
    for row in range(hashes.shape[0]):
        hashes[row] = np.uint32(fmix64(np.uint64(words[row])) >> _U32)


@kernel(VOID(RO_I64s, RO_U8s, U32s))
def _hash_bytes(offsets: Any, data: Any, hashes: Any) -> None:
    for row in range(hashes.shape[0]):
        start = offsets[row]
        hashes[row] = np.uint32(xxh64(data, start, offsets[row + 1] - start) >> _U32)


@kernel(VOID(RO_I64s, I64, U32s))
def _hash_decimals(words: Any, scale: int, hashes: Any) -> None:
    """`words`: low and high half of each unscaled value. Trailing zeros are stripped first, so that 1.50 equals 1.5."""
    for row in range(hashes.shape[0]):
        low, high = np.uint64(words[2 * row]), np.uint64(words[2 * row + 1])
        negative = words[2 * row + 1] < 0
        if negative:
            low, high = ~low + np.uint64(1), ~high
            if low == 0:
                high += np.uint64(1)
        remaining = np.int64(0) if low == 0 and high == 0 else scale
        while low != 0 or high != 0:
            quotient_high, rest = high // np.uint64(10), high % np.uint64(10)
            upper = (rest << _U32) | (low >> _U32)
            lower = ((upper % np.uint64(10)) << _U32) | (low & np.uint64(0xFFFFFFFF))
            if lower % np.uint64(10) != 0:
                break
            low = ((upper // np.uint64(10)) << _U32) | (lower // np.uint64(10))
            high = quotient_high
            remaining -= 1
        if negative:
            low, high = ~low + np.uint64(1), ~high
            if low == 0:
                high += np.uint64(1)
        state = fmix64(fmix64(fmix64(low) ^ high) ^ np.uint64(remaining))
        hashes[row] = np.uint32(state >> _U32)


@kernel(VOID(U32s, RO_U32s))
def _combine(state: Any, hashes: Any) -> None:
    """One block of MurmurHash3 (x86, 32 bit)."""
    for row in range(state.shape[0]):
        block = np.uint32(hashes[row] * np.uint32(0xCC9E2D51))
        block = np.uint32((block << np.uint32(15)) | (block >> np.uint32(17)))
        word = np.uint32(state[row] ^ np.uint32(block * np.uint32(0x1B873593)))
        word = np.uint32((word << np.uint32(13)) | (word >> np.uint32(19)))
        state[row] = np.uint32(word * np.uint32(5) + np.uint32(0xE6546B64))


@kernel(VOID(U32s, I64))
def _finish(state: Any, length_bytes: int) -> None:
    """The end of MurmurHash3 (x86, 32 bit)."""
    for row in range(state.shape[0]):
        word = np.uint32(state[row] ^ np.uint32(length_bytes))
        word ^= word >> np.uint32(16)
        word = np.uint32(word * np.uint32(0x85EBCA6B))
        word ^= word >> np.uint32(13)
        word = np.uint32(word * np.uint32(0xC2B2AE35))
        state[row] = word ^ (word >> np.uint32(16))


def hash_columns(columns: Sequence[Column]) -> UInt32Array:
    """The stable hash of each row's key. TypeError for a type that cannot be part of a key, with its name."""
    if not columns:
        raise ValueError("a key needs at least one column")
    if len(columns) == 1:
        return hash_column(columns[0])
    state = np.zeros(len(columns[0]), np.uint32)
    for column in columns:
        _combine(state, hash_column(column))
    _finish(state, 4 * len(columns))
    return state


def hash_column(column: Column) -> UInt32Array:
    """The hash of a key that consists of this one column."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(whole.type):
        return _hash_dictionary(whole)
    array = plain_array(whole)
    hashes = np.empty(len(array), np.uint32)
    if pa.types.is_null(array.type):
        hashes.fill(NULL_HASH)
        return hashes
    if is_binary_like(array.type):
        offsets, data = binary_buffers(array)
        _hash_bytes(offsets, data, hashes)
    elif is_decimal(array.type):
        _hash_decimals(column_words(array), array.type.scale, hashes)
    else:
        _hash_words(logical_words(array), hashes)
    valid = validity(array)
    if valid is not None:
        hashes[~valid] = NULL_HASH
    return hashes


def logical_words(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """One int64 per row that is equal for equal values of any width or unit (plain array, not bytes, not decimal)."""
    words = column_words(array)
    if pa.types.is_date64(array.type):
        return words // 86_400_000
    if is_temporal_with_unit(array.type):
        units = units_per_second(array.type)
        seconds, rest = np.divmod(words, units)
        return seconds ^ ((rest * (1_000_000_000 // units)) << 32)
    return words


def _hash_dictionary(array: pa.DictionaryArray) -> UInt32Array:
    hashes = np.append(hash_column(array.dictionary), NULL_HASH)
    positions = array.indices.cast(pa.int64()).fill_null(len(array.dictionary))
    return hashes[positions.to_numpy(zero_copy_only=False)]
