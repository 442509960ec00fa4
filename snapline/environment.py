"""The environment: where a job is put together and run from.

`execute()` with nothing configured starts a coordinator beside this process and TaskManagers on Spark `local[*]`, runs
the job and stops them. Under `spark-submit` the TaskManagers live in that application's executors. With
`jobmanager.rpc.address` set (or under `snapline run`), the job goes to that coordinator instead. Mirrors Flink's
StreamExecutionEnvironment.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from snapline.checkpointing import Checkpointing
from snapline.dataflow.api.connector_answers import splits_of
from snapline.dataflow.api.connector_api import Sink, Source
from snapline.dataflow.api.functions import SourceFunction
from snapline.dataflow.api.watermarks import WatermarkStrategy, check_strategy
from snapline.dataflow.columnar.column_types import workable_schema
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
from snapline.dataflow.graph.external_tasks import external_spec
from snapline.dataflow.graph.jobgraph import SavepointRestoreSettings
from snapline.dataflow.graph.operator_specs import SourceFunctionSpec, SourceSpec
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamGraph, add_fed_source, order_splits
from snapline.dataflow.graph.translation import Translation, translate
from snapline.dataflow.ids import JobID
from snapline.job_files import JobFiles
from snapline.reporting import print_errors_in_one_line
from snapline.restore_variables import ALLOW_NON_RESTORED_VARIABLE, CLAIM_VARIABLE, RESTORE_VARIABLE
from snapline.runtime import absolute_paths
from snapline.runtime.settings import Setting, default_layers, resolve, text_of
from snapline.stream import DataStream
from snapline.user_modules import modules_beside_script, pickled_by_value

if TYPE_CHECKING:
    from snapline.job_handle import JobHandle
    from snapline.job_result import JobExecutionResult
    from snapline.spark.streaming_frames import StreamedFrame


def absolute_path(path: str) -> str:
    """A relative path is one of this process's directory; a URL stays as it is."""
    return path if "://" in path else str(absolute_paths.absolute_path(path))


class StreamExecutionEnvironment:
    """Gathers the operators of one job, and runs it (Flink: StreamExecutionEnvironment).

    >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
    >>> env = env.set_parallelism(2).configure("job.name-of-nobody", 1)
    Traceback (most recent call last):
    snapline.dataflow.config.ConfigurationError: unknown setting 'job.name-of-nobody'...
    """

    def __init__(self, configuration: Configuration, weaker: Mapping[str, Setting] | None = None) -> None:
        """Use `get_execution_environment`. `weaker` are settings that Spark conf may still override."""
        self.explicit: Configuration = configuration
        self.weaker: dict[str, Setting] = dict(weaker or {})
        self.graph: StreamGraph = StreamGraph()
        self.savepoint_restore: SavepointRestoreSettings = SavepointRestoreSettings()
        self.python_modules: list[ModuleType] = []
        self.job_files: JobFiles = JobFiles()
        self.streamed_frames: list[StreamedFrame] = []
        self.goes_on = True
        """Whether a job of the same name goes on instead that a driver which died has left behind."""
        self._executed = 0
        """So many operators were there when the last job was executed."""

    @classmethod
    def get_execution_environment(cls, conf: Mapping[str, object] | None = None) -> Self:
        """A new environment; `conf` wins over the process environment. Raises ConfigurationError for an unknown key.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 2})
        >>> env.configuration["parallelism.default"]
        '2'
        """
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

    # --- settings -----------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """All settings known so far; Spark conf (`spark.snapline.*`) joins them in `execute`.

        >>> env.configure("parallelism.default", 3).configuration["parallelism.default"]
        '3'
        """
        return self.configuration_with({})

    def configuration_with(self, spark: Mapping[str, Setting]) -> Configuration:
        """All settings, those of Spark conf included. A relative directory is one of this process, whoever writes
        there."""
        explicit = {key: Setting(value, "the program") for key, value in self.explicit.items()}
        resolved = resolve(self.weaker, spark, explicit)
        places = {option.key: resolved.get_option(option) for option in (CHECKPOINTS_DIRECTORY, SAVEPOINT_DIRECTORY)}
        return resolved.with_values({key: absolute_path(value) for key, value in places.items() if value})

    def configure(self, key: str, value: object) -> StreamExecutionEnvironment:
        """Set one key of the settings page; what `get_execution_environment` says of layers holds. Raises
        ConfigurationError when it is unknown, and names the nearest.

        >>> _ = env.configure("restart-strategy.type", "none")
        """
        check_key(key)
        self.explicit = self.explicit.with_values({key: text_of(value)})
        return self

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Number of subtasks of operators that set none, at least 1. Raises JobDefinitionError for others.

        >>> env.set_parallelism(4).configuration["parallelism.default"]
        '4'
        """
        if not isinstance(parallelism, int) or parallelism < 1:
            raise JobDefinitionError(f"parallelism must be a whole number, at least 1, got {parallelism!r}")
        return self.configure(PARALLELISM_DEFAULT.key, parallelism)

    def enable_checkpointing(self, interval_ms: int, mode: str = "EXACTLY_ONCE") -> StreamExecutionEnvironment:
        """Take a checkpoint every `interval_ms` milliseconds, at least 10; `env.checkpointing` has all else. Raises
        ConfigurationError.

        >>> env.enable_checkpointing(1_000).configuration["execution.checkpointing.interval"]
        '1000 ms'
        """
        if not isinstance(interval_ms, int) or interval_ms < 10:
            raise ConfigurationError(
                f"{CHECKPOINTING_INTERVAL.key} must be whole milliseconds, at least 10, got {interval_ms!r}"
            )
        self.configure(CHECKPOINTING_INTERVAL.key, f"{interval_ms} ms")
        return self.configure(CHECKPOINTING_MODE.key, mode)

    @property
    def checkpointing(self) -> Checkpointing:
        """What people set about checkpoints and state, as methods with types.

        >>> _ = env.checkpointing.interval(1_000).unaligned().backend("rocksdb").incremental()
        """
        return Checkpointing(self)

    def set_checkpoint_dir(self, directory: str) -> StreamExecutionEnvironment:
        """Base directory of checkpoints, as `env.checkpointing.directory`.

        >>> env.set_checkpoint_dir("/checkpoints").configuration["execution.checkpointing.dir"]
        '/checkpoints'
        """
        return self.configure(CHECKPOINTS_DIRECTORY.key, directory)

    def restore_from(
        self, path: str | Path, *, allow_non_restored_state: bool = False, claim: bool = False
    ) -> StreamExecutionEnvironment:
        """Start from this savepoint or retained checkpoint. A relative path is one of this process's directory.
        `allow_non_restored_state`: state of operators that the job has not any more is left behind, not refused.
        `claim`: the snapshot belongs to the job from now on, which deletes it when it is not needed any more.

        >>> env.restore_from("s3://bucket/savepoints/one", claim=True).savepoint_restore.path
        's3://bucket/savepoints/one'
        """
        given: object = path
        if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
            raise JobDefinitionError(
                f"restore_from({path!r}): give the path of a savepoint or checkpoint, or do not call it to start without one"
            )
        self.savepoint_restore = SavepointRestoreSettings(
            absolute_path(os.fspath(path)), allow_non_restored_state, claim
        )
        return self

    def add_python_module(self, module: ModuleType) -> StreamExecutionEnvironment:
        """Send this module's (or package's) functions and classes with the job: executors need not be able to import
        it. Modules beside the job script are sent anyway.

        >>> import json
        >>> _ = env.add_python_module(json)
        """
        given: object = module
        if not isinstance(given, ModuleType):
            raise JobDefinitionError(
                f"add_python_module({module!r}): give the module itself, as in `import pricing` and add_python_module(pricing)"
            )
        self.python_modules.append(module)
        return self

    def add_file(self, path: str | Path) -> StreamExecutionEnvironment:
        """Send a file with the job; functions find it by its name, with `sl.job_file`. For local runs, and jobs in a
        Spark application of their own. Raises JobDefinitionError when it is not there.

        >>> _ = open(f"{tmp}/shops.csv", "w").write("a,Anna")
        >>> _ = env.add_file(f"{tmp}/shops.csv")
        """
        self.job_files.add_file(path)
        return self

    def add_archive(self, path: str | Path, name: str = "") -> StreamExecutionEnvironment:
        """Send an archive (.zip, .tar, .tar.gz) with the job; `sl.job_file(name)` is the directory with what was in it.
        `name`: default is the file's. Where and what it raises is as for `add_file`.

        >>> import shutil
        >>> _ = env.add_archive(shutil.make_archive(f"{tmp}-model", "zip", tmp), "model")
        >>> sl.job_file("model").is_dir()
        True
        """
        self.job_files.add_archive(path, name)
        return self

    def add_requirements(self, path: str | Path) -> StreamExecutionEnvironment:
        """Install what a requirements file asks for, by pip and once, and send it with the job: this program and its
        functions can import it from now on. The executors need the same Python and the same kind of machine; what
        Snapline itself needs stays theirs. Where is as for `add_file`. Raises JobDefinitionError with pip's reason.

        >>> _ = env.add_requirements("requirements.txt")  # doctest: +SKIP
        """
        self.job_files.add_requirements(path)
        return self

    # --- sources ------------------------------------------------------------------------------------------------------

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        uid: str = "",
        name: str = "",
    ) -> DataStream:
        """Read a source. Its splits are enumerated now, so that a missing input is an error here and not in a task.
        With a watermark strategy the rows have event time. Raises JobDefinitionError, and what the source raises.

        >>> env.from_source(sl.GeneratorSource(rows=100, keys=10), uid="numbers").schema.names
        ['key', 'value']
        """
        if not isinstance(source, Source):
            raise JobDefinitionError(
                f"from_source({source!r}): that is no Source, such as ParquetSource('file.parquet')"
            )
        label = name or type(source).__name__
        if watermark_strategy is not None:
            check_strategy(watermark_strategy, label)
        splits = order_splits(splits_of(source.enumerate_splits(), source, "enumerate_splits"), watermark_strategy)
        stream = self._with_time(DataStream(self, (), source.schema()), watermark_strategy, label)
        if source.create_enumerator(splits) is None:
            node = self.graph.add(label, SourceSpec(source, splits, watermark_strategy), stateful=True)
        else:
            node = add_fed_source(self.graph, label, source, splits, watermark_strategy)
        node.uid = uid
        return replace(stream, edges=(StreamEdge(node.node_id),))

    def validate_sink(self, sink: Sink) -> None:
        """Ask a sink whether its target can work; `sink_to` does so. Raises what the sink raises.

        >>> env.validate_sink(sl_connectors.DiscardingSink())
        """
        sink.validate()

    def add_source(
        self,
        function: SourceFunction,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        uid: str = "",
        name: str = "",
        schema: pa.Schema | None = None,
        event_time: str = "",
    ) -> DataStream:
        """Run a push-style SourceFunction, one in each subtask; `schema` is that of the rows that it emits. Event time
        comes with a watermark strategy, or lies in the column `event_time`, and the function itself says how far it has
        come, by `context.emit_watermark`. Raises JobDefinitionError for both together, and for what is no function.

        >>> class Ticks(sl.SourceFunction):
        ...     def run(self, context):
        ...         context.collect({"tick": 1})
        ...     def cancel(self):
        ...         pass
        >>> env.add_source(Ticks(), uid="ticks", schema=pa.schema([("tick", pa.int64())])).schema.names
        ['tick']
        """
        given: object = function
        if not isinstance(given, SourceFunction):
            way_out = f": hand over {given.__name__}(...)" if isinstance(given, type) else ", which has run and cancel"
            raise JobDefinitionError(f"add_source({function!r}): that is no SourceFunction{way_out}")
        label = name or type(function).__name__
        if watermark_strategy is not None:
            check_strategy(watermark_strategy, label)
            if event_time:
                raise JobDefinitionError(
                    f"source {label!r}: watermarks come from a strategy, or from the function, which says them itself where event_time "
                    "names a column; leave one of both out"
                )
        schema = None if schema is None else workable_schema(schema)
        in_time = WatermarkStrategy(event_time) if event_time else watermark_strategy
        stream = self._with_time(DataStream(self, (), schema), in_time, label)
        spec = SourceFunctionSpec(function, watermark_strategy, schema)
        node = self.graph.add(label, spec, stateful=hasattr(function, "snapshot_state"))
        node.uid = uid
        return replace(stream, edges=(StreamEdge(node.node_id),))

    def from_external(
        self,
        task: str,
        schema: pa.Schema,
        watermark_strategy: WatermarkStrategy | None = None,
        *,
        uid: str = "",
        name: str = "",
    ) -> DataStream:
        """Read the rows of programs outside, in any language, which register at the coordinator as this external task;
        as many as the parallelism of the source. Their state is part of every checkpoint, between the rows before and
        after it. `schema` is that of their rows; others fail the program's attempt. Raises JobDefinitionError for a
        task without a name. docs/external.md tells how to write the program.

        >>> env.from_external("prices", pa.schema([("cents", pa.int64())]), uid="prices").schema.names
        ['cents']
        """
        label = name or f"external {task}"
        spec = external_spec(task, "source", output_schema=schema)
        node = self.graph.add(label, spec, stateful=True, commits=True)
        node.uid, node.chainable = uid or task, False
        stream = DataStream(self, (StreamEdge(node.node_id),), schema)
        if watermark_strategy is None:
            return stream
        timed = stream.assign_timestamps_and_watermarks(watermark_strategy)
        timed.node.stateful = False  # its uid needs no warning: it follows from that of the source
        return timed

    def from_collection(
        self, rows: Iterable[Mapping[str, object]] | Any, *, uid: str = "", schema: pa.Schema | None = None
    ) -> DataStream:
        """Rows given here, dictionaries with equal names and types, or a table that Arrow can read (of pyarrow, Polars
        or pandas); for tests and first steps. `schema`: their columns, else those of the rows. `uid`: `collection`
        where none is said, `collection-2` for the next one of a job, and so on. Raises ConnectorError for rows that do
        not fit together.

        >>> env.from_collection([{"word": "a", "n": 1}, {"word": "b", "n": 2}]).schema.names
        ['word', 'n']
        """
        from snapline.connectors.builtin.collection import CollectionSource

        others = sum(
            node.uid == "collection" or node.uid.startswith("collection-")
            for node in self.graph.nodes[self._executed :]
        )
        own = f"collection-{others + 1}" if others else "collection"
        return self.from_source(CollectionSource.of_rows(rows, schema=schema), uid=uid or own)

    def from_dataframe(
        self, frame: Any, *, event_time: str | WatermarkStrategy | None = None, uid: str = "", name: str = ""
    ) -> DataStream:
        """Read a DataFrame of Spark. Spark computes it now, once; its rows are staged below the directory of
        checkpoints, replayed from there after a failure, and deleted when the job has ended and no snapshot of it is
        kept. A job that starts from a snapshot with this uid reads on in the rows that were staged then. `event_time`:
        a column, by which each partition is sorted, so that no row is late; or a watermark strategy, and then nothing
        is sorted.
        Raises JobDefinitionError for a streaming frame and for a type that a stream has not, and ConnectorError when
        the rows cannot be written.

        >>> frame = spark.read.parquet("orders").where("cents > 0")  # doctest: +SKIP
        >>> env.from_dataframe(frame, event_time="at", uid="orders").key_by("shop")  # doctest: +SKIP
        """
        from snapline.spark.dataframes import from_dataframe

        return from_dataframe(self, frame, event_time, uid, name)

    def from_streaming_dataframe(
        self,
        frame: Any,
        *,
        uid: str,
        watermark_strategy: WatermarkStrategy | None = None,
        output_mode: str = "append",
        trigger: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> DataStream:
        """Read a streaming DataFrame of Spark, exactly once, whatever its source is. This program runs its query while
        the job runs; micro-batches are staged below the directory of checkpoints, read from there, also after a
        failure, and freed once a checkpoint that lies behind them is complete. A job that starts from a snapshot with
        this uid goes on with the query. `output_mode`: `append`, or `update`, where a row is the new value of one that
        has changed. `trigger`: as in Spark, `{"processingTime": "1 second"}` or `{"availableNow": True}`; the latter
        lets the stream end. Raises JobDefinitionError for a frame that is no streaming one, for output mode `complete`,
        and for a type that a stream has not.

        >>> clicks = spark.readStream.format("kafka").options(**kafka).load()  # doctest: +SKIP
        >>> env.from_streaming_dataframe(clicks, uid="clicks").key_by("key")  # doctest: +SKIP
        """
        from snapline.spark.streaming_frames import from_streaming_dataframe

        return from_streaming_dataframe(self, frame, uid, watermark_strategy, output_mode, trigger or {}, name)

    @staticmethod
    def _with_time(stream: DataStream, strategy: WatermarkStrategy | None, label: str) -> DataStream:
        if strategy is None:
            return stream
        stream.check_event_time(strategy.column, f"watermark strategy of {label!r}")
        return DataStream(stream.environment, stream.edges, stream.schema, strategy.column)

    # --- running ------------------------------------------------------------------------------------------------------

    def translate(
        self, job_name: str = "snapline job", job_id: str = "", configuration: Configuration | None = None
    ) -> Translation:
        """The job's graph, without running it: `job_graph` is what would be submitted, `warnings` what is said about
        it. Raises JobDefinitionError that names the operator.

        >>> _ = orders.sink_to(sl_connectors.DiscardingSink(), uid="nowhere")
        >>> [vertex.name for vertex in env.translate("example").job_graph.vertices]
        ['orders -> DiscardingSink']
        """
        from snapline.connectors.parquet.staged_rows import StagedRowsSource

        job_id = job_id or uuid.uuid4().hex
        for streamed in self.streamed_frames:
            streamed.source.place(job_id)
        for node in self.graph.nodes:
            if isinstance(node.spec, SourceSpec) and isinstance(node.spec.source, StagedRowsSource):
                node.spec.source.require_rows(node.uid)
        with pickled_by_value([*self.python_modules, *modules_beside_script()]):
            return translate(
                self.graph,
                job_id=JobID(job_id),
                name=job_name,
                configuration=configuration or self.configuration,
                savepoint_restore=self.savepoint_restore,
            )

    def execute(
        self, job_name: str = "snapline job", *, local: bool | None = None, threads: int | None = None
    ) -> JobExecutionResult:
        """Run the job and wait for its end: on the coordinator at `jobmanager.rpc.address`, beside this process and in
        its Spark application, or in this process. A job that was executed before is not run again with what was added
        to the environment since then.

        `local=True` runs it in this process, without Java, Spark and sockets, on this thread: breakpoints, `print` and
        profilers work as in any program, and the exception of a user's function is the cause of JobFailed. `threads`:
        of a local run; with more than one, each task has a thread of its own. None: as `snapline run --local` says,
        else on Spark or a coordinator, on one thread.

        Raises JobFailed with the failure of the task that caused it, JobDefinitionError for a job that cannot run, and
        SnaplineError for what is missing, in one line each.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> env.from_collection([{"x": 1}, {"x": 2}]).map(lambda row: {"y": row["x"] * 10}).print()
        >>> env.execute("tens", local=True).status
        {'y': 10}
        {'y': 20}
        'FINISHED'
        """
        from snapline.client import JobFailed
        from snapline.execution import execute
        from snapline.local.local_execution import execute_locally, is_local, threads_of

        there, here = len(self.graph.nodes), is_local(local, threads)
        part = self._to_be_executed()
        try:
            done = execute_locally(part, job_name, threads_of(threads)) if here else execute(part, job_name)
        except (JobFailed, KeyboardInterrupt):
            self._executed = there
            raise
        self._executed = there
        return done

    def execute_async(
        self, job_name: str = "snapline job", *, local: bool | None = None, threads: int | None = None
    ) -> JobHandle:
        """Start the job and go on: the answer is a handle with `status`, `metrics()`, `checkpoints`, `cancel`,
        `savepoint`, `rescale` and `wait`, which `await` works on, too. Arguments and errors are those of `execute`.

        >>> env = sl.StreamExecutionEnvironment.get_execution_environment()
        >>> env.from_collection([{"x": 1}]).print()
        >>> env.execute_async("one", local=True).wait().status
        {'x': 1}
        'FINISHED'
        """
        from snapline.execution import start
        from snapline.local.local_execution import is_local, start_locally, threads_of
        from snapline.notebook import note_job, replace_former_jobs

        there, here = len(self.graph.nodes), is_local(local, threads)
        part = self._to_be_executed()
        replace_former_jobs(job_name)
        job = note_job(start_locally(part, job_name, threads_of(threads)) if here else start(part, job_name))
        self._executed = there
        return job

    def _to_be_executed(self) -> StreamExecutionEnvironment:
        """What was added since the last job was executed, with what that reads; all of it, where nothing was."""
        if not 0 < self._executed < len(self.graph.nodes):
            return self
        from snapline.collecting import part_of

        return part_of(self, range(self._executed, len(self.graph.nodes)))[0]
