"""Cutting a batch by the subtask that owns each row's key: the work of the sender side of a keyed edge.

A counting sort by subtask, stable inside each; then every column is gathered once and the parts are slices of the
result. Mirrors Flink's KeyGroupStreamPartitioner, for a batch at a time. It knows nothing of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import column_named, is_fixed, plain_array
from snapline.dataflow.columnar.gather import gather_batch
from snapline.dataflow.columnar.kernel import I64, VOID, I32s, I64s, RO_I64s, RO_U16s, RO_U32s, U16s, kernel
from snapline.dataflow.columnar.key_hash import Column, fmix64, hash_columns, logical_words
from snapline.dataflow.key_groups import check_parallelism, compute_operator_index_for_key_group

UInt16Array = np.ndarray[Any, np.dtype[np.uint16]]

_OWNERS: dict[tuple[int, int], UInt16Array] = {}
"""Owner of each key group per (max parallelism, parallelism): pure arithmetic, kept because it is asked per batch."""
_OWNERS_KEPT = 64


@kernel(VOID(RO_U32s, RO_U16s, U16s))
def _owners_of_hashes(hashes: Any, owner_of: Any, owners: Any) -> None:
    groups = np.uint32(owner_of.shape[0])
    mask = groups - np.uint32(1)
    if groups & mask == 0:
        for row in range(owners.shape[0]):
            owners[row] = owner_of[hashes[row] & mask]
    else:
        for row in range(owners.shape[0]):
            owners[row] = owner_of[hashes[row] % groups]


@kernel(VOID(RO_I64s, RO_U16s, U16s))
def _owners_of_words(words: Any, owner_of: Any, owners: Any) -> None:
    """`_owners_of_hashes` of a single key column of fixed width, with the hash in the same loop."""
    groups = np.uint32(owner_of.shape[0])
    mask = groups - np.uint32(1)
    if groups & mask == 0:
        for row in range(owners.shape[0]):
            hashed = np.uint32(fmix64(np.uint64(words[row])) >> np.uint64(32))
            owners[row] = owner_of[hashed & mask]
    else:
        for row in range(owners.shape[0]):
            hashed = np.uint32(fmix64(np.uint64(words[row])) >> np.uint64(32))
            owners[row] = owner_of[hashed % groups]


@kernel(VOID(RO_U16s, I64, I32s, I64s))
def _counting_sort(owners: Any, parallelism: int, order: Any, bounds: Any) -> None:
    """`bounds` has parallelism + 2 entries, zero on entry; the first parallelism + 1 are the result."""
    for row in range(owners.shape[0]):
        bounds[np.int64(owners[row]) + 2] += 1
    for following in range(2, parallelism + 2):
        bounds[following] += bounds[following - 1]
    for row in range(owners.shape[0]):
        part = np.int64(owners[row]) + 1
        position = bounds[part]
        order[position] = row
        bounds[part] = position + 1


def _owner_table(max_parallelism: int, parallelism: int) -> UInt16Array:
    table = _OWNERS.get((max_parallelism, parallelism))
    if table is None:
        check_parallelism(max_parallelism, parallelism)
        groups = range(max_parallelism)
        table = np.array(
            [compute_operator_index_for_key_group(max_parallelism, parallelism, group) for group in groups], np.uint16
        )
        if len(_OWNERS) >= _OWNERS_KEPT:
            _OWNERS.clear()
        _OWNERS[max_parallelism, parallelism] = table
    return table


def owners_of(columns: Sequence[Column], max_parallelism: int, parallelism: int) -> UInt16Array:
    """The subtask that owns each row."""
    table = _owner_table(max_parallelism, parallelism)
    owners = np.empty(len(columns[0]), np.uint16)
    if len(columns) == 1:
        array = plain_array(columns[0])
        if is_fixed(array.type) and array.null_count == 0:
            _owners_of_words(logical_words(array), table, owners)
            return owners
    _owners_of_hashes(hash_columns(columns), table, owners)
    return owners


def assign_to_key_groups(columns: Sequence[Column], max_parallelism: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The key group of each row."""
    check_parallelism(max_parallelism)
    return hash_columns(columns) % np.uint32(max_parallelism)


def partition_by_key(
    columns: Sequence[Column], max_parallelism: int, parallelism: int
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int64]]]:
    """(order, bounds): rows order[bounds[i]:bounds[i + 1]] belong to subtask i, in the order in which they came."""
    length = len(columns[0])
    if parallelism == 1:
        check_parallelism(max_parallelism)
        return np.arange(length, dtype=np.int32), np.array([0, length], np.int64)
    owners = owners_of(columns, max_parallelism, parallelism)
    order = np.empty(length, np.int32)
    bounds = np.zeros(parallelism + 2, np.int64)
    _counting_sort(owners, parallelism, order, bounds)
    return order, bounds[:-1]


def split_batch(
    batch: pa.RecordBatch, key_columns: Sequence[str], max_parallelism: int, parallelism: int
) -> list[pa.RecordBatch]:
    """One batch per subtask (empty ones included), rows in the order in which they came; no copy if one gets all."""
    if parallelism == 1:
        return [batch]
    length = batch.num_rows
    keys = [column_named(batch, name, "key column") for name in key_columns]
    order, bounds = partition_by_key(keys, max_parallelism, parallelism)
    starts = bounds.tolist()
    sizes = [end - start for start, end in pairwise(starts)]
    if length in sizes:
        whole = sizes.index(length)
        return [batch if part == whole else batch.slice(0, 0) for part in range(parallelism)]
    gathered = gather_batch(batch, order)
    return [gathered.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
