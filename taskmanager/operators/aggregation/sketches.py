"""Sketches of `datasketches` as functions over whole batches: how many different values, and quantiles, in bounded
room.

An accumulator is the sketch's own portable bytes, which any language's datasketches reads. Decides their sizes: 2^12
registers of HyperLogLog, a k of 200 for KLL. Flink has none of them; its users bring them as AggregateFunctions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.batch_aggregates import BatchAggregateFunction, Groups, HeldAggregate
from snapline.dataflow.columnar.arrow_columns import plain_array
from snapline.dataflow.errors import JobDefinitionError

HLL_LOG2_REGISTERS = 12
KLL_K = 200
_EMPTY_TEXT = "\0"
"""Stands for the empty text, which the sketch leaves out."""


def load_datasketches() -> Any:
    """The library. JobDefinitionError that says how to get it."""
    try:
        import datasketches
    except ImportError:
        raise JobDefinitionError(
            "approx_count_distinct and approx_quantile need the library datasketches: pip install 'snapline[sketches]', on the driver "
            "and where tasks run; count_distinct and quantile do without"
        ) from None
    return datasketches


class _SketchFunction(BatchAggregateFunction):
    """One sketch for each accumulator."""

    accumulator = pa.schema([("sketch", pa.binary())])

    @abstractmethod
    def read(self, data: bytes | None) -> Any:
        """The sketch of these bytes, or a new one."""

    @abstractmethod
    def write(self, sketch: Any) -> bytes:
        """Return the bytes of a sketch."""

    @abstractmethod
    def update(self, sketch: Any, values: pa.Array) -> None:
        """Take values in, none of which is null."""

    @abstractmethod
    def union(self, sketch: Any, other: Any) -> Any:
        """Return the sketch of both."""

    def add(self, accumulators: pa.RecordBatch, groups: Groups, *columns: pa.Array) -> pa.RecordBatch:
        values = columns[0]
        if values.null_count:
            present = np.asarray(values.is_valid())
            groups, values = groups[present], values.drop_null()
        stored: list[bytes | None] = accumulators.column(0).to_pylist()
        for group, part in _by_group(groups, values):
            sketch = self.read(stored[group])
            self.update(sketch, part)
            stored[group] = self.write(sketch)
        return self._batch(stored)

    def merge(self, accumulators: pa.RecordBatch, groups: Groups, others: pa.RecordBatch) -> pa.RecordBatch:
        stored: list[bytes | None] = accumulators.column(0).to_pylist()
        sketches: dict[int, Any] = {}
        for group, other in zip(groups.tolist(), others.column(0).to_pylist(), strict=True):
            if other is not None:
                known = sketches[group] if group in sketches else self.read(stored[group])
                sketches[group] = self.union(known, self.read(other))
        for group, sketch in sketches.items():
            stored[group] = self.write(sketch)
        return self._batch(stored)

    def _batch(self, stored: list[bytes | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(stored, pa.binary())], schema=self.accumulator)


def _by_group(groups: Groups, values: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """The values of each group."""
    if not len(groups):
        return
    order = np.argsort(groups, kind="stable")
    ordered = values.take(pa.array(order))
    distinct, starts = np.unique(groups[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    for group, start, end in zip(distinct.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield group, ordered.slice(start, end - start)


class DistinctSketch(_SketchFunction):
    """HyperLogLog over values of any plain type."""

    def __init__(self) -> None:
        self._library: Any = None

    def _lib(self) -> Any:
        self._library = self._library or load_datasketches()
        return self._library

    def result_type(self, *_: pa.DataType) -> pa.DataType:
        return pa.int64()

    def read(self, data: bytes | None) -> Any:
        library = self._lib()
        if data is not None:
            return library.hll_sketch.deserialize(data)
        return library.hll_sketch(HLL_LOG2_REGISTERS, library.tgt_hll_type.HLL_8)

    def write(self, sketch: Any) -> bytes:
        data: bytes = sketch.serialize_compact()
        return data

    def update(self, sketch: Any, values: pa.Array) -> None:
        for value in _hashable(_plain(values).unique()).to_pylist():
            sketch.update(value or _EMPTY_TEXT if isinstance(value, str) else value)

    def union(self, sketch: Any, other: Any) -> Any:
        library = self._lib()
        both = library.hll_union(HLL_LOG2_REGISTERS)
        both.update(sketch)
        both.update(other)
        return both.get_result(library.tgt_hll_type.HLL_8)

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        stored = accumulators.column(0).to_pylist()
        return pa.array([0 if data is None else round(self.read(data).get_estimate()) for data in stored], pa.int64())


def _plain(values: pa.Array) -> pa.Array:
    """The same values as a type whose different ones Arrow finds: small decimals and extensions are none."""
    data_type = values.type
    small = pa.types.is_decimal32(data_type) or pa.types.is_decimal64(data_type)
    return plain_array(values) if small or isinstance(data_type, pa.BaseExtensionType) else values


def _hashable(values: pa.Array) -> pa.Array:
    """As integers, floats or texts, which the sketch takes: what is equal stays equal."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode().drop_null()  # a dictionary may hold a null, which is no value either
    data_type = values.type
    if pa.types.is_boolean(data_type):
        return values.cast(pa.int64())
    if pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type):
        return values.view(pa.int64() if data_type.bit_width == 64 else pa.int32())
    if pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_string(data_type):
        return values.cast(pa.int64(), safe=False) if pa.types.is_uint64(data_type) else values
    if pa.types.is_large_string(data_type):
        return values
    return pa.array([repr(value) for value in values.to_pylist()])


class QuantileSketch(_SketchFunction):
    """A KLL sketch over the numbers of each accumulator."""

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile

    def result_type(self, *_: pa.DataType) -> pa.DataType:
        return pa.float64()

    def read(self, data: bytes | None) -> Any:
        sketch = load_datasketches().kll_doubles_sketch
        return sketch(KLL_K) if data is None else sketch.deserialize(data)

    def write(self, sketch: Any) -> bytes:
        data: bytes = sketch.serialize()
        return data

    def update(self, sketch: Any, values: pa.Array) -> None:
        numbers = values.cast(pa.float64(), safe=False).to_numpy()
        sketch.update(np.ascontiguousarray(numbers[~np.isnan(numbers)]))

    def union(self, sketch: Any, other: Any) -> Any:
        sketch.merge(other)
        return sketch

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        return pa.array([self._estimate(data) for data in accumulators.column(0).to_pylist()], pa.float64())

    def _estimate(self, data: bytes | None) -> float | None:
        if data is None:
            return None
        sketch = self.read(data)
        return None if sketch.is_empty() else sketch.get_quantile(self._quantile, True)


def sketch_of(aggregate: HeldAggregate) -> BatchAggregateFunction:
    """The function of an approximate aggregate."""
    if aggregate.function == "approx_count_distinct":
        return DistinctSketch()
    return QuantileSketch(aggregate.parameter)
