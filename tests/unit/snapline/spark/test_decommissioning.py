"""TaskManagers on executors that Spark decommissions are replaced, drained and ended, in this order."""

from __future__ import annotations

import threading

import pytest

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import make_logger, silent_logger
from snapline.spark import decommissioning
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


def test_executors_that_are_told_to_go_while_a_drain_waits_are_replaced_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several that went one after the other only the first got another one in its stead before its time was up."""
    monkeypatch.setattr(decommissioning, "INTERVAL_S", 0.01)
    replaced = threading.Event()

    class Wave(Cluster):
        def drain_task_manager(self, resource_id: str) -> list[str]:
            if "tm-2" not in self.there:
                self.there.append("tm-2")
                assert replaced.wait(60)
            return super().drain_task_manager(resource_id)

        def replace(self, resource_id: str) -> None:
            super().replace(resource_id)
            if resource_id == "tm-2":
                replaced.set()

    cluster = Wave("tm-1")
    watch = Decommissioning(cluster, lambda: cluster, silent_logger())
    watch.turn()
    watch.turn()
    assert [said for said in cluster.asked if said.startswith("end")] == ["end tm-1", "end tm-2"]
