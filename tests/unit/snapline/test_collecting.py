"""Results and jobs as values: rows of a stream, a table of them, a handle of a job that runs while the program goes
on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import snapline as sl
from snapline.collecting import alone, as_text
from snapline.connectors.builtin.collection import CollectionSource
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.dataflow.graph.translation import uids_of
from snapline.local import collect_sink
from snapline.local.local_job import LocalJob
from snapline.runtime.settings import Setting
from snapline.state import SavepointWriter, open_state

ROWS = [{"k": i % 3, "v": i} for i in range(30)]


def environment(tmp_path, **settings):
    """Checkpoints lie in the test's directory."""
    return sl.StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), **settings}
    )


def endless(env, rate=2000.0):
    """A source that does not end."""
    return env.from_source(GeneratorSource(keys=5, rows_per_second=rate), uid="endless")


def test_rows_batches_and_frames(tmp_path):
    """The same rows in every form; the environment stays as it was."""
    env = environment(tmp_path)
    stream = env.from_collection(ROWS)
    before = len(env.graph.nodes)
    assert list(stream.execute_and_collect(local=True)) == ROWS
    assert [row for batch in stream.execute_and_collect(local=True).batches() for row in batch.to_pylist()] == ROWS
    assert stream.execute_and_collect(local=True).to_arrow() == pa.Table.from_pylist(ROWS)
    assert stream.execute_and_collect(local=True).to_polars().equals(pl.DataFrame(ROWS))
    assert stream.execute_and_collect(local=True).to_pandas().to_dict("records") == ROWS
    assert len(env.graph.nodes) == before


def test_two_collections_need_no_uids(tmp_path):
    """The second was refused, since its uid, which nobody had given, was used twice."""
    env = environment(tmp_path)
    first, second = env.from_collection([{"n": 1}]), env.from_collection([{"n": 2}])
    rows = list(first.union(second).execute_and_collect(local=True))
    assert sorted(row["n"] for row in rows) == [1, 2]
    assert [node.uid for node in env.graph.nodes] == ["collection", "collection-2"]


class SaysWatermarks(sl.SourceFunction):
    """Goes on until the window has fired that its watermark ends."""

    def __init__(self, has_fired):
        self.has_fired = has_fired

    def run(self, context):
        for at in (1, 5):
            context.collect({"k": "a", "at": at})
        context.emit_watermark(9)
        while not self.has_fired.exists():
            context.collect({"k": "a", "at": 20})

    def cancel(self):
        pass


def test_a_source_function_may_say_watermarks_itself(tmp_path):
    """Windows had event time from a strategy alone, beside which the function's own watermarks were dropped."""
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    env, function = environment(tmp_path), SaysWatermarks(tmp_path / "fired")
    rows = env.add_source(function, schema=schema, event_time="at").set_parallelism(1)
    counts = rows.key_by("k").window(sl.TumblingEventTimeWindows(10)).aggregate(n=sl.count())
    counts = counts.map(lambda row: function.has_fired.touch() or row)
    assert [row["n"] for row in counts.execute_and_collect(local=True, limit=1)] == [2]
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    with pytest.raises(JobDefinitionError, match="leave one of both out"):
        env.add_source(function, strategy, schema=schema, event_time="at")


def test_a_column_that_is_null_at_first_has_the_type_of_what_comes_later(tmp_path):
    """The first batch decided, and rows that a function made without a schema were no table."""
    numbers = environment(tmp_path).from_source(CollectionSource.of_rows(ROWS, batch_rows=7))
    texts = numbers.map(lambda row: {"a": None if row["v"] % 21 < 14 else str(row["v"]), "b": None})
    expected = [{"a": None if v % 21 < 14 else str(v), "b": None} for v in range(30)]

    table = texts.execute_and_collect(local=True).to_arrow()
    assert table.schema == pa.schema([("a", pa.string()), ("b", pa.null())])
    assert table.to_pylist() == expected
    other = texts.map(lambda row: {"a": None if row["a"] is None else int(row["a"]), "b": None})
    with pytest.raises(SnaplineError, match=r"different columns, which make no table: a .*, b null and a "):
        texts.union(other).execute_and_collect(local=True).to_arrow()


def test_only_what_the_stream_needs_runs(tmp_path):
    """Another branch fails when it runs."""
    env = environment(tmp_path)
    stream = env.from_collection(ROWS)
    stream.map(lambda row: 1 / 0).sink_to(DiscardingSink())
    assert len(list(stream.execute_and_collect(local=True))) == len(ROWS)


def test_an_empty_stream_has_its_schema(tmp_path):
    """No row came."""
    env = environment(tmp_path)
    table = env.from_collection(ROWS).filter_rows(lambda row: False).execute_and_collect(local=True).to_arrow()
    assert (table.num_rows, table.schema.names) == (0, ["k", "v"])


def test_a_stream_without_end_needs_a_limit(tmp_path):
    """And ends with it."""
    stream = endless(environment(tmp_path))
    with pytest.raises(sl.JobDefinitionError, match=r"source 'endless' never ends.*give limit="):
        stream.execute_and_collect(local=True)
    assert len(list(stream.execute_and_collect(local=True, limit=50))) == 50
    assert list(stream.execute_and_collect(local=True, limit=0)) == []


def test_who_takes_no_more_ends_the_job(tmp_path):
    """At the end of the block."""
    before = threading.active_count()
    with endless(environment(tmp_path)).execute_and_collect(local=True, limit=10**9, threads=2) as rows:
        assert next(rows)
    assert threading.active_count() == before


class FailsOnce:
    """Fails at one row, unless a file says that it has."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __call__(self, row):
        """Pass it on."""
        if row["v"] == 20 and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise ValueError("once")
        return row


class StartedJob:
    """A job elsewhere that runs until it is cancelled."""

    has_ended = False

    def cancel(self) -> None:
        """End the job."""
        self.has_ended = True


@pytest.mark.parametrize("limit", [0, 10])
def test_who_takes_no_row_at_all_ends_the_job(tmp_path, monkeypatch, limit):
    """The job was started with the call, and ran on for ever when nobody had taken a row before `close`."""
    job = StartedJob()
    monkeypatch.setattr(sl.StreamExecutionEnvironment, "execute_async", lambda *_, **__: job)
    rows = endless(environment(tmp_path)).execute_and_collect(local=False, limit=limit)
    if limit:
        rows.close()
    else:
        assert list(rows) == []
    assert job.has_ended


def test_a_stream_without_end_has_checkpoints_where_its_rows_come_through_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They appear with checkpoints alone: who showed a topic on Spark, and had set no interval, waited for ever."""
    started: list[sl.StreamExecutionEnvironment] = []

    def start(environment: sl.StreamExecutionEnvironment, *_: Any, **__: Any) -> StartedJob:
        started.append(environment)
        return StartedJob()

    monkeypatch.setattr(sl.StreamExecutionEnvironment, "execute_async", start)
    mine = environment(tmp_path)
    endless(mine).execute_and_collect(local=False, limit=1).close()
    endless(environment(tmp_path).enable_checkpointing(20_000)).execute_and_collect(local=False, limit=1).close()
    environment(tmp_path).from_collection(ROWS).execute_and_collect(local=False, limit=1).close()

    intervals = [each.configuration.get("execution.checkpointing.interval") for each in started]
    assert intervals == ["1 s", "20000 ms", None]
    assert [each.configuration.get("restart-strategy.type") for each in started] == ["none", None, None]
    assert mine.configuration.get("execution.checkpointing.interval") is None


@pytest.mark.parametrize(
    ("master", "conf", "place"),
    [
        ("local[2]", {}, "snapline-collect-"),
        ("spark://10.0.0.9:7077", {"execution.checkpointing.dir": "/mnt/checkpoints"}, "/mnt/checkpoints/collect-"),
        ("spark://10.0.0.9:7077", {}, ""),
        ("yarn", {"execution.checkpointing.dir": "s3://bucket/checkpoints"}, ""),
    ],
)
def test_rows_are_collected_where_executors_and_program_both_are(monkeypatch, master, conf, place):
    """Executors of other machines wrote into temporary directories of their own, and no row came, without a word."""
    settings = {key: Setting(value, "Spark conf") for key, value in conf.items()}
    opened = SimpleNamespace(settings=settings, host=SimpleNamespace(master=master), ours=False)
    monkeypatch.setattr("snapline.session.open_spark", lambda *_, **__: opened)
    places: list[str] = []

    def start(environment: Any, *_: Any, **__: Any) -> StartedJob:
        places.append(str(environment.graph.nodes[-1].spec.sink.path))
        return StartedJob()

    monkeypatch.setattr(sl.StreamExecutionEnvironment, "execute_async", start)
    stream = endless(sl.StreamExecutionEnvironment.get_execution_environment())
    if not place:
        with pytest.raises(
            sl.JobDefinitionError, match=r"set execution\.checkpointing\.dir to a directory that executors"
        ):
            stream.execute_and_collect(local=False, limit=1)
        return
    stream.execute_and_collect(local=False, limit=1).close()
    assert place in places[0]


def test_a_job_that_does_not_start_leaves_no_place_for_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nobody who would come back for it: neither below the checkpoints nor among temporary files."""

    def start(*_: Any, **__: Any) -> None:
        raise SnaplineError("no slots")

    opened = SimpleNamespace(settings={}, host=SimpleNamespace(master="local[2]"), ours=False)
    monkeypatch.setattr("snapline.session.open_spark", lambda *_, **__: opened)
    monkeypatch.setattr(sl.StreamExecutionEnvironment, "execute_async", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for conf in ({}, {"execution.checkpointing.dir": str(tmp_path / "checkpoints")}):
        with pytest.raises(SnaplineError, match="no slots"):
            endless(sl.StreamExecutionEnvironment.get_execution_environment(conf)).execute_and_collect(
                local=False, limit=1
            )
    assert [str(path) for path in tmp_path.rglob("*collect*")] == []


def test_who_takes_no_row_at_all_leaves_nothing_in_this_process(monkeypatch):
    """Neither the directory of the local run nor the place where its rows were to come."""
    closed: list[LocalJob] = []
    close = LocalJob.close

    def note(job: LocalJob) -> None:
        closed.append(job)
        close(job)

    monkeypatch.setattr(LocalJob, "close", note)
    before = dict(collect_sink._collected)
    with endless(sl.StreamExecutionEnvironment.get_execution_environment()).execute_and_collect(local=True, limit=1):
        assert collect_sink._collected != before
    assert closed
    assert collect_sink._collected == before


def test_no_row_comes_twice_after_a_restart(tmp_path):
    """With checkpoints rows come with theirs."""
    env = environment(tmp_path, **{"execution.checkpointing.interval": "10 ms"})
    stream = env.from_collection(ROWS).map(FailsOnce(tmp_path / "marker"), uid="once")
    assert list(stream.execute_and_collect(local=True)) == ROWS


def test_a_failure_comes_out_of_the_iterator(tmp_path):
    """With what the function has raised as its cause."""
    rows = (
        environment(tmp_path).from_collection(ROWS).map(lambda row: {"x": 1 / row["v"]}).execute_and_collect(local=True)
    )
    with pytest.raises(sl.JobFailed, match="ZeroDivisionError") as caught:
        list(rows)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_show_prints_a_table(tmp_path, capsys):
    """With types, and a mark when there are more rows."""
    stream = environment(tmp_path).from_collection([{"x": 1, "name": "one"}, {"x": None, "name": "a" * 40}])
    stream.show(local=True)
    stream.show(1, local=True)
    table = "x      name\nint64  string\n1      one\n"
    cut = f"null   {'a' * 29}...\n2 rows\n"
    assert capsys.readouterr().out == table + cut + table + "...\n"
    stream.flat_map(lambda row: []).show(3, local=True)
    assert capsys.readouterr().out.endswith("0 rows\n")


def test_rows_that_were_not_taken_one_by_one_are_left_for_a_table(tmp_path: Path) -> None:
    """Whoever looks at the first row wants the others as well, also those of the same batch."""
    rows = environment(tmp_path).from_collection([{"x": number} for number in range(5)])
    collected = rows.execute_and_collect(local=True)
    assert [next(collected), next(collected)] == [{"x": 0}, {"x": 1}]
    assert [batch.to_pydict() for batch in itertools.islice(collected.batches(), 1)] == [{"x": [2, 3, 4]}]
    assert collected.to_arrow().num_rows == 0
    collected = rows.execute_and_collect(local=True, limit=4)
    assert next(collected) == {"x": 0}
    assert collected.to_arrow().to_pydict() == {"x": [1, 2, 3]}
    assert list(collected) == []


def test_times_that_python_has_not_are_shown_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever looks at rows wants to see them, also those that are beyond the year 9999, and columns of one name."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection(pa.table({"at": pa.array([2**59, None], pa.timestamp("us"))}))
    rows.show(local=True)
    assert capsys.readouterr().out.split("\n")[2:4] == ["20237-04-25 10:45:03.423488", "null"]
    rows.print()
    env.execute(local=True)
    assert capsys.readouterr().out == "{'at': '20237-04-25 10:45:03.423488'}\n{'at': None}\n"
    rows.with_columns(b=sl.lit(1)).map_batches(lambda batch: batch.rename_columns(["a", "a"])).show(local=True)
    assert capsys.readouterr().out.split("\n")[2:4] == [
        "20237-04-25 10:45:03.423488  1",
        "null                         1",
    ]


def test_categories_of_batches_that_do_not_go_together_are_shown() -> None:
    """Eight bits number the categories of each batch, but not those of both."""
    kind = pa.dictionary(pa.int8(), pa.string())
    names = [pa.array([str(first + number) for number in range(100)]).dictionary_encode() for first in (0, 100)]
    table = pa.Table.from_batches([pa.record_batch({"name": each.cast(kind)}) for each in names])
    assert as_text(table, more=False).splitlines()[2:] == [*map(str, range(200)), "200 rows"]


def test_a_job_is_a_value(tmp_path):
    """It is looked at, saved, rescaled, stopped with a savepoint, and started again from it."""
    env = environment(tmp_path, **{"execution.checkpointing.interval": "50 ms"})
    endless(env).sink_to(DiscardingSink(), uid="out")
    with env.execute_async("endless", local=True) as job:
        while job.status != "RUNNING" or not job.checkpoints:
            assert not job.has_ended
        assert Path(job.savepoint(str(tmp_path / "savepoints")), "_metadata").exists()
        job.rescale(2)
        assert [len(vertex.subtasks) for vertex in job.details.vertices] == [2]
        while not any(task["records_out"] or task["records_in"] for task in job.metrics().tasks.values()):
            assert not job.has_ended
        path = job.stop(str(tmp_path / "savepoints"))
        assert job.wait().status == "FINISHED"
    with pytest.raises(sl.SnaplineError, match="is FINISHED"):
        job.savepoint()
    env.restore_from(path)
    with env.execute_async("again", local=True, threads=2) as job:
        while job.status != "RUNNING":
            assert not job.has_ended
        job.cancel()
        assert job.status == "CANCELED"
        with pytest.raises(sl.JobFailed, match="was cancelled"):
            job.wait()


def test_a_job_goes_on_when_its_savepoint_can_be_written_nowhere(tmp_path: Path) -> None:
    """A slip in the name of a directory: it failed, or began again, and was to go on, or to end well."""
    (tmp_path / "in-the-way").touch()
    env = environment(tmp_path)
    endless(env).sink_to(DiscardingSink(), uid="out")
    with env.execute_async("endless", local=True) as job:
        while job.status != "RUNNING":
            assert not job.has_ended
        for ask in (job.savepoint, job.stop):
            with pytest.raises(sl.SnaplineError, match=r"The savepoint cannot be written: .*in-the-way"):
                ask(str(tmp_path / "in-the-way"))
            assert (job.status, job.details.overview.restarts) == ("RUNNING", 0)
        job.stop(str(tmp_path / "savepoints"))
        assert job.wait().status == "FINISHED"


def test_a_job_without_a_place_for_checkpoints_is_not_rescaled() -> None:
    """The checkpoint that it was to be rescaled with failed, and the job with it."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    endless(env).sink_to(DiscardingSink(), uid="out")
    with env.execute_async("endless", local=True) as job:
        while job.status != "RUNNING":
            assert not job.has_ended
        with pytest.raises(sl.SnaplineError, match=r"execution\.checkpointing\.dir"):
            job.rescale(2)
        assert (job.status, job.details.overview.restarts) == ("RUNNING", 0)


def test_a_vertex_that_has_one_task_for_good_keeps_it_when_a_local_job_is_rescaled(tmp_path: Path) -> None:
    """As at a coordinator: every job with a sink whose subtasks commit together, by one task, was refused."""
    env = environment(tmp_path, **{"execution.checkpointing.interval": "50 ms"})
    one = endless(env).rebalance().map_batches(lambda batch: batch, uid="one").set_parallelism(1).set_max_parallelism(1)
    one.rebalance().sink_to(DiscardingSink(), uid="out").set_parallelism(1)
    with env.execute_async("endless", local=True) as job:
        while job.status != "RUNNING" or not job.checkpoints:
            assert not job.has_ended
        job.rescale(2)
        assert [len(vertex.subtasks) for vertex in job.details.vertices] == [2, 1, 2]


def test_a_job_can_be_awaited(tmp_path):
    """Beside others."""

    async def both():
        jobs = []
        for number in range(2):
            env = environment(tmp_path)
            env.from_collection(ROWS).sink_to(DiscardingSink(), uid="out")
            jobs.append(env.execute_async(f"job {number}", local=True))
        return [(await job).rows_read for job in jobs]

    assert asyncio.run(both()) == [30, 30]


def test_a_stream_alone_keeps_the_query_that_fills_it_and_no_other() -> None:
    """What is collected, or handed over as a DataFrame, may come from a streaming DataFrame: without its query the job
    would wait for rows that nobody stages."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    wanted = env.from_source(sl.GeneratorSource(rows=1), uid="wanted")
    other = env.from_source(sl.GeneratorSource(rows=1), uid="other")
    specs: list[Any] = [wanted.node.spec, other.node.spec]
    queries: list[Any] = [SimpleNamespace(source=spec.source) for spec in specs]
    env.streamed_frames = queries

    environment, _ = alone(wanted)

    assert queries[:1] == environment.streamed_frames


def test_a_stream_alone_has_the_generated_uids_of_its_whole_environment(tmp_path):
    """Of two operators that are called alike and read the same stream, the second one found the state of the first."""

    def two():
        env = sl.StreamExecutionEnvironment.get_execution_environment()
        keyed = env.from_collection([{"k": "a", "v": 1}], uid="rows").key_by("k")
        return env, [keyed.reduce(lambda left, right: {**left, "v": left["v"] + right["v"]}) for _ in range(2)]

    writer = SavepointWriter.new_savepoint()
    for uid, v in zip(uids_of(two()[0].graph)[1:], (100, 1_000), strict=True):
        writer = writer.with_operator(uid, pa.table({"k": ["a"], "reduced": [{"k": "a", "v": v}]}), key="k")
    snapshot = writer.write(tmp_path / "both")
    for number, total in ((0, 101), (1, 1_001)):
        env, sums = two()
        env.restore_from(snapshot)
        assert list(sums[number].execute_and_collect(local=True)) == [{"k": "a", "v": total}]


def test_rows_with_two_columns_of_one_name_are_refused():
    """A dictionary has room for one of them, and the other would be missing without a word."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    doubled = env.from_collection([{"a": 1, "b": 2}]).map_batches(lambda batch: batch.rename_columns(["a", "a"]))

    with pytest.raises(ValueError, match="a row cannot have two columns of one name: a, a"):
        list(doubled.execute_and_collect(local=True))


def collected_from_snapshot(tmp_path, snapshot, *, beside):
    """Sums that go on from a snapshot; `beside`: whether the environment has another operator that is not collected."""
    env = environment(tmp_path).restore_from(str(snapshot), claim=True)
    rows = env.from_collection([{"k": "a", "v": 1}, {"k": "a", "v": 2}])
    sums = rows.key_by("k").reduce(lambda a, b: {"k": b["k"], "v": a["v"] + b["v"]}, uid="sums")
    if beside:
        rows.key_by("k").running_aggregate(n=sl.count(), uid="others").sink_to(DiscardingSink(), uid="nowhere")
    return [row["v"] for row in sums.execute_and_collect(local=True)]


def test_a_stream_alone_starts_from_the_snapshot_of_its_environment(tmp_path):
    """Its state goes on, what belongs to operators that are left out stays behind, and the snapshot is not its own."""
    known = pa.table({"k": ["a"], "reduced": [{"k": "a", "v": 100}]})
    writer = SavepointWriter.new_savepoint().with_operator("sums", known, key="k")
    sums = writer.write(tmp_path / "sums")
    both = writer.with_operator("others", pa.table({"k": ["a"], "n": [1]}), key="k").write(tmp_path / "both")

    assert collected_from_snapshot(tmp_path, sums, beside=False) == [101, 103]
    assert collected_from_snapshot(tmp_path, both, beside=True) == [101, 103]
    with pytest.raises(SnaplineError, match="allow-non-restored-state"):
        collected_from_snapshot(tmp_path, both, beside=False)
    with pytest.raises(SnaplineError, match="nowhere"):
        collected_from_snapshot(tmp_path, tmp_path / "nowhere", beside=False)
    assert [row["v"] for row in open_state(sums).read("sums")["reduced"].to_pylist()] == [100]


@pytest.mark.parametrize(
    "run",
    [
        lambda rows: list(rows.execute_and_collect(local=True)),
        lambda rows: rows.environment.execute_async("job", local=True).wait(),
    ],
    ids=["collected", "in the background"],
)
def test_a_failure_is_told_that_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Callable[[sl.DataStream], Any]
) -> None:
    """A job here that failed again and again said nothing, unless it was executed: it looked as if it hung."""
    restarts = {"type": "fixed-delay", "fixed-delay.attempts": 1, "fixed-delay.delay": "300 ms"}
    settings = {f"restart-strategy.{key}": value for key, value in restarts.items()}
    env = environment(tmp_path, **{"execution.checkpointing.interval": "1 min"}, **settings)
    rows = env.from_collection(ROWS).map_batches(lambda batch: batch.drop_columns(["missing"]), uid="odd")
    rows.sink_to(DiscardingSink(), uid="out")
    with pytest.raises(sl.JobFailed, match="missing"):
        run(rows)
    said = capsys.readouterr().err
    assert said.count("; it restarts") == 1
    assert "in operator 'odd'" in said or "(uid 'odd')" in said


def test_tasks_with_threads_of_their_own_wait_for_who_takes_their_rows() -> None:
    """They worked on while the program looked at the first row, until the memory was full of those behind it."""
    collected = collect_sink.Collected()
    collected.is_asked.clear()
    batch = pa.record_batch({"x": [1]})
    writer = collect_sink._DirectWriter(collected)

    def write() -> None:
        for _ in range(collect_sink.MOST_WAITING + 1):
            writer.write(batch)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    while len(collected.batches) < collect_sink.MOST_WAITING:
        assert thread.is_alive()
    assert thread.is_alive()
    collected.is_asked.set()
    thread.join()
    assert len(collected.batches) == collect_sink.MOST_WAITING + 1


@pytest.mark.parametrize("settings", [{}, {"execution.checkpointing.interval": "20 ms"}])
def test_rows_of_tasks_with_threads_of_their_own_are_all_taken(tmp_path: Path, settings: dict[str, str]) -> None:
    """However many wait while one of them is looked at."""
    numbers = environment(tmp_path, **settings).from_source(CollectionSource.of_rows(ROWS * 20, batch_rows=2))
    assert list(numbers.execute_and_collect(local=True, threads=2)) == ROWS * 20
