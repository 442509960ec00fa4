"""State that came with a snapshot and is declared otherwise now: in a backend, and in the operators over it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from snapline.dataflow.api.functions import KeyedBatchProcessFunction, KeyedProcessFunction
from snapline.dataflow.api.state import ListStateDescriptor, ValueStateDescriptor
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import KeyedBatchProcessSpec, KeyedProcessSpec
from snapline.dataflow.snapshot.state_evolution import with_default
from snapline.taskmanager.operators.factory import create_operator
from snapline.taskmanager.operators.sources.push_source_operator import PushSourceRunner
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

pytestmark = pytest.mark.usefixtures("state_backend")

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
OLD = pa.schema([("n", pa.int32()), ("gone", pa.string())])
NEW = pa.schema([("n", pa.int64()), with_default(pa.field("tier", pa.string()), "basic")])
DROP = {"state.schema-evolution.drop-columns": "true", "pipeline.auto-watermark-interval": "0 ms"}


def no_source() -> PushSourceRunner:
    raise AssertionError("there is no source here")


class Profiles(KeyedProcessFunction):
    """Adds up per key, in a struct."""

    def __init__(self, profile: ValueStateDescriptor, seen: ListStateDescriptor) -> None:
        self.descriptors = profile, seen

    def open(self, context: Any) -> None:
        self.profile, self.seen = context.get_state(self.descriptors[0]), context.get_list_state(self.descriptors[1])

    def process_element(self, row, context):
        profile = self.profile.value() or {"n": 0}
        self.profile.update({**profile, "n": profile["n"] + row["n"]})
        self.seen.add(row["n"])
        yield {"k": row["k"], "n": self.profile.value()["n"], "tier": profile.get("tier"), "seen": self.seen.get()}


def operator(profile: pa.Schema, seen: pa.DataType) -> Any:
    function = Profiles(ValueStateDescriptor("profile", profile), ListStateDescriptor("seen", seen))
    output = pa.schema([*SCHEMA, ("tier", pa.string()), ("seen", pa.list_(pa.float64()))])
    return create_operator(KeyedProcessSpec(("k",), function, output), no_source)


def rows(*keys: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "n": 10 * key} for key in keys], SCHEMA)


@pytest.fixture
def before() -> list[Written]:
    """Two subtasks of the older job."""
    written = []
    for subtask in range(2):
        harness = Harness(operator(OLD, pa.int32()), subtask=subtask, parallelism=2).start()
        own = [
            key
            for key in range(20)
            if harness.context.key_group_range.start <= group_of(key) <= harness.context.key_group_range.end
        ]
        harness.process(rows(*own))
        written.append(harness.snapshot())
    return written


def group_of(key: int) -> int:
    from snapline.dataflow.columnar.key_partition import assign_to_key_groups

    return int(assign_to_key_groups([pa.array([key])], 128)[0])


def test_a_job_with_another_schema_goes_on(before) -> None:
    """Columns added, dropped and widened, at another parallelism; the next snapshot is of the new schema only."""
    harness = Harness(operator(NEW, pa.float64()), configuration=DROP).start(restored_state(before))
    found = harness.process(rows(*range(20))).rows()
    assert found == [{"k": k, "n": 20 * k, "tier": "basic", "seen": [10.0 * k, 10.0 * k]} for k in range(20)]
    again = Harness(operator(NEW, pa.float64())).start(restored_state([harness.snapshot()]))
    assert again.process(rows(3)).rows() == [{"k": 3, "n": 90, "tier": "basic", "seen": [30.0] * 3}]


def test_what_cannot_be_is_refused_by_column(before) -> None:
    """Without leave to drop; the file is not touched, and the older job still starts from it."""
    with pytest.raises(
        StateError, match=r"column 'profile.gone' \(string\) is in the snapshot and not in the job any more"
    ):
        Harness(operator(NEW, pa.float64())).start(restored_state(before))
    with pytest.raises(StateError, match="column 'seen' is int32 in the snapshot and string in the job"):
        Harness(operator(OLD, pa.string())).start(restored_state(before))
    assert Harness(operator(OLD, pa.int32())).start(restored_state(before)).process(rows(1)).rows()[0]["n"] == 20


class Totals(KeyedBatchProcessFunction):
    """The same in columns; the descriptor can only be seen when it is used."""

    def __init__(self, total: pa.DataType) -> None:
        self.make = lambda: ValueStateDescriptor("total", total)

    def process_batch(self, keys, batch, state):
        old = state.get(self.make()).fill_null(0)
        new = pa.array([one + 1 for one in old.to_pylist()], old.type)
        state.put(self.make(), new)
        return keys.columns.append_column("total", new.cast(pa.float64()))


def totals(total: pa.DataType, parallelism: int = 1, subtask: int = 0) -> Harness:
    spec = KeyedBatchProcessSpec(("k",), Totals(total))
    configuration = {"execution.checkpointing.incremental": "true", "pipeline.auto-watermark-interval": "0 ms"}
    return Harness(
        create_operator(spec, no_source), configuration=configuration, parallelism=parallelism, subtask=subtask
    )


def test_subtasks_that_went_over_at_different_times_fit_together() -> None:
    """One has seen rows of the newer job and written the wider type, the other has not yet."""
    harness = totals(pa.int32()).start().process(rows(*range(20)))
    written = harness.snapshot()
    first = totals(pa.float64(), 2, 0).start(restored_state([written]))
    first.process(rows(*[key for key in range(20) if group_of(key) < 64]))
    second = totals(pa.float64(), 2, 1).start(restored_state([written]))
    both = [first.snapshot(), second.snapshot()]
    for order in (both, both[::-1]):
        found = totals(pa.float64()).start(restored_state(order)).process(rows(*range(20))).rows()
        assert [row["total"] for row in found] == [3.0 if group_of(key) < 64 else 2.0 for key in range(20)]


def test_a_state_that_went_over_late_is_written_in_full() -> None:
    """A delta would build on files of the older type."""
    written = totals(pa.int32()).start().process(rows(*range(20))).snapshot()
    harness = totals(pa.float64()).start(restored_state([written]))
    harness.snapshot(1)
    harness.process(rows(1))
    part = harness.operator.snapshot_state(2, 0).keyed[0]
    assert part.references == ()
    part.encode()
    assert part._part is not None and part.rows == 20
