"""Rows without an order are compared by how often each comes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.testing import assert_same_rows

NAN = float("nan")


def test_order_does_not_matter():
    """Neither of rows nor of columns; tables, lists within rows and NaN count by value."""
    assert_same_rows(pa.table({"a": [1.0, NAN], "b": [["x"], []]}), [{"b": [], "a": NAN}, {"a": 1.0, "b": ["x"]}])
    assert_same_rows([], pa.table({}))


def test_how_often_a_row_comes_counts():
    """The message says what is missing and what is too much, and how often."""
    with pytest.raises(AssertionError) as caught:
        assert_same_rows([{"n": 1}] * 3 + [{"n": 5}], [{"n": 1}, {"n": 2}, {"n": 5}])
    assert (
        "the rows differ: 1 missing, 2 too many (4 rows, 3 expected)\n"
        "  missing:  {'n': 2}\n"
        "  too many: {'n': 1} (2 times)"
    ) == str(caught.value)


def test_a_long_difference_is_cut():
    """Ten rows of each kind, and the number of the others."""
    with pytest.raises(AssertionError) as caught:
        assert_same_rows([], [{"n": number} for number in range(25)])
    lines = str(caught.value).splitlines()
    assert (12, "  missing:  ... and 15 other rows") == (len(lines), lines[-1])
