"""Adapter: `snapline.dataflow.snapshot.channel_state`, where data in flight goes when a job is rescaled."""

from __future__ import annotations

from typing import Any

from snapline.dataflow.snapshot.channel_state import (
    ChannelStateNotRescalable,
    SubtaskStateMapper,
)
from tests.conformance.replay import Scenario, difference

REFUSED = ("error", "fails", "failed", "raises", "refused", "rejected", "unsupported")
"""Names of the expectation that a case is refused; any other name of a truth value says that it is not."""


def replay(scenario: Scenario) -> list[str]:
    """Every case by itself. What a case expects stands under one key, whatever its name; `error` is one of its own."""
    failures: list[str] = []
    for number, case in enumerate(scenario["cases"]):
        got: Any = None
        error: str | None = None
        try:
            got = _perform(case)
        except ChannelStateNotRescalable as refused:
            error = str(refused)
        for key, expected in case["expect"].items():
            if key in REFUSED or isinstance(expected, bool):
                shall_refuse = bool(expected) if key in REFUSED else not expected
                if shall_refuse != (error is not None):
                    failures.append(difference(number, key, expected, error))
            elif error is not None or _normal(expected) != _normal(got):
                failures.append(difference(number, key, expected, got if error is None else error))
    return failures


def _perform(case: dict[str, Any]) -> Any:
    op = case["op"]
    if op == "subtask_mapping":
        return [list(row) for row in SubtaskStateMapper(case["mapper"]).new_to_old(case["old"], case["new"])]
    if op == "repartition":
        old_states = case["old_states"]
        mapping = SubtaskStateMapper(case["mapper"]).new_to_old(len(old_states), case["new"])
        return [[state for old in row for state in old_states[old]] for row in mapping]
    if op == "invert":
        return _inverted(_rows(case["mapping"]))
    if op == "ambiguous_targets":
        return [target for target, sources in enumerate(_inverted(_rows(case["mapping"]))) if len(sources) > 1]
    if op == "restore_without_rescaling":
        elements = case["elements"]
        states = elements if isinstance(elements, list) else [list(range(elements)), *[[]] * (case["old"] - 1)]
        if len(states) != case["new"] and any(states):
            SubtaskStateMapper.UNSUPPORTED.new_to_old(len(states), case["new"])
        return states if len(states) == case["new"] else [[] for _ in range(case["new"])]
    raise ValueError(f"unknown op {op!r}")


def _inverted(mapping: list[list[int]]) -> list[list[int]]:
    """From each target to its sources (Flink: RescaleMappings.invert, which only Flink's own restore needs)."""
    sources: list[list[int]] = [[] for _ in range(max((target for row in mapping for target in row), default=-1) + 1)]
    for source, row in enumerate(mapping):
        for target in row:
            sources[target].append(source)
    return sources


def _rows(mapping: Any) -> list[list[int]]:
    """A mapping may also be given as {source: targets}."""
    if isinstance(mapping, dict):
        return [list(mapping.get(source, [])) for source in range(max(mapping, default=-1) + 1)]
    return [list(row or []) for row in mapping]


def _normal(value: Any) -> Any:
    """Trailing rows without targets may be left out."""
    rows = _rows(value) if isinstance(value, dict) else value
    if isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows):
        while rows and not rows[-1]:
            rows = rows[:-1]
    return rows
