"""Adapter: scenarios of kind `pipeline`, end-to-end properties in words, against whole jobs of real tasks.

Each invariant named in an expectation is one check here. One that is named otherwise is prose to a program: when it
speaks of what these jobs do, all checks are made, and that of a whole job (exactly-once output, keyed state, data in
flight; crash and restore at the parallelisms of the configuration, aligned and unaligned). One that speaks of something
else is not passed over: it fails. The jobs run in one thread over the in-process exchange, and restore through the real
state assignment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any, ClassVar

import pyarrow as pa

from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.elements import AlignmentType
from snapline.dataflow.graph.operator_specs import MapBatchesSpec, RunningAggregateSpec, SinkSpec, SourceSpec
from snapline.dataflow.partitioning import Partitioning
from tests.conformance.replay import difference
from tests.unit.taskmanager.task.local_job import (
    Completed,
    ListSource,
    LocalJob,
    Operator,
    Outside,
    StagingSink,
    batch,
    edge,
)

CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}
RECORDS = 10


SUBJECTS = re.compile(
    r"state|offset|record|element|barrier|checkpoint|savepoint|snapshot|restor|recover|rescal|parallelism|exactly|once|lost|loss"
    r"|duplicat|doubled|twice|order|keyed|key.group|sum|count|commit|transaction|in.?flight|channel|unaligned|aligned|sink|source"
)
"""What the jobs of this file can show."""


class Recorder:
    """What the functions of the current job saw; they are pickled, so they cannot be asked."""

    split: ClassVar[list[list[int]]] = []
    union: ClassVar[list[list[int]]] = []
    restored: ClassVar[list[int]] = []
    received: ClassVar[list[int]] = []

    @classmethod
    def clear(cls) -> None:
        cls.split, cls.union, cls.restored, cls.received = [], [], [], []


class Parts:
    """Holds `subtask + 1` elements in each list state."""

    def open(self, context: Any) -> None:
        self.subtask = context.subtask_index

    def initialize_state(self, context: Any) -> None:
        self.split = context.operator_state_store.get_list_state("split")
        self.union = context.operator_state_store.get_union_list_state("union")
        Recorder.split.append(self.split.get())
        Recorder.union.append(self.union.get())

    def snapshot_state(self, context: Any) -> None:
        elements = [10 * self.subtask + position for position in range(self.subtask + 1)]
        self.split.update(elements)
        self.union.update(elements)

    def __call__(self, data: pa.RecordBatch) -> pa.RecordBatch:
        return data


class Ledger:
    """A sink whose state is every record that it has processed."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.operator_state_store.get_list_state("processed")
        self.processed: list[int] = list(self.state.get())
        Recorder.restored = list(self.processed)

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.processed)

    def __call__(self, data: pa.RecordBatch) -> None:
        values = data.column("v").to_pylist()
        self.processed.extend(values)
        Recorder.received.extend(values)


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines."""
    Outside.reset()
    failures: list[str] = []
    config = scenario.get("config", {})
    for number, case in enumerate(scenario["cases"]):
        for name, words in case["expect"].items():
            check = INVARIANTS.get(name)
            if check is None and not SUBJECTS.search(f"{name} {words}".lower()):
                failures.append(difference(number, name, words, "nothing: no job here shows that"))
                continue
            for one in [check] if check is not None else [*INVARIANTS.values(), _whole_job]:
                failures += [f"case {number}, {name}: {line}" for line in one(config)]
    return failures


# --- list state at another parallelism --------------------------------------------------------------------------------


def _rescale(old: int, new: int) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """(elements before, split elements by new subtask, union elements by new subtask)."""
    splits = [[batch(v=[split])] * 2 for split in range(old)]

    def job(parallelism: int, restored: Completed | None) -> LocalJob:
        source = ListSource(splits, {f"s{split}": 1 for split in range(old)})
        operators = [
            Operator("src", SourceSpec(source, source.spec_splits()), parallelism=old),
            Operator("parts", MapBatchesSpec(Parts()), [edge(0, Partitioning.REBALANCE)], parallelism),
        ]
        return LocalJob(operators, CHECKPOINTS, restored=restored)

    Recorder.clear()
    before = job(old, None)
    completed = before.run().checkpoint()
    before.crash()
    Recorder.clear()
    after = job(new, completed).run()
    after.raise_failures()
    split, union = Recorder.split, Recorder.union
    after.crash()
    return [10 * s + p for s in range(old) for p in range(s + 1)], split, union


def _split(config: dict[str, Any]) -> list[str]:
    failures = []
    for old, new in config.get("old_new", [[4, 3], [3, 4]]):
        before, split, _ = _rescale(old, new)
        after = sorted(element for part in split for element in part)
        if len(split) != new or after != sorted(before):
            failures.append(f"{old} -> {new}: expected the split elements {sorted(before)}, got {split}")
    return failures


def _union(config: dict[str, Any]) -> list[str]:
    failures = []
    for old, new in config.get("old_new", [[4, 3], [3, 4]]):
        before, _, union = _rescale(old, new)
        if len(union) != new or any(sorted(part) != sorted(before) for part in union):
            failures.append(f"{old} -> {new}: expected every subtask to hold {sorted(before)}, got {union}")
    return failures


# --- a record in flight between source and sink -----------------------------------------------------------------------


def _source_and_sink(*, chained: bool, restored: Completed | None, pause_after: int | None) -> LocalJob:
    source = ListSource(
        [[batch(v=[record]) for record in range(RECORDS)]], {} if pause_after is None else {"s0": pause_after}
    )
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("sink", MapBatchesSpec(Ledger()), [edge(0, Partitioning.FORWARD)]),
    ]
    settings = {**CHECKPOINTS, "pipeline.operator-chaining.enabled": str(chained).lower()}
    return LocalJob(operators, settings, restored=restored, max_queued_batches=RECORDS + 1)


def _runs(*, chained: bool) -> list[tuple[list[int], list[int]]]:
    """(records in the sink's snapshot, records emitted again after recovery), with the sink stopped after more and more
    records when the barrier leaves the source."""
    runs = []
    for emitted in range(1, RECORDS):
        Recorder.clear()
        job = _source_and_sink(chained=chained, restored=None, pause_after=emitted)
        source, sink = job.find("src"), job.find("sink")
        sink.paused = not chained
        job.run()
        checkpoint_id = job.trigger()
        source.world.awake = True
        job.run()
        sink.paused = False
        job.run()
        completed = job.complete(checkpoint_id)
        job.crash()
        Recorder.clear()
        again = _source_and_sink(chained=chained, restored=completed, pause_after=None)
        again.run_to_end(checkpoints=True)
        runs.append((list(Recorder.restored), list(Recorder.received)))
    return runs


def _rule(config: dict[str, Any]) -> list[str]:
    failures = []
    for chained in (True, False):
        for in_snapshot, replayed in _runs(chained=chained):
            if in_snapshot + replayed != list(range(RECORDS)):
                failures.append(
                    f"chained={chained}: expected each record in the snapshot or emitted again, once, got {in_snapshot} "
                    f"and {replayed}"
                )
    return failures


def _no_record_between(config: dict[str, Any]) -> list[str]:
    failures = []
    for chained in (True, False):
        for emitted, (in_snapshot, _) in enumerate(_runs(chained=chained), 1):
            if in_snapshot != list(range(emitted)):
                failures.append(f"chained={chained}: expected records up to the barrier, {emitted}, got {in_snapshot}")
    return failures


# --- a whole job ------------------------------------------------------------------------------------------------------


def _keyed_sums(parallelism: int, unaligned: bool, restored: Completed | None) -> LocalJob:
    """Source -> hash -> running sum per key -> sink of two phases, slower than the rest."""
    splits = [
        [batch(k=[(row + number) % 5 for row in range(5)], v=[split * 1000 + number * 10 + row for row in range(5)])
         for number in range(6)]
        for split in range(2)
    ]  # fmt: skip
    source = ListSource(splits, {} if restored is not None else {"s0": 4, "s1": 3})
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits()), parallelism=2),
        Operator(
            "sum",
            RunningAggregateSpec(("k",), (Aggregate("s", "sum", "v"), Aggregate("n", "count"))),
            [edge(0, Partitioning.HASH, ["k"])],
            parallelism,
        ),
        Operator("sink", SinkSpec(StagingSink("out")), [edge(1, Partitioning.REBALANCE)], parallelism),
    ]
    settings = {**CHECKPOINTS, "execution.checkpointing.unaligned.enabled": str(unaligned).lower()}
    settings["pipeline.operator-chaining.enabled"] = "false"
    return LocalJob(operators, settings, restored=restored, attempt=int(restored is not None), max_queued_batches=2)


def _whole_job(config: dict[str, Any]) -> list[str]:
    """A checkpoint while data waits before slow tasks, a crash before or after it was confirmed, and recovery."""
    failures = []
    pairs = config.get("old_new", [[2, 2], [2, 3], [3, 2]])
    for (old, new), unaligned, confirmed in product(pairs, (False, True), (False, True)):
        Outside.reset()
        job = _keyed_sums(old, unaligned, None)
        slow = [task for task in job.tasks if task.descriptor.operators[0].name in ("sum", "sink")]
        for task in slow:
            task.paused = task.descriptor.subtask_index == 0
        job.run()
        checkpoint_id = job.trigger(alignment=AlignmentType.UNALIGNED if unaligned else AlignmentType.ALIGNED)
        job.run()
        for task in slow:
            task.paused = False
        job.run()
        completed = job.complete(checkpoint_id, notify=confirmed)
        job.crash()
        again = _keyed_sums(new, unaligned, completed)
        again.run_to_end(checkpoints=True)
        counts: dict[int, list[int]] = {}
        for row in Outside.rows("out"):
            counts.setdefault(row["k"], []).append(row["n"])
        if {key: sorted(found) for key, found in counts.items()} != {key: list(range(1, 13)) for key in range(5)}:
            failures.append(f"{old} -> {new}, unaligned={unaligned}, confirmed={confirmed}: lost or doubled: {counts}")
    return failures


INVARIANTS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "split": _split,
    "union": _union,
    "rule": _rule,
    "no_record_between_barrier_and_snapshot": _no_record_between,
}
