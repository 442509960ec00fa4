"""Rows of any columns as bytes, and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.cell_encoding import check_encodable, decode_rows, encode_rows, skip_cells

PAIR = pa.struct([pa.field("n", pa.int16()), pa.field("texts", pa.large_list(pa.string()))])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-9, 9),
    pa.float32(): st.sampled_from([0.5, -1.0]),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.just(dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
    pa.string(): st.text(max_size=3),
    pa.large_binary(): st.binary(max_size=3),
    pa.binary(2): st.sampled_from([b"ab", b"cd"]),
    pa.decimal128(9, 2): st.sampled_from([Decimal("1.25"), Decimal("-7.00")]),
    pa.null(): st.none(),
}
VALUES[PAIR] = st.fixed_dictionaries({"n": VALUES[pa.int64()], "texts": st.lists(st.text(max_size=2), max_size=3)})
VALUES[pa.list_(PAIR)] = st.lists(VALUES[PAIR], max_size=3)
VALUES[pa.map_(pa.string(), pa.large_list(pa.int64()))] = st.lists(
    st.tuples(st.text(max_size=2), st.lists(VALUES[pa.int64()], max_size=3)), max_size=3
)


@given(st.data())
def test_rows_come_back(data: st.DataObject) -> None:
    """All types, nulls among them, slices, any order of rows."""
    types = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    length = data.draw(st.integers(0, 6))
    first = data.draw(st.integers(0, 2))
    columns = []
    for data_type in types:
        values = data.draw(
            st.lists(st.one_of(st.none(), VALUES[data_type]), min_size=first + length, max_size=first + length)
        )
        columns.append(pa.array(values, data_type).slice(first))
    offsets, encoded = encode_rows(columns)
    order = np.array(data.draw(st.permutations(range(length))), np.int64)
    skipped = data.draw(st.integers(0, len(types)))

    starts = offsets[:-1][order]
    decoded = decode_rows(types, encoded, starts)
    others = decode_rows(types[skipped:], encoded, skip_cells(types[:skipped], encoded, starts))

    assert [column.to_pylist() for column in decoded] == [
        column.take(pa.array(order, pa.int64())).to_pylist() for column in columns
    ]
    assert [column.type for column in decoded] == types
    for column in decoded:
        column.validate(full=True)
    assert [column.to_pylist() for column in others] == [column.to_pylist() for column in decoded[skipped:]]


def test_what_has_no_cells_is_refused_by_name() -> None:
    """Before anything is written."""
    check_encodable("fine", pa.large_list(PAIR))
    with pytest.raises(StateError, match=r"state 'odd' of type .*run_end_encoded.* hashmap"):
        check_encodable("odd", pa.list_(pa.run_end_encoded(pa.int32(), pa.string())))
