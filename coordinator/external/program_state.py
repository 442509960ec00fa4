"""The state of a program outside, as operator state: named lists of elements, inline in the acknowledgement.

Decides which states a program may have; how they are dealt out when the number of tasks changes is the business of any
operator state. The bytes of an element mean nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from snapline.dataflow.ids import OperatorID
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    TaskStateSnapshot,
)
from snapline.protos import external_pb2 as pb

ELEMENT_OVERHEAD_BYTES = 16
"""What an element counts for besides its bytes, so that a million empty ones are not free."""

_MODES = {
    pb.REDISTRIBUTION_SPLIT: OperatorStateMode.SPLIT_DISTRIBUTE,
    pb.REDISTRIBUTION_UNION: OperatorStateMode.UNION,
    pb.REDISTRIBUTION_BROADCAST: OperatorStateMode.BROADCAST,
}
_REDISTRIBUTIONS = {mode: number for number, mode in _MODES.items()}


class StateRefused(Exception):
    """The state is none that a program may have; one line."""


def size_of(states: Iterable[pb.NamedState]) -> int:
    """How many bytes the states count for."""
    return sum(
        len(state.name) + sum(len(element) + ELEMENT_OVERHEAD_BYTES for element in state.elements) for state in states
    )


def task_state(operator_id: OperatorID, states: Sequence[pb.NamedState], max_bytes: int) -> TaskStateSnapshot:
    """What is acknowledged for a program. Raises StateRefused."""
    size = size_of(states)
    if size > max_bytes:
        raise StateRefused(
            f"its state has {size} bytes, and {max_bytes} are allowed (external.state.max-bytes of the coordinator): keep less, or "
            "keep it in a store of your own, and its version here"
        )
    names = [state.name for state in states]
    for state in states:
        if not state.name or names.count(state.name) > 1:
            raise StateRefused(f"a state has no name of its own: {state.name!r}")
        if state.redistribution not in _MODES:
            raise StateRefused(f"state {state.name!r} has the unknown redistribution {state.redistribution}")
    if not states:
        return TaskStateSnapshot()
    entries, blob, offset = [], [], 0
    for state in states:
        places = []
        for element in state.elements:
            places.append((offset, len(element)))
            blob.append(element)
            offset += len(element)
        entries.append(OperatorStateEntry(state.name, _MODES[state.redistribution], tuple(places)))
    handle = OperatorStateHandle(ByteStreamStateHandle(b"".join(blob)), tuple(entries))
    return TaskStateSnapshot({operator_id: OperatorSubtaskState(managed_operator=(handle,))})


def named_states(state: OperatorSubtaskState) -> list[pb.NamedState]:
    """What a program is given to begin with. Raises StateRefused for state that no program has written."""
    found: dict[str, pb.NamedState] = {}
    if state.managed_keyed or state.input_channel or state.output_channel:
        raise StateRefused("the snapshot holds state under this uid that no external task has written")
    for part in state.managed_operator:
        if not isinstance(part.handle, ByteStreamStateHandle):
            raise StateRefused("the snapshot holds state in files under this uid, and that of external tasks is inline")
        data = part.handle.data
        for entry in part.entries:
            states = found.setdefault(
                entry.name, pb.NamedState(name=entry.name, redistribution=_REDISTRIBUTIONS[entry.mode])
            )
            states.elements.extend(data[offset : offset + size] for offset, size in entry.offsets)
    return list(found.values())
