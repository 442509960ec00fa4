"""What passes between a pool of TaskManagers and its coordinator, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import make_logger, silent_logger
from snapline.spark.pool import Capacity
from snapline.spark.worker_reports import REPEAT_S, WARN_AFTER_S, WorkerReports


class PlayedPool:
    """What it is told, and what it says."""

    def __init__(self) -> None:
        self.now = Capacity(4, "all there is")
        self.ended: dict[str, str] = {}
        self.followed: list[tuple[int, int]] = []

    def capacity(self) -> Capacity:
        return self.now

    def take_ended(self) -> dict[str, str]:
        ended, self.ended = self.ended, {}
        return ended

    def put_back_ended(self, ended: Mapping[str, str]) -> None:
        self.ended = {**ended, **self.ended}

    def follow(self, required_slots: int, registered_slots: int) -> None:
        self.followed.append((required_slots, registered_slots))

    def wait_for_end(self, timeout_s: float) -> None:
        return

    def leaving(self) -> list[str]:
        return []

    def replace(self, resource_id: str) -> None:
        raise AssertionError(resource_id)

    def end(self, resource_id: str) -> None:
        raise AssertionError(resource_id)


class PlayedCoordinator:
    """Notes reports; away when told so."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, str, dict[str, str]]] = []
        self.needed = SimpleNamespace(required_slots=2, registered_slots=1)
        self.away = False

    def report_workers(
        self, launcher_id: str, available_slots: int, reason: str, ended: Mapping[str, str], *, closed: bool = False
    ) -> None:
        self._answer()
        self.reports.append((available_slots, reason, dict(ended)))

    def required_resources(self) -> Any:
        self._answer()
        return self.needed

    def drain_task_manager(self, resource_id: str) -> list[str]:
        raise AssertionError(resource_id)

    def close(self) -> None:
        return

    def _answer(self) -> None:
        if self.away:
            raise SnaplineError("away")


def test_changes_and_ends_are_told_at_once_and_all_again_after_a_while():
    """A new leader hears of it without asking."""
    pool, coordinator = PlayedPool(), PlayedCoordinator()
    reports = WorkerReports(pool, lambda: coordinator, silent_logger())
    reports.turn(0.0)
    reports.turn(1.0)
    pool.ended = {"tm-1": "crashed"}
    reports.turn(2.0)
    pool.now = Capacity(2, "no core")
    reports.turn(3.0)
    reports.turn(3.0 + REPEAT_S)

    assert coordinator.reports == [
        (4, "all there is", {}),
        (4, "all there is", {"tm-1": "crashed"}),
        (2, "no core", {}),
        (2, "no core", {}),
    ]
    assert pool.followed == [(2, 1)] * 5


def test_an_end_that_nobody_heard_of_is_told_to_the_next():
    """No coordinator answers for a while."""
    pool, coordinator = PlayedPool(), PlayedCoordinator()
    reports = WorkerReports(pool, lambda: coordinator, silent_logger())
    coordinator.away, pool.ended = True, {"tm-1": "crashed"}
    reports.turn(0.0)
    coordinator.away = False
    reports.turn(1.0)

    assert coordinator.reports == [(4, "all there is", {"tm-1": "crashed"})]


def test_too_few_slots_are_said_once_with_the_numbers(capsys):
    """In the log of the driver; again when the numbers change."""
    pool, coordinator = PlayedPool(), PlayedCoordinator()
    reports = WorkerReports(pool, lambda: coordinator, make_logger("test", "warning"))
    coordinator.needed = SimpleNamespace(required_slots=6, registered_slots=4)
    reports.turn(0.0)
    reports.turn(WARN_AFTER_S - 1.0)
    assert capsys.readouterr().err == ""
    reports.turn(WARN_AFTER_S)
    reports.turn(WARN_AFTER_S + 1.0)

    (line,) = capsys.readouterr().err.splitlines()
    assert "more slots than Spark gives" in line
    assert all(text in line for text in ('"required":6', '"available":4', "all there is")), line
