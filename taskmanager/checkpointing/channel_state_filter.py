"""Reading data in flight back, after the parallelism changed: which rows of a restored batch are this subtask's.

On a hash edge several new subtasks may read the data that was on its way to one old subtask; each keeps the rows whose
key group it owns, so that every row is processed exactly once. On the producer's side the same batches are spread by
key again. It does not know files or which handles were assigned (`snapline.dataflow.snapshot.channel_state`). Flink
demultiplexes buffers into virtual channels first, because a record may span two of them; a batch is whole, so that a
row filter is all that is left of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.key_partition import assign_to_key_groups, split_batch
from snapline.dataflow.key_groups import KeyGroupRange


def own_rows(
    batch: pa.RecordBatch, key_columns: Sequence[str], max_parallelism: int, key_groups: KeyGroupRange
) -> pa.RecordBatch:
    """The rows of a restored input batch whose key group lies in the range, in order; the batch itself if all do."""
    columns = [batch.column(name) for name in key_columns]
    groups = assign_to_key_groups(columns, max_parallelism)
    own = (groups >= key_groups.start) & (groups <= key_groups.end)
    return batch if bool(np.all(own)) else batch.filter(pa.array(own))


def own_batches(
    batches: Sequence[pa.RecordBatch], key_columns: Sequence[str], max_parallelism: int, key_groups: KeyGroupRange
) -> list[pa.RecordBatch]:
    """`own_rows` of every batch, without those that end up empty."""
    kept = (own_rows(batch, key_columns, max_parallelism, key_groups) for batch in batches)
    return [batch for batch in kept if batch.num_rows > 0]


def spread_by_key(
    batches: Sequence[pa.RecordBatch], key_columns: Sequence[str], max_parallelism: int, subpartitions: int
) -> list[list[pa.RecordBatch]]:
    """Per subpartition of a hash edge the rows of restored output batches, in order, without empty batches."""
    spread: list[list[pa.RecordBatch]] = [[] for _ in range(subpartitions)]
    for batch in batches:
        for index, part in enumerate(split_batch(batch, key_columns, max_parallelism, subpartitions)):
            if part.num_rows > 0:
                spread[index].append(part)
    return spread
