"""Sums and means of decimals, and means of uint64, which are exact: no float stands between.

An accumulator is a decimal of 76 digits and a count, so that sums cannot wrap. Decides what becomes of a sum with more
digits than its result has: it is null, as in Flink's SQL. Mirrors Flink's SumAggFunction and AvgAggFunction of
decimals.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.batch_aggregates import BatchAggregateFunction, Groups


class DecimalTotal(BatchAggregateFunction):
    """The sum, or the mean as float64, of a column of decimals or uint64; null where there was none."""

    def __init__(self, function: str, data_type: pa.DataType) -> None:
        self._function, self._type = function, data_type
        self._wide = pa.decimal256(76, getattr(data_type, "scale", 0))
        self.accumulator = pa.schema([("sum", self._wide), ("count", pa.int64())])

    def result_type(self, *_: pa.DataType) -> pa.DataType:
        if self._function == "mean":
            return pa.float64()
        return self._wide if self._type.bit_width == 256 else pa.decimal128(38, self._type.scale)

    def add(self, accumulators: pa.RecordBatch, groups: Groups, *columns: pa.Array) -> pa.RecordBatch:
        counts = columns[0].is_valid().cast(pa.int64())
        values = pa.RecordBatch.from_arrays([columns[0].cast(self._wide), counts], schema=self.accumulator)
        return self.merge(accumulators, groups, values)

    def merge(self, accumulators: pa.RecordBatch, groups: Groups, others: pa.RecordBatch) -> pa.RecordBatch:
        # The accumulators come first, so that the groups of the result are in their order.
        everything = pa.Table.from_batches([accumulators, others])
        owners = np.concatenate([np.arange(len(accumulators), dtype=np.int32), groups])
        grouped = everything.append_column("owner", pa.array(owners)).group_by("owner", use_threads=False)
        totals = grouped.aggregate([("sum", "sum"), ("count", "sum")])
        columns = [totals.column(name).combine_chunks() for name in ("sum_sum", "count_sum")]
        return pa.RecordBatch.from_arrays(columns, schema=self.accumulator)

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        sums, counts = accumulators.columns
        if self._function == "mean":
            # Without its point a number of 53 bits is a float, and the division rounds once: a cast of 6.10 is not 6.1.
            whole = pa.Array.from_buffers(pa.decimal256(76, 0), len(sums), sums.buffers(), offset=sums.offset)
            return pc.divide(whole.cast(pa.float64()), pc.multiply(counts.cast(pa.float64()), 10.0**self._wide.scale))
        wanted = self.result_type()
        if wanted == self._wide:
            return sums
        most = pa.scalar(Decimal(f"{'9' * 38}E-{self._type.scale}"), self._wide)
        return pc.if_else(pc.less_equal(pc.abs(sums), most), sums, None).cast(wanted)
