"""Adapter: scenarios of kind `key_groups`, on dataflow.key_groups and the row offsets of dataflow.state_format.

Our hash is another one (docs/key-group-hash.md), which the suite allows: `hash` and `key` cases are skipped, the arithmetic
is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dataflow.key_groups import (
    EMPTY_KEY_GROUP_RANGE,
    KeyGroupRange,
    assign_to_key_groups,
    compute_default_max_parallelism,
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
    redistribute_key_groups,
    split_batch,
)
from dataflow.state_format import KeyGroupRangeOffsets
from tests.conformance import Skipped

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
            failures.append(f"{scenario['id']} case {number}: the adapter does not know {case['op']}")
            continue
        expected = case.get("expect", {})
        try:
            got = operation(case)
        except ValueError:
            got = {"error": True}
        for key, value in expected.items():
            if key not in got or _plain(got[key]) != _plain(value):
                failures.append(f"{scenario['id']} case {number}: expected {key}={value} got {got.get(key, got)}")
        if "error" in got and not expected.get("error"):
            failures.append(f"{scenario['id']} case {number}: refused")
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
        return {"error": True}
    return dict.fromkeys(("range", "result", "intersection", "value"), _pair(common))


def offsets_intersect(case: Case) -> dict[str, Any]:
    own = _range(case["range"])
    offsets = list(case["offsets"])
    known = KeyGroupRangeOffsets(own, (*offsets, offsets[-1] + 1 if offsets else 0))
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
    mosts, parallelisms = _all_of(case["max_parallelism"]), _all_of(case["parallelism"])
    for most in mosts:
        for parallelism in parallelisms:
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
    count = keys if isinstance(keys, int) else len(keys)
    column = pa.array(range(count) if isinstance(keys, int) else [str(key) for key in keys])
    groups = assign_to_key_groups([column], most).tolist()
    batch = pa.record_batch({"key": column, "group": pa.array(groups)})
    for parallelism in _all_of(case["parallelisms"]):
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


def _all_of(value: Any) -> list[int]:
    return list(value) if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    return {int(key): item for key, item in value.items()} if isinstance(value, dict) else value
