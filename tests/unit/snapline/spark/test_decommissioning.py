"""TaskManagers on executors that Spark decommissions are replaced, drained and ended, in this order."""

from __future__ import annotations

import threading

import pytest

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import make_logger, silent_logger
from snapline.spark.decommissioning import Decommissioning


class Cluster:
    """Stands for the pool and for the coordinator; notes what both are asked."""

    def __init__(self, *leaving: str) -> None:
        self.there = list(leaving)
        self.asked: list[str] = []
        self.refusals: dict[str, str] = {}

    def leaving(self) -> list[str]:
        return list(self.there)

    def replace(self, resource_id: str) -> None:
        self.asked.append(f"replace {resource_id}")

    def end(self, resource_id: str) -> None:
        self.asked.append(f"end {resource_id}")
        self.there.remove(resource_id)

    def drain_task_manager(self, resource_id: str) -> list[str]:
        self.asked.append(f"drain {resource_id}")
        if resource_id in self.refusals:
            raise SnaplineError(self.refusals[resource_id])
        return ["job"]

    def close(self) -> None:
        self.asked.append("close")


def test_all_are_replaced_then_each_is_drained_and_ended() -> None:
    """Others may be waited for as long as the slots of the first ones are."""
    cluster = Cluster("tm-1", "tm-2")
    watch = Decommissioning(cluster, lambda: cluster, silent_logger())
    watch.turn()
    watch.turn()
    assert cluster.asked == [
        *("replace tm-1", "replace tm-2"),
        *("drain tm-1", "close", "end tm-1"),
        *("drain tm-2", "close", "end tm-2"),
    ]


def test_who_cannot_leave_stays_and_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is said once, and again when it is another one; it is never ended, so that nothing is worse."""
    cluster = Cluster("tm-1")
    watch = Decommissioning(cluster, lambda: cluster, make_logger("test", "warning"))
    for reason in ("2 slots required, 1 available", "2 slots required, 1 available", "the job is RESTARTING"):
        cluster.refusals["tm-1"] = reason
        watch.turn()
    lines = capsys.readouterr().err.splitlines()
    assert [reason in line for reason, line in zip(("2 slots", "RESTARTING"), lines, strict=True)] == [True, True]
    assert "end tm-1" not in cluster.asked
    cluster.refusals.clear()
    watch.turn()
    assert cluster.asked[-1] == "end tm-1"


def test_a_drain_that_waits_for_slots_does_not_hold_up_the_end() -> None:
    """The call is over when its connection is."""
    begun, closed = threading.Event(), threading.Event()

    class Waits(Cluster):
        def drain_task_manager(self, resource_id: str) -> list[str]:
            begun.set()
            assert closed.wait(60)
            raise SnaplineError("cancelled")

        def close(self) -> None:
            closed.set()

    cluster = Waits("tm-1")
    watch = Decommissioning(cluster, lambda: cluster, silent_logger())
    watch.start()
    assert begun.wait(60)
    watch.stop(60)
    assert "end tm-1" not in cluster.asked
    assert "decommissioning" not in [thread.name for thread in threading.enumerate()]
