"""What a row does to its key, as a column says: by truth values, or by Flink's kinds of rows.

Decides which columns say it, and that what is neither is refused, because a text that is not empty would be true. It
does not know sinks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from snapline.dataflow.errors import ConnectorError

SET, BEFORE, GONE = "+U", "-U", "-D"
KINDS = ("+I", SET, BEFORE, GONE)


def row_kinds(batch: pa.RecordBatch, column: str, what: str) -> Sequence[str]:
    """What each row does: `-D` deletes its key, `-U` is to be passed over, and all others set it. `column`: that says
    it; empty: all rows set their key. Raises ConnectorError for a column that is not there, or says something else.

    >>> from snapline.connectors.row_kinds import row_kinds
    >>> row_kinds(pa.RecordBatch.from_pydict({"gone": [True, None, False]}), "gone", "sink")
    ['-D', '+U', '+U']
    """
    if not column:
        return [SET] * batch.num_rows
    if column not in batch.schema.names:
        raise ConnectorError(f"{what}: the rows have no column {column!r} but {', '.join(batch.schema.names)}")
    said = batch.column(column)
    if pa.types.is_dictionary(said.type):
        said = said.cast(said.type.value_type)
    if pa.types.is_boolean(said.type):
        return [GONE if gone else SET for gone in said.to_pylist()]
    if not (pa.types.is_string(said.type) or pa.types.is_large_string(said.type)):
        raise ConnectorError(f"{what}: delete= names {column!r}, which is {said.type}; give truth values or row kinds")
    kinds: list[str] = said.to_pylist()
    if wrong := set(kinds) - set(KINDS):
        raise ConnectorError(f"{what}: {column!r} is {next(iter(wrong))!r} in a row; there are +I, +U, -U and -D")
    return kinds
