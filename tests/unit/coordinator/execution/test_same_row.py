"""Poison rows: equal failures at one row are counted as long as nothing else fails in between."""

from __future__ import annotations

from snapline.coordinator.execution.same_row import SameRowFailures
from snapline.dataflow.failures import Blame, SerializedFailure


def failure(
    position="input 0, channel 0, batch 0 (rows 0 to 9 of this attempt), row 5 of the batch",
    blame=Blame.USER,
    text="x",
    row="",
):
    """What a user's function does at a row."""
    return SerializedFailure(text, blame, traceback="in f", operator_uid="map", position=position, row=row)


def verdicts(limit, *failures):
    """For one after the other."""
    row = SameRowFailures(limit)
    return [row.is_poison(each) for each in failures]


def test_the_third_equal_failure_is_poison():
    """In a row."""
    assert verdicts(3, failure(), failure(), failure()) == [False, False, True]


def test_another_failure_between_counts_anew():
    """Another row, another message, or a TaskManager that is lost."""
    for other in (failure(position="row 6 of the batch"), failure(text="y"), failure("", Blame.EXTERNAL)):
        assert verdicts(2, failure(), other, failure(), failure()) == [False, False, False, True]


def test_a_row_is_known_again_wherever_it_lies():
    """Another checkpoint and another order of channels give it another position; and a row of a source has none."""
    places = [f"input 0, channel 1, batch {n} (rows {n} to {n} of this attempt), row 0 of the batch" for n in range(3)]
    assert verdicts(3, *(failure(place, row="d1") for place in places)) == [False, False, True]
    assert verdicts(2, *(failure("source, row 0 of the batch", row=row) for row in ("d1", "d2", "d1"))) == [False] * 3


def test_a_service_that_is_away_is_no_poison():
    """Nor is what fails at no row."""
    away = failure(blame=Blame.EXTERNAL)
    nowhere = failure(position="")
    assert verdicts(2, away, away, away, nowhere, nowhere, nowhere) == [False] * 6


def test_it_can_be_switched_off():
    """With 0, any number of equal failures is tried again."""
    assert verdicts(0, failure(), failure(), failure(), failure()) == [False] * 4
