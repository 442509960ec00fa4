"""Keyed state that an operator has made itself: what a backend has to know of it to let keys out of memory, and back
in.

An operator whose work is driven by time (windows, sessions, joins) cannot wait until a key's next row comes: a key that
has left memory has to be back when it is due. So such a state says, of values as they are stored, when that is; the
backend keeps these times, and loads the keys when the operator asks for what is due. It does not know what is done
then. Takes the place of the window timers of Flink's WindowOperator, which lie beside the state there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.taskmanager.state.keyed_state import KeyedState

NEVER_DUE = 2**63 - 1
NOTHING_DUE = 2**63
"""A time that is later than any event time."""


class AdoptedState(KeyedState):
    """Changes go by `KeyedStateBackend.slots` and `touch`, so that snapshots may be incremental."""

    def flush(self) -> None:
        """Nothing is done row by row."""

    def due_times(self, values: pa.Array) -> Int64Array:
        """For each of these values (of `get_batch`, or of an older declaration of the state) when the key has to be in
        memory at the latest; NEVER_DUE: only when it has rows. It depends on the value alone."""
        return np.full(len(values), NEVER_DUE)


def reduce_lists(values: Any, times: Int64Array, reducer: np.ufunc) -> Int64Array:
    """One time for each list or map, from those of the elements that `elements_of` gives; NEVER_DUE for one without
    any."""
    offsets = np.asarray(values.offsets).astype(np.int64)
    found = np.full(len(values), NEVER_DUE)
    rows = np.flatnonzero(np.diff(offsets))
    if len(rows):
        found[rows] = reducer.reduceat(times, offsets[rows] - offsets[0])
    return found


def elements_of(values: Any) -> tuple[pa.Array, pa.StructArray]:
    """Return the keys and items of maps, or the elements of lists twice."""
    first, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
    if pa.types.is_map(values.type):
        return values.keys.slice(first, end - first), values.items.slice(first, end - first)
    elements = values.values.slice(first, end - first)
    return elements, elements
