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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.runtime.cores.machine import check
from snapline.spark.frame_types import arrow_schema_for_spark, conform_to_spark, widened
from snapline.spark.own_python import use_own_python
from snapline.state_reader import KeyedTable, StateReader, StateReadError, fits_key_columns, located

FORMAT = "snapline_state"
_KEYS_MAX = 64
"""More keys than this are looked for among all rows: a partition each would cost more."""
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def read_state(spark: SparkSession, snapshot: str, uid: str, *, partitions: int | None = None) -> DataFrame:
    """The keyed state of an operator in a savepoint or checkpoint, a row per key. Raises SnaplineError when there is
    none."""
    StateReader(snapshot).table(uid)
    use_own_python(spark)
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
        snapshot = located(self._option("snapshot"))  # executors are in other directories
        return _Reader(snapshot, self._option("uid"), table, schema, count)

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
        target = arrow_schema_for_spark(self._schema)
        reader = StateReader(self._snapshot)
        if partition.key is not None and not fits_key_columns(reader.table(self._uid), partition.key):
            return  # a filter may ask for what no key can be, which is no row
        for batch in reader.read_batches(self._uid, key=partition.key, key_groups=partition.key_groups):
            yield conform_to_spark(batch, target)


def _spark_schema(table: KeyedTable) -> StructType:
    fields = [field.with_type(widened(field.type)).with_nullable(nullable=True) for field in table.schema]
    return from_arrow_schema(pa.schema(fields))
