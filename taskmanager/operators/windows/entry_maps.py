"""Entries of keys (windows, sessions) as a column: a map per key, from the start of each of its entries to what the
entry holds.

Decides their order, by start, so that two snapshots of equal state are equal. It does not know what an entry is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, bitmap_of
from snapline.dataflow.columnar.gather import gather_values
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.chains import FrozenChains
from snapline.taskmanager.state.index.copy_on_write import FrozenArrays
from snapline.taskmanager.state.index.slots import Slots

Numbers = np.ndarray[Any, Any]


def by_start(offsets: Int64Array, entries: Slots, starts: Int64Array) -> tuple[Slots, Int64Array]:
    """Entries and their starts, each key's in order; most are already."""
    falls = np.flatnonzero(starts[1:] < starts[:-1]) + 1
    if len(falls) and not np.isin(falls, offsets).all():
        order = np.lexsort((starts, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))))
        return entries[order], starts[order]
    return entries, starts


def entry_maps(
    descriptor: MapStateDescriptor, offsets: Int64Array, starts: Int64Array, children: Sequence[pa.Array]
) -> pa.Array:
    """The column. `children`: of all entries; null for a key without any."""
    data_type = descriptor.storage_type
    items = pa.StructArray.from_arrays(list(children), fields=list(descriptor.element_type))
    pairs = pa.StructArray.from_arrays([pa.array(starts), items], fields=[data_type.key_field, data_type.item_field])
    buffers = [bitmap_of(np.diff(offsets) > 0), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, children=[pairs])


class FrozenEntryMaps:
    """Entries at one moment (FrozenState)."""

    def __init__(
        self,
        descriptor: MapStateDescriptor,
        chains: FrozenChains,
        numbers: FrozenArrays,
        columns: Sequence[FrozenColumn],
    ) -> None:
        """`numbers`: by entry, its start, then what stands behind the columns in an entry."""
        self._descriptor, self._chains, self._numbers, self._columns = descriptor, chains, numbers, columns

    def get(self, slots: Slots) -> pa.Array:
        """A map for each key."""
        starts_of, *others = self._numbers.arrays()
        offsets, entries = self._chains.entries(slots)
        entries, starts = by_start(offsets, entries, gather_values(starts_of, entries))
        children = [column.get(entries) for column in self._columns]
        children += [pa.array(other[entries]) for other in others]
        return entry_maps(self._descriptor, offsets, starts, children)

    def occupied(self) -> BoolArray:
        """For each slot, whether its key had entries."""
        return self._chains.occupied()
