"""Random stories of keyed operators: batches, watermarks, restores and rescales between one and two subtasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from snapline.dataflow.columnar.key_partition import split_batch
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "g": st.integers(0, 2),
        "t": st.integers(-50, 120),
        "v": st.one_of(st.none(), st.integers(-1000, 1000)),
    }
)
SCHEMA = pa.schema([("k", pa.string()), ("g", pa.int32()), ("t", pa.int64()), ("v", pa.int64())])


def steps(row: Any = ROW, inputs: int = 1, rows: int = 12, size: int = 14) -> Any:
    """(input, rows), watermarks, "restore" and "rescale"."""
    batch = st.tuples(st.integers(0, inputs - 1), st.lists(row, max_size=rows))
    return st.lists(
        st.one_of(batch, batch, st.integers(-60, 130), st.sampled_from(["restore", "rescale"])), max_size=size
    )


def ms(time: Any) -> int:
    """Of a timestamp."""
    return round((time - type(time)(1970, 1, 1)).total_seconds() * 1000)


class Subtasks:
    """One or two subtasks of an operator, fed as a hash edge would."""

    def __init__(
        self,
        create: Callable[[], StreamOperator],
        keys: Sequence[Sequence[str]] = (("k", "g"),),
        schemas: Sequence[pa.Schema] = (SCHEMA,),
    ) -> None:
        self._create, self._keys, self._schemas = create, keys, schemas
        self.all = [Harness(create()).start()]
        self.side: dict[str, list[dict[str, Any]]] = {}
        self._checkpoints = 0

    def step(self, step: Any) -> list[dict[str, Any]]:
        """Rows emitted by the step; a checkpoint completes after it."""
        if isinstance(step, str):
            self._gather_sides()
            written = [one.snapshot(self._checkpoints + 1) for one in self.all]
            count = len(self.all) if step == "restore" else 3 - len(self.all)
            self.all = [
                Harness(self._create(), subtask=i, parallelism=count).start(restored_state(written)).work()
                for i in range(count)
            ]
        elif isinstance(step, tuple):
            index, rows = step
            batch = pa.RecordBatch.from_pylist(list(rows), schema=self._schemas[index])
            for one, part in zip(
                self.all, split_batch(batch, list(self._keys[index]), 128, len(self.all)), strict=True
            ):
                if part.num_rows:
                    one.operator.process_batch(part, index)
                    one.work()
        else:
            for one in self.all:
                one.watermark(step)
        self._gather_sides()
        self._checkpoints += 1
        for one in self.all:
            one.checkpoint(self._checkpoints)
        return [row for one in self.all for row in one.rows()]

    def _gather_sides(self) -> None:
        for one in self.all:
            for tag, batches in one.side.items():
                self.side.setdefault(tag, []).extend(row for batch in batches for row in batch.to_pylist())
            one.side.clear()
