"""From what the user wrote to a job graph."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import FileSink
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.api.windows import TumblingEventTimeWindows
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.generated_uids import GeneratedUids
from snapline.dataflow.graph.stream_graph import add_fed_source
from snapline.dataflow.graph.translation import Translation
from snapline.dataflow.ids import operator_id_of
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.codec import decode_job_graph, encode_job_graph
from snapline.environment import StreamExecutionEnvironment
from snapline.stream import DataStream

ROWS = [{"k": 1, "v": 10, "t": 1000}]


def environment(**settings: object) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(Configuration({k.replace("__", "."): str(v) for k, v in settings.items()}))


def source(env: StreamExecutionEnvironment, uid: str = "numbers") -> DataStream:
    return env.from_source(CollectionSource.of_rows(ROWS), WatermarkStrategy.for_monotonous_timestamps("t"), uid=uid)


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Ignore(sl.SinkFunction):
    def invoke(self, value: object) -> None:
        """Do nothing with it."""


class BothAlike(sl.KeyedCoProcessFunction):
    def process_element1(self, row: sl.Row, context: sl.ProcessContext) -> None:
        """Nothing comes of it."""

    process_element2 = process_element1


class BothInBatches(sl.KeyedCoBatchProcessFunction):
    def process_batch1(self, keys: object, batch: pa.RecordBatch, state: object) -> None:
        """Nothing comes of it."""

    process_batch2 = process_batch1


def test_forward_operators_of_equal_parallelism_become_one_chain():
    """Source and map share a task; the keyed operator begins another."""
    env = environment(parallelism__default=2)
    source(env).map_batches(identity, name="double", uid="double", schema=None).key_by("k").running_aggregate(
        uid="sums", total=sl.sum("v")
    )

    graph = env.translate("job").job_graph

    assert ["CollectionSource -> double", "running_aggregate"] == [v.name for v in graph.vertices]
    assert [-1, 0] == [o.chained_input for o in graph.vertices[0].operators]
    assert [(Partitioning.HASH, ("k",))] == [(e.partitioning, e.key_columns) for e in graph.edges]


def test_a_long_chain_goes_on_in_another_task():
    """A job of 300 operators in a row runs, because its chains end before the stack of Python does."""
    stream = environment(parallelism__default=1).from_collection(ROWS, uid="rows")
    for number in range(300):
        stream = stream.map(dict, uid=f"map-{number}")

    assert ROWS == list(stream.execute_and_collect(local=True))

    graph = stream.environment.translate("job").job_graph
    assert [100, 100, 100, 1] == [len(vertex.operators) for vertex in graph.vertices]
    assert {Partitioning.FORWARD} == {edge.partitioning for edge in graph.edges}


def test_an_edge_says_whether_its_consumer_works_row_by_row():
    """Of what comes in: what such a row costs does not fall with larger batches, so that less may wait. Behind an
    aggregate, and in a function of two inputs that takes batches, it does: q4 had lost more than half of its events."""
    env = environment(parallelism__default=2)
    rows = source(env)
    rows.key_by("k").running_aggregate(uid="sums", total=sl.sum("v")).map(dict, uid="of-sums")
    both = rows.connect(source(env, "others")).key_by("k", "k")
    both.process(BothAlike(), uid="both", schema=rows.schema)
    both.process_batches(BothInBatches(), uid="both-in-batches", schema=rows.schema)
    rows.rebalance().map_batches(identity, uid="whole").map(dict, uid="single")
    rows.rebalance().map_batches(identity, uid="batches")
    rows.rebalance().add_sink(Ignore(), row_wise=True, uid="each")
    rows.rebalance().add_sink(Ignore(), uid="all")

    graph = env.translate("job").job_graph

    heads = {vertex.vertex_id: vertex.operators[0].uid for vertex in graph.vertices}
    assert {heads[edge.target]: edge.row_wise for edge in graph.edges} == {
        "sums": False, "both": True, "both-in-batches": False, "whole": True, "batches": False, "each": True, "all": False,
    }  # fmt: skip


def test_an_edge_to_an_aggregate_sends_what_it_reads():
    """Keys, event time, what is aggregated and what is passed on, each once. Who hands late rows on, or whole rows to a
    function, is sent all of them."""
    env = environment(parallelism__default=2)
    wide = CollectionSource.of_rows([{"k": 1, "v": 10, "t": 1000, "w": 3, "note": "not read"}])
    keyed = env.from_source(wide, WatermarkStrategy.for_monotonous_timestamps("t"), uid="wide").key_by("k")
    keyed.running_aggregate(uid="sums", passthrough=["t", "k"], total=sl.sum("v"), n=sl.count())
    windows = keyed.window(sl.TumblingEventTimeWindows(1_000))
    windows.aggregate(uid="windows", latest=sl.last("v", by="w"), same=sl.sum("v"))
    windows.aggregate(uid="counts", n=sl.count())
    windows.side_output_late_data("late").aggregate(uid="with-late", n=sl.count())
    windows.max_by("v", uid="dearest")

    graph = env.translate("job").job_graph

    heads = {vertex.vertex_id: vertex.operators[0].uid for vertex in graph.vertices}
    assert {heads[edge.target]: edge.columns for edge in graph.edges} == {
        "sums": ("k", "t", "v"), "windows": ("k", "t", "v", "w"), "counts": ("k", "t"), "with-late": (), "dearest": (),
    }  # fmt: skip
    assert decode_job_graph(encode_job_graph(graph)) == graph


def test_a_job_carries_no_secret_of_its_client():
    """Coordinator and TaskManagers have their own; a job graph is stored and listed."""
    env = environment(parallelism__default=2)
    source(env)
    secrets = {"security.auth.token": "hunter2", "s3.access-key": "hunter2", "s3.secret-key": "hunter2"}

    graph = env.translate("job", configuration=env.configuration.with_values(secrets)).job_graph

    assert {"parallelism.default": "2"} == {
        k: v for k, v in graph.configuration.items() if k in {*secrets, "parallelism.default"}
    }


def test_branches_of_unlike_max_parallelism_do_not_share_a_chain():
    """The chain has one max parallelism, that of the first branch, and the other branch had it as well."""
    env = environment(parallelism__default=1)
    numbers = source(env)
    for name, most in (("few", 4), ("many", 8), ("some", 4)):
        numbers.map_batches(identity, name=name, uid=name, schema=None).set_max_parallelism(most)

    graph = env.translate("job").job_graph

    assert {"CollectionSource -> few -> some": 4, "many": 8} == {v.name: v.max_parallelism for v in graph.vertices}
    assert [Partitioning.FORWARD] == [edge.partitioning for edge in graph.edges]


def test_an_operator_is_in_the_slot_sharing_group_of_its_inputs():
    """What came behind an operator with a group of its own was in another one: it left the chain, and took a slot."""
    env = environment(parallelism__default=1)
    light = source(env)
    heavy = light.map_batches(identity, name="heavy", uid="heavy", schema=None).slot_sharing_group("heavy")
    behind = heavy.map_batches(identity, name="behind", uid="behind", schema=None)
    back = behind.map_batches(identity, name="back", uid="back", schema=None).slot_sharing_group("default")
    behind.union(heavy).map_batches(identity, name="one", uid="one", schema=None)
    back.union(heavy).map_batches(identity, name="mixed", uid="mixed", schema=None)

    graph = env.translate("job").job_graph

    assert {v.name: v.slot_sharing_group for v in graph.vertices} == {
        "CollectionSource": "default",
        "heavy -> behind": "heavy",
        "back": "default",
        "one": "heavy",
        "mixed": "default",
    }


def test_other_parallelism_breaks_the_chain_and_rebalances():
    """A forward edge needs equal parallelism; without one, batches are spread."""
    env = environment(parallelism__default=2)
    source(env).map_batches(identity, uid="wide").set_parallelism(3)

    graph = env.translate("job").job_graph

    assert [2, 3] == [v.parallelism for v in graph.vertices]
    assert Partitioning.REBALANCE is graph.edges[0].partitioning


def test_operator_ids_come_from_uids_alone():
    """Renaming or adding operators does not move state."""
    env = environment()
    source(env, uid="input").map_batches(identity, uid="clean", name="whatever")

    operators = env.translate("job").job_graph.vertices[0].operators

    assert [operator_id_of("input"), operator_id_of("clean")] == [o.operator_id for o in operators]


def test_stateful_operator_without_uid_is_refused_when_uids_are_not_generated():
    """Its state could not be found again."""
    env = environment(**{"pipeline.auto-generate-uids": "false"}).enable_checkpointing(1000)
    source(env).key_by("k").running_aggregate(total=sl.sum("v"))

    with pytest.raises(JobDefinitionError, match=r"'running_aggregate' keeps state but has no uid.*add uid="):
        env.translate("job")


def test_watermarks_in_the_middle_of_a_stream_are_state():
    """Nobody was told that they need a uid, and a snapshot of a program that had grown before them was refused."""
    env = environment(**{"pipeline.auto-generate-uids": "false"}).enable_checkpointing(1000)
    source(env).assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps("t"))

    with pytest.raises(JobDefinitionError, match=r"'watermarks' keeps state but has no uid"):
        env.translate("job")


def test_watermarks_of_an_external_source_need_no_uid_of_their_own():
    """A job that ran was refused for an operator that its program does not have; old snapshots fit still."""
    env = environment(**{"pipeline.auto-generate-uids": "false"}).enable_checkpointing(1000)
    strategy = WatermarkStrategy.for_monotonous_timestamps("t")
    rows = env.from_external("prices", pa.schema([("t", pa.int64())]), strategy, uid="prices")
    rows.sink_to(sl.connectors.DiscardingSink(), uid="nowhere")

    translation = env.translate("job")

    operators = [operator for vertex in translation.job_graph.vertices for operator in vertex.operators]
    assert GeneratedUids().draw("watermarks", ["prices"]) in [operator.uid for operator in operators]
    assert translation.warnings == ()


def without_uids(name: str = "running_aggregate", *, grown: bool = False) -> Translation:
    env = environment().enable_checkpointing(1000)
    if grown:
        source(env, uid="other").map_batches(identity).key_by("k").running_aggregate(total=sl.sum("v"))
    keyed = source(env).map_batches(identity).key_by("k")
    keyed.running_aggregate(name=name, total=sl.sum("v"))
    keyed.running_aggregate(name=name, total=sl.sum("v"))
    return env.translate("job")


def stateful_uids(translation: Translation) -> list[str]:
    return [o.uid for v in translation.job_graph.vertices for o in v.operators if o.uid.startswith("running_aggregate")]


def test_generated_uids_are_the_same_as_long_as_the_program_is():
    """Also when it grows elsewhere; two operators that are alike have two uids."""
    uids = stateful_uids(without_uids())

    assert (2, uids) == (len(set(uids)), stateful_uids(without_uids()))
    assert set(uids) <= set(stateful_uids(without_uids(grown=True)))


def test_a_refused_operator_is_told_the_uid_that_its_state_has_in_old_snapshots() -> None:
    """A uid of the user's own choice lost the state of a job whose uids had been generated until then."""

    def sums(uid: str = "", *, generate: bool) -> Translation:
        env = environment(**{"pipeline.auto-generate-uids": str(generate)}).enable_checkpointing(1000)
        source(env).key_by("k").running_aggregate(total=sl.sum("v"), uid=uid)
        return env.translate("job")

    with pytest.raises(JobDefinitionError, match=r"; a snapshot that has it already has it as uid='.*'$") as refused:
        sums(generate=False)
    uid = str(refused.value).split("'")[-2]
    assert stateful_uids(sums(uid, generate=False)) == stateful_uids(sums(generate=True)) == [uid]


def test_an_operator_of_two_halves_is_not_told_a_uid_that_only_one_of_them_has() -> None:
    """The other half would get a uid that follows from it, under which no snapshot has its state."""
    env = environment(**{"pipeline.auto-generate-uids": "false"}).enable_checkpointing(1000)
    add_fed_source(env.graph, "fed", CollectionSource.of_rows(ROWS), (), None)

    with pytest.raises(JobDefinitionError, match=r"'fed: splits' keeps state but has no uid.* is false\)$"):
        env.translate("job")


def test_one_warning_names_the_operators_whose_uid_is_generated():
    """And says what an upgrade would lose."""
    translation = without_uids()
    first, second = stateful_uids(translation)

    warning, _ = translation.warnings
    assert warning == (
        f"2 operators keep state under a generated uid: 'running_aggregate' ({first}), 'running_aggregate' ({second}). Such a uid "
        "is the same as long as the program is; once an operator or anything before it is renamed, added or removed, a restart from a savepoint "
        "does not find its state. Add uid='...' to each (pipeline.auto-generate-uids = false makes this an error)"
    )


def test_streams_that_nobody_reads_are_named():
    """A sink that was forgotten is the usual reason; one that throws rows away is meant."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([{"v": 1}])
    numbers.map_batches(lambda batch: batch, name="doubled")
    numbers.map_batches(lambda batch: batch, name="kept").sink_to(sl.connectors.DiscardingSink())
    (warning,) = env.translate("job").warnings
    assert warning == (
        "nothing reads what 'doubled' puts out: it goes nowhere. End the stream with sink_to(...), print() or "
        "execute_and_collect(), or with sink_to(snapline.connectors.DiscardingSink()) where that is meant"
    )


def test_sinks_whose_rows_would_never_be_seen_are_named(tmp_path: Path) -> None:
    """They wrote for ever, and no reader found a file: checkpoints had been forgotten, and nothing said so."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_source(sl.GeneratorSource(keys=10, rows_per_second=10), uid="numbers")
    numbers.sink_to(sl.ParquetSink(tmp_path / "all"), uid="all")
    numbers.sink_to(FileSink(tmp_path / "few", compact_below=1), uid="few")
    numbers.sink_to(sl.connectors.DiscardingSink(), uid="nowhere")
    env.from_collection([{"v": 1}]).sink_to(sl.ParquetSink(tmp_path / "one"), uid="one")

    (warning,) = env.translate("job").warnings
    assert warning == (
        "nobody sees what 'all', 'few' writes before the job is stopped with a savepoint: rows become visible with checkpoints, and "
        "there are none. Set execution.checkpointing.interval, or env.enable_checkpointing(10_000)"
    )
    assert env.enable_checkpointing(1000).translate("job").warnings == ()


def test_uid_used_twice_is_refused():
    """Two operators cannot share state."""
    env = environment()
    source(env, uid="same").map_batches(identity, uid="same")

    with pytest.raises(JobDefinitionError, match=r"uid 'same' is used twice"):
        env.translate("job")


@pytest.mark.parametrize("wrong", [5, b"a", "a\ud800", "a\x00"], ids=repr)
def test_names_that_nobody_can_print_are_refused(wrong: Any):
    """What is no text, or has halves of characters, is refused with what it is the name of."""
    for stream, job, named in (
        (source(environment()).map(dict, uid=wrong), "job", "operator 'map': a uid"),
        (source(environment()).map(dict, name=wrong), "job", "an operator's name"),
        (source(environment()), wrong, "a job's name"),
    ):
        with pytest.raises(JobDefinitionError, match=f"{named} is text that can be printed, got "):
            stream.environment.translate(job)


def test_function_that_cannot_be_pickled_is_named():
    """The operator, the cause and the way out are in one line."""
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    env = environment()
    source(env).map_batches(locked, uid="locked")

    with pytest.raises(JobDefinitionError, match=r"operator 'locked' cannot be pickled .*open\(\)"):
        env.translate("job")


def test_unknown_column_names_the_nearest():
    """A typo is found while the graph is built."""
    env = environment()

    with pytest.raises(JobDefinitionError, match=r"key_by: there is no column 'kk'; did you mean 'k'\?"):
        source(env).key_by("kk")


def test_window_without_event_time_is_refused():
    """The message says what to call."""
    env = environment()
    stream = env.from_source(CollectionSource.of_rows(ROWS), uid="s")

    with pytest.raises(JobDefinitionError, match="assign_timestamps_and_watermarks"):
        stream.key_by("k").window(TumblingEventTimeWindows(1000)).aggregate(n=sl.count())


def test_empty_job_is_refused():
    """There is nothing to run."""
    with pytest.raises(JobDefinitionError, match="no operators"):
        environment().translate("job")


def test_union_gives_the_consumer_several_edges():
    """Both inputs are the first logical input of the consumer."""
    env = environment()
    joined = source(env, "a").union(source(env, "b"))
    joined.key_by("k").running_aggregate(uid="sums", n=sl.count())

    graph = env.translate("job").job_graph

    assert [0, 0] == [e.target_input for e in graph.edges]
    assert 2 == len({e.edge_id for e in graph.edges})
