"""Key groups: the unit in which keyed state is snapshotted, restored and moved between subtasks.

key group = stable hash of the key columns % max parallelism; subtask = key group * parallelism // max parallelism. The
arithmetic here is plain Python, so that the coordinator can redistribute state without loading a compiler; what works on
columns (`hash_columns`, `partition_by_key`, `split_batch`) imports its kernels when it is first called.

Mirrors Flink's KeyGroupRangeAssignment and KeyGroupRange; see `docs/key-group-hash.md` for the hash, which is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from snapline.dataflow.snapshot.handles import EMPTY_KEY_GROUP_RANGE, KeyGroupRange

__all__ = [
    "EMPTY_KEY_GROUP_RANGE",
    "KeyGroupRange",
    "assign_to_key_groups",
    "check_parallelism",
    "compute_default_max_parallelism",
    "compute_key_group_range_for_operator_index",
    "compute_operator_index_for_key_group",
    "hash_columns",
    "partition_by_key",
    "redistribute_key_groups",
    "split_batch",
]

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
UPPER_BOUND_MAX_PARALLELISM = 32_768

Column: TypeAlias = pa.Array | pa.ChunkedArray


def check_parallelism(max_parallelism: int, parallelism: int = 1) -> None:
    """ValueError unless 1 <= parallelism <= max parallelism <= 32768."""
    if not 1 <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(f"max parallelism must lie between 1 and {UPPER_BOUND_MAX_PARALLELISM}, not {max_parallelism}")
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(
            f"parallelism {parallelism} does not lie between 1 and the max parallelism {max_parallelism}: lower it, or start "
            "without state under a higher max parallelism"
        )


def compute_default_max_parallelism(parallelism: int) -> int:
    """The smallest power of two at or above 1.5 * parallelism, within 128 and 32768."""
    if not 1 <= parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(f"parallelism must lie between 1 and {UPPER_BOUND_MAX_PARALLELISM}, not {parallelism}")
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length()
    return min(max(power, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def compute_operator_index_for_key_group(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """The subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


def compute_key_group_range_for_operator_index(
    max_parallelism: int, parallelism: int, operator_index: int
) -> KeyGroupRange:
    """The key groups that a subtask owns; the exact inverse of `compute_operator_index_for_key_group`."""
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= operator_index < parallelism:
        raise ValueError(f"operator index {operator_index} does not lie between 0 and {parallelism - 1}")
    start = (operator_index * max_parallelism + parallelism - 1) // parallelism
    end = ((operator_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def redistribute_key_groups(
    max_parallelism: int, old_ranges: Sequence[KeyGroupRange], parallelism: int
) -> list[list[tuple[int, KeyGroupRange]]]:
    """For each new subtask what to read: (index into old_ranges, key groups), in order (StateAssignmentOperation)."""
    plan: list[list[tuple[int, KeyGroupRange]]] = []
    for index in range(parallelism):
        own = compute_key_group_range_for_operator_index(max_parallelism, parallelism, index)
        parts = [(old, own.intersect(old_range)) for old, old_range in enumerate(old_ranges)]
        plan.append([(old, part) for old, part in parts if len(part)])
    return plan


def hash_columns(columns: Sequence[Column]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The stable hash of each row's key (`snapline.dataflow.columnar.key_hash.hash_columns`)."""
    from snapline.dataflow.columnar.key_hash import hash_columns as hash_key_columns

    return hash_key_columns(columns)


def assign_to_key_groups(columns: Sequence[Column], max_parallelism: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The key group of each row."""
    return hash_columns(columns) % np.uint32(max_parallelism)


def partition_by_key(
    columns: Sequence[Column], max_parallelism: int, parallelism: int
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int64]]]:
    """(order, bounds): rows order[bounds[i]:bounds[i + 1]] belong to subtask i, in the order in which they came."""
    from snapline.dataflow.columnar.key_partition import partition_by_key as partition

    return partition(columns, max_parallelism, parallelism)


def split_batch(
    batch: pa.RecordBatch, key_columns: Sequence[str], max_parallelism: int, parallelism: int
) -> list[pa.RecordBatch]:
    """One batch per subtask (empty ones included), rows in the order in which they came; no copy if one gets all."""
    if parallelism == 1:
        return [batch]
    from snapline.dataflow.columnar.key_partition import split_batch as split

    return split(batch, key_columns, max_parallelism, parallelism)
