"""Two-phase commit with a crash at every point between write and commit: the output is that of a run without it.

write -> pre-commit (barrier) -> acknowledge -> complete (durable) -> notify -> commit: the job crashes behind each of
these, and in the middle of the commit, and goes on from the newest complete checkpoint. Both kinds of sink, aligned and
unaligned, with a second checkpoint that had been committed before or without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from snapline.dataflow.api.connector_api import Committable, Committer
from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction
from snapline.dataflow.elements import AlignmentType
from snapline.dataflow.graph.operator_specs import SinkFunctionSpec, SinkSpec, SourceSpec
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ExecutionState
from tests.unit.taskmanager.task.local_job import (
    Completed,
    Gates,
    ListSource,
    LocalJob,
    Operator,
    Outside,
    StagingCommitter,
    StagingSink,
    batch,
    edge,
)

POINTS = (
    "write",
    "pre-commit",
    "acknowledgement of one",
    "acknowledgement of all",
    "completion",
    "notification of one",
    "half of the commit",
    "commit without its answer",
    "commit",
)


class Fate:
    """How commits go now."""

    dies: ClassVar[str] = ""
    """`before` or `after` the next transaction is made visible."""

    @classmethod
    def commit(cls, publish: Any) -> None:
        dies, cls.dies = cls.dies, ""
        if dies == "before":
            raise ConnectionError("the process died in the commit")
        publish()
        if dies == "after":
            raise ConnectionError("the process died before it knew")


class MortalCommitter(StagingCommitter):
    def commit(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            Fate.commit(lambda committable=committable: super(MortalCommitter, self).commit([committable]))


class MortalSink(StagingSink):
    def create_committer(self, context: Any) -> Committer:
        return MortalCommitter(self.name)


class Transactions(TwoPhaseCommitSinkFunction):
    """The same outside system, seen by a function."""

    written: ClassVar[dict[str, list[Any]]] = {}

    def begin_transaction(self) -> str:
        key = f"t{len(self.written)}"
        self.written[key] = []
        return key

    def invoke_transaction(self, transaction: str, value: Any) -> None:
        self.written[transaction].append(value)

    def pre_commit(self, transaction: str) -> None:
        """Written already."""

    def commit(self, transaction: str) -> None:
        def publish() -> None:
            if transaction not in Outside.commits:
                Outside.commits.append(transaction)
                Outside.committed.setdefault("out", []).extend(self.written[transaction])

        Fate.commit(publish)

    def abort(self, transaction: str) -> None:
        self.written[transaction].clear()


@pytest.fixture(autouse=True)
def clean() -> None:
    Outside.reset()
    Fate.dies = ""
    Transactions.written = {}


def job(kind: str, unaligned: bool, restored: Completed | None = None, attempt: int = 0) -> LocalJob:
    """Rows of three splits, the second and third behind gates, and two sinks that share them."""
    splits = [[batch(v=[4 * split + row]) for row in range(4)] for split in range(3)]
    source = ListSource(splits, {"s1": 0, "s2": 0})
    spec = SinkSpec(MortalSink("out")) if kind == "sink" else SinkFunctionSpec(Transactions())
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits())),
        Operator("sink", spec, [edge(0, Partitioning.REBALANCE)], parallelism=2),
    ]
    settings = {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.unaligned.enabled": str(unaligned).lower(),
    }
    return LocalJob(operators, settings, restored=restored, attempt=attempt)


def visible() -> list[int]:
    return sorted(row["v"] for row in Outside.rows("out"))


@pytest.mark.parametrize("earlier", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("kind", ["sink", "function"])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_neither_loses_nor_repeats(point: str, kind: str, unaligned: bool, earlier: bool) -> None:
    """Nothing is visible that did not complete; everything is, once, in the end."""
    running = job(kind, unaligned).run()
    alignment = AlignmentType.UNALIGNED if unaligned else AlignmentType.ALIGNED
    newest = running.checkpoint(alignment=alignment) if earlier else None
    Gates.opened.add("s1")
    running.find("src").world.awake = True
    running.run()
    before = visible()
    assert before == (list(range(4)) if earlier else [])

    newest = crash_behind(point, running, alignment, newest)

    if POINTS.index(point) < POINTS.index("notification of one"):
        assert visible() == before, "something is visible that was not confirmed"
    elif point == "commit":
        assert visible() == list(range(8))
    running.crash()
    Fate.dies = ""
    Gates.opened.add("s2")
    job(kind, unaligned, newest, attempt=1).run_to_end(checkpoints=True)
    assert visible() == list(range(12))


def crash_behind(point: str, running: LocalJob, alignment: AlignmentType, newest: Completed | None) -> Completed | None:
    """Come to this point of a checkpoint. Returns what the job goes on from."""
    sinks = [running.find("sink", index) for index in range(2)]
    if point == "write":
        return newest
    if point in ("pre-commit", "acknowledgement of one"):
        for sink in sinks[0 if point == "pre-commit" else 1 :]:
            sink.world.snapshot_sink.hold = True
        running.trigger(alignment=alignment)
        running.run()
        assert len([a for sink in sinks for a in sink.world.acknowledged]) % 2 == (point != "pre-commit")
        return newest
    checkpoint_id = running.trigger(alignment=alignment)
    running.run()
    if point == "acknowledgement of all":
        return newest
    newest = running.complete(checkpoint_id, notify=False)
    if point == "completion":
        return newest
    Fate.dies = {"half of the commit": "before", "commit without its answer": "after"}.get(point, "")
    sinks[0].notify_complete(checkpoint_id)
    running.run()
    assert (sinks[0].state is ExecutionState.FAILED) == (point in ("half of the commit", "commit without its answer"))
    if point == "commit":
        sinks[1].notify_complete(checkpoint_id)
        running.run()
    return newest
