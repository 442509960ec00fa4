"""The second example from end to end, on a small year."""

from __future__ import annotations

import pytest

from examples.shopping import build
from examples.shopping_answer import compare_outputs
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster
from tests.unit.examples.test_shopping import small_year


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,)) as cluster:
        yield cluster


def test_all_outputs_equal_polars(cluster, tmp_path):
    """Sessions, weeks by department and the join, every row as often as it should be."""
    data, output = small_year(tmp_path / "data"), tmp_path / "out"
    job_id = cluster.submit(build(cluster.environment(parallelism=2), str(data), str(output)), "shopping")
    cluster.wait_for(job_id, JobStatus.FINISHED)
    comparisons = compare_outputs(data, output)
    assert [one.differences for one in comparisons] == [(), (), ()]
    assert all(one.actual_rows > 10 for one in comparisons)
