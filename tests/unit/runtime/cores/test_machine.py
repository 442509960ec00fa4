"""What a broken invariant does."""

from __future__ import annotations

import pytest

from snapline.runtime.cores.machine import InvariantViolation, check


@pytest.mark.parametrize("value", [0, "", [], {}])
def test_check_returns_a_value_that_is_there(value: object) -> None:
    """Empty and zero are values; only None and False break an invariant."""
    assert value == check(value, "it is there")


@pytest.mark.parametrize("value", [None, False])
def test_check_raises_for_what_is_missing_or_false(value: object) -> None:
    """The reason is the message."""
    with pytest.raises(InvariantViolation, match="open was called"):
        check(value, "open was called")
