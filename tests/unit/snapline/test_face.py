"""What `import snapline as sl` gives, and what it leaves alone."""

from __future__ import annotations

import builtins

import pytest

import snapline as sl


def test_every_public_name_can_be_had():
    """Names are loaded when they are asked for: each of them exists where the table says."""
    assert [] == [name for name in sl.__all__ if not hasattr(sl, name)]


def test_a_star_import_leaves_python_alone():
    """`sum`, `min` and `max` of Python stay what they are in a program that says `from snapline import *`."""
    assert set() == set(sl.__all__) & set(vars(builtins))


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean"])
def test_aggregates_have_plain_names(name):
    """`sl.sum("v")` is the aggregate of that name over that column."""
    assert (name, "v") == (getattr(sl, name)("v").function, getattr(sl, name)("v").column)


@pytest.mark.parametrize("name", ["sum", "min", "max"])
def test_old_names_of_aggregates_name_the_new(name):
    """`from snapline import sum_` is refused with one line that says what the name is now."""
    with pytest.raises(ImportError) as caught:
        exec(f"from snapline import {name}_")
    assert f"snapline.{name}_ is called snapline.{name} now: import snapline as sl, and say sl.{name}" == str(
        caught.value
    )
