"""Who floods a coordinator with messages is read more slowly."""

from __future__ import annotations

from snapline.runtime.cores.message_budget import BURST, PER_SECOND, MessageBudget


def test_a_wave_passes_and_a_flood_is_slowed() -> None:
    """What a TaskManager says at once is read at once, again after a second; 780,000 messages take their time, and when
    they are read the budget comes back."""
    budget = MessageBudget(0.0)
    assert 0.0 == budget.spend(BURST, 0.0)
    assert 0.0 == budget.spend(PER_SECOND, 1.0)

    now_s = 1.0
    for _envelope in range(780):
        now_s += budget.spend(1_000, now_s)
    assert now_s > 1.0 + 780_000 / PER_SECOND - 1
    assert 0.0 == budget.spend(BURST, now_s + BURST / PER_SECOND)


def test_silence_saves_no_more_than_one_wave() -> None:
    """After a day as after a second."""
    budget = MessageBudget(0.0)

    assert 1.0 == budget.spend(BURST + PER_SECOND, 86_400.0)
