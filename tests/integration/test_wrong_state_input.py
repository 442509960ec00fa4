"""A stateful job that meets wrong data: it fails with one line that names uid and column, and its last checkpoint is
good."""

from __future__ import annotations

import pytest

from snapline.dataflow.wire.messages import JobStatus
from snapline.state import StateReader
from tests.integration.wrong_state_job import build
from tests.services.cluster import LocalCluster

RETAIN = {
    "restart-strategy.type": "none",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(1,)) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("unserializable", ["'keep'", "state 'kept' holds int64", "object"]),
        ("key type", ["'keep'", "key column 'k'", "int64", "string", "cast"]),
        ("key column gone", ["no key column 'k'", "'key', 'v', 't'"]),
        ("null event time", ["'keep'", "event time column 't' is null in row 0", "fill them"]),
        ("event time unit", ["'watermarks'", "event time column 't'", "beyond the year 9999"]),
    ],
)
def test_the_failure_names_the_culprit_and_the_checkpoint_before_is_good(cluster, case, said):
    """Its state is what it was before the wrong row, and a job without the fault starts from it."""
    job_id = cluster.submit(build(cluster.environment(parallelism=1, **RETAIN), case), case)
    details = cluster.wait_for(job_id, JobStatus.FAILED)
    summary = details.overview.failure.summary
    assert len(summary.splitlines()) == 1
    assert all(part in f"{summary} {details.overview.failure.operator_uid!r}" for part in said), summary
    checkpoints = (metadata.parent for metadata in (cluster.checkpoints / job_id).glob("chk-*/_metadata"))
    newest = max(checkpoints, key=lambda path: int(path.name.removeprefix("chk-")))
    found = StateReader(str(newest)).read("keep").select(["k", "kept"]).sort_by("k").to_pylist()
    assert found == [{"k": k, "kept": k} for k in range(10)]

    mended = build(cluster.environment(parallelism=1), "nothing").restore_from(str(newest))
    again = cluster.submit(mended, f"{case} mended")
    cluster.wait_for_checkpoints(again, 2)
    cluster.cancel(again)
