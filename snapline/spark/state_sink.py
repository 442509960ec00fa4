"""A Spark DataFrame becomes keyed state: each Spark task writes the files of its key groups, the driver learns their
names.

Decides how rows come together (by the subtask of their key group, computed on Arrow columns) and what travels back: a
list of files beside them, written when all tasks are done, because Spark commits in another process than the caller's.
What is written is `snapline.state_writer`'s business. A data source, not mapInArrow, which wants pandas.
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructType

from snapline.dataflow.config import Configuration
from snapline.runtime.cores.machine import check
from snapline.runtime.storage.object_storage import open_storage
from snapline.state_files import KeyedStatePlan, StateWriteError, SubtaskFiles, WrittenFile

FORMAT = "snapline_state_sink"
_MANIFEST = "files-of-"
_PLAN = "plan"
_REFUSAL = re.compile(r"StateWriteError: (.+)")
"""What a task says, in the traceback that Spark brings."""


def arrow_schema_of(frame: DataFrame) -> pa.Schema:
    """The columns of a DataFrame, as its batches will have them: timestamps with the zone of its session."""
    return to_arrow_schema(frame.schema, timezone=str(frame.sparkSession.conf.get("spark.sql.session.timeZone")))


def default_parallelism(frame: DataFrame) -> int:
    """As many subtasks as there are cores; on Spark Connect, which does not say, as many as a shuffle has
    partitions."""
    session = frame.sparkSession
    try:
        return int(session.sparkContext.defaultParallelism)
    except PySparkException:
        return int(str(session.conf.get("spark.sql.shuffle.partitions")))


def _manifest(plan: KeyedStatePlan) -> str:
    """Return the name of the file that says what the tasks of one writer have written for one operator."""
    return f"{_MANIFEST}{plan.uid_hash}-{plan.writer}"


def write_frame(frame: DataFrame, plan: KeyedStatePlan) -> list[WrittenFile]:
    """Write all rows; a file per subtask that has keys. Raises StateWriteError for rows that cannot be state."""
    for name in plan.schema.names:
        if frame.columns.count(name) != 1:
            raise StateWriteError(
                f"operator {plan.uid!r}: there is no column {name!r} (once) in the data: it has {', '.join(frame.columns)}"
            )
    wanted = frame.select(*[frame[f"`{name}`"] for name in plan.schema.names])

    def subtask(*keys: Any) -> Any:
        rows = plan.conformed_keys(pa.RecordBatch.from_arrays(list(keys), names=plan.key.names))
        return pa.array(plan.subtasks_of(rows).astype("int32"))

    with warnings.catch_warnings():  # Spark would rather read annotations, which say less here
        warnings.simplefilter("ignore", UserWarning)
        subtask_of = arrow_udf(subtask, IntegerType(), ArrowUDFType.SCALAR)
    together = wanted.repartitionById(plan.parallelism, subtask_of(*[wanted[f"`{name}`"] for name in plan.key.names]))
    frame.sparkSession.dataSource.register(StateSink)
    travelling = base64.b64encode(cloudpickle.dumps(plan)).decode()
    try:
        together.write.format(FORMAT).mode("append").option(_PLAN, travelling).save()
    except PySparkException as failure:
        refusal = _REFUSAL.search(str(failure))
        if refusal is None:
            raise
        raise StateWriteError(refusal[1]) from None
    storage = open_storage(plan.location, Configuration(plan.settings))
    name = _manifest(plan)
    files = [WrittenFile(**file) for file in json.loads(storage.get(name))]
    storage.delete(name)
    return files


@dataclass
class _Written(WriterCommitMessage):
    files: list[WrittenFile]


class StateSink(DataSource):
    """Spark's data source that `write_frame` writes keyed state with."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Create the writer of one DataFrame."""
        plan = cloudpickle.loads(base64.b64decode(self.options[_PLAN]))
        check(isinstance(plan, KeyedStatePlan), "the plan of another writer")
        return _Writer(plan)


class _Writer(DataSourceArrowWriter):
    """Writes partitions to the files of a savepoint; it travels to the executors."""

    def __init__(self, plan: KeyedStatePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In an executor: one partition."""
        gathered = SubtaskFiles(self._plan)
        for batch in iterator:
            gathered.add(batch)
        return _Written(list(gathered.write()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Note on the driver that all partitions are written."""
        plan = self._plan
        files = [asdict(file) for message in messages if isinstance(message, _Written) for file in message.files]
        storage = open_storage(plan.location, Configuration(plan.settings))
        storage.create(_manifest(plan), json.dumps(files).encode())
