"""Key groups: the unit in which keyed state is snapshotted, restored and moved between subtasks.

key group = stable hash of the key columns % max parallelism; subtask = key group * parallelism // max parallelism. The
arithmetic here is plain Python, so that the coordinator can redistribute state without loading a compiler; what works
on columns is in `snapline.dataflow.columnar.key_hash` and `key_partition`.

Mirrors Flink's KeyGroupRangeAssignment and KeyGroupRange; see `docs/key-group-hash.md` for the hash, which is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
UPPER_BOUND_MAX_PARALLELISM = 32_768


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """Key groups `start` to `end`, both inclusive; empty when `end < start` (Flink: KeyGroupRange)."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Raises ValueError: there is no key group below 0."""
        if self.start < 0:
            raise ValueError(f"key groups begin with 0, not with {self.start}")

    def __len__(self) -> int:
        """Return the number of key groups in the range."""
        return max(0, self.end - self.start + 1)

    def __contains__(self, key_group: int) -> bool:
        """Whether the key group lies in the range."""
        return self.start <= key_group <= self.end

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange:
        """The common key groups, EMPTY_KEY_GROUP_RANGE when there are none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else EMPTY_KEY_GROUP_RANGE


EMPTY_KEY_GROUP_RANGE = KeyGroupRange(0, -1)
"""The key groups of a subtask that owns none."""


def check_parallelism(max_parallelism: int, parallelism: int = 1) -> None:
    """ValueError unless 1 <= parallelism <= max parallelism <= 32768."""
    if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ValueError(
            f"max parallelism must lie between 1 and {UPPER_BOUND_MAX_PARALLELISM}, not {max_parallelism!r}"
        )
    if not isinstance(parallelism, int) or not 1 <= parallelism <= max_parallelism:
        raise ValueError(
            f"parallelism {parallelism!r} does not lie between 1 and the max parallelism {max_parallelism}: lower it, or start "
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
    """The subtask that owns a key group. Raises ValueError for a parallelism that cannot be."""
    check_parallelism(max_parallelism, parallelism)
    if not 0 <= key_group < max_parallelism:
        raise ValueError(f"key group {key_group} does not lie between 0 and {max_parallelism - 1}")
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
    """For each new subtask what to read: (index into old_ranges, key groups), in order (StateAssignmentOperation).
    Raises ValueError for a parallelism that cannot be."""
    check_parallelism(max_parallelism, parallelism)
    plan: list[list[tuple[int, KeyGroupRange]]] = []
    for index in range(parallelism):
        own = compute_key_group_range_for_operator_index(max_parallelism, parallelism, index)
        parts = [(old, own.intersect(old_range)) for old, old_range in enumerate(old_ranges)]
        plan.append([(old, part) for old, part in parts if len(part)])
    return plan
