"""A stateful job that is fed something wrong after its first checkpoint: what, is chosen by name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl
from snapline.connectors.builtin.scripted import AwaitCheckpoint, ScriptedSource, Stall
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.api.functions import KeyedProcessFunction

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])
GOOD = pa.record_batch({"k": range(10), "v": range(10), "t": range(1000, 1010)}, SCHEMA)
MARK = -1
"""A row with this value is made wrong on its way."""
BAD = pa.record_batch({"k": [3], "v": [MARK], "t": [2000]}, SCHEMA)


class Keep(KeyedProcessFunction):
    """Keeps the last value per key."""

    def __init__(self, case: str) -> None:
        self.case = case

    def open(self, context: Any) -> None:
        """One state."""
        self.kept = context.get_state(sl.ValueStateDescriptor("kept", pa.int64()))

    def process_element(self, row: dict[str, Any], context: Any) -> None:
        """In one case the value is an object that no state can hold."""
        self.kept.update(object() if row["v"] == MARK and self.case == "unserializable" else row["v"])


def spoiled(case: str) -> Any:
    """What happens to the marked row before it is keyed."""

    def spoil(batch: pa.RecordBatch) -> pa.RecordBatch:
        if MARK not in batch.column("v").to_pylist():
            return batch
        match case:
            case "key type":
                return batch.set_column(0, "k", pc.cast(batch.column("k"), pa.string()))
            case "key column gone":
                return batch.rename_columns(["key", "v", "t"])
            case "null event time":
                return batch.set_column(2, "t", pa.nulls(batch.num_rows, pa.int64()))
            case "event time unit":
                return batch.set_column(2, "t", pa.array([1_700_000_000_000_000_000] * batch.num_rows))
        return batch

    return spoil


def build(environment: sl.StreamExecutionEnvironment, case: str) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    source = environment.from_source(ScriptedSource([GOOD, AwaitCheckpoint(), BAD, Stall()]), uid="script")
    stream = source.map_batches(spoiled(case), uid="spoil").assign_timestamps_and_watermarks(
        sl.WatermarkStrategy.for_monotonous_timestamps("t"), uid="watermarks"
    )
    stream.key_by("k").process(Keep(case), uid="keep").sink_to(DiscardingSink(), uid="sink")
    return environment
