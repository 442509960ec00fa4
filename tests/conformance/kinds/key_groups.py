"""Adapter: scenarios of kind `key_groups`, on snapline.dataflow.key_groups and the row offsets of
snapline.dataflow.snapshot.state_format.

Our hash is another one (docs/key-group-hash.md), which the suite allows: `hash` and `key` cases are skipped, the
arithmetic is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from snapline.dataflow.columnar.key_partition import assign_to_key_groups, split_batch
from snapline.dataflow.key_groups import (
    EMPTY_KEY_GROUP_RANGE,
    UPPER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    compute_default_max_parallelism,
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
    redistribute_key_groups,
)
from snapline.dataflow.snapshot.state_format import KeyGroupRangeOffsets
from tests.conformance import Skipped
from tests.conformance.replay import ANY, difference

Case = dict[str, Any]


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines; empty when every case comes out as stated."""
    if all(case["op"] in ("hash", "key") for case in scenario["cases"]):
        raise Skipped("the numbers of Flink's key hash: ours is another documented hash (docs/key-group-hash.md)")
    failures: list[str] = []
    for number, case in enumerate(scenario["cases"]):
        operation = OPERATIONS.get(case["op"])
        if case["op"] in ("hash", "key"):
            continue
        if operation is None:
            raise NotImplementedError(f"op {case['op']}")
        expected = case.get("expect", {})
        try:
            got = operation(case)
        except ValueError as refused:
            got = {"error": True, "why": str(refused)}
        if "error" in got and not expected.get("error"):
            failures.append(difference(number, "error", False, got["why"]))
            continue
        got.setdefault("error", False)
        for key, value in expected.items():
            if value != ANY and (key not in got or _plain(got[key]) != _plain(value)):
                failures.append(difference(number, key, value, got.get(key, f"nothing of that name: {got}")))
    return failures


def ranges(case: Case) -> dict[str, Any]:
    most, parallelism = case["max_parallelism"], case["parallelism"]
    found = [compute_key_group_range_for_operator_index(most, parallelism, index) for index in range(parallelism)]
    return {"ranges": [_pair(part) for part in found], "sizes": [len(part) for part in found]}


def operator_index(case: Case) -> dict[str, Any]:
    most, parallelism = case["max_parallelism"], case["parallelism"]
    groups = case.get("expect", {}).get("index", {})
    return {"index": {group: compute_operator_index_for_key_group(most, parallelism, group) for group in groups}}


def key_group_range(case: Case) -> dict[str, Any]:
    part = _range([case["first"], case["last"]])
    contains = case.get("expect", {}).get("contains", {})
    asked = contains if isinstance(contains, dict) else dict.fromkeys(contains, True)
    inside: Any = {group: group in part for group in asked}
    elements = list(range(part.start, part.end + 1))
    return {
        "range": _pair(part),
        "start": part.start,
        "end": part.end,
        "first": part.start,
        "last": part.end,
        "size": len(part),
        "count": len(part),
        "number": len(part),
        "number_of_key_groups": len(part),
        "empty": len(part) == 0,
        "contains": inside if isinstance(contains, dict) else [group for group in contains if group in part],
        "not_contains": [group for group in case.get("expect", {}).get("not_contains", []) if group not in part],
        "elements": elements,
        "key_groups": elements,
        "values": elements,
    }


def intersect(case: Case) -> dict[str, Any]:
    left, right = _range(case["a"]), _range(case["b"])
    common = left.intersect(right)
    if right.intersect(left) != common:
        raise ValueError(f"{left} and {right} have different key groups in common with each other")
    return dict.fromkeys(("range", "result", "intersection", "value"), _pair(common))


def offsets_intersect(case: Case) -> dict[str, Any]:
    own = _range(case["range"])
    offsets = list(case["offsets"])
    known = KeyGroupRangeOffsets(own, (*offsets, max(offsets, default=-1) + 1))
    other = _range(case["with_range"])
    part = known.intersect(other)
    kept = list(part.offsets[:-1])
    return {"range": _pair(part.key_group_range), "offsets": kept, "size": len(kept), "count": len(kept)}


def default_max_parallelism(case: Case) -> dict[str, Any]:
    return {"value": compute_default_max_parallelism(case["parallelism"])}


def redistribute_keyed_state(case: Case) -> dict[str, Any]:
    most = case["max_parallelism"]
    old = [
        compute_key_group_range_for_operator_index(most, case["old_parallelism"], index)
        for index in range(case["old_parallelism"])
    ]
    plan = redistribute_key_groups(most, old, case["new_parallelism"])
    return {"handles": [[{"old": index, "range": _pair(part)} for index, part in parts] for parts in plan]}


def range_contains_index(case: Case) -> dict[str, Any]:
    """Each subtask's range holds exactly the key groups whose operator index it is."""
    for most in _all_of(case["max_parallelism"], UPPER_BOUND_MAX_PARALLELISM):
        for parallelism in _all_of(case["parallelism"], most):
            if parallelism > most:
                continue
            for group in range(most):
                owner = compute_operator_index_for_key_group(most, parallelism, group)
                if group not in compute_key_group_range_for_operator_index(most, parallelism, owner):
                    raise ValueError(f"{group} of {most} at {parallelism}")
    return {}


def stable_key_group(case: Case) -> dict[str, Any]:
    """A key keeps its key group at any parallelism, and lands where the range of its key group says."""
    keys, most = case["keys"], case["max_parallelism"]
    numbered = range(keys) if isinstance(keys, int) else range(1_000)
    column = pa.array([str(key) for key in keys] if isinstance(keys, list) else numbered)
    groups = assign_to_key_groups([column], most).tolist()
    batch = pa.record_batch({"key": column, "group": pa.array(groups)})
    for parallelism in _all_of(case["parallelisms"], most):
        for index, part in enumerate(split_batch(batch, ["key"], most, parallelism)):
            own = compute_key_group_range_for_operator_index(most, parallelism, index)
            if any(group not in own for group in part.column("group").to_pylist()):
                raise ValueError(f"subtask {index} of {parallelism} got a key of another's key group")
    return {}


OPERATIONS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "ranges": ranges,
    "operator_index": operator_index,
    "range": key_group_range,
    "intersect": intersect,
    "offsets_intersect": offsets_intersect,
    "default_max_parallelism": default_max_parallelism,
    "redistribute_keyed_state": redistribute_keyed_state,
    "property_range_contains_index": range_contains_index,
    "property_stable_key_group": stable_key_group,
}


def _range(pair: list[int] | None) -> KeyGroupRange:
    if pair is None:
        return EMPTY_KEY_GROUP_RANGE
    return KeyGroupRange(pair[0], pair[1]) if pair[0] <= pair[1] else EMPTY_KEY_GROUP_RANGE


def _pair(part: KeyGroupRange) -> list[int] | None:
    return [part.start, part.end] if len(part) else None


MANY = 6
"""How many values stand for a whole interval."""


def _all_of(value: Any, most: int) -> list[int]:
    """A number, a list of numbers, or an interval in any notation, of which its ends and some values between are taken.
    What is no number (`max_parallelism`, `any`) means the greatest that is possible."""
    if isinstance(value, int):
        return [value]
    if isinstance(value, list) and all(isinstance(entry, int) for entry in value):
        return value
    words = (
        value
        if isinstance(value, list)
        else value.values()
        if isinstance(value, dict)
        else re.findall(r"\w+", str(value))
    )
    numbers = [int(word) if str(word).isdigit() else most for word in words]
    first, last = (min(numbers), max(numbers)) if len(numbers) > 1 else (1, most)
    return sorted({first + (last - first) * step // MANY for step in range(MANY + 1)})


def _plain(value: Any) -> Any:
    return {int(key): item for key, item in value.items()} if isinstance(value, dict) else value
