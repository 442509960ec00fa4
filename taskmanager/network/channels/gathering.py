"""Small batches that wait behind each other, handed out as one.

A batch of three rows costs a task as much as one of a thousand. A task that has fallen behind, by a checkpoint or by a
pause of the machine, would work through what waits batch by batch, and while it cannot do so as fast as batches come,
its queues stay full: rows then wait for as many batches as there is room for. Taking all that waits at once, it has
caught up with the next step, and what comes meanwhile is the next batch. Where nothing waits, nothing changes. A slow
consumer is given no more at once than without this: neither more rows than its gate lets through, nor more bytes than
the pieces into which batches are cut before it.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from snapline.dataflow.columnar.column_types import has_dictionaries, joined

GATHERED_ROWS = 1024
"""Batches are gathered up to so many rows; with as many, what a batch costs is little beside its rows."""


def gathered(
    first: pa.RecordBatch, most_rows: int, peek: Callable[[], object], take: Callable[[], None]
) -> pa.RecordBatch:
    """The batch with those that follow at once and have its schema, as long as all of them have `most_rows` at most.
    `peek` shows what follows, and `take` removes it."""
    rows = first.num_rows
    if rows >= most_rows:
        return first
    batches = [first]
    may_differ = None
    while isinstance(following := peek(), pa.RecordBatch):
        rows += following.num_rows
        if rows > most_rows or not following.schema.equals(first.schema, check_metadata=True):
            break
        batches.append(following)
        if may_differ is None:  # of wide rows this is asked once
            may_differ = has_dictionaries(first.schema)
        if may_differ:  # dictionaries may not go together: that shows when it is tried
            whole = joined(batches)
            if whole is None:
                return batches[0]
            batches = [whole]
        take()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
