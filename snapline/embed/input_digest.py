"""What a partition has read, as a digest that does not depend on how rows were cut into batches.

Decides which bytes of a row count: for columns their values and where nulls are, each in a stream of its own, so that
batches may end anywhere; for Python objects what `repr` says of them, without addresses. A core.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import xxhash

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class InputDigest:
    """Takes rows in, batch by batch or one by one, and says at any moment what they were."""

    def __init__(self) -> None:
        self.rows = 0
        self._hashes: dict[str, Any] = {}

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Take in rows that lie in columns."""
        for field, column in zip(batch.schema, batch.columns, strict=True):
            self._add_array(field.name, column)
        self.rows += batch.num_rows

    def add_row(self, row: Any) -> None:
        """Take in a row that is an object of Python."""
        text = repr(row)
        if " at 0x" in text:
            text = _ADDRESS.sub("", text)
        self._hash("row").update(text.encode(errors="backslashreplace") + b"\n")
        self.rows += 1

    def hexdigest(self) -> str:
        """Return the digest of everything so far."""
        whole = xxhash.xxh3_128(str(self.rows).encode())
        for name in sorted(self._hashes):
            whole.update(f"{name}={self._hashes[name].hexdigest()};".encode())
        return str(whole.hexdigest())

    def _hash(self, name: str) -> Any:
        found = self._hashes.get(name)
        if found is None:
            found = self._hashes[name] = xxhash.xxh3_128()
        return found

    def _add_array(self, name: str, array: pa.Array) -> None:
        kind = array.type
        if pa.types.is_dictionary(kind):
            self._add_array(name, array.dictionary_decode())
            return
        if not len(array):
            return
        self._hash(f"{name}?").update(array.is_valid().to_numpy(zero_copy_only=False).tobytes())
        if pa.types.is_null(kind):
            return
        dense = array.drop_null() if array.null_count else array
        if pa.types.is_boolean(kind):
            dense, kind = dense.cast(pa.uint8()), pa.uint8()
        if pa.types.is_struct(kind):
            for field, child in zip(kind, dense.flatten(), strict=True):
                self._add_array(f"{name}.{field.name}", child)
        elif pa.types.is_map(kind):
            first, last = dense.offsets[0].as_py(), dense.offsets[-1].as_py()
            self._add_lengths(name, dense.offsets)
            self._add_array(f"{name}.key", dense.keys.slice(first, last - first))
            self._add_array(f"{name}.value", dense.items.slice(first, last - first))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._add_lengths(name, dense.offsets)
            self._add_array(f"{name}.element", dense.flatten())
        elif _is_variable(kind):
            large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
            offsets = pa.Array.from_buffers(
                pa.int64() if large else pa.int32(), len(dense) + 1, [None, dense.buffers()[1]], offset=dense.offset
            )
            self._add_lengths(name, offsets)
            data = dense.buffers()[2]
            if data is not None and len(dense):
                first, last = offsets[0].as_py(), offsets[-1].as_py()
                self._hash(name).update(memoryview(data)[first:last])
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
            width = kind.bit_width // 8
            if len(dense):
                view = memoryview(dense.buffers()[1])
                self._hash(name).update(view[dense.offset * width : (dense.offset + len(dense)) * width])
        else:
            for value in dense.to_pylist():
                self._hash(name).update(repr(value).encode() + b"\n")

    def _add_lengths(self, name: str, offsets: pa.Array) -> None:
        import numpy as np

        if len(offsets) > 1:
            self._hash(f"{name}#").update(np.diff(offsets.to_numpy(zero_copy_only=False)).astype("<i8").tobytes())


def _is_variable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )
