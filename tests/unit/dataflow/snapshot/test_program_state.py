"""Which states a program outside may have."""

from __future__ import annotations

import pytest

from snapline.dataflow.snapshot.program_state import StateRefused, check_states
from snapline.protos import external_pb2 as pb


def test_many_states_are_looked_at_once_each() -> None:
    """Sixty thousand names took half a minute of the coordinator, because each was counted among all others."""
    looked = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    class State:
        elements = uploaded = ()
        redistribution = pb.REDISTRIBUTION_SPLIT

        def __init__(self, number: int) -> None:
            self.name = Name(number)

    check_states([State(number) for number in range(200)], 1 << 20)  # type: ignore[misc]
    assert looked <= 1_000


def test_a_state_counts_for_more_than_its_name() -> None:
    """Half a million of them with a letter each are not free, and neither is one that has no element."""
    states = [pb.NamedState(name=str(number)) for number in range(10)]
    with pytest.raises(StateRefused, match="its state has 170 bytes, and 169 are allowed"):
        check_states(states, 169)
    check_states(states, 170)


def test_names_are_unique() -> None:
    """Two lists of one name would be one list afterwards."""
    with pytest.raises(StateRefused, match="a state has no name of its own: 'n'"):
        check_states([pb.NamedState(name="n"), pb.NamedState(name="m"), pb.NamedState(name="n")], 1_000)
    with pytest.raises(StateRefused, match="a state has no name of its own: ''"):
        check_states([pb.NamedState()], 1_000)
