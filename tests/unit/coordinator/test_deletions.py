"""Deletions that fail are tried again, for a while."""

from __future__ import annotations

from collections.abc import Callable

from snapline.coordinator.deletions import DELETE_PAUSES_MS, Deletions
from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.runtime.storage.storage_port import StorageError


class Desk:
    """Does slow work and fires timers at once; remembers the times."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.done = 0
        self.times: list[int] = []

    def now_ms(self) -> int:
        return 0

    def seconds_until(self, at_ms: int) -> float:
        return at_ms / 1000

    def submit(self, name, work, tell, failed, limit_ms=0):
        try:
            tell(work())
        except Exception as error:
            failed(error)

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.times.append(at_ms)
        callback()

    def work(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.done += 1


def test_storage_that_comes_back_gets_it() -> None:
    """With pauses that grow."""
    desk = Desk(StorageError("away"), StorageError("away"))
    Deletions(desk, desk, desk).delete_until_gone("x", desk.work)

    assert (desk.done, desk.times) == (1, list(DELETE_PAUSES_MS[:2]))


def test_storage_that_stays_away_is_given_up() -> None:
    """What is left costs space."""
    desk = Desk(*[StorageError("away")] * 9)
    Deletions(desk, desk, desk).delete_until_gone("x", desk.work)

    assert (desk.done, desk.times) == (0, list(DELETE_PAUSES_MS))


def test_who_does_not_lead_deletes_nothing_more() -> None:
    """The next leader does."""
    desk = Desk(LeadershipLost("another one leads"))
    Deletions(desk, desk, desk).delete_until_gone("x", desk.work)

    assert (desk.done, desk.times) == (0, [])
