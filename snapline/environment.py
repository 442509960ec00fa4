"""The environment: where a job is put together and run from.

`execute()` with nothing configured starts a coordinator beside this process and TaskManagers on Spark `local[*]`, runs the
job and stops them. Under `spark-submit` the TaskManagers live in that application's executors. With `jobmanager.rpc.address`
set (or under `snapline run`), the job goes to that coordinator instead. Mirrors Flink's StreamExecutionEnvironment.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from snapline.checkpointing import Checkpointing
from snapline.dataflow.api.connector_api import Source
from snapline.dataflow.api.functions import SourceFunction
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.config import (
    CHECKPOINTING_INTERVAL,
    CHECKPOINTING_MODE,
    CHECKPOINTS_DIRECTORY,
    PARALLELISM_DEFAULT,
    SAVEPOINT_DIRECTORY,
    Configuration,
    ConfigurationError,
    check_key,
)
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.jobgraph import SavepointRestoreSettings
from snapline.dataflow.graph.operator_specs import SourceFunctionSpec, SourceSpec
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamGraph
from snapline.dataflow.graph.translation import Translation, translate
from snapline.dataflow.ids import JobID
from snapline.reporting import print_errors_in_one_line
from snapline.runtime.settings import Setting, default_layers, resolve, text_of
from snapline.stream import DataStream
from snapline.user_modules import modules_beside_script, pickled_by_value

if TYPE_CHECKING:
    from snapline.execution import JobExecutionResult
RESTORE_VARIABLE = "SNAPLINE_RESTORE_FROM"
"""Set by `snapline run --from-savepoint`."""
ALLOW_NON_RESTORED_VARIABLE = "SNAPLINE_ALLOW_NON_RESTORED_STATE"
CLAIM_VARIABLE = "SNAPLINE_CLAIM_SNAPSHOT"


def absolute_path(path: str) -> str:
    """A relative path is one of this process's directory; a URL stays as it is."""
    return path if "://" in path else str(Path(path).absolute())


class StreamExecutionEnvironment:
    """Gathers the operators of one job (Flink: StreamExecutionEnvironment)."""

    def __init__(self, configuration: Configuration, weaker: Mapping[str, Setting] | None = None) -> None:
        """Use `get_execution_environment`. `weaker` are settings that Spark conf may still override."""
        self.explicit = configuration
        self.weaker = dict(weaker or {})
        self.graph = StreamGraph()
        self.savepoint_restore = SavepointRestoreSettings()
        self.python_modules: list[ModuleType] = []

    @classmethod
    def get_execution_environment(cls, conf: Mapping[str, object] | None = None) -> StreamExecutionEnvironment:
        """A new environment; `conf` wins over the process environment. Raises ConfigurationError for an unknown key."""
        print_errors_in_one_line()
        given = {key: text_of(value) for key, value in (conf or {}).items()}
        environment = cls(Configuration(given), default_layers(os.environ))
        resolve(environment.weaker)
        if os.environ.get(RESTORE_VARIABLE):
            environment.restore_from(
                os.environ[RESTORE_VARIABLE],
                allow_non_restored_state=bool(os.environ.get(ALLOW_NON_RESTORED_VARIABLE)),
                claim=bool(os.environ.get(CLAIM_VARIABLE)),
            )
        return environment

    # --- settings ------------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """All settings known so far; Spark conf (`spark.snapline.*`) joins them in `execute`."""
        return self.configuration_with({})

    def configuration_with(self, spark: Mapping[str, Setting]) -> Configuration:
        """All settings, those of Spark conf included. A relative directory is one of this process, whoever writes there."""
        explicit = {key: Setting(value, "the program") for key, value in self.explicit.items()}
        resolved = resolve(self.weaker, spark, explicit)
        places = {option.key: resolved.get_option(option) for option in (CHECKPOINTS_DIRECTORY, SAVEPOINT_DIRECTORY)}
        return resolved.with_values({key: absolute_path(value) for key, value in places.items() if value})

    def configure(self, key: str, value: object) -> StreamExecutionEnvironment:
        """Set one key. Raises ConfigurationError when it is unknown or the value cannot be read."""
        check_key(key)
        self.explicit = self.explicit.with_values({key: text_of(value)})
        return self

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Parallelism of operators that set none."""
        if not isinstance(parallelism, int) or parallelism < 1:
            raise JobDefinitionError(f"parallelism must be a whole number, at least 1, got {parallelism!r}")
        return self.configure(PARALLELISM_DEFAULT.key, parallelism)

    def enable_checkpointing(self, interval_ms: int, mode: str = "EXACTLY_ONCE") -> StreamExecutionEnvironment:
        """Take a checkpoint every `interval_ms` milliseconds."""
        if not isinstance(interval_ms, int) or interval_ms < 10:
            raise ConfigurationError(
                f"{CHECKPOINTING_INTERVAL.key} must be whole milliseconds, at least 10, got {interval_ms!r}"
            )
        self.configure(CHECKPOINTING_INTERVAL.key, f"{interval_ms} ms")
        return self.configure(CHECKPOINTING_MODE.key, mode)

    @property
    def checkpointing(self) -> Checkpointing:
        """What people set about checkpoints and state, as methods with types: `env.checkpointing.interval(1_000).unaligned()`."""
        return Checkpointing(self)

    def set_checkpoint_dir(self, directory: str) -> StreamExecutionEnvironment:
        """Base directory of checkpoints."""
        return self.configure(CHECKPOINTS_DIRECTORY.key, directory)

    def restore_from(
        self, path: str, *, allow_non_restored_state: bool = False, claim: bool = False
    ) -> StreamExecutionEnvironment:
        """Start from this savepoint or retained checkpoint. A relative path is one of this process's directory."""
        self.savepoint_restore = SavepointRestoreSettings(absolute_path(path), allow_non_restored_state, claim)
        return self

    def add_python_module(self, module: ModuleType) -> StreamExecutionEnvironment:
        """Send this module's (or package's) functions and classes with the job: executors need not be able to import it. Modules
        beside the job script are sent anyway."""
        self.python_modules.append(module)
        return self

    # --- sources -------------------------------------------------------------------------------------------------------

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        uid: str = "",
        name: str = "",
    ) -> DataStream:
        """Read a source. Its splits are enumerated now, so that a missing input is an error here and not in a task."""
        if not isinstance(source, Source):
            raise JobDefinitionError(
                f"from_source({source!r}): that is no Source, such as ParquetSource('file.parquet')"
            )
        label = name or type(source).__name__
        splits = tuple(source.enumerate_splits())
        schema = source.schema()
        node = self.graph.add(label, SourceSpec(source, splits, watermark_strategy), stateful=True)
        node.uid = uid
        stream = DataStream(self, (StreamEdge(node.node_id),), schema)
        return self._with_time(stream, watermark_strategy, label)

    def add_source(
        self,
        function: SourceFunction,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        uid: str = "",
        name: str = "",
        schema: pa.Schema | None = None,
    ) -> DataStream:
        """Run a push-style SourceFunction."""
        label = name or type(function).__name__
        spec = SourceFunctionSpec(function, watermark_strategy)
        node = self.graph.add(label, spec, stateful=hasattr(function, "snapshot_state"))
        node.uid = uid
        return self._with_time(DataStream(self, (StreamEdge(node.node_id),), schema), watermark_strategy, label)

    def from_collection(self, rows: Sequence[dict[str, object]], *, uid: str = "collection") -> DataStream:
        """Rows given here; for tests and first steps."""
        from snapline.connectors.builtin.collection import CollectionSource

        return self.from_source(CollectionSource.of_rows(rows), uid=uid)

    @staticmethod
    def _with_time(stream: DataStream, strategy: WatermarkStrategy | None, label: str) -> DataStream:
        if strategy is None:
            return stream
        stream.check_event_time(strategy.column, f"watermark strategy of {label!r}")
        return DataStream(stream.environment, stream.edges, stream.schema, strategy.column)

    # --- running -------------------------------------------------------------------------------------------------------

    def translate(
        self, job_name: str = "snapline job", job_id: str = "", configuration: Configuration | None = None
    ) -> Translation:
        """The JobGraph, without running it. Raises JobDefinitionError that names the operator."""
        with pickled_by_value([*self.python_modules, *modules_beside_script()]):
            return translate(
                self.graph,
                job_id=JobID(job_id or uuid.uuid4().hex),
                name=job_name,
                configuration=configuration or self.configuration,
                savepoint_restore=self.savepoint_restore,
            )

    def execute(self, job_name: str = "snapline job") -> JobExecutionResult:
        """Run the job and wait for its end. Raises JobFailed with the failure of the task that caused it."""
        from snapline.execution import execute

        return execute(self, job_name)
