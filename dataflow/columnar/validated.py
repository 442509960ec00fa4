"""Arrow data that comes from outside of the process, looked at before anybody computes with it.

Arrow's readers believe what a batch says of itself. An offset of a text column that points outside of its bytes is
found by nobody: a kernel reads foreign memory, or the process ends. So each batch from a peer or a file is validated
once, where it comes in: lengths, offsets, UTF-8, indices of dictionaries. Columns of fixed width cost nothing, texts
about 3 ns each. A changed number is no damage that can be seen here: files have checksums, connections have TLS.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

DAMAGE = (pa.ArrowException, EOFError, OSError, ValueError, OverflowError)
"""What reading damaged Arrow data raises."""


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself, which is sound. Raises pyarrow.ArrowInvalid, which names the column, for one that is not.

    >>> validated(pa.record_batch({"n": [1, 2]})).num_rows
    2
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(_explain(batch, error)) from None
    return batch


def _explain(batch: pa.RecordBatch, error: pa.ArrowInvalid) -> str:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as cause:
            return f"column {field.name} is damaged: {cause}"
    return str(error)


def check_names(schema: pa.Schema) -> None:
    """Raises UnicodeDecodeError, which is in DAMAGE, for a schema whose names are no UTF-8, however deep they lie."""
    for field in schema:
        _check_names_below(field)


def _check_names_below(field: pa.Field) -> None:
    field.name.encode()
    for index in range(field.type.num_fields):
        _check_names_below(field.type.field(index))


def read_batches(
    source: pa.BufferReader | bytes, options: pa.ipc.IpcReadOptions | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow stream, each of them validated. Raises what is in DAMAGE."""
    with pa.ipc.open_stream(source, options=options) as reader:
        check_names(reader.schema)
        for batch in reader:
            yield validated(batch)
