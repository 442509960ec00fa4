"""The values of a column as bytes, for stores that know no types: bytes as they are, all else as text in UTF-8.

Decides which types have no text, and that a moment of a year that Arrow cannot write is refused, since the text in its
place would be taken for the value. It does not know stores.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.files.filesystems import first_line
from snapline.dataflow.errors import ConnectorError

BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
OUT_OF_RANGE = "out of range"
"""What Arrow writes instead of such a year."""


def texts_of_values(column: pa.Array, what: str) -> list[bytes | None]:
    """Each value as bytes; null stays null. `what`: how an error calls the column. Raises ConnectorError for a type
    without a text.

    >>> from snapline.connectors.texts_of_values import texts_of_values
    >>> texts_of_values(pa.array([1.5, None]), "sink: column 'n'"), texts_of_values(pa.array([b"a"]), "")
    ([b'1.5', None], [b'a'])
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise ConnectorError(f"{what} is {kind}; make it a text, or columns of their own")
    if any(is_kind(kind) for is_kind in BYTES):
        found: list[bytes | None] = column.to_pylist()
        return found
    if kind == pa.uuid():
        return [None if value is None else str(value).encode() for value in column.to_pylist()]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        _require_years(column, what)
    try:
        return [None if value is None else value.encode() for value in column.cast(pa.string()).to_pylist()]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConnectorError(
            f"{what} is {kind}, of which a value has no text ({first_line(error)}); cast it"
        ) from error


def _require_years(column: pa.Array, what: str) -> None:
    """Raise ConnectorError for a year that Arrow has no text of. With a zone it would write another one."""
    moments = column.cast(pa.timestamp(column.type.unit)) if pa.types.is_timestamp(column.type) else column
    is_beyond = pc.match_substring(moments.cast(pa.string()), OUT_OF_RANGE)
    if pc.any(is_beyond).as_py():
        count = moments[pc.index(is_beyond, True).as_py()].value
        raise ConnectorError(
            f"{what} has {count} ({column.type} since 1970), which is no year that can be written; correct it, or make it null, before the sink"
        )
