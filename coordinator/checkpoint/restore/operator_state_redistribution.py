"""How named list state of an operator is spread over another number of subtasks.

Decides which subtask gets which elements; moves handles and offsets, never data. Mirrors Flink's
RoundRobinOperatorStateRepartitioner:

* SPLIT_DISTRIBUTE: elements in old order, cut into slices whose sizes differ by at most one; the next named state goes
  on with the subtask at which the previous one stopped, so that the sums differ by at most one as well. With unchanged
  parallelism every subtask gets back what it had.
* UNION: every subtask gets all elements of all.
* BROADCAST: every subtask gets one full copy; new subtask i the copy of old subtask i modulo their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from snapline.dataflow.snapshot.handles import (
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    StreamStateHandle,
)

_Offsets = tuple[tuple[int, int], ...]
_Source = tuple[StreamStateHandle, _Offsets]
"""The elements of one named state in one blob."""


class _Assignment:
    """What one new subtask gets: entries by blob, in order of assignment."""

    def __init__(self) -> None:
        self._by_handle: dict[StreamStateHandle, dict[tuple[str, OperatorStateMode], list[tuple[int, int]]]] = {}

    def add(
        self, name: str, mode: OperatorStateMode, handle: StreamStateHandle, offsets: Iterable[tuple[int, int]]
    ) -> None:
        self._by_handle.setdefault(handle, {}).setdefault((name, mode), []).extend(offsets)

    def handles(self) -> tuple[OperatorStateHandle, ...]:
        return tuple(
            OperatorStateHandle(
                handle,
                tuple(OperatorStateEntry(name, mode, tuple(offsets)) for (name, mode), offsets in entries.items()),
            )
            for handle, entries in self._by_handle.items()
        )


def redistribute_operator_state(
    old: Sequence[Sequence[OperatorStateHandle]], new_parallelism: int
) -> list[tuple[OperatorStateHandle, ...]]:
    """The handles of each new subtask, given those of each old one (by subtask index; empty for one without state)."""
    unchanged = len(old) == new_parallelism
    modes = {entry.mode for handles in old for handle in handles for entry in handle.entries}
    if unchanged and modes <= {OperatorStateMode.SPLIT_DISTRIBUTE}:
        return [tuple(handles) for handles in old]
    new = [_Assignment() for _ in range(new_parallelism)]
    if OperatorStateMode.UNION in modes:
        for name, sources in _by_name(old, OperatorStateMode.UNION).items():
            for assignment in new:
                for _, handle, offsets in sources:
                    assignment.add(name, OperatorStateMode.UNION, handle, offsets)
    if OperatorStateMode.SPLIT_DISTRIBUTE in modes:
        split = _by_name(old, OperatorStateMode.SPLIT_DISTRIBUTE)
        if unchanged:
            for name, sources in split.items():
                for subtask, handle, offsets in sources:
                    new[subtask].add(name, OperatorStateMode.SPLIT_DISTRIBUTE, handle, offsets)
        else:
            _split(split, new)
    if OperatorStateMode.BROADCAST in modes:
        for name, sources in _by_name(old, OperatorStateMode.BROADCAST).items():
            _broadcast(name, sources, new)
    return [assignment.handles() for assignment in new]


def _by_name(
    old: Sequence[Sequence[OperatorStateHandle]], mode: OperatorStateMode
) -> dict[str, list[tuple[int, StreamStateHandle, _Offsets]]]:
    """Name -> (old subtask, blob, offsets), in old order."""
    found: dict[str, list[tuple[int, StreamStateHandle, _Offsets]]] = {}
    for subtask, handles in enumerate(old):
        for handle in handles:
            for entry in handle.entries:
                if entry.mode is mode:
                    found.setdefault(entry.name, []).append((subtask, handle.handle, entry.offsets))
    return found


def _split(states: dict[str, list[tuple[int, StreamStateHandle, _Offsets]]], new: Sequence[_Assignment]) -> None:
    parallelism = len(new)
    first = 0
    for name, sources in states.items():
        elements = [(handle, offset) for _, handle, offsets in sources for offset in offsets]
        share, odd = divmod(len(elements), parallelism)
        position = 0
        for round_index in range(parallelism):
            count = share + (1 if round_index < odd else 0)
            assignment = new[(first + round_index) % parallelism]
            for handle, offset in elements[position : position + count]:
                assignment.add(name, OperatorStateMode.SPLIT_DISTRIBUTE, handle, (offset,))
            position += count
        first = (first + odd) % parallelism


def _broadcast(
    name: str, sources: Sequence[tuple[int, StreamStateHandle, _Offsets]], new: Sequence[_Assignment]
) -> None:
    """Subtasks that had finished have no copy; theirs comes from those that do."""
    copies: dict[int, list[_Source]] = {}
    for subtask, handle, offsets in sources:
        copies.setdefault(subtask, []).append((handle, offsets))
    owners = sorted(copies)
    for index, assignment in enumerate(new):
        owner = index if len(owners) == len(new) and index in copies else owners[index % len(owners)]
        for handle, offsets in copies[owner]:
            assignment.add(name, OperatorStateMode.BROADCAST, handle, offsets)
