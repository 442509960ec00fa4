"""Order in the deque with priority, against a model of two lists."""

from __future__ import annotations

import random

import pytest

from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.prioritized_deque import PrioritizedDeque


class Item:
    """Told apart by identity only."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the deque must not compare elements: comparing batches is expensive")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("seed", range(20))
def test_behaves_like_two_lists(seed: int) -> None:
    """Priority elements in their order, then the others in theirs."""
    draw, deque = random.Random(seed), PrioritizedDeque[Item]()
    first: list[Item] = []
    rest: list[Item] = []
    for _ in range(200):
        match draw.randrange(5):
            case 0:
                rest.append(Item())
                deque.add(rest[-1])
            case 1:
                first.append(Item())
                deque.add(first[-1], priority=True)
            case 2 if rest:
                moved = rest.pop(draw.randrange(len(rest)))
                first.append(moved)
                deque.prioritize(moved)
            case 3 if first or rest:
                chosen = draw.choice(first + rest)
                (first if any(item is chosen for item in first) else rest)[:] = [
                    item for item in (first if any(item is chosen for item in first) else rest) if item is not chosen
                ]
                assert deque.get_and_remove(lambda item, c=chosen: item is c) is chosen  # type: ignore[misc]
            case 4:
                polled = deque.poll()
                expected = (first or rest).pop(0) if first or rest else None
                assert polled is expected

        assert [id(item) for item in deque] == [id(item) for item in first + rest]
        assert deque.num_priority_elements == len(first)


def test_what_is_not_queued_is_added_when_it_gets_priority() -> None:
    """Behind the others with priority."""
    deque = PrioritizedDeque[str]()
    for element in ("first", "rest"):
        deque.add(element, priority=element == "first")
    deque.prioritize("new")

    assert list(deque) == ["first", "new", "rest"]
    assert deque.num_priority_elements == 2


def test_what_is_not_queued_cannot_be_removed() -> None:
    """A defect of the caller."""
    deque = PrioritizedDeque[str]()

    with pytest.raises(InvariantViolation, match="no such element"):
        deque.get_and_remove(lambda _: True)
