"""State of a snapshot as a Spark DataFrame: a Python data source, cut by key groups, that reads one key without the
others.

Decides the partitions (ranges of key groups, as many as the operator had subtasks, unless told otherwise), which
filters are taken over (equality with a constant, or one of some, on every key column), and Spark's types for Arrow's.
What is read is `snapline.state`'s business; each partition opens the snapshot by itself, so its storage must be
reachable from the executors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.runtime.cores.machine import check
from snapline.state_reader import KeyedTable, StateReader, StateReadError

FORMAT = "snapline_state"
_KEYS_MAX = 64
"""More keys than this are looked for among all rows: a partition each would cost more."""
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
"""Types that Spark does not have."""


def read_state(spark: SparkSession, snapshot: str, uid: str, *, partitions: int | None = None) -> DataFrame:
    """The keyed state of an operator in a savepoint or checkpoint, a row per key. Raises SnaplineError when there is
    none."""
    StateReader(snapshot).table(uid)
    spark.dataSource.register(StateDataSource)
    spark.conf.set(_PUSHDOWN, "true")  # off, Spark refuses a source that could
    reader = spark.read.format(FORMAT).option("snapshot", snapshot).option("uid", uid)
    return (reader if partitions is None else reader.option("partitions", str(partitions))).load()


class StateDataSource(DataSource):
    """Spark's data source of keyed state: `spark.read.format("snapline_state")` with the options snapshot and uid."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """From the headers of the files."""
        return _spark_schema(self._table())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of one query."""
        table = self._table()
        asked = self.options.get("partitions", "")
        if asked and not (asked.isdigit() and int(asked)):
            raise StateReadError(f"partitions is a number above zero, not {asked!r}")
        count = min(int(asked or table.parallelism), table.max_parallelism)
        return _Reader(self._option("snapshot"), self._option("uid"), table, schema, count)

    def _table(self) -> KeyedTable:
        return StateReader(self._option("snapshot")).table(self._option("uid"))

    def _option(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise StateReadError(f'format("{FORMAT}") needs option("{name}", ...)')
        return str(value)


@dataclass(frozen=True)
class _KeyGroups(InputPartition):
    key_groups: KeyGroupRange
    key: tuple[Any, ...] | None


class _Reader(DataSourceReader):
    """Reads key groups of a snapshot; it travels to the executors."""

    def __init__(self, snapshot: str, uid: str, table: KeyedTable, schema: StructType, count: int) -> None:
        self._snapshot, self._uid, self._schema = snapshot, uid, schema
        self._key_names = tuple(table.key_schema.names)
        self._max_parallelism, self._count = table.max_parallelism, count
        self._keys: list[tuple[Any, ...]] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over an equality (or a choice of values) per key column, if there is one for each."""
        wanted: dict[str, tuple[Any, ...]] = {}
        for one in filters:
            if isinstance(one, (EqualTo, In)) and len(one.attribute) == 1 and one.attribute[0] in self._key_names:
                values = one.value if isinstance(one, In) else (one.value,)
                wanted.setdefault(one.attribute[0], tuple(value for value in values if value is not None))
        if len(wanted) == len(self._key_names) and math.prod(map(len, wanted.values())) <= _KEYS_MAX:
            self._keys = list(itertools.product(*(dict.fromkeys(wanted[name]) for name in self._key_names)))
        return filters  # Spark asks again: what is read is a subset, never more than it wants

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of key groups; for some keys a partition each, which finds its key group."""
        if self._keys is not None:
            everything = KeyGroupRange(0, self._max_parallelism - 1)
            return [_KeyGroups(everything, key) for key in self._keys]
        return [
            _KeyGroups(compute_key_group_range_for_operator_index(self._max_parallelism, self._count, index), None)
            for index in range(self._count)
        ]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition in an executor, as batches."""
        check(isinstance(partition, _KeyGroups), "a partition of another reader")
        target = to_arrow_schema(self._schema, timezone="UTC")  # without one, pyspark asserts at a timestamp
        reader = StateReader(self._snapshot)
        for batch in reader.read_batches(self._uid, key=partition.key, key_groups=partition.key_groups):
            columns = [column.cast(field.type) for column, field in zip(batch.columns, target, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def _spark_schema(table: KeyedTable) -> StructType:
    fields = [field.with_type(_supported(field.type)).with_nullable(nullable=True) for field in table.schema]
    return from_arrow_schema(pa.schema(fields))


def _supported(data_type: pa.DataType) -> pa.DataType:
    """A type that Spark has, into which values of this type fit."""
    if data_type in _WIDER:
        return _WIDER[data_type]
    if pa.types.is_large_list(data_type) or pa.types.is_list(data_type):
        return pa.list_(_supported(data_type.value_type))
    if pa.types.is_map(data_type):
        return pa.map_(_supported(data_type.key_type), _supported(data_type.item_type))
    if pa.types.is_struct(data_type):
        fields = [data_type.field(number) for number in range(data_type.num_fields)]
        return pa.struct([field.with_type(_supported(field.type)) for field in fields])
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz)
    if pa.types.is_duration(data_type):
        return pa.duration("us")
    if pa.types.is_time(data_type):
        return pa.int64() if data_type.bit_width == 64 else pa.int32()
    if pa.types.is_date64(data_type):
        return pa.date32()
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.binary()
    return data_type
