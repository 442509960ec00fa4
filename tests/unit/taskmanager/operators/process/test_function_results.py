"""What a function over batches may return, and what is refused by its own name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.taskmanager.operators.process.function_results import emit_result

COLUMNS = {"k": [1, 2]}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_is_refused_as_a_frame_and_not_as_what_it_iterates_over(library: str) -> None:
    """Its elements are names of columns, or columns: "not str" would tell nobody what was returned."""
    frame = pytest.importorskip(library, reason="a frame of its own is what is tested").DataFrame(COLUMNS)
    with pytest.raises(TypeError, match=r"not DataFrame$"):
        emit_result(frame, None, None)
    with pytest.raises(TypeError, match=r"not DataFrame$"):
        emit_result([frame], None, None)


def test_a_column_is_refused_as_a_column() -> None:
    """One array is no batch."""
    with pytest.raises(TypeError, match=r"not Int64Array$"):
        emit_result(pa.array([1]), None, None)
