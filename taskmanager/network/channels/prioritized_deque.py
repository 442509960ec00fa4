"""A double-ended queue whose first elements have priority.

Decides only order: priority elements stand in front of all others, in the order of their arrival. It does not know what
the elements are and finds them by identity or a predicate of the caller. Mirrors Flink's PrioritizedDeque.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from snapline.runtime.cores.machine import check

T = TypeVar("T")


class PrioritizedDeque(Generic[T]):
    """All and only the first `num_priority_elements` elements have priority."""

    def __init__(self) -> None:
        self._elements: deque[T] = deque()
        self.num_priority_elements = 0
        """How many elements have priority."""

    def add(self, element: T, *, priority: bool = False) -> None:
        """At the end; with priority behind the earlier priority elements, in front of all others."""
        if not priority:
            self._elements.append(element)
            return
        self._elements.insert(self.num_priority_elements, element)
        self.num_priority_elements += 1

    def prioritize(self, element: T) -> None:
        """Give priority to an element; nothing happens if it has it. One that is not queued is added, as in Flink."""
        position = self._position(lambda other: other is element)
        if position is not None and position < self.num_priority_elements:
            return
        if position is not None:
            del self._elements[position]
        self.add(element, priority=True)

    def poll(self) -> T | None:
        """Remove and return the first element, None when there is none."""
        if not self._elements:
            return None
        if self.num_priority_elements:
            self.num_priority_elements -= 1
        return self._elements.popleft()

    def peek(self) -> T | None:
        """The first element, None when there is none."""
        return self._elements[0] if self._elements else None

    def get_and_remove(self, predicate: Callable[[T], bool]) -> T:
        """Remove and return the first element with this property. Raises InvariantViolation when there is none."""
        position = self._position(predicate)
        check(position is not None, "get_and_remove: no such element is queued")
        position = position or 0
        element = self._elements[position]
        del self._elements[position]
        if position < self.num_priority_elements:
            self.num_priority_elements -= 1
        return element

    def find(self, predicate: Callable[[T], bool]) -> T | None:
        """The first element with this property, None when there is none."""
        position = self._position(predicate)
        return None if position is None else self._elements[position]

    def clear(self) -> None:
        """Remove all elements of the deque."""
        self._elements.clear()
        self.num_priority_elements = 0

    def __iter__(self) -> Iterator[T]:
        """Iterate over the elements from front to back."""
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def _position(self, predicate: Callable[[T], bool]) -> int | None:
        return next((index for index, element in enumerate(self._elements) if predicate(element)), None)
