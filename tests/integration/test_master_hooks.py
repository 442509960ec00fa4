"""Master hooks in real jobs: state outside of the dataflow goes into checkpoints, and comes back before the tasks
do."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapline.connectors.parquet.parquet_sink import ParquetSink
from snapline.coordinator.checkpoint.metadata import parse_metadata
from snapline.dataflow.snapshot.handles import MasterState
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from tests.services.cluster import LocalCluster, wait_until
from tests.services.hooked_source import HookedGenerator, calls_in


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,)) as cluster:
        yield cluster


def start(cluster, source, output, name, *, restore="", allow=False, **settings):
    environment = cluster.environment(parallelism=1, **settings)
    environment.from_source(source, uid="source").sink_to(ParquetSink(str(output)), uid="sink")
    if restore:
        environment.restore_from(restore, allow_non_restored_state=allow)
    return cluster.submit(environment, name)


def source_of(journal, identifier="journal"):
    return HookedGenerator(journal, identifier, keys=4, rows_per_second=2_000, batch_rows=50)


def test_hook_state_travels_with_a_savepoint(cluster, tmp_path):
    """reset, triggers, close; then a second job is given what the savepoint holds, before its first trigger."""
    journal = tmp_path / "first.journal"
    first = start(cluster, source_of(journal), tmp_path / "first", "hooked")
    cluster.wait_for_checkpoints(first, 2)
    path = cluster.client.trigger_savepoint(first)
    cluster.cancel(first)

    (state,) = parse_metadata((Path(path) / "_metadata").read_bytes(), path).master_states
    wait_until(lambda: calls_in(journal)[-1] == ["close"], "close")
    calls = calls_in(journal)
    triggers = [call for call in calls if call[0] == "trigger"]
    assert calls[0] == ["reset"]
    assert [call[0] for call in calls[1:-1]] == ["trigger"] * (len(calls) - 2)
    assert [call[1] for call in triggers] == list(range(1, len(triggers) + 1))
    number = next(n for n, call in enumerate(triggers, 1) if path.endswith(f"-{call[1]}") or n == len(triggers))
    assert isinstance(state, MasterState) and (state.hook_id, state.version) == ("journal", 7)
    assert state.data.decode().startswith('{"triggers": ') and number >= 3

    second_journal = tmp_path / "second.journal"
    second = start(cluster, source_of(second_journal), tmp_path / "second", "hooked again", restore=path)
    cluster.wait_for_checkpoints(second, 1)
    cluster.cancel(second)
    (kind, checkpoint_id, restored), trigger, *_ = calls_in(second_journal)
    assert (kind, trigger) == ("restore", ["trigger", checkpoint_id + 1])
    assert restored["triggers"] == checkpoint_id


def test_state_of_a_hook_that_is_gone_is_refused(cluster, tmp_path):
    """The culprit is named; with leave the job starts, and its own hook hears that there is nothing for it."""
    first = start(cluster, source_of(tmp_path / "a"), tmp_path / "out-a", "with a hook")
    cluster.wait_for_checkpoints(first, 1)
    path = cluster.client.trigger_savepoint(first)
    cluster.cancel(first)

    other = source_of(tmp_path / "b", "other")
    refused = start(cluster, other, tmp_path / "out-b", "with another hook", restore=path)
    details = cluster.wait_for(refused, JobStatus.FAILED)
    assert "master hooks 'journal'" in details.overview.failure.summary

    allowed = start(cluster, other, tmp_path / "out-c", "with leave", restore=path, allow=True)
    cluster.wait_for_checkpoints(allowed, 1)
    cluster.cancel(allowed)
    assert next(call for call in calls_in(tmp_path / "b") if call[0] == "restore")[2] is None


def test_a_hook_that_fails_fails_the_checkpoint(cluster, tmp_path):
    """No task hears of it, the job runs on, and the next checkpoint completes."""
    journal = tmp_path / "journal"
    failing = Path(f"{journal}.fail-trigger")
    failing.touch()
    job_id = start(cluster, source_of(journal), tmp_path / "out", "failing hook")

    def failed():
        history = cluster.client.list_checkpoints(job_id).history
        return [c for c in history if c.status == pb.CheckpointStatus.CHECKPOINT_STATUS_FAILED]

    wait_until(failed, "a failed checkpoint")
    assert "told to fail: trigger" in str(failed()[0].failure)
    assert not list((tmp_path / "out").glob("*.parquet"))
    failing.unlink()
    cluster.wait_for_checkpoints(job_id, 1)
    assert cluster.status(job_id) is JobStatus.RUNNING
    cluster.cancel(job_id)


def test_a_restore_that_fails_is_tried_again(cluster, tmp_path):
    """Tasks do not start without their hook's state; the restart strategy says how often it is tried."""
    journal = tmp_path / "journal"
    failing = Path(f"{journal}.fail-reset")
    failing.touch()
    job_id = start(cluster, source_of(journal), tmp_path / "out", "failing reset")
    wait_until(lambda: len(calls_in(journal)) > 2, "attempts")
    assert {call[0] for call in calls_in(journal)} == {"reset"}
    failing.unlink()
    cluster.wait_for_checkpoints(job_id, 1)
    cluster.cancel(job_id)


def test_two_hooks_of_one_name_are_refused(cluster, tmp_path):
    """The job fails with a sentence that names the identifier."""
    environment = cluster.environment(parallelism=1)
    for index in range(2):
        stream = environment.from_source(source_of(tmp_path / f"{index}"), uid=f"source-{index}")
        stream.sink_to(ParquetSink(str(tmp_path / f"out-{index}")), uid=f"sink-{index}")
    job_id = cluster.submit(environment, "twins")
    details = cluster.wait_for(job_id, JobStatus.FAILED)
    assert "two master hooks have the identifier 'journal'" in details.overview.failure.summary
