"""What a ListState knows of lists as Python objects: of each key the stored elements that were decoded, from the first
on, and what a batch makes of them.

Decides whether a list that a function puts back is part of the one that it was given, so that nothing has to be encoded
or decoded for that part, and which lists are forgotten between batches. Elements are told apart by being the same
objects, not equal ones, and a struct, which a function may have changed in place, is given as a copy and compared with
what is stored. It knows no columns: ListState keeps both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import pyarrow as pa

from snapline.taskmanager.state.keyed_state import apart

KNOWN_ELEMENTS = 1 << 18
"""Elements that are kept as Python objects between batches, per state and subtask: some 80 MB of structs."""


class KnownList:
    """The list of one key of the batch: `stored[first:end]` of what is in columns, and then `added`."""

    __slots__ = ("added", "end", "first", "given", "is_cut", "stored")

    def __init__(self, added: list[Any] | None = None) -> None:
        """`added`: what the batch has added so far; it is taken over."""
        self.stored: list[Any] | None = None
        """None as long as nothing has asked for it; only `added` and `is_cut` count then."""
        self.first = self.end = 0
        self.added: list[Any] = [] if added is None else added
        self.is_cut = False
        """Whether nothing of what is stored stays."""
        self.given: list[Any] | None = None
        """What a function was given last: the same objects, in the order of the list."""

    def take_stored(self, stored: list[Any]) -> None:
        """Take what is in columns, which was asked for after something was added."""
        self.stored, self.end = stored, len(stored)

    def give(self, *, copies: bool) -> list[Any]:
        """The whole list, for a function; with `copies`, the elements are dictionaries that it may change, and that are
        in rows which it has put out."""
        if copies or self.given is None:
            whole = self.added if self.stored is None else self.stored[self.first : self.end] + self.added
            self.given = [apart(each, flat=True) for each in whole] if copies else whole.copy()
        return self.given.copy()

    def add(self, value: Any) -> None:
        """Append an element at the end of the list."""
        self.added.append(value)
        if self.given is not None:
            self.given.append(value)

    def replace(self, values: Iterable[Any], keep: Callable[[Any], Any] | None, *, compares: bool) -> None:
        """Let the list be these values. With `compares`, what is stored stays of those that begin it: only for elements
        that do not change in place, or whose copies were given. `keep` makes of the others what is kept of them."""
        values = list(values)
        stored = self.end - self.first
        position, same = self._run(values) if compares and (stored or keep is not None) else (0, 0)
        stays = max(0, min(position + same, stored) - position)
        first = self.first + position
        if stays and values[:stays] != (self.stored or [])[first : first + stays]:
            stays = same = 0  # a struct was changed in place
        begin = max(0, position - stored)
        reused = self.added[begin : begin + same - stays]
        if values[stays:same] != reused:
            reused = []
        if stays:
            self.first, self.end = first, first + stays
        else:
            self.first = self.end = 0
            self.is_cut = True
        fresh = values[stays + len(reused) :]
        self.added = reused + (fresh if keep is None else [keep(value) for value in fresh])
        self.given = values[:stays] + self.added

    def _run(self, values: list[Any]) -> tuple[int, int]:
        """Where in what was given the values begin, and how many of them follow one another there; zeros if they are no
        such part."""
        given = self.given
        if not given or not values:
            return 0, 0
        head = values[0]
        position = next((place for place, each in enumerate(given) if each is head), len(given))
        length = min(len(values), len(given) - position)
        if not all(map(is_, values, given[position : position + length])):
            return 0, 0
        return position, length


class KeptLists:
    """Decoded elements by slot that are kept between batches, each time the first ones of the key's list: two
    generations; what is not used while one fills up is forgotten."""

    __slots__ = ("_old", "_size", "_young")

    def __init__(self) -> None:
        self._young: dict[int, list[Any]] = {}
        self._old: dict[int, list[Any]] = {}
        self._size = 0

    def take(self, slot: int) -> list[Any]:
        """What is known of a key's list, which is not kept any more; empty if nothing is."""
        known = self._young.pop(slot, None)
        if known is None:
            return self._old.pop(slot, None) or []
        self._size -= len(known) + 1
        return known

    def keep(self, slot: int, stored: list[Any]) -> None:
        """Keep these decoded elements for the batches that follow."""
        self.take(slot)
        self._young[slot] = stored
        self._size += len(stored) + 1
        if self._size > KNOWN_ELEMENTS // 2:
            self._young, self._old, self._size = {}, self._young, 0

    def forget(self, slots: Sequence[int]) -> None:
        """Keep nothing of these keys' lists from now on."""
        if self._young or self._old:
            for slot in slots:
                self.take(slot)


def may_be_kept(element_type: pa.DataType) -> bool:
    """Whether Python objects of this type do not change in place, or are dictionaries of such: then a copy is given."""
    if pa.types.is_struct(element_type):
        return not any(pa.types.is_nested(field.type) for field in element_type)
    return not pa.types.is_nested(element_type)
