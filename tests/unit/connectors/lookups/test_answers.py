"""What look-ups keep: for how long, how many, and what is forgotten first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from snapline.connectors.lookups.answers import KeptAnswers
from snapline.connectors.lookups.waiting_keys import WaitingKeys

ROW = [{"town": "Aachen"}]


def test_answers_hold_for_their_time() -> None:
    """One without rows for another time than one with."""
    kept = KeptAnswers(10, found_ms=100, absent_ms=20)
    kept.put("a", ROW, 1_000)
    kept.put("b", (), 1_000)

    assert (ROW, ()) == (kept.get("a", 1_019), kept.get("b", 1_019))
    assert (ROW, None) == (kept.get("a", 1_020), kept.get("b", 1_020))
    assert (None, 0) == (kept.get("a", 1_100), len(kept))


def test_what_was_not_asked_for_the_longest_is_forgotten_first() -> None:
    """There are never more than the bound."""
    kept = KeptAnswers(2, 100, 100)
    for key in "ab":
        kept.put(key, ROW, 0)
    kept.get("a", 0)
    kept.put("c", ROW, 0)
    kept.put("c", ROW, 50)

    assert [ROW, None, ROW] == [kept.get(key, 60) for key in "abc"]
    assert (ROW, 2) == (kept.get("c", 120), len(kept))


@pytest.mark.parametrize("kept", [KeptAnswers(0, 100, 100), KeptAnswers(9, 0, 0)])
def test_nothing_is_kept_when_that_is_asked_for(kept: KeptAnswers) -> None:
    """Neither without room nor without time."""
    kept.put("a", ROW, 0)
    assert (None, 0) == (kept.get("a", 0), len(kept))


class Service:
    """Answers a question when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self, worker: int, keys: Sequence[int]) -> Mapping[int, Any]:
        """Ten times the key."""
        self.asked.append((worker, list(keys)))
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return {key: 10 * key for key in keys}


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_keys_that_come_meanwhile_are_asked_for_together() -> None:
    """By as many workers as there are, so many at a time, and each key once."""

    async def run() -> None:
        service = Service()
        keys = WaitingKeys(service.ask, workers=2, most=3)
        answers = [asyncio.ensure_future(keys.answer(1))]
        await settle()
        answers += [asyncio.ensure_future(keys.answer(key)) for key in (1, 2, 3, 2, 4, 5, 6)]
        await settle()
        assert [[1], [2, 3, 4]] == [asked for _, asked in service.asked]
        assert 2 == len({worker for worker, _ in service.asked})
        service.go_on.set()
        assert [10, 10, 20, 30, 20, 40, 50, 60] == await asyncio.gather(*answers)
        assert [[1], [2, 3, 4], [5, 6]] == [asked for _, asked in service.asked]
        assert 70 == await keys.answer(7)

    asyncio.run(run())


def test_a_failure_is_that_of_every_row_of_the_question_and_is_not_remembered() -> None:
    """The next one asks again."""

    async def run() -> None:
        service = Service()
        service.error = ValueError("no")
        service.go_on.set()
        keys = WaitingKeys(service.ask, workers=1, most=9)
        failed = await asyncio.gather(*(keys.answer(key) for key in (1, 2, 1)), return_exceptions=True)
        assert [service.error] * 3 == failed
        service.error = None
        assert 10 == await keys.answer(1)

    asyncio.run(run())


def test_a_row_that_is_given_up_leaves_the_answer_to_the_others() -> None:
    """Also when it was the one that asked."""

    async def run() -> None:
        service = Service()
        keys = WaitingKeys(service.ask, workers=1, most=9)
        first, second = (asyncio.ensure_future(keys.answer(1)) for _ in range(2))
        await settle()
        first.cancel()
        await settle()
        service.go_on.set()
        assert (10, True) == (await second, first.cancelled())

    asyncio.run(run())
