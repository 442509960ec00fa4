"""Freezing arrays by slot without copying them: what a task is about to change is copied first, a page of slots at a
time.

`CopyOnWrite.freeze` costs nothing that grows with the arrays. From then on, until the frozen side has its own copy or
is dropped, `before_write(slots)` copies the pages of these slots that were not copied yet; everybody who writes calls
it first. The frozen side (an upload thread, once) copies what is live and puts the pages that were kept over it. The
two never wait for each other: a page is kept before it is noted as kept, noted before it is changed, and the frozen
side copies before it looks at what is noted, so what it may have read too late is always replaced. Where hardly
anything below the highest slot is written (rows that come at the end), the frozen side copies nothing at first, and
takes what it is asked for in the same way. An array that grows lies where it was, or is replaced by a new one, and
the old one does not change any more. Mirrors the idea of Flink's CopyOnWriteStateMap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, BytesArray
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.kernel import (
    I64,
    VOID,
    BOOLs,
    I64s,
    RO_BOOLs,
    RO_I32s,
    RO_I64s,
    RO_U8s,
    U8s,
    copy_bytes,
    kernel,
)
from snapline.dataflow.columnar.large_arrays import copied
from snapline.taskmanager.state.index.slots import Slots

_PAGE_BITS = 3
_PAGE = 1 << _PAGE_BITS
"""Eight words are one line of the cache: what is kept for a row at random is what its update reads anyway."""

Numbers = np.ndarray[Any, Any]


@kernel(I64(RO_I32s, I64, BOOLs, I64s))
def _fresh_pages(slots: Any, high: int, seen: Any, pages: Any) -> int:
    """The pages of these slots, as far as they are below `high`, that were not seen yet. Negative slots are skipped."""
    count = 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        if 0 <= slot < high:
            page = np.int64(slot) >> _PAGE_BITS
            if not seen[page]:
                seen[page] = True
                pages[count] = page
                count += 1
    return count


@kernel(VOID(RO_I64s, I64, RO_U8s, U8s))
def _copy_pages(pages: Any, page_bytes: int, source: Any, target: Any) -> None:
    """Copy these pages; the last one may be shorter."""
    for number in range(pages.shape[0]):
        start = pages[number] * page_bytes
        copy_bytes(source, start, target, start, min(page_bytes, target.shape[0] - start))


@kernel(VOID(RO_BOOLs, I64, RO_U8s, U8s))
def _put_back(kept: Any, page_bytes: int, source: Any, target: Any) -> None:
    """Copy the pages that were kept."""
    for page in range(kept.shape[0]):
        if kept[page]:
            start = page * page_bytes
            copy_bytes(source, start, target, start, min(page_bytes, target.shape[0] - start))


class FrozenArrays:
    """Arrays as they were when they were frozen."""

    __slots__ = ("__weakref__", "_copies", "_high", "_kept", "_live", "_result", "_seen", "_stays", "_widths")

    def __init__(self, arrays: Sequence[Numbers], high: int, widths: Sequence[int], *, stays: bool = False) -> None:
        self._high = high
        self._stays = stays
        self._widths = [array.itemsize * width for array, width in zip(arrays, widths, strict=True)]
        """Bytes for each slot of each array."""
        self._live: list[Numbers] | None = [array[: high * width] for array, width in zip(arrays, widths, strict=True)]
        self._copies: list[BytesArray] = []
        pages = (high + _PAGE - 1) >> _PAGE_BITS
        self._seen: BoolArray = np.zeros(pages, np.bool_)
        self._kept: BoolArray = np.zeros(pages, np.bool_)
        self._result: list[Numbers] = []

    @property
    def is_moving(self) -> bool:
        """Whether what is written has to be kept first."""
        return self._live is not None

    def keep(self, slots: Slots) -> None:
        """These slots are about to be written, by the only thread that writes."""
        live = self._live
        if live is None:
            return
        fresh = np.empty(min(len(slots), len(self._seen)), np.int64)
        pages = fresh[: _fresh_pages(slots, self._high, self._seen, fresh)]
        if not len(pages):
            return
        if not self._copies:
            self._copies = [np.empty(self._high * width, np.uint8) for width in self._widths]
        for array, copy, width in zip(live, self._copies, self._widths, strict=True):
            _copy_pages(pages, _PAGE * width, array.view(np.uint8), copy)
        self._kept[pages] = True

    def arrays(self) -> list[Numbers]:
        """The arrays; in one thread, which may be another one. From then on nothing is kept."""
        live = self._live
        if live is not None:
            result = [copied(array) for array in live]
            if self._kept.any():
                for array, copy, width in zip(result, self._copies, self._widths, strict=True):
                    _put_back(self._kept, _PAGE * width, copy, array.view(np.uint8))
            self._result = result
            self._live = None
        return self._result

    def at(self, slots: Slots) -> list[Numbers]:
        """The values of these slots, below `high`, in arrays of one element a slot; in one thread, as `arrays`."""
        live = self._live
        slots = np.ascontiguousarray(slots, np.int32)
        if live is None or not self._stays:
            return [gather_values(array, slots) for array in self.arrays()]
        values = [gather_values(array, slots) for array in live]
        replaced = np.flatnonzero(gather_values(self._kept, slots >> _PAGE_BITS))
        if len(replaced):
            for array, copy in zip(values, self._copies, strict=True):
                array[replaced] = copy.view(array.dtype)[slots[replaced]]
        return values


class CopyOnWrite:
    """The frozen sides of arrays that are indexed by the same slots."""

    __slots__ = ("_frozen",)

    def __init__(self) -> None:
        self._frozen: list[ref[FrozenArrays]] = []

    def freeze(
        self, arrays: Sequence[Numbers], high: int, widths: Sequence[int] | None = None, *, stays: bool = False
    ) -> FrozenArrays:
        """The first `high` slots as they are now. `widths`: elements per slot, 1 if not given. `stays`: hardly any of
        these slots is written as long as somebody reads them, so that `at` copies nothing but what it is asked for."""
        frozen = FrozenArrays(arrays, high, widths or [1] * len(arrays), stays=stays)
        self._frozen = [known for known in self._frozen if _moving(known) is not None]
        self._frozen.append(ref(frozen))
        return frozen

    @property
    def is_needed(self) -> bool:
        """Whether writers have to say so."""
        return bool(self._frozen)

    def before_write(self, slots: Slots) -> None:
        """These slots are about to be written."""
        if not self._frozen:
            return
        slots = np.ascontiguousarray(slots, np.int32)
        ended = False
        for known in self._frozen:
            frozen = _moving(known)
            if frozen is None:
                ended = True
            else:
                frozen.keep(slots)
        if ended:
            self._frozen = [known for known in self._frozen if _moving(known) is not None]


def _moving(known: ref[FrozenArrays]) -> FrozenArrays | None:
    frozen = known()
    return frozen if frozen is not None and frozen.is_moving else None
