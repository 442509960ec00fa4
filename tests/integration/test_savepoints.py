"""Savepoints from end to end: a coordinator process, TaskManager processes, the client and the command line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from snapline import TumblingEventTimeWindows, WatermarkStrategy, count
from snapline.client import RequestRefused
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.parquet.parquet_sink import ParquetSink
from snapline.coordinator.checkpoint.metadata import parse_metadata
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import KEYS, assert_exactly_once, build, committed
from tests.services.cluster import LocalCluster, files_below, wait_until

ROWS = "500000"
"""Half a minute at the rate of the job, so that a stop always comes before the end."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2, 2)) as cluster:
        yield cluster


def start(cluster, output, name, *arguments, restore="", claim=False, allow=False, **settings):
    environment = build(cluster.environment(**settings), ["--output", str(output), *arguments])
    if restore:
        environment.restore_from(restore, claim=claim, allow_non_restored_state=allow)
    return cluster.submit(environment, name)


def metadata_of(path):
    return parse_metadata((Path(path) / "_metadata").read_bytes(), str(path))


def test_a_savepoint_of_a_running_job_starts_another(cluster, tmp_path):
    """The job goes on; a second one starts from the savepoint with another parallelism and repeats nothing before
    it."""
    first = start(cluster, tmp_path / "first", "first of two")
    cluster.wait_for_checkpoints(first, 2)
    path = cluster.client.trigger_savepoint(first)
    assert Path(path).parent == cluster.savepoints
    assert metadata_of(path).snapshot_type is SnapshotType.SAVEPOINT
    assert cluster.status(first) is JobStatus.RUNNING
    cluster.cancel(first)
    assert_exactly_once(tmp_path / "first")

    second = start(cluster, tmp_path / "second", "second of two", "--parallelism", "3", restore=path)
    answer = cluster.wait_for_checkpoints(second, 2)
    assert answer.restored_path == path
    cluster.cancel(second)
    found = committed(tmp_path / "second")
    assert len(found) == KEYS
    assert min(counts[0] for counts in found.values()) > 1
    for counts in found.values():
        assert counts == list(range(counts[0], counts[0] + len(counts)))


@pytest.mark.parametrize("parallelism", ["1", "2", "4"])
def test_stop_and_resume_at_another_parallelism(cluster, tmp_path, parallelism):
    """Output before and after the stop is one exactly-once whole."""
    output = tmp_path / "out"
    first = start(cluster, output, f"to stop {parallelism}", "--rows", ROWS, "--gate", str(tmp_path / "gate"))
    cluster.wait_for_checkpoints(first, 1)
    path = cluster.client.stop_with_savepoint(first)
    assert cluster.status(first) is JobStatus.FINISHED
    before = assert_exactly_once(output)
    assert 0 < before < int(ROWS)
    arguments = ["--rows", ROWS, "--rate", "1e6", "--parallelism", parallelism]
    second = start(cluster, output, f"resumed {parallelism}", *arguments, restore=path)
    cluster.wait_for(second, JobStatus.FINISHED)
    assert_exactly_once(output, int(ROWS))


@pytest.mark.parametrize("drain", [False, True])
def test_only_drain_fires_what_is_open(cluster, tmp_path, drain):
    """A window over all of time fires when the job is drained, and stays in the savepoint otherwise."""
    environment = cluster.environment(parallelism=2)
    source = GeneratorSource(keys=4, rows_per_second=5_000, batch_rows=100)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("value", 0)
    stream = environment.from_source(source, strategy, uid="generator")
    windows = stream.key_by("key").window(TumblingEventTimeWindows(10**12))
    windows.aggregate(uid="windows", n=count()).sink_to(ParquetSink(str(tmp_path / "out")), uid="sink")
    job_id = cluster.submit(environment, f"drain {drain}")
    cluster.wait_for_checkpoints(job_id, 2)
    path = cluster.client.stop_with_savepoint(job_id, drain=drain)
    assert cluster.status(job_id) is JobStatus.FINISHED
    kind = SnapshotType.SAVEPOINT_TERMINATE if drain else SnapshotType.SAVEPOINT_SUSPEND
    assert metadata_of(path).snapshot_type is kind
    found = committed(tmp_path / "out")
    assert sorted(found) == ([0, 1, 2, 3] if drain else [])


def test_state_of_an_operator_that_is_gone(cluster, tmp_path):
    """Refused at submission; with leave it is dropped, and the rest goes on."""
    first = start(cluster, tmp_path / "first", "with sums")
    cluster.wait_for_checkpoints(first, 1)
    path = cluster.client.stop_with_savepoint(first)
    with pytest.raises(RequestRefused, match=r"holds state of 'sums'.*--allow-non-restored-state"):
        start(cluster, tmp_path / "second", "without sums", "--uid", "others", restore=path)
    assert "without sums" not in {job.name for job in cluster.client.list_jobs()}
    second = start(cluster, tmp_path / "second", "without sums", "--uid", "others", restore=path, allow=True)
    cluster.wait_for_checkpoints(second, 2)
    cluster.cancel(second)
    assert_exactly_once(tmp_path / "second")  # it counts from one again


def test_a_savepoint_is_relocatable(cluster, tmp_path):
    """Moved with its directory, and everything of the first job gone, it still restores."""
    output = tmp_path / "out"
    first = start(cluster, output, "before the move", "--rows", ROWS, "--gate", str(tmp_path / "gate"))
    cluster.wait_for_checkpoints(first, 1)
    path = cluster.client.stop_with_savepoint(first, str(tmp_path / "here"))
    shutil.move(path, tmp_path / "elsewhere")
    shutil.rmtree(cluster.checkpoints / first, ignore_errors=True)
    arguments = ["--rows", ROWS, "--rate", "1e6", "--parallelism", "3"]
    second = start(cluster, output, "after the move", *arguments, restore=str(tmp_path / "elsewhere"))
    cluster.wait_for(second, JobStatus.FINISHED)
    assert_exactly_once(output, int(ROWS))


@pytest.mark.parametrize("claim", [False, True])
def test_whose_the_snapshot_is(cluster, tmp_path, claim):
    """Claimed, a retained checkpoint goes when newer ones have completed; not claimed, it stays, and nothing refers to
    it."""
    output = tmp_path / "out"
    retained = {"execution__checkpointing__externalized_checkpoint_retention": "RETAIN_ON_CANCELLATION"}
    first = start(cluster, output, f"retains {claim}", **retained)
    history = cluster.wait_for_checkpoints(first, 2)
    cluster.cancel(first)
    history = cluster.client.list_checkpoints(first)
    path = history.latest_completed.path.removeprefix("file://")
    before = list(files_below(Path(path)))
    assert before
    second = start(cluster, output, f"takes over {claim}", restore=path, claim=claim)
    cluster.wait_for_checkpoints(second, 6)
    if claim:
        wait_until(lambda: not Path(path).exists(), f"{path} to be deleted by its new owner")
    else:
        assert list(files_below(Path(path))) == before
        shutil.rmtree(path)
    path = cluster.client.stop_with_savepoint(second)
    third = start(cluster, output, f"goes on {claim}", restore=path)
    cluster.wait_for_checkpoints(third, 2)
    cluster.cancel(third)
    assert_exactly_once(output)


@pytest.mark.slow
def test_unaligned_checkpoints_under_back_pressure_survive_kills(tmp_path):
    """Data in flight is part of each checkpoint; after kill -9 and a rescale the output has no hole and no
    repetition."""
    settings = {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.batch.target-rows": "100",
    }
    with LocalCluster(tmp_path, slots=(1, 1), settings=settings) as cluster:
        environment = cluster.environment(parallelism=2, interval="100 ms")
        rescaled = tmp_path / "rescaled"
        job_id = slow_job(cluster, environment, tmp_path / "out", "unaligned", 100_000, rescaled)
        for round_number in range(2):
            completed = cluster.client.list_checkpoints(job_id).counts.completed
            cluster.wait_for_checkpoints(job_id, completed + 3)
            cluster.task_managers[round_number].kill()
            cluster.start_task_manager(1)
        completed = cluster.client.list_checkpoints(job_id).counts.completed
        answer = cluster.wait_for_checkpoints(job_id, completed + 2)
        assert any(checkpoint.persisted_data_bytes for checkpoint in answer.history)
        cluster.client.rescale(job_id, 1)
        rescaled.touch()
        details = cluster.wait_for(job_id, JobStatus.FINISHED)
        assert details.overview.restarts >= 2
        assert_exactly_once(tmp_path / "out", 100_000)


def slow_until(free):
    """A function that lets 4,000 rows a second through, of a source that is much faster, until there is this file."""

    def slow_batch(batch):
        import time

        if not free.exists():
            time.sleep(batch.num_rows / 4_000)
        return batch

    return slow_batch


def slow_job(cluster, environment, output, name, rows, free):
    source = GeneratorSource(keys=KEYS, rows=rows, batch_rows=10, splits=4)
    keyed = environment.from_source(source, uid="generator").key_by("key")
    sums = keyed.running_aggregate(uid="sums", n=count())
    slow = sums.rebalance().map_batches(slow_until(free), uid="slow")
    slow.sink_to(ParquetSink(str(output)), uid="sink")
    return cluster.submit(environment, name)


def test_two_coordinators_cannot_both_finish_a_checkpoint(tmp_path):
    """The same job on two coordinators that know nothing of each other: who is second is refused, and leaves the
    first's checkpoint as it is."""
    shared = {
        "high-availability.type": "NONE",
        "execution.checkpointing.dir": str(tmp_path / "shared"),
        "execution.checkpointing.num-retained": "10",
        "execution.checkpointing.tolerable-failed-checkpoints": "-1",
    }
    with (
        LocalCluster(tmp_path / "a", slots=(2,), settings=shared) as one,
        LocalCluster(tmp_path / "b", slots=(2,), settings=shared) as two,
    ):
        # Each with an output of its own: what one of them takes away is not what this is about.
        graphs = [
            build(cluster.environment(interval="1 h"), ["--output", str(tmp_path / name), "--parallelism", "1"])
            .translate("twice")
            .job_graph
            for cluster, name in ((one, "out-a"), (two, "out-b"))
        ]
        graph = graphs[0]
        for cluster, each in zip((one, two), graphs, strict=True):
            cluster.client.submit(replace(each, job_id=graph.job_id))
            cluster.wait_for(graph.job_id, JobStatus.RUNNING)
        taken = one.client.trigger_checkpoint(graph.job_id)
        path = Path(taken.path.removeprefix("file://"))
        before = {file: file.read_bytes() for file in files_below(path)}
        with pytest.raises(RequestRefused, match=r"another coordinator finished checkpoint 1"):
            two.client.trigger_checkpoint(graph.job_id)
        assert {file: file.read_bytes() for file in before} == before
        assert metadata_of(path).checkpoint_id == 1
        assert two.client.trigger_checkpoint(graph.job_id).checkpoint_id == 2
        for cluster in (one, two):
            cluster.cancel(graph.job_id)


def test_storage_that_fails_for_a_while_costs_checkpoints_and_nothing_else(cluster, tmp_path):
    """Checkpoints and savepoints fail with the path and the reason; afterwards they go on, and the last one before is
    usable."""
    output = tmp_path / "out"
    settings = {
        "execution__checkpointing__tolerable_failed_checkpoints": "-1",
        "execution__checkpointing__data_inline_threshold": "0 b",
        "execution__checkpointing__externalized_checkpoint_retention": "RETAIN_ON_CANCELLATION",
    }
    job_id = start(cluster, output, "storage fails", interval="1 h", **settings)
    cluster.wait_for(job_id, JobStatus.RUNNING)
    before = Path(cluster.client.trigger_checkpoint(job_id).path.removeprefix("file://"))
    directory = before.parent
    directory.rename(directory.with_suffix(".away"))
    directory.write_text("not a directory")
    try:
        with pytest.raises(RequestRefused, match=str(directory)):
            cluster.client.trigger_checkpoint(job_id)
        with pytest.raises(RequestRefused, match=str(directory)):
            cluster.client.stop_with_savepoint(job_id, str(directory))
    finally:
        directory.unlink()
        directory.mkdir(exist_ok=True)  # a task that is late to write may have made it
        for each in directory.with_suffix(".away").iterdir():
            each.rename(directory / each.name)
    cluster.wait_for(job_id, JobStatus.RUNNING)
    failed = cluster.client.list_checkpoints(job_id)
    assert failed.counts.failed == 2
    assert str(directory) in failed.latest_failed.failure.message
    assert metadata_of(before).checkpoint_id == 1
    cluster.client.trigger_checkpoint(job_id)
    cluster.cancel(job_id)
    second = start(cluster, output, "after the failure", restore=str(before))
    cluster.wait_for_checkpoints(second, 1)
    cluster.cancel(second)
